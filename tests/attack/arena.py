"""Where programs attack: canaries all around, the functions that programs may call, and what must hold afterwards."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from seekling.config import SandboxConfig
from seekling.env.sandbox import Result, Sandbox, SandboxSession
from seekling.errors import InfrastructureError, SandboxError, ToolError

SECRET_IN_MEMORY = "CANARY-" + "in-the-trainer"
SECRETS = ("CANARY-", "root:x:0", "root:*:0")
MARK = "pwned"
"""Every file that an attack tries to make has this in its name."""

LIMITS = SandboxConfig(
    soft_limit_s=0.25,
    hard_limit_s=0.6,
    wall_limit_s=10.0,
    memory_bytes=160 * 1024 * 1024,
    output_chars=20_000,
    max_host_calls=50,
)
SANE_PROGRAM = "import re\nprint(re.sub('o+', '0', search_pages('moon')[0]['title']), sum(range(10)))"
SANE_OUTPUT = "Page 0f m0n 45\n"


def search_pages(query: str) -> list[dict[str, str]]:
    """One made-up page."""
    if not isinstance(query, str):
        raise ToolError(f"query must be text, not {type(query).__name__}")
    return [{"page_id": "p1", "title": f"Page of {query}"}]


def read_section(section_id: str) -> str:
    """Fails as tools fail."""
    raise KeyError(section_id)


def slow(seconds: float) -> str:
    """A host function that takes its time."""
    time.sleep(seconds)
    return "slept"


async def slow_async(seconds: float) -> str:
    """The same as a coroutine."""
    await asyncio.sleep(seconds)
    return "slept"


def huge() -> str:
    """More than a frame may hold."""
    return "h" * 20_000_000


def not_json() -> object:
    """Nothing that JSON can say."""
    return object()


def boom(kind: str) -> None:
    """Raise a built-in exception by name."""
    raise {"value": ValueError, "type": TypeError, "tool": ToolError, "custom": _CustomError}[kind](f"boom {kind}")


class _CustomError(Exception):
    pass


FUNCTIONS: dict[str, Callable[..., object]] = {
    f.__name__: f for f in (search_pages, read_section, slow, slow_async, huge, not_json, boom)
}


class Attack(NamedTuple):
    """A program and what must become of it; {secret}, {folder}, {port} and {udp} stand for the arena's."""

    promise: str
    program: str
    outcomes: str = "ok"
    """Those that are right, separated by spaces."""
    stdout: str | None = None
    """All of it."""
    error: str = ""
    """A part of the error's text."""
    state_lost: bool | None = None
    truncated: bool | None = None


def attacks(*cases: Attack) -> pytest.MarkDecorator:
    """Parametrise a test by attacks, each named by its promise."""
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.promise)


class Arena:
    """A sandbox, the canaries around it, and the invariants."""

    def __init__(self, sandbox: Sandbox, folder: Path, limits: SandboxConfig = LIMITS) -> None:
        self.sandbox = sandbox
        self.limits = limits
        self.folder = folder
        self.secret_path = folder / "secret.txt"
        self.secret_path.write_text("CANARY-in-a-file")
        self.secret_path.chmod(0o644)
        os.environ["SEEKLING_CANARY"] = "CANARY-in-the-environment"
        self._listeners = [socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)]
        self._listeners[1].bind(("127.0.0.1", 0))
        for listener in self._listeners:
            listener.setblocking(False)
        self.port, self.udp_port = (listener.getsockname()[1] for listener in self._listeners)
        self._num_fds, self._rss_bytes = 0, 0

    def __enter__(self) -> Arena:
        self.attack(SANE_PROGRAM)  # once, so that what is counted later is warm
        self._num_fds, self._rss_bytes = num_fds(), rss_bytes()
        return self

    def __exit__(self, *exc: object) -> None:
        for listener in self._listeners:
            listener.close()

    def attack(self, *programs: str) -> Result:
        """Run programs in one session; check every invariant; return the last result."""
        session = self.sandbox.open(FUNCTIONS)
        for program in programs:
            result = self.run(session, program)
        session.close()
        self.check_surroundings()
        return result

    def check(self, case: Attack) -> Result:
        """Make an attack in a session of its own and hold the result against what it must be."""
        program = case.program
        places = {"secret": self.secret_path, "folder": self.folder, "port": self.port, "udp": self.udp_port}
        for name, value in places.items():
            program = program.replace(f"{{{name}}}", str(value))
        result = self.attack(program)
        assert result.outcome in case.outcomes.split(), result
        assert case.stdout in (None, result.stdout), result
        assert case.error in result.error_text, result
        assert case.state_lost in (None, result.state_lost)
        assert case.truncated in (None, result.truncated)
        return result

    def run(self, session: SandboxSession, program: str) -> Result:
        result = session.run(program)
        said = result.stdout + result.error_text
        assert not [secret for secret in SECRETS if secret in said], "a secret came out"
        assert result.cpu_s <= self.limits.hard_limit_s + 1.0, f"computed for {result.cpu_s:.2f} s"
        assert result.wall_s <= self.limits.wall_limit_s + 30.0, f"took {result.wall_s:.2f} s"
        assert len(said) <= self.limits.output_chars, f"{len(said)} characters of output"
        said.encode("utf-8")
        return result

    def check_surroundings(self) -> None:
        """What must hold after every attack, whatever it was."""
        for listener in self._listeners:
            try:
                listener.recv(1) if listener.type == socket.SOCK_DGRAM else listener.accept()
            except BlockingIOError:
                continue
            raise AssertionError("something reached a listening socket")
        written = [path for place in self._writable_places() for path in place.glob(f"*{MARK}*")]
        assert not written, f"files were written: {written}"
        wait_until(lambda: not self.programs(), "a program's process is left")
        sane = self.sandbox.open(FUNCTIONS)
        result = sane.run(SANE_PROGRAM)
        sane.close()
        assert (result.outcome, result.stdout, result.error_text) == ("ok", SANE_OUTPUT, ""), result
        if self._num_fds:
            assert num_fds() == self._num_fds, "descriptors leaked in the trainer"
            assert rss_bytes() < self._rss_bytes + 100_000_000, "the trainer grew"
        wait_until(lambda: not self.programs(), "the sane program's process is left")

    def programs(self) -> list[int]:
        """Processes of programs: the children of the fork server, zombies included."""
        return children_of(fork_server_pid(self.sandbox))

    def _writable_places(self) -> list[Path]:
        return [self.folder, Path.cwd(), Path("/tmp"), Path("/dev/shm"), Path("/")]


def opened(**limits: float) -> Sandbox:
    """A sandbox of its own with some limits changed, or a skip that says why there is none."""
    try:
        return Sandbox(LIMITS.model_copy(update=limits))
    except SandboxError as error:
        pytest.skip(f"no sandbox on this machine: {error}")


def running(session: SandboxSession, program: str) -> tuple[threading.Thread, list[Result | InfrastructureError]]:
    """A program in a thread, and where its end will be found."""
    ends: list[Result | InfrastructureError] = []

    def run() -> None:
        try:
            ends.append(session.run(program))
        except InfrastructureError as error:
            ends.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.15)
    return thread, ends


def fork_server_pid(sandbox: Sandbox) -> int:
    """The process that forks: with namespaces the child of the one that was started."""
    pid = sandbox.fork_server_pid
    return (children_of(pid) or [pid])[0] if "namespaces" in sandbox.layers else pid


def children_of(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def num_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def wait_until(is_true: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.005)
