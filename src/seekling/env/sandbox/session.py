"""One session of the fork server back end: runs programs in one child process and serves their calls.

Everything that arrives from the child is taken for an attacker's. The clock that counts is here (`clock.py`); the child
only turns its signal into a traceback for the model.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

from seekling.config import SandboxConfig
from seekling.env.sandbox.child import Child, Report
from seekling.env.sandbox.clock import TimeIsUp, TurnClock
from seekling.env.sandbox.hosting import HostCallError, call_host_function, raise_if_too_slow
from seekling.env.sandbox.interface import HostFunction, Outcome, Result
from seekling.env.sandbox.process import ZygoteProcess, session_cpu_s
from seekling.env.sandbox.wire import (
    Call,
    Done,
    Frame,
    FrameError,
    FrameReader,
    Output,
    Ready,
    clean_text,
    encode_frame,
)
from seekling.errors import InfrastructureError

_OUTCOMES_OF_A_LIVING_CHILD = ("ok", "error", "timeout", "memory", "output_limit")
_SPARE_CALLS = 100
"""Calls beyond the cap that are answered with an error before the program is killed."""
_SPARE_CHARS = 65536
_START_TIMEOUT_S = 30.0
_MAX_CODE_CHARS = 1_000_000
_END_TIMEOUT_S = 30.0
_EXIT_OUT_OF_MEMORY = 86
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM)
"""What no program can send, not even to itself, and what those send who end processes because memory is short."""
_LOST = "Its variables are lost."


@dataclass(slots=True)
class _Turn:
    """The books of one program: its clock, its output, its calls."""

    clock: TurnClock
    output_chars: int
    host_calls: int = 0
    num_chars: int = 0
    pieces: list[str] = field(default_factory=list)

    def take(self, text: str) -> None:
        room = self.output_chars - self.num_chars
        self.num_chars += len(text)
        if room > 0:
            self.pieces.append(text[:room])


class ZygoteSession:
    """A child process of the fork server and what is left of it."""

    def __init__(
        self,
        config: SandboxConfig,
        functions: Mapping[str, HostFunction],
        zygote: ZygoteProcess,
        *,
        on_close: Callable[[ZygoteSession], None],
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
            if len(code) > _MAX_CODE_CHARS:
                text = f"The program of {len(code):,} characters was not run; at most {_MAX_CODE_CHARS:,} are allowed."
                return Result("", text, "error", 0.0, 0.0, 0, truncated=False, state_lost=False)
            request = encode_frame({"op": "run", "code": code, "functions": list(self._functions)})
            result: Result | None = None
            try:
                sock, child = self._wake_child()
                turn = _Turn(self._start(sock, child, request), self._config.output_chars)
                result = self._serve(turn, sock)
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

    def _start(self, sock: socket.socket, child: Child, request: bytes) -> TurnClock:
        """Send the program, make sure that a new child is confined, and start the program's clock."""
        clock = TurnClock(self._config, child, child.cpu_s())
        child.signal(signal.SIGCONT)
        sock.settimeout(_START_TIMEOUT_S)
        with contextlib.suppress(OSError):  # the child is gone; how it ended is still to be read
            sock.sendall(request)
        if not self._is_ready:
            frame: Frame | None = None
            with contextlib.suppress(OSError, FrameError):
                frame = self._reader.read(time.monotonic() + _START_TIMEOUT_S)
            if not isinstance(frame, Ready):  # nothing has run yet, so this is not the program's doing
                raise self._infrastructure_error("the process of a session could not be confined")
            self._is_ready = True
            clock = TurnClock(self._config, child, frame.cpu_s)
        return clock

    def _serve(self, turn: _Turn, sock: socket.socket) -> Result:
        reply = b""
        while True:
            try:
                frame = self._exchange(turn, sock, reply)
            except TimeIsUp as error:
                return self._kill(turn, "timeout", f"{error} {_LOST}")
            except FrameError as error:
                text = f"Killed: the program broke the sandbox's own channel ({error}). {_LOST}"
                return self._kill(turn, "protocol", text)
            self._raise_if_closed()
            reply = b""
            match frame:
                case Ready():
                    return self._kill(turn, "protocol", f"Killed: the program broke the sandbox's own channel. {_LOST}")
                case Output(text):
                    turn.take(text)
                    if turn.num_chars > turn.output_chars + _SPARE_CHARS:
                        return self._kill(turn, "output_limit", f"Killed: the program printed far too much. {_LOST}")
                case Call():
                    turn.host_calls += 1
                    if turn.host_calls > self._config.max_host_calls + _SPARE_CALLS:
                        text = f"Killed: more than {self._config.max_host_calls} calls of provided functions. {_LOST}"
                        return self._kill(turn, "protocol", text)
                    reply = self._answer(turn, frame)
                case Done():
                    return self._finish(turn, frame)
                case None:
                    return self._report_end(turn)

    def _exchange(self, turn: _Turn, sock: socket.socket, reply: bytes) -> Frame | None:
        """Send a reply, if there is one, and read the next frame, with an eye on the clock.

        Returns:
            The frame; None when the program hung up.

        Raises:
            TimeIsUp: the program did not stop when it was told to.
            FrameError: what arrived is not a frame.
        """
        unsent = memoryview(reply)
        while True:
            wait_s = turn.clock.look()
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

    def _answer(self, turn: _Turn, call: Call) -> bytes:
        """Run a host function; the program's clock stands still meanwhile.

        Raises:
            InfrastructureError: the program's calls so far took too long, which is not its fault.
        """
        if turn.host_calls > self._config.max_host_calls:
            text = f"more than {self._config.max_host_calls} calls of provided functions in one program"
            return encode_frame({"error": "RuntimeError", "text": text})
        raise_if_too_slow(turn.clock.hosting_s, self._config)
        started_s = time.monotonic()
        try:
            value = call_host_function(self._functions, call.name, call.args, call.kwargs)
            return encode_frame({"value": value})
        except HostCallError as error:
            return encode_frame({"error": error.kind, "text": error.text})
        except (TypeError, ValueError, RecursionError) as error:
            text = f"{call.name}() returned something that cannot be passed on: {clean_text(str(error))[:500]}"
            return encode_frame({"error": "RuntimeError", "text": text})
        finally:
            turn.clock.hosting_s += time.monotonic() - started_s

    # How it ended -----------------------------------------------------------------------------------------------

    def _finish(self, turn: _Turn, done: Done) -> Result:
        if done.outcome not in _OUTCOMES_OF_A_LIVING_CHILD:
            return self._kill(turn, "protocol", f"Killed: the program forged its own ending. {_LOST}")
        assert self._child is not None, "a program runs in one"
        # Stopped between turns, so that threads left behind use no processor and write no frames.
        self._child.signal(signal.SIGSTOP)
        return self._result(turn, cast(Outcome, done.outcome), done.error_text, turn.clock.cpu_s(), state_lost=False)

    def _report_end(self, turn: _Turn) -> Result:
        """The program's end of the channel is closed, as a rule because its process has ended: say how."""
        assert self._child is not None, "a program runs in one"
        try:
            report: Report | None = None
            while report is None and self._zygote.is_alive():
                report = self._child.wait(turn.clock.look())
                self._raise_if_closed()
        except TimeIsUp as error:
            return self._kill(turn, "timeout", f"{error} {_LOST}")
        if report is None:
            raise self._infrastructure_error("")
        outcome: Outcome = "crashed"
        if report.status == _EXIT_OUT_OF_MEMORY:
            outcome, text = "memory", "Killed: out of memory."
        elif report.status == -signal.SIGXCPU or report.cpu_s >= session_cpu_s(self._config):
            outcome, text = "timeout", "Killed: the session used up its processor time."
        elif turn.clock.was_told and report.status == -signal.SIGALRM:
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
        return self._result(turn, outcome, f"{text} {_LOST}", turn.clock.cpu_s(report.cpu_s), state_lost=True)

    def _kill(self, turn: _Turn, outcome: Outcome, text: str) -> Result:
        """End the child, wait until it is gone, and say why."""
        assert self._child is not None, "a program runs in one"
        self._child.signal(signal.SIGKILL)
        report = self._child.wait(_END_TIMEOUT_S)
        if report is None:
            raise self._infrastructure_error("a killed program did not end")
        self._discard_child()
        return self._result(turn, outcome, text, turn.clock.cpu_s(report.cpu_s), state_lost=True)

    def _result(self, turn: _Turn, outcome: Outcome, error_text: str, cpu_s: float, *, state_lost: bool) -> Result:
        error_text = error_text[: turn.output_chars]
        stdout = "".join(turn.pieces)
        room = turn.output_chars - len(error_text)
        return Result(
            stdout=stdout[:room],
            error_text=error_text,
            outcome=outcome,
            wall_s=turn.clock.wall_s(),
            cpu_s=cpu_s,
            host_calls=turn.host_calls,
            truncated=turn.num_chars > room or "characters left out) ..." in error_text,
            state_lost=state_lost,
        )
