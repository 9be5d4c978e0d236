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
_KEPT = ("SEEKLING_HOME", "HF_HOME", "HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM", "CUDA_VISIBLE_DEVICES")
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_DEDUP_LOGS": "0"}


def need_ray() -> None:
    """Say what to install.

    Raises:
        MissingExtraError: Ray is not installed.
    """
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError("scale.engine = \"ray\" needs Ray: pip install 'seekling[ray]'")


def connect(config: ScaleConfig, log: Callable[[str], None]) -> Callable[[], None]:
    """Connect to the cluster that a recipe names; without an address Ray starts on this machine, for this process.

    A process that is connected already stays so.

    Returns:
        What disconnects, and ends a Ray that was started here.

    Raises:
        ConfigError: there is no cluster at the address.
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
        for each, handler in before.items():  # Ray ends the process on SIGTERM, and would not save the training state
            signal.signal(each, handler)
    log("ray: " + ("started on this machine" if not config.address else f"connected to {config.address}"))
    return ray.shutdown


def sampler_options(config: ScaleConfig) -> dict[str, object]:
    """What Ray must know of a sampler's process: its share of a machine, and its environment."""
    threads = str(max(1, int(config.sampler_cpus)))
    paths = [str(Path(seekling.__file__).parents[1]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    variables = {
        **{name: os.environ[name] for name in _KEPT if name in os.environ},
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, paths))),
        "OMP_NUM_THREADS": threads,
        "NUMBA_NUM_THREADS": threads,
    }
    if config.sampler_gpus:
        variables.pop("CUDA_VISIBLE_DEVICES", None)  # Ray's to say
    return {
        "num_cpus": config.sampler_cpus,
        "num_gpus": config.sampler_gpus,
        "max_restarts": 0,  # a new process is started by the pool, which knows what the dead one had
        "max_task_retries": 0,
        "max_concurrency": 1000,
        "scheduling_strategy": "SPREAD",
        "runtime_env": {"env_vars": variables},
    }
