"""The fork server back end: one clean interpreter, a forked child per session."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping

from seekling.config import SandboxConfig
from seekling.env.sandbox.back_end import HostFunction, Sandbox, SandboxSession
from seekling.env.sandbox.process import ZygoteProcess
from seekling.env.sandbox.session import ZygoteSession
from seekling.errors import InfrastructureError, SandboxError

_LOG = logging.getLogger("seekling.sandbox")


class ZygoteSandbox(Sandbox):
    """Opens sessions in children of one fork server, and starts another one when it dies."""

    def __init__(self, config: SandboxConfig, *, without: Iterable[str] = ()) -> None:
        """Start the fork server.

        Args:
            config: limits, and whether missing seccomp is tolerated.
            without: layers to leave out (seccomp, landlock, namespaces), as on a machine that has none; for tests.

        Raises:
            SandboxError: this machine cannot run it safely.
        """
        super().__init__()
        if sys.platform != "linux":
            raise SandboxError(
                f"the sandbox of the code protocol needs Linux, this is {sys.platform}; use a container, or "
                'env.protocol = "tags" or "tools"'
            )
        self._config = config
        self._without = tuple(without)
        self._start_zygote()

    @property
    def fork_server_pid(self) -> int:
        """Process id of the fork server, as seen from here."""
        return self._zygote.pid

    def open(self, functions: Mapping[str, HostFunction]) -> SandboxSession:
        """Fork a child for a new session; see `Sandbox.open`."""
        if not self._zygote.is_alive():
            self._replace(self._zygote)
        return super().open(functions)

    def _new_session(self, functions: Mapping[str, HostFunction]) -> SandboxSession:
        return ZygoteSession(
            self._config, functions, self._zygote, on_close=self._forget, on_zygote_death=self._replace
        )

    def _close_back_end(self) -> None:
        self._zygote.close()

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
                self._start_zygote()
            except SandboxError as error:
                raise InfrastructureError(f"the sandbox's fork server cannot be started again: {error}") from error

    def _start_zygote(self) -> None:
        self._zygote = ZygoteProcess(self._config, self._without)
        self.layers = self._zygote.layers
        _LOG.info("sandbox: fork server is process %d; layers: %s", self._zygote.pid, ", ".join(self.layers))
        if "seccomp" not in self.layers:
            _LOG.warning("sandbox: running WITHOUT a system call filter; programs can read files and kill processes")
