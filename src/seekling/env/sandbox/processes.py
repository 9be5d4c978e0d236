"""The sandbox's processes as the host holds them: the fork server, and the child of each session."""

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seekling.config import SandboxConfig
from seekling.env.sandbox.frames import MAX_FRAME_BYTES
from seekling.errors import InfrastructureError, SandboxError

LOG = logging.getLogger("seekling.sandbox")
_START_TIMEOUT_S = 60.0
_BORN_TIMEOUT_S = 30.0
_BOOTSTRAP = "import sys; sys.path.append(sys.argv.pop()); from guest.zygote import main; main()"


@dataclass(frozen=True, slots=True)
class Report:
    """How a process ended."""

    status: int
    """Its exit status, or minus the number of the signal that killed it."""
    cpu_s: float
    """CPU seconds over its whole life."""


class Child:
    """A child of the fork server. `signal` is for every thread; all else for the thread that owns the session.

    It takes over a process descriptor, and the pipe on which the fork server reports its end. No program can reach that
    pipe, so a report can be believed.
    """

    def __init__(self, pidfd: int, report_fd: int) -> None:
        self._lock = threading.Lock()
        self._pidfd, self._report_fd = pidfd, report_fd
        self._cpu_s, self._clock = 0.0, 0
        with contextlib.suppress(OSError):  # it has ended
            self._clock = _cpu_clock_of(pidfd)

    @classmethod
    def receive(cls, sock: socket.socket) -> Child | None:
        """Read the fork server's message on a new session's socket; None when the process was never born."""
        sock.settimeout(_BORN_TIMEOUT_S)
        try:
            message, fds, _, _ = socket.recv_fds(sock, 4, 2, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return None
        if message == b"born" and len(fds) == 2:
            return cls(*fds)
        for fd in fds:
            os.close(fd)
        return None

    def signal(self, number: signal.Signals) -> None:
        """Signal exactly this process; nothing happens when it has ended or been closed."""
        # Under the lock, because a closed descriptor's number soon belongs to something else, maybe another process.
        with self._lock, contextlib.suppress(ProcessLookupError):
            if self._pidfd >= 0:
                signal.pidfd_send_signal(self._pidfd, number)

    def cpu_s(self) -> float:
        """CPU seconds that the process and its threads have used so far; of an ended process those last seen."""
        # In this order: the number of a process that has not ended belongs to no other.
        with contextlib.suppress(OSError):
            used_s = time.clock_gettime(self._clock) if self._clock else 0.0
            if not _is_readable(self._pidfd, 0.0):
                self._cpu_s = used_s
        return self._cpu_s

    def wait(self, timeout_s: float) -> Report | None:
        """How the process ended; None when it has not in time, or the fork server is gone too."""
        if not _is_readable(self._report_fd, timeout_s):
            return None
        data = os.read(self._report_fd, 4096)
        return Report(**json.loads(data)) if data else None

    def close(self) -> None:
        """Kill it and give the descriptors back."""
        self.signal(signal.SIGKILL)
        with self._lock:
            pidfd, self._pidfd = self._pidfd, -1
        os.close(pidfd)
        os.close(self._report_fd)


class ForkServer:
    """A running fork server, whose walls stand.

    Raises:
        SandboxError: it cannot start, or not as safely as it must.
    """

    def __init__(self, config: SandboxConfig, without: Iterable[str]) -> None:
        trainer_fd = os.pidfd_open(os.getpid())
        try:
            time.clock_gettime(_cpu_clock_of(trainer_fd))
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
            words = ["-s", "-P", "-S", "-B", "-c", _BOOTSTRAP, *map(str, fds), str(Path(__file__).parent)]
            self._process = subprocess.Popen(
                [sys.executable, *words],
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
        self.pid = self._process.pid
        """Of the fork server's first process."""
        try:
            self.layers = self._set_up(config, without)
        except BaseException:
            self.close()
            raise

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

    def _set_up(self, config: SandboxConfig, without: Iterable[str]) -> tuple[str, ...]:
        limits = config.model_dump(include={"soft_limit_s", "wall_limit_s", "memory_bytes", "output_chars"})
        limits |= {"session_cpu_s": session_cpu_s(config), "max_frame_bytes": MAX_FRAME_BYTES}
        self._control.settimeout(_START_TIMEOUT_S)
        message = b""
        with contextlib.suppress(OSError):  # no answer
            self._control.send(json.dumps({"limits": limits, "without": sorted(without)}).encode())
            message = self._control.recv(1 << 16)
        self._control.settimeout(None)
        reply: dict[str, Any] = json.loads(message) if message else {"problem": self._error_output()}
        if reply["problem"]:
            raise SandboxError(f"the sandbox did not start: {reply['problem'].strip()}")
        layers, notes = tuple(reply["layers"]), reply["notes"]
        for layer, note in notes.items():
            LOG.info("sandbox: %s: %s", layer, note)
        LOG.info("sandbox: fork server is process %d; layers: %s", self.pid, ", ".join(layers))
        if "seccomp" not in layers and not config.allow_unsafe:
            raise SandboxError(
                f"this machine has no system call filter ({notes.get('seccomp', 'seccomp')}), so programs written by a "
                'model could read your files. Use env.protocol = "tags" or "tools", or, to run without it, '
                "env.sandbox.allow_unsafe = true"
            )
        if "seccomp" not in layers:
            LOG.warning("sandbox: running WITHOUT a system call filter; programs can read files and kill processes")
        return layers

    def _error_output(self) -> str:
        assert self._process.stderr is not None, "started with a pipe"
        self._process.kill()
        text = self._process.stderr.read(20_000).decode("utf-8", "replace").strip()
        return text or f"its interpreter {sys.executable} ended without a word"


def session_cpu_s(config: SandboxConfig) -> int:
    """CPU seconds of all programs of a session together: the kernel's own limit, behind those of each program."""
    return int(config.hard_limit_s * 100) + 60


def _cpu_clock_of(pidfd: int) -> int:
    """The clock, for `time.clock_gettime`, of a process's CPU time, all threads included; OSError when it has ended."""
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "Pid" and int(value) > 0:
            return ~int(value) << 3 | 2  # as clock_getcpuclockid makes it
    raise OSError("the process has ended")


def _is_readable(fd: int, timeout_s: float) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))
