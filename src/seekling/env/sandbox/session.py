"""One session of the fork server back end: runs programs in one child process and serves their calls.

Everything that arrives from the child is taken for an attacker's. The clock that counts is here; the child's own soft
limit exists to give the model a traceback.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

from seekling.config import SandboxConfig
from seekling.env.sandbox.hosting import HostCallError, call_host_function
from seekling.env.sandbox.interface import HostFunction, Outcome, Result
from seekling.env.sandbox.process import ZygoteProcess, receive_process_handle, send_signal, wait_for_end
from seekling.env.sandbox.wire import (
    Call,
    Done,
    Exit,
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
_END_TIMEOUT_S = 1.0
_EXIT_OUT_OF_MEMORY = 86
_LOST = "Its variables are lost."


@dataclass(slots=True)
class _Turn:
    """The books of one program: its clock, its output, its calls."""

    output_chars: int
    started_s: float = 0.0
    deadline_s: float = 0.0
    hosting_s: float = 0.0
    host_calls: int = 0
    num_chars: int = 0
    pieces: list[str] = field(default_factory=list)

    def take(self, text: str) -> None:
        room = self.output_chars - self.num_chars
        self.num_chars += len(text)
        if room > 0:
            self.pieces.append(text[:room])

    def wall_s(self) -> float:
        return time.monotonic() - self.started_s - self.hosting_s


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
        self._pidfd: int | None = None
        self._cpu_so_far_s = 0.0
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
            sock = self._wake_child()
            turn = _Turn(self._config.output_chars)
            result: Result | None = None
            try:
                result = self._serve(turn, sock, request)
            finally:
                if result is None:  # a host function failed for good, or Ctrl-C: the program must not go on by itself
                    self._discard_child()
            return result

    def close(self) -> None:
        """End the session; a program that is running in another thread is killed."""
        self._is_closed = True
        if (pidfd := self._pidfd) is not None:
            send_signal(pidfd, signal.SIGKILL)
        with self._lock:
            self._discard_child()
        self._on_close(self)

    # The child --------------------------------------------------------------------------------------------------

    def _wake_child(self) -> socket.socket:
        """The socket of a child that is ready for a program; a new child when the last one was lost."""
        if self._socket is None:
            self._socket = self._zygote.new_session()
            self._reader = FrameReader(self._socket)
            self._is_ready = False
        if self._pidfd is None:
            self._pidfd = receive_process_handle(self._socket)
            if self._pidfd is None:
                raise self._infrastructure_error("the fork server started no process for a session")
        else:
            send_signal(self._pidfd, signal.SIGCONT)
        return self._socket

    def _discard_child(self) -> None:
        if self._pidfd is not None:
            send_signal(self._pidfd, signal.SIGKILL)
            pidfd, self._pidfd = self._pidfd, None
            os.close(pidfd)
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._cpu_so_far_s = 0.0

    def _infrastructure_error(self, what: str) -> InfrastructureError:
        self._discard_child()
        if not self._zygote.is_alive():
            self._on_zygote_death(self._zygote)
            what = "the sandbox's fork server died, and this session with it"
        return InfrastructureError(f"{what}; the episode cannot go on")

    # One program ------------------------------------------------------------------------------------------------

    def _serve(self, turn: _Turn, sock: socket.socket, request: bytes) -> Result:
        config = self._config
        self._start(turn, sock, request)
        reply: bytes | None = None
        while True:
            try:
                if reply is not None:
                    sock.settimeout(max(0.001, turn.deadline_s - time.monotonic()))
                    sock.sendall(reply)
                    reply = None
                frame = self._reader.read(turn.deadline_s)
            except TimeoutError:
                text = f"Killed after {config.hard_limit_s:g} s: the program did not stop at its time limit. {_LOST}"
                return self._kill(turn, "timeout", text)
            except FrameError as error:
                return self._kill(
                    turn, "protocol", f"Killed: the program broke the sandbox's own channel ({error}). {_LOST}"
                )
            except OSError:  # we wrote to a process that had just ended; its last words may still be there
                reply, frame = None, self._read_last_words(turn)
            if self._is_closed:
                raise InfrastructureError("this sandbox session was closed while a program ran in it")
            match frame:
                case Ready():
                    return self._kill(turn, "protocol", f"Killed: the program broke the sandbox's own channel. {_LOST}")
                case Output(text):
                    turn.take(text)
                    if turn.num_chars > turn.output_chars + _SPARE_CHARS:
                        return self._kill(turn, "output_limit", f"Killed: the program printed far too much. {_LOST}")
                case Call():
                    turn.host_calls += 1
                    if turn.host_calls > config.max_host_calls + _SPARE_CALLS:
                        text = f"Killed: more than {config.max_host_calls} calls of provided functions. {_LOST}"
                        return self._kill(turn, "protocol", text)
                    reply = self._answer(turn, frame)
                case Done():
                    return self._finish(turn, frame)
                case Exit(status):
                    return self._report_exit(turn, status, frame.cpu_s)
                case None:
                    if not self._zygote.is_alive():
                        raise self._infrastructure_error("")
                    return self._kill(turn, "crashed", f"The program ended its own interpreter. {_LOST}")

    def _start(self, turn: _Turn, sock: socket.socket, request: bytes) -> None:
        """Send the program, make sure that a new child is confined, and start the program's clock."""
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
        turn.started_s = time.monotonic()
        turn.deadline_s = turn.started_s + self._config.hard_limit_s

    def _read_last_words(self, turn: _Turn) -> Frame | None:
        try:
            return self._reader.read(turn.deadline_s)
        except (OSError, FrameError):  # a TimeoutError is an OSError
            return None

    def _answer(self, turn: _Turn, call: Call) -> bytes:
        """Run a host function; the program's clock stands still meanwhile."""
        if turn.host_calls > self._config.max_host_calls:
            text = f"more than {self._config.max_host_calls} calls of provided functions in one program"
            return encode_frame({"error": "RuntimeError", "text": text})
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
            elapsed_s = time.monotonic() - started_s
            turn.hosting_s += elapsed_s
            turn.deadline_s += elapsed_s

    # How it ended -----------------------------------------------------------------------------------------------

    def _finish(self, turn: _Turn, done: Done) -> Result:
        if done.outcome not in _OUTCOMES_OF_A_LIVING_CHILD:
            return self._kill(turn, "protocol", f"Killed: the program forged its own ending. {_LOST}")
        assert self._pidfd is not None, "a child that ran has a handle"
        # Stopped between turns, so that threads left behind use no processor and write no frames.
        send_signal(self._pidfd, signal.SIGSTOP)
        cpu_s = min(done.cpu_s, turn.wall_s() * (os.cpu_count() or 1) + turn.hosting_s)
        self._cpu_so_far_s += cpu_s
        return self._result(turn, cast(Outcome, done.outcome), done.error_text, cpu_s, state_lost=False)

    def _report_exit(self, turn: _Turn, status: int, cpu_s: float) -> Result:
        outcome: Outcome = "crashed"
        if status == _EXIT_OUT_OF_MEMORY or status == -signal.SIGKILL:
            outcome, text = "memory", "Killed: out of memory."
        elif status == -signal.SIGXCPU:
            outcome, text = "timeout", "Killed: the session used up its processor time."
        elif status < 0 and -status in signal.valid_signals():
            text = f"The program crashed its interpreter ({signal.Signals(-status).name})."
        else:
            text = f"The program ended its own interpreter (exit status {status})."
        return self._kill(turn, outcome, f"{text} {_LOST}", cpu_s=cpu_s)

    def _kill(self, turn: _Turn, outcome: Outcome, text: str, *, cpu_s: float | None = None) -> Result:
        """End the child, wait until it is gone, and say why."""
        if self._pidfd is not None:
            send_signal(self._pidfd, signal.SIGKILL)
            if not wait_for_end(self._pidfd, _END_TIMEOUT_S):
                raise self._infrastructure_error("a killed program did not end")
            if cpu_s is None:
                cpu_s = self._final_cpu_s()
        used_s = turn.wall_s() if cpu_s is None else max(0.0, cpu_s - self._cpu_so_far_s)
        self._discard_child()
        return self._result(turn, outcome, text, used_s, state_lost=True)

    def _final_cpu_s(self) -> float | None:
        """What the fork server says that the child had used; None when that is lost among the child's own frames."""
        deadline_s = time.monotonic() + 0.2
        try:
            for _ in range(100):
                frame = self._reader.read(deadline_s)
                if frame is None or isinstance(frame, Exit):
                    return frame.cpu_s if frame is not None else None
        except (OSError, FrameError):
            return None
        return None

    def _result(self, turn: _Turn, outcome: Outcome, error_text: str, cpu_s: float, *, state_lost: bool) -> Result:
        error_text = error_text[: turn.output_chars]
        stdout = "".join(turn.pieces)
        room = turn.output_chars - len(error_text)
        return Result(
            stdout=stdout[:room],
            error_text=error_text,
            outcome=outcome,
            wall_s=turn.wall_s(),
            cpu_s=cpu_s,
            host_calls=turn.host_calls,
            truncated=turn.num_chars > room or "characters left out) ..." in error_text,
            state_lost=state_lost,
        )
