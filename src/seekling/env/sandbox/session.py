"""The sandbox and its sessions: each runs programs in one child process of the fork server and serves their calls.

Everything that arrives from the child is taken for an attacker's. The clock that counts is here (`ProgramClock`); the
child only turns its signal into a traceback for the model.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Self

from seekling.config import SandboxConfig
from seekling.env.sandbox.frames import (
    Call,
    Done,
    Frame,
    FrameError,
    FrameReader,
    KillProgram,
    Outcome,
    Output,
    Ready,
    encode_frame,
)
from seekling.env.sandbox.processes import LOG, Child, ForkServer, Report, session_cpu_s
from seekling.env.sandbox.program import HostCallError, HostFunction, ProgramClock, ProgramRun, Result
from seekling.errors import InfrastructureError, SandboxError

_SPARE_CHARS = 65536
_MAX_CODE_CHARS = 1_000_000
_TIMEOUT_S = 30.0
"""For the start and the end of a child."""
_EXIT_OUT_OF_MEMORY = 86
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM)
"""What no program can send, not even to itself, and what those send who end processes because memory is short."""


class Sandbox:
    """Opens sessions in children of one fork server, and starts another one when it dies. A context manager.

    Every method may be called from any thread. Layers `without` which it starts (seccomp, landlock, namespaces), as on
    a machine that has none, are for tests.

    Raises:
        SandboxError: this machine cannot run it, or not safely.
    """

    def __init__(self, config: SandboxConfig, *, without: Iterable[str] = ()) -> None:
        if sys.platform != "linux":
            raise SandboxError(
                f"the sandbox of the code protocol needs Linux, this is {sys.platform}; use a container, or "
                'env.protocol = "tags" or "tools"'
            )
        self._config, self._without = config, tuple(without)
        self._lock = threading.Lock()
        self._sessions: set[SandboxSession] = set()
        self._is_closed = False
        self._server = ForkServer(config, self._without)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def layers(self) -> tuple[str, ...]:
        """The walls that stand, for the log and the run record; for instance seccomp, landlock, rlimits."""
        return self._server.layers

    @property
    def fork_server_pid(self) -> int:
        """Process id of the fork server, as seen from here."""
        return self._server.pid

    def open(self, functions: Mapping[str, HostFunction]) -> SandboxSession:
        """Start a session in which these functions can be called.

        Raises:
            InfrastructureError: no session could be started.
        """
        if not self._server.is_alive():
            self.replace(self._server)
        with self._lock:
            if self._is_closed:
                raise InfrastructureError("this sandbox is closed")
            session = SandboxSession(self._config, functions, self._server, self)
            self._sessions.add(session)
        return session

    def close(self) -> None:
        """End all sessions. Safe to call twice."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            sessions = list(self._sessions)
        for session in sessions:
            session.close()
        self._server.close()

    def forget(self, session: SandboxSession) -> None:
        """A session was closed."""
        with self._lock:
            self._sessions.discard(session)

    def replace(self, dead: ForkServer) -> None:
        """Start another fork server, once per death, whoever notices it first."""
        with self._lock:
            if self._is_closed or dead is not self._server:
                return
            LOG.warning(
                "the sandbox's fork server (process %d) %s; %d open session(s) are lost and end as infrastructure "
                "failures; starting another one",
                dead.pid,
                dead.describe_end(),
                len(self._sessions),
            )
            dead.close()
            try:
                self._server = ForkServer(self._config, self._without)
            except SandboxError as error:
                raise InfrastructureError(f"the sandbox's fork server cannot be started again: {error}") from error


class SandboxSession:
    """One episode's interpreter: variables live from one `run` to the next."""

    def __init__(
        self, config: SandboxConfig, functions: Mapping[str, HostFunction], server: ForkServer, sandbox: Sandbox
    ) -> None:
        self._config, self._functions = config, dict(functions)
        self._server, self._sandbox = server, sandbox
        self._lock = threading.Lock()
        self._is_closed = False
        self._is_ready = False
        """True once the child has said that its walls stand."""
        self._child: Child | None = None
        """Opened and closed by the thread that holds the lock; any other may only signal it."""
        self._socket: socket.socket | None = server.new_session()
        self._reader = FrameReader(self._socket)

    def run(self, code: str) -> Result:
        """Run one program. Nothing is ever raised for what it did.

        Raises:
            InfrastructureError: the sandbox itself failed, or a host function raised InfrastructureError.
        """
        with self._lock:
            if self._is_closed:
                raise InfrastructureError("this sandbox session is closed")
            run = ProgramRun(self._config, self._functions)
            if len(code) > _MAX_CODE_CHARS:
                text = f"The program of {len(code):,} characters was not run; at most {_MAX_CODE_CHARS:,} are allowed."
                return run.result("error", text, 0.0, state_lost=False)
            result: Result | None = None
            try:
                sock, child = self._wake_child()
                clock = self._start(run, code, sock, child)
                try:
                    result = self._serve(run, clock, sock, child)
                except KillProgram as kill:
                    result = self._kill(run, clock, child, kill)
            finally:
                if result is None:  # a host function failed for good, or Ctrl-C: the program must not go on by itself
                    self._discard_child()
            return result

    def close(self) -> None:
        """End the session and its process, and a program that runs in another thread. Safe to call twice."""
        self._is_closed = True
        if (child := self._child) is not None:
            child.signal(signal.SIGKILL)
        with self._lock:
            self._discard_child()
        self._sandbox.forget(self)

    def _wake_child(self) -> tuple[socket.socket, Child]:
        """A child that is ready for a program, and its socket; a new one when the last one was lost."""
        if self._socket is None:
            self._socket = self._server.new_session()
            self._reader = FrameReader(self._socket)
            self._is_ready = False
        if self._child is None:
            self._child = Child.receive(self._socket)
            if self._child is None:
                raise self._failure("the fork server started no process for a session")
        self._raise_if_closed()  # after the child can be seen: `close` kills it, or is seen here
        return self._socket, self._child

    def _raise_if_closed(self) -> None:
        if self._is_closed:
            raise InfrastructureError("this sandbox session was closed while a program ran in it")

    def _discard_child(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _failure(self, what: str) -> InfrastructureError:
        self._discard_child()
        if not self._server.is_alive():
            self._sandbox.replace(self._server)
            what = "the sandbox's fork server died, and this session with it"
        return InfrastructureError(f"{what}; the episode cannot go on")

    def _start(self, run: ProgramRun, code: str, sock: socket.socket, child: Child) -> ProgramClock:
        """Send the program, make sure that a new child is confined, and start the program's clock."""
        cpu_before_s = child.cpu_s()
        child.signal(signal.SIGCONT)
        sock.settimeout(_TIMEOUT_S)
        with contextlib.suppress(OSError):  # the child is gone; how it ended is still to be read
            sock.sendall(encode_frame(json.dumps({"code": code, "functions": list(self._functions)})))
        if not self._is_ready:
            frame: Frame | None = None
            with contextlib.suppress(OSError, FrameError):
                frame = self._reader.read(_TIMEOUT_S)
            if not isinstance(frame, Ready):  # nothing has run yet, so this is not the program's doing
                raise self._failure("the process of a session could not be confined")
            self._is_ready = True
            cpu_before_s = frame.cpu_s
        run.started_s = time.monotonic()
        return ProgramClock(run, child, cpu_before_s)

    def _serve(self, run: ProgramRun, clock: ProgramClock, sock: socket.socket, child: Child) -> Result:
        reply = b""
        while True:
            frame = self._exchange(clock, sock, reply)
            self._raise_if_closed()
            reply = b""
            match frame:
                case Ready():
                    raise FrameError("ready comes once")
                case Output():
                    run.add_output(frame.text)
                    if run.num_chars > self._config.output_chars + _SPARE_CHARS:
                        raise KillProgram("output_limit", "Killed: the program printed far too much.")
                case Call():
                    try:
                        answer = f'{{"value": {run.call(frame.name, frame.args, frame.kwargs)}}}'
                    except HostCallError as error:
                        answer = json.dumps({"error": error.kind, "text": str(error)})
                    reply = encode_frame(answer)
                case Done():
                    # Stopped between programs, so that threads left behind use no processor and write no frames.
                    child.signal(signal.SIGSTOP)
                    return run.result(frame.outcome, frame.error, clock.cpu_s(), state_lost=False)
                case None:
                    return self._report_end(run, clock, child)

    def _exchange(self, clock: ProgramClock, sock: socket.socket, reply: bytes) -> Frame | None:
        """Send a reply, if there is one, and read the next frame, with an eye on the clock; None: it hung up."""
        unsent = memoryview(reply)
        while True:
            wait_s = clock.check()
            try:
                if unsent:
                    sock.settimeout(wait_s)
                    unsent = unsent[sock.send(unsent) :]
                else:
                    return self._reader.read(wait_s)
            except TimeoutError:
                self._raise_if_closed()
            except OSError:  # it has just ended; its last words may still be there
                if not unsent:
                    return None
                unsent = memoryview(b"")

    def _report_end(self, run: ProgramRun, clock: ProgramClock, child: Child) -> Result:
        """The program's end of the channel is closed, as a rule because its process has ended: say how."""
        report: Report | None = None
        while report is None and self._server.is_alive():
            report = child.wait(clock.check())
            self._raise_if_closed()
        if report is None:
            raise self._failure("")
        outcome: Outcome = "crashed"
        if report.status == _EXIT_OUT_OF_MEMORY:
            outcome, text = "memory", "Killed: out of memory."
        elif report.status == -signal.SIGXCPU or report.cpu_s >= session_cpu_s(self._config):
            outcome, text = "timeout", "Killed: the session used up its processor time."
        elif clock.was_told and report.status == -signal.SIGALRM:
            outcome, text = "timeout", "Killed: the program did not stop at its time limit."
        elif -report.status in _FROM_OUTSIDE:
            raise self._failure(
                f"a program's process was ended by a {signal.Signals(-report.status).name} that neither the program "
                "nor one of its limits explains, most likely because the machine ran out of memory"
            )
        elif report.status < 0 and -report.status in signal.valid_signals():
            text = f"The program crashed its interpreter ({signal.Signals(-report.status).name})."
        else:
            text = f"The program ended its own interpreter (exit status {report.status})."
        self._discard_child()
        return run.result(outcome, text, clock.cpu_s(report.cpu_s), state_lost=True)

    def _kill(self, run: ProgramRun, clock: ProgramClock, child: Child, kill: KillProgram) -> Result:
        """End the child and wait until it is gone."""
        child.signal(signal.SIGKILL)
        report = child.wait(_TIMEOUT_S)
        if report is None:
            raise self._failure("a killed program did not end")
        self._discard_child()
        return run.result(kill.outcome, str(kill), clock.cpu_s(report.cpu_s), state_lost=True)
