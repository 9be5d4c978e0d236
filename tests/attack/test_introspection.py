"""Cases 38-42: a program may walk through its own interpreter as it likes, because nothing is in there."""

from __future__ import annotations

import platform

import pytest

from tests.attack.arena import SECRET_IN_MEMORY, Arena

HARMLESS_CALLS = {
    "brk": 12,
    "sched_yield": 24,
    "getpid": 39,
    "getuid": 102,
    "getgid": 104,
    "geteuid": 107,
    "getegid": 108,
    "getppid": 110,
    "gettid": 186,
    "set_tid_address": 218,
    "madvise": 28,
    "munmap": 11,
    "poll": 7,
    "times": 100,
    "time": 201,
}
"""x86_64 numbers of the calls that may succeed whatever their arguments are."""
on_x86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the call numbers in this test are x86_64's")


def test_subclasses_lead_to_no_shell(arena: Arena):
    program = f"""
for c in ().__class__.__bases__[0].__subclasses__():
    if c.__name__ in ("_wrap_close", "Popen"):
        for name in ("popen", "Popen", "system"):
            run = c.__init__.__globals__.get(name)
            try:
                print(run and run("cat {arena.secret_path}; touch /tmp/pwned").read())
            except Exception as e:
                print(type(e).__name__)
"""
    result = arena.attack(program)
    assert result.outcome == "ok"


def test_frames_lead_to_no_secret(arena: Arena):
    assert SECRET_IN_MEMORY.startswith("CANARY-")
    program = """
import gc, sys, traceback
frames = [sys._getframe(), (x for x in [1]).gi_frame]
try:
    1 / 0
except ZeroDivisionError as e:
    frames.append(e.__traceback__.tb_frame)
texts = set()
for frame in frames:
    while frame:
        for scope in (frame.f_globals, frame.f_locals):
            for value in list(scope.values()):
                if isinstance(value, str):
                    texts.add(value)
        frame = frame.f_back
for thing in gc.get_objects():
    if isinstance(thing, dict):
        texts.update(v for v in list(thing.values()) if isinstance(v, str))
for module in list(sys.modules.values()):
    texts.update(v for v in list(vars(module).values()) if isinstance(v, str))
print(len(texts) > 100, [t[:50] for t in texts if "CAN" + "ARY" in t])
"""
    result = arena.attack(program)
    assert (result.outcome, result.stdout) == ("ok", "True []\n")


def test_no_module_of_the_trainer_is_loaded(arena: Arena):
    program = """
import sys
print([m for m in sys.modules if m.split('.')[0] in ('seekling', 'pytest', 'tests', 'pydantic', 'numpy')])
"""
    result = arena.attack(program)
    assert (result.outcome, result.stdout) == ("ok", "[]\n")


def test_the_main_module_is_the_programs_own(arena: Arena):
    result = arena.attack(
        "mine = 1\nimport __main__\nprint(__main__.mine, sorted(k for k in vars(__main__) if k[0] != '_'))"
    )
    assert result.stdout.startswith("1 ['boom', 'huge', 'mine', ")


def test_a_provided_function_leads_to_no_secret(arena: Arena):
    program = """
seen = set()
def walk(value, depth):
    if depth == 0 or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, (str, bytes)):
        if "CAN" + "ARY" in str(value):
            print("LEAK", value)
        return
    if isinstance(value, dict):
        children = list(value.values())
    elif isinstance(value, (list, tuple, set)):
        children = list(value)
    else:
        names = ("__globals__", "__closure__", "__dict__", "cell_contents", "__self__", "__code__", "co_consts")
        children = [getattr(value, name, None) for name in names]
    for child in children:
        walk(child, depth - 1)
walk(search_pages, 7)
print(len(seen) > 50)
"""
    result = arena.attack(program)
    assert (result.outcome, result.stdout) == ("ok", "True\n")


@pytest.mark.parametrize(
    "expression",
    [
        "'{0.__globals__}'.format(search_pages)",
        "'{0.__init__.__globals__}'.format(type('A', (), {'__init__': lambda self: 0})())",
        "__import__('string').Formatter().format('{0.__globals__[os].environ}', search_pages)",
        "'{0.__closure__}'.format(search_pages)",
    ],
)
def test_format_strings_lead_to_no_secret(arena: Arena, expression: str):
    arena.attack(f"print(({expression})[:15000])")


@pytest.mark.parametrize(
    "expression",
    [
        "json.codecs.builtins.open({path!r}).read()",
        "json.codecs.sys.modules['os'].environ['SEEKLING_CANARY']",
        "re.enum.sys.modules['os'].popen('id').read()",
        "collections._sys.modules['os'].environ['SEEKLING_CANARY']",
        "sys.modules['os'].open({path!r}, 0)",
        "sys.modules['builtins'].__import__('os').listdir('/')",
    ],
)
def test_chains_of_module_attributes_lead_nowhere(arena: Arena, expression: str):
    program = f"import json, re, collections, sys\nprint({expression.format(path=str(arena.secret_path))})"
    result = arena.attack(program)
    assert (result.outcome, result.stdout) == ("error", "")


def test_the_c_library_reaches_nothing(arena: Arena):
    program = f"""
import ctypes
libc = ctypes.CDLL(None)
fd = libc.open({str(arena.secret_path).encode()!r}, 0)
buffer = ctypes.create_string_buffer(200)
print(fd, libc.read(fd, buffer, 200), buffer.value)
print(libc.system(b"touch /tmp/pwned") != 0)
print(libc.socket(2, 1, 0), libc.ptrace(16, 1, 0, 0), libc.fork(), libc.mount(0, 0, 0, 0, 0), libc.unshare(0x10000000))
print(libc.prctl(4, 1, 0, 0, 0), libc.setrlimit(9, buffer), libc.personality(0x0400000))
"""
    result = arena.attack(program)
    assert (result.outcome, result.stdout) == ("ok", "-1 -1 b''\nTrue\n-1 -1 -1 -1 -1\n-1 -1 -1\n")


@on_x86_64
def test_no_system_call_does_anything_that_is_not_on_the_list_of_harmless_ones(arena: Arena):
    # Not swept: exit, exit_group and rt_sigreturn end the process; 335 and 336 have a test of their own.
    program = """
import ctypes
libc = ctypes.CDLL(None)
print([n for n in range(600) if n not in (15, 60, 231, 335, 336) and libc.syscall(n, *[ctypes.c_long(-1)] * 6) >= 0])
"""
    result = arena.attack(program)
    assert result.outcome == "ok", result
    assert set(eval(result.stdout)) <= set(HARMLESS_CALLS.values())


@on_x86_64
def test_no_system_call_with_plain_arguments_does_harm_either(arena: Arena):
    # Zeros this time; also not swept: close(0), and what waits for ever when told nothing (select, ppoll, pselect6).
    program = """
import ctypes
libc = ctypes.CDLL(None)
skipped = (3, 15, 23, 60, 231, 270, 271, 335, 336)
print([n for n in range(600) if n not in skipped and libc.syscall(n, *[ctypes.c_long(0)] * 6) > 0])
"""
    result = arena.attack(program)
    assert result.outcome == "ok", result
    assert set(eval(result.stdout)) <= set(HARMLESS_CALLS.values())


@on_x86_64
@pytest.mark.parametrize("number", [335, 336, 0x40000000, 0x40000000 + 1, 0x40000000 + 59])
def test_a_call_that_goes_around_the_table_kills_at_most_its_caller(arena: Arena, number: int):
    # 335 and 336 (uretprobe, uprobe) are outside of every filter by the kernel's design; the others are x32 numbers.
    result = arena.attack(f"import ctypes\nprint(ctypes.CDLL(None).syscall({number}, 0, 0, 0))")
    assert (result.outcome, result.stdout) in (("crashed", ""), ("ok", "-1\n"))


@pytest.mark.parametrize(
    "program",
    [
        "import mmap\nprint(mmap.mmap(-1, 4096, prot=7))",
        "import ctypes\nprint(ctypes.CDLL(None).mprotect(id(1) & ~4095, 4096, 7) == 0 or 1 / 0)",
        "import ctypes\nf = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 1)\nprint(f())\nprint('made code' if 0 else 1 / 0)",
    ],
    ids=["mmap", "mprotect", "callback"],
)
def test_no_memory_becomes_executable(arena: Arena, program: str):
    result = arena.attack(program)
    assert result.outcome in ("error", "memory", "crashed")


def test_limits_cannot_be_raised(arena: Arena):
    program = """
import resource
for name in ("RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_NOFILE", "RLIMIT_FSIZE", "RLIMIT_NPROC"):
    number = getattr(resource, name)
    for limits in ((-1, -1), (1, 1)):
        try:
            print(resource.setrlimit(number, limits))
        except (OSError, ValueError):
            pass
print(resource.getrlimit(resource.RLIMIT_FSIZE))
"""
    result = arena.attack(program)
    assert (result.outcome, result.stdout) == ("ok", "(0, 0)\n")
