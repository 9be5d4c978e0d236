"""The fork server back end: one clean interpreter, a forked child per session."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterable, Mapping
from types import TracebackType

from seekling.config import SandboxConfig
from seekling.env.sandbox.interface import HostFunction, SandboxSession
from seekling.env.sandbox.process import ZygoteProcess
from seekling.env.sandbox.session import ZygoteSession
from seekling.errors import InfrastructureError, SandboxError

_LOG = logging.getLogger("seekling.sandbox")


class ZygoteSandbox:
    """Opens sessions in children of one fork server, and starts another one when it dies."""

    def __init__(self, config: SandboxConfig, *, without: Iterable[str] = ()) -> None:
        """Start the fork server.

        Args:
            config: limits, and whether missing seccomp is tolerated.
            without: layers to leave out (seccomp, landlock, namespaces), as on a machine that has none; for tests.

        Raises:
            SandboxError: this machine cannot run it safely.
        """
        if sys.platform != "linux":
            raise SandboxError(
                f'env.sandbox.backend = "zygote" needs Linux, this is {sys.platform}; use env.sandbox.backend = "monty"'
            )
        self._config = config
        self._without = tuple(without)
        self._lock = threading.Lock()
        self._sessions: set[ZygoteSession] = set()
        self._is_closed = False
        self._zygote = ZygoteProcess(config, self._without)
        self._announce()

    @property
    def layers(self) -> tuple[str, ...]:
        """The walls that stand."""
        return self._zygote.layers

    @property
    def fork_server_pid(self) -> int:
        """Process id of the fork server, as seen from here."""
        return self._zygote.pid

    def open(self, functions: Mapping[str, HostFunction]) -> SandboxSession:
        """Fork a child for a new session."""
        with self._lock:
            if self._is_closed:
                raise InfrastructureError("this sandbox is closed")
            zygote = self._zygote
        if not zygote.is_alive():
            self._replace(zygote)
        with self._lock:
            session = ZygoteSession(
                self._config,
                functions,
                self._zygote,
                on_close=self._forget,
                on_zygote_death=self._replace,
            )
            self._sessions.add(session)
        return session

    def close(self) -> None:
        """End every session and the fork server."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            sessions = list(self._sessions)
        for session in sessions:
            session.close()
        self._zygote.close()

    def __enter__(self) -> ZygoteSandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _forget(self, session: ZygoteSession) -> None:
        with self._lock:
            self._sessions.discard(session)

    def _replace(self, dead: ZygoteProcess) -> None:
        """Start another fork server, once per death, whoever notices it first."""
        with self._lock:
            if self._is_closed or dead is not self._zygote:
                return
            _LOG.warning(
                "the sandbox's fork server (process %d) %s; %d open session(s) are lost and end as infrastructure "
                "failures; starting another one",
                dead.pid,
                dead.describe_end(),
                len(self._sessions),
            )
            dead.close()
            try:
                self._zygote = ZygoteProcess(self._config, self._without)
            except SandboxError as error:
                raise InfrastructureError(f"the sandbox's fork server cannot be started again: {error}") from error
            self._announce()

    def _announce(self) -> None:
        _LOG.info("sandbox: fork server is process %d; layers: %s", self._zygote.pid, ", ".join(self.layers))
        if "seccomp" not in self.layers:
            _LOG.warning("sandbox: running WITHOUT a system call filter; programs can read files and kill processes")
