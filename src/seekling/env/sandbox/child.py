"""A session's process as the host holds it: how to signal it, what it has computed, and how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path

_BORN_TIMEOUT_S = 30.0
_MAX_REPORT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Report:
    """How a process ended."""

    status: int
    """Its exit status, or minus the number of the signal that killed it."""
    cpu_s: float
    """CPU seconds over its whole life."""


class Process:
    """A descriptor of a process. `signal` is for every thread; all else for the thread that owns the session."""

    def __init__(self, pidfd: int) -> None:
        """Take the descriptor over."""
        self._lock = threading.Lock()
        self._pidfd = pidfd
        self._cpu_s = 0.0
        self._clock = 0
        with contextlib.suppress(OSError):  # it has ended
            self._clock = cpu_clock_of(pidfd)

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

    def close(self) -> None:
        """Give the descriptor back."""
        with self._lock:
            pidfd, self._pidfd = self._pidfd, -1
        os.close(pidfd)


class Child(Process):
    """A child of the fork server, with the pipe on which that reports its end.

    No program can reach the pipe, so a report can be believed.
    """

    def __init__(self, pidfd: int, report_fd: int) -> None:
        """Take both descriptors over."""
        super().__init__(pidfd)
        self._report_fd = report_fd

    @classmethod
    def receive(cls, sock: socket.socket) -> Child | None:
        """Read the fork server's message on a new session's socket.

        Returns:
            The process; None when it was never born.
        """
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

    def wait(self, timeout_s: float) -> Report | None:
        """Wait until the process has ended.

        Returns:
            How it ended; None when it has not in time, or the fork server is gone too.
        """
        if not _is_readable(self._report_fd, timeout_s):
            return None
        data = os.read(self._report_fd, _MAX_REPORT_BYTES)
        return Report(**json.loads(data)) if data else None

    def close(self) -> None:
        """Kill it and give the descriptors back."""
        self.signal(signal.SIGKILL)
        super().close()
        os.close(self._report_fd)


def cpu_clock_of(pidfd: int) -> int:
    """The clock, for `time.clock_gettime`, of a process's CPU time, all threads included (Linux only).

    Raises:
        OSError: /proc is not there, or the process has ended.
    """
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "Pid" and int(value) > 0:
            return ~int(value) << 3 | 2  # as clock_getcpuclockid makes it
    raise OSError("the process has ended")


def _is_readable(fd: int, timeout_s: float) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))
