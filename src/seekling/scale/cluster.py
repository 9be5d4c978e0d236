"""Ray opened and closed: quiet, without its dashboard and usage reports, and with our signal handlers left alone."""

from __future__ import annotations

import importlib.util
import math
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import seekling
from seekling.config import ScaleConfig
from seekling.cores import cores_here
from seekling.errors import ConfigError, MissingExtraError

OBJECT_STORE_BYTES = 256 * 1024**2
"""Of a Ray that starts on this machine. Groups of episodes pass through it; weights do not."""
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_DEDUP_LOGS": "0"}


def need_ray() -> None:
    """Raise MissingExtraError where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError("scale.engine = \"ray\" needs Ray: pip install 'seekling[ray]'")


def connect(config: ScaleConfig, log: Callable[[str], None]) -> Callable[[], None]:
    """Connect to the cluster that a recipe names; without an address Ray starts on this machine, for this process.

    Returns:
        What disconnects, and ends a Ray that was started here; nothing where the process was connected already.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    import ray

    if ray.is_initialized():
        return lambda: None
    in_main = threading.current_thread() is threading.main_thread()
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)} if in_main else {}
    started = {
        "num_cpus": max(math.ceil(cores_here()), math.ceil(config.num_samplers * config.sampler_cpus)),
        "object_store_memory": OBJECT_STORE_BYTES,
        "include_dashboard": False,
    }
    try:
        ray.init(
            address=config.address or "local",
            log_to_driver=False,  # what samplers have to say comes back with their groups, or as the cause of a death
            logging_level="ERROR",
            **({} if config.address else started),
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"scale.address = {config.address!r}: no Ray cluster answers ({error}); give the address that `ray start "
            '--head` printed, or "" to start Ray on this machine'
        ) from None
    finally:
        for each, handler in before.items():  # Ray puts its own in their place
            signal.signal(each, handler)
    log("ray: " + ("started on this machine" if not config.address else f"connected to {config.address}"))
    disconnect: Callable[[], None] = ray.shutdown
    return disconnect


def environment(num_threads: int) -> dict[str, object]:
    """What a process must know of this one's environment, as Ray's `runtime_env`."""
    paths = [str(Path(seekling.__file__).parents[1]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    variables = {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, paths))),
        "OMP_NUM_THREADS": str(num_threads),
        "NUMBA_NUM_THREADS": str(num_threads),
    }
    return {"env_vars": variables}


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
