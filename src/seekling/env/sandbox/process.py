"""The host's side of the fork server: starting it, asking it for sessions, noticing its end."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from seekling.config import SandboxConfig
from seekling.env.sandbox.child import cpu_clock_of
from seekling.env.sandbox.frames import MAX_FRAME_BYTES
from seekling.errors import InfrastructureError, SandboxError

_LOG = logging.getLogger("seekling.sandbox")
_PACKAGE_PARENT = str(Path(__file__).parent)
_START_TIMEOUT_S = 60.0
_BOOTSTRAP = "import sys; sys.path.append(sys.argv.pop()); from guest.zygote import main; main()"


class ZygoteProcess:
    """A running fork server."""

    def __init__(self, config: SandboxConfig, without: Iterable[str]) -> None:
        """Start it and wait until its walls stand.

        Raises:
            SandboxError: it cannot start, or not as safely as it must.
        """
        trainer_fd = os.pidfd_open(os.getpid())
        try:
            time.clock_gettime(cpu_clock_of(trainer_fd))
        except OSError as error:
            os.close(trainer_fd)
            raise SandboxError(
                f"this system does not tell what a process has computed ({error}), by which programs are limited: the "
                'sandbox needs /proc and Linux\'s CPU clocks; where there are none use env.protocol = "tags" or "tools"'
            ) from None
        self._lock = threading.Lock()
        self._control, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            fds = (child_end.fileno(), trainer_fd)
            # -s -P is what -I does, less its -E: with it the hash seed, without which no rollout repeats, could not be
            # set. There is no other variable in the environment that -E could ignore.
            self._process = subprocess.Popen(
                [sys.executable, "-s", "-P", "-S", "-B", "-c", _BOOTSTRAP, *map(str, fds), _PACKAGE_PARENT],
                env={"PYTHONHASHSEED": "0"},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=fds,
                start_new_session=True,
            )
        except OSError as error:
            self._control.close()
            raise SandboxError(f"the sandbox's interpreter {sys.executable} cannot be started: {error}") from None
        finally:
            os.close(trainer_fd)
            child_end.close()
        self.layers: tuple[str, ...] = ()
        try:
            self._set_up(config, without)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Process id of the fork server's first process."""
        return self._process.pid

    def is_alive(self) -> bool:
        """False once the fork server is gone, even if its exit status cannot be had yet."""
        if self._control.fileno() < 0:  # closed by us
            return False
        poller = select.poll()
        poller.register(self._control, select.POLLRDHUP)
        return not poller.poll(0)

    def new_session(self) -> socket.socket:
        """Ask for a child that serves the other end of the returned socket.

        Raises:
            InfrastructureError: the fork server is gone, or this process is out of descriptors.
        """
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise InfrastructureError(f"the sandbox cannot open another session: {error}") from None
        try:
            with self._lock:
                socket.send_fds(self._control, [b"session"], [theirs.fileno()])
        except OSError as error:
            ours.close()
            raise InfrastructureError(f"the sandbox's fork server does not answer: {error}") from None
        finally:
            theirs.close()
        return ours

    def describe_end(self) -> str:
        """Say how the fork server ended, for the log."""
        try:
            status = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return "stopped answering"
        return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"

    def close(self) -> None:
        """End it; its children die with it."""
        self._control.close()
        try:
            self._process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()

    def _set_up(self, config: SandboxConfig, without: Iterable[str]) -> None:
        limits = config.model_dump(include={"soft_limit_s", "wall_limit_s", "memory_bytes", "output_chars"})
        limits |= {"session_cpu_s": session_cpu_s(config), "max_frame_bytes": MAX_FRAME_BYTES}
        orders = {"limits": limits, "without": sorted(without)}
        self._control.settimeout(_START_TIMEOUT_S)
        message = b""
        with contextlib.suppress(OSError):  # no answer
            self._control.send(json.dumps(orders).encode())
            message = self._control.recv(1 << 16)
        self._control.settimeout(None)
        reply: dict[str, Any] = json.loads(message) if message else {"problem": self._error_output()}
        if reply["problem"]:
            raise SandboxError(f"the sandbox did not start: {reply['problem'].strip()}")
        self.layers = tuple(reply["layers"])
        for layer, note in reply["notes"].items():
            _LOG.info("sandbox: %s: %s", layer, note)
        if "seccomp" not in self.layers and not config.allow_unsafe:
            raise SandboxError(
                f"this machine has no system call filter ({reply['notes'].get('seccomp', 'seccomp')}), so programs "
                'written by a model could read your files. Use env.protocol = "tags" or "tools", or, to run without '
                "it, env.sandbox.allow_unsafe = true"
            )

    def _error_output(self) -> str:
        assert self._process.stderr is not None, "started with a pipe"
        self._process.kill()
        text = self._process.stderr.read(20_000).decode("utf-8", "replace").strip()
        return text or f"its interpreter {sys.executable} ended without a word"


def session_cpu_s(config: SandboxConfig) -> int:
    """CPU seconds of all programs of a session together: the kernel's own limit, behind those of each program."""
    return int(config.hard_limit_s * 100) + 60
