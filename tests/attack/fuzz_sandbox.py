"""Random attacks: frames that no program would send, and mutations of programs that were bad to begin with.

Every case is a number: `case(seed)` is always the same program. SEEKLING_FUZZ_S sets how many seconds the two tests
take together (`make fuzz`: ten minutes); the short run in the ordinary tests starts at seed 0, a long one at a new
seed, and a failure names its seed and its program.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from seekling.env.sandbox import OUTCOMES
from tests.attack.arena import FUNCTIONS, LIMITS, Arena, opened
from tests.attack.test_lifecycle import BENIGN, HOSTILE

FUZZ_S = float(os.environ.get("SEEKLING_FUZZ_S", "6"))
IS_LONG = "SEEKLING_FUZZ_S" in os.environ

SEEDS = [
    *(program.replace("sleep(60)", "sleep(0.2)") for program in HOSTILE),  # each would take the whole wall limit
    *(program for program, _ in BENIGN),
    "import sys\nfor m in list(sys.modules.values()):\n    for k, v in list(vars(m).items()): print(k, str(v)[:9])",
    "g = search_pages.__globals__\nfor k in list(g):\n    g[k] = None\nsearch_pages('x')",
    "import signal\nsignal.signal(signal.SIGALRM, lambda *a: print('m'))\nsignal.raise_signal(14)\nsearch_pages('x')",
    "import gc\nfor o in gc.get_objects():\n    if type(o).__name__ == 'Channel':\n        o._fd = o.is_open = 1",
    "class D:\n    def __del__(self): search_pages('x'); print('d')\nx = [D() for _ in range(9)]\ndel x\nprint(1)",
    "import threading\nfor i in range(4): threading.Thread(target=search_pages, args=(str(i),)).start()\nprint(2)",
    "class E(Exception):\n    def __str__(self): return 'z' * 99999\ntry: raise E\nfinally: raise E from E()",
    "import ctypes\nlibc = ctypes.CDLL(None)\nfor n in (0, 2, 9, 10, 56, 57, 62): libc.syscall(n, -1, 0, 1, 2, 3, 4)",
    "import resource, os\nos.setpriority(0, 0, -5)\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "def f(n):\n    try: return f(n + 1)\n    finally: f(n + 1)\nf(0)",
    "import sys\nsys.settrace(lambda *a: 1 / 0)\nsys.setprofile(print)\nsys.excepthook = sys.stdout = None\nx = 1",
    "import sys\nsys.setswitchinterval(1e-9)\nsys.setrecursionlimit(10**6)\nprint(sys.getrefcount(None))",
    "import linecache, traceback\nlinecache.getlines = None\ntraceback.TracebackException = None\n1 / 0",
    "import builtins\nbuiltins.BaseException = builtins.ToolError = int\nraise KeyError('x')",
    "import os\nwhile True:\n    print(os.read(3, 99))",
    "exec('x' + '=1\\nx' * 9999)\nimport json\njson.JSONEncoder.encode = None\nsearch_pages('x')",
]
# fmt: off
WORDS = [
    "search_pages", "read_section", "slow", "print", "None", "0", "-1", "1", "3", "2**63", "10**9", "''", "b''", "[]",
    "{}", "()", "os", "sys", "json", "True", "...", "__import__", "globals()", "open", "exec", "eval", "compile",
    "lambda", "raise", "return", "yield", "del", "global", "while", "for", "try", "except", "finally", "import", "pass",
]
# fmt: on
MODULES = ["os", "sys", "json", "threading", "signal", "ctypes", "builtins", "gc", "socket"]
HANG = "\nwhile True: pass"


def mutated_program(seed: int) -> str:
    dice = random.Random(seed)
    lines = dice.choice(SEEDS).split("\n")
    for _ in range(dice.randint(1, 6)):
        at = dice.randrange(len(lines))
        match dice.randrange(7):
            case 0:
                lines.insert(at, lines[dice.randrange(len(lines))])
            case 1 if len(lines) > 1:
                del lines[at]
            case 2:
                lines[at:at] = dice.choice(SEEDS).split("\n")
            case 3:
                tokens = lines[at].split(" ")
                tokens[dice.randrange(len(tokens))] = dice.choice(WORDS)
                lines[at] = " ".join(tokens)
            case 4:
                indent = len(lines[at]) - len(lines[at].lstrip())
                lines[at] = " " * max(0, indent + dice.choice((-4, 4))) + lines[at].lstrip()
            case 5:
                lines.insert(at, f"import {dice.choice(MODULES)}")
            case _:
                cut = dice.randrange(len(lines[at]) + 1)
                lines[at] = lines[at][:cut] + dice.choice(WORDS) + lines[at][cut:]
    return "\n".join(lines)


def random_json(dice: random.Random, depth: int = 0) -> object:
    kinds: list[Callable[[], object]] = [
        lambda: None,
        lambda: dice.choice((True, False)),
        lambda: dice.choice((0, -1, 1, 1 << 31, 1 << 64, -(10**30), dice.random(), float("nan"), float("inf"))),
        lambda: dice.choice(("", "ok", "search_pages", "\ud800", "\x00", "x" * dice.randrange(30_000), "crashed")),
    ]
    if depth < 4:
        kinds.append(lambda: [random_json(dice, depth + 1) for _ in range(dice.randrange(4))])
        kinds.append(
            lambda: {str(random_json(dice, 9))[:9]: random_json(dice, depth + 1) for _ in range(dice.randrange(4))}
        )
    return dice.choice(kinds)()


def random_frame(dice: random.Random) -> bytes:
    whole = {
        "out": {"text": "hello"},
        "call": {"name": dice.choice(list(FUNCTIONS)), "args": ["x"], "kwargs": {}},
        "done": {"outcome": "ok", "error": ""},
        "exit": {"status": -9, "cpu_s": 0.1},
    }
    op = dice.choice(list(whole))
    frame: dict[str, object] = {"op": op, **whole[op]}
    for _ in range(dice.randrange(3)):
        frame[dice.choice(["op", "text", "name", "args", "kwargs", "outcome", "error", "cpu_s", "status", "x"])] = (
            random_json(dice)
        )
    if dice.random() < 0.2:
        del frame[dice.choice(list(frame))]
    body = bytearray(json.dumps(frame).encode() if dice.random() < 0.9 else dice.randbytes(dice.randrange(100)))
    for _ in range(dice.choice((0, 0, 0, 1, 5))):
        if body:
            body[dice.randrange(len(body))] = dice.randrange(256)
    length = (
        len(body) if dice.random() < 0.8 else dice.choice((0, 1, len(body) + 1, 1 << 20, (1 << 20) + 1, 0xFFFFFFFF))
    )
    return length.to_bytes(4, "little") + bytes(body)


def frames_program(seed: int) -> str:
    dice = random.Random(seed)
    data = b"".join(random_frame(dice) for _ in range(dice.randint(1, 8)))
    write = f"import os\nview = memoryview({data!r})\nwhile view:\n    view = view[os.write(3, view):]"
    return write + dice.choice(("", HANG, "\nprint(search_pages('x'))", "\nos._exit(0)"))


@pytest.fixture(scope="module")
def small_arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    limits = LIMITS.model_copy(update={"soft_limit_s": 0.1, "hard_limit_s": 0.2, "wall_limit_s": 5.0})
    sandbox = opened(**limits.model_dump())
    folder: Path = tmp_path_factory.mktemp("fuzz")
    folder.chmod(0o755)
    with sandbox, Arena(sandbox, folder, limits) as arena:
        yield arena


@pytest.mark.parametrize("case", [frames_program, mutated_program])
def test_no_random_attack_gets_out(small_arena: Arena, case: Callable[[int], str]):
    deadline_s = time.monotonic() + FUZZ_S / 2
    seed = first = time.time_ns() % 10**9 if IS_LONG else 0
    fork_server = small_arena.sandbox.fork_server_pid
    outcomes = dict.fromkeys(OUTCOMES, 0)
    while time.monotonic() < deadline_s:
        program = case(seed)
        try:
            session = small_arena.sandbox.open(FUNCTIONS)
            for text in (program, "print(search_pages('x'))"):
                outcomes[small_arena.run(session, text).outcome] += 1
            session.close()
            small_arena.check_surroundings()
            assert small_arena.sandbox.fork_server_pid == fork_server, "the fork server died"
        except BaseException:
            print(f"{case.__name__}({seed}):\n{program}")
            raise
        seed += 1
    print(f"{case.__name__}: {seed - first} cases from seed {first}: {outcomes}")
