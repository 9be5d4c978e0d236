"""One session of the fork server back end: runs programs in one child process and serves their calls.

Everything that arrives from the child is taken for an attacker's. The clock that counts is here (`clock.py`); the child
only turns its signal into a traceback for the model.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping

from seekling.config import SandboxConfig
from seekling.env.sandbox.back_end import HostFunction, KillProgram, Outcome, Result, SandboxSession
from seekling.env.sandbox.child import Child, Report
from seekling.env.sandbox.clock import ProgramClock
from seekling.env.sandbox.frames import Call, Done, Frame, FrameError, FrameReader, Output, Ready, encode_frame
from seekling.env.sandbox.hosting import HostCallError, ProgramRun
from seekling.env.sandbox.process import ZygoteProcess, session_cpu_s
from seekling.errors import InfrastructureError

_SPARE_CHARS = 65536
_MAX_CODE_CHARS = 1_000_000
_START_TIMEOUT_S = 30.0
_END_TIMEOUT_S = 30.0
_EXIT_OUT_OF_MEMORY = 86
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM)
"""What no program can send, not even to itself, and what those send who end processes because memory is short."""


class ZygoteSession:
    """A child process of the fork server and what is left of it."""

    def __init__(
        self,
        config: SandboxConfig,
        functions: Mapping[str, HostFunction],
        zygote: ZygoteProcess,
        *,
        on_close: Callable[[SandboxSession], None],
        on_zygote_death: Callable[[ZygoteProcess], None],
    ) -> None:
        self._config = config
        self._functions = dict(functions)
        self._zygote = zygote
        self._on_close = on_close
        self._on_zygote_death = on_zygote_death
        self._lock = threading.Lock()
        self._is_closed = False
        self._is_ready = False
        """True once the child has said that its walls stand."""
        self._child: Child | None = None
        """Opened and closed by the thread that holds the lock; any other may only signal it."""
        self._socket: socket.socket | None = zygote.new_session()
        self._reader = FrameReader(self._socket)

    def run(self, code: str) -> Result:
        """Run one program; see `SandboxSession.run`."""
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
        """End the session; a program that is running in another thread is killed."""
        self._is_closed = True
        if (child := self._child) is not None:
            child.signal(signal.SIGKILL)
        with self._lock:
            self._discard_child()
        self._on_close(self)

    # The child --------------------------------------------------------------------------------------------------

    def _wake_child(self) -> tuple[socket.socket, Child]:
        """A child that is ready for a program, and its socket; a new one when the last one was lost."""
        if self._socket is None:
            self._socket = self._zygote.new_session()
            self._reader = FrameReader(self._socket)
            self._is_ready = False
        if self._child is None:
            self._child = Child.receive(self._socket)
            if self._child is None:
                raise self._infrastructure_error("the fork server started no process for a session")
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

    def _infrastructure_error(self, what: str) -> InfrastructureError:
        self._discard_child()
        if not self._zygote.is_alive():
            self._on_zygote_death(self._zygote)
            what = "the sandbox's fork server died, and this session with it"
        return InfrastructureError(f"{what}; the episode cannot go on")

    # One program ------------------------------------------------------------------------------------------------

    def _start(self, run: ProgramRun, code: str, sock: socket.socket, child: Child) -> ProgramClock:
        """Send the program, make sure that a new child is confined, and start the program's clock."""
        cpu_before_s = child.cpu_s()
        child.signal(signal.SIGCONT)
        sock.settimeout(_START_TIMEOUT_S)
        with contextlib.suppress(OSError):  # the child is gone; how it ended is still to be read
            sock.sendall(encode_frame(json.dumps({"code": code, "functions": list(self._functions)})))
        if not self._is_ready:
            frame: Frame | None = None
            with contextlib.suppress(OSError, FrameError):
                frame = self._reader.read(time.monotonic() + _START_TIMEOUT_S)
            if not isinstance(frame, Ready):  # nothing has run yet, so this is not the program's doing
                raise self._infrastructure_error("the process of a session could not be confined")
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
                        answer = json.dumps({"error": error.kind, "text": error.text})
                    reply = encode_frame(answer)
                case Done():
                    # Stopped between programs, so that threads left behind use no processor and write no frames.
                    child.signal(signal.SIGSTOP)
                    return run.result(frame.outcome, frame.error, clock.cpu_s(), state_lost=False)
                case None:
                    return self._report_end(run, clock, child)

    def _exchange(self, clock: ProgramClock, sock: socket.socket, reply: bytes) -> Frame | None:
        """Send a reply, if there is one, and read the next frame, with an eye on the clock.

        Returns:
            The frame; None when the program hung up.

        Raises:
            KillProgram: the program did not stop when it was told to, or what arrived is not a frame.
        """
        unsent = memoryview(reply)
        while True:
            wait_s = clock.check()
            try:
                if unsent:
                    sock.settimeout(wait_s)
                    unsent = unsent[sock.send(unsent) :]
                else:
                    return self._reader.read(time.monotonic() + wait_s)
            except TimeoutError:
                self._raise_if_closed()
            except OSError:  # it has just ended; its last words may still be there
                if not unsent:
                    return None
                unsent = memoryview(b"")

    # How it ended -----------------------------------------------------------------------------------------------

    def _report_end(self, run: ProgramRun, clock: ProgramClock, child: Child) -> Result:
        """The program's end of the channel is closed, as a rule because its process has ended: say how."""
        report: Report | None = None
        while report is None and self._zygote.is_alive():
            report = child.wait(clock.check())
            self._raise_if_closed()
        if report is None:
            raise self._infrastructure_error("")
        outcome: Outcome = "crashed"
        if report.status == _EXIT_OUT_OF_MEMORY:
            outcome, text = "memory", "Killed: out of memory."
        elif report.status == -signal.SIGXCPU or report.cpu_s >= session_cpu_s(self._config):
            outcome, text = "timeout", "Killed: the session used up its processor time."
        elif clock.was_told and report.status == -signal.SIGALRM:
            outcome, text = "timeout", "Killed: the program did not stop at its time limit."
        elif -report.status in _FROM_OUTSIDE:
            raise self._infrastructure_error(
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
        report = child.wait(_END_TIMEOUT_S)
        if report is None:
            raise self._infrastructure_error("a killed program did not end")
        self._discard_child()
        return run.result(kill.outcome, str(kill), clock.cpu_s(report.cpu_s), state_lost=True)
