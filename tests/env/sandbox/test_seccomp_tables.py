"""Case 60: the call tables and the filter of each architecture, in a simulator and against kernel headers."""

from __future__ import annotations

import errno
import functools
import re
import struct
from pathlib import Path

import pytest

from seekling.env.sandbox.guest import seccomp

HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
GENERIC_NAMES = {"newfstatat": "fstatat"}
"""The generic header names this call after its 32-bit twin."""
VERDICTS = (
    (seccomp.ALLOWED, seccomp.ALLOW),
    (seccomp.NOT_FOUND, seccomp.ERRNO | errno.ENOENT),
    (seccomp.READ_ONLY, seccomp.ERRNO | errno.EROFS),
    (seccomp.NOT_A_TERMINAL, seccomp.ERRNO | errno.ENOTTY),
    (seccomp.NOT_IMPLEMENTED, seccomp.ERRNO | errno.ENOSYS),
)
TABLES = (*(table for table, _ in VERDICTS), seccomp.CHECKED)
EPERM = seccomp.ERRNO | errno.EPERM
MACHINES = list(seccomp.ARCHITECTURES)
pytestmark = pytest.mark.parametrize("machine", MACHINES)


def run_filter(program: bytes, *, arch: int, number: int, args: tuple[int, ...] = ()) -> int:
    """A plain interpreter of the part of BPF that filters use; the verdict."""
    words = struct.pack("=IIQ6Q", number, arch, 0, *(*args, *[0] * (6 - len(args))))
    instructions = list(struct.iter_unpack("=HBBI", program))
    accumulator, at = 0, 0
    while True:
        code, if_true, if_false, operand = instructions[at]
        at += 1
        match code:
            case 0x20:
                accumulator = struct.unpack_from("=I", words, operand)[0]
            case 0x05:
                at += operand
            case 0x15:
                at += if_true if accumulator == operand else if_false
            case 0x35:
                at += if_true if accumulator >= operand else if_false
            case 0x45:
                at += if_true if accumulator & operand else if_false
            case 0x06:
                return int(operand)
            case _:
                raise AssertionError(f"unknown instruction {code:#x}")


def verdict(machine: str, number: int, *args: int) -> int:
    return run_filter(filter_of(machine), arch=seccomp.ARCHITECTURES[machine], number=number, args=args)


@functools.cache
def filter_of(machine: str) -> bytes:
    return seccomp.build_filter(machine)


def number_of(machine: str, name: str) -> int:
    number = next(table[name] for table in TABLES if name in table)[MACHINES.index(machine)]
    assert number is not None
    return number


def test_the_numbers_are_those_of_the_kernel_headers(machine: str):
    if not HEADERS[machine].exists():
        pytest.skip(f"no kernel header {HEADERS[machine]} here")
    text = HEADERS[machine].read_text()
    known: dict[str, int] = {}
    for name, number in re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)", text):
        known.setdefault(name, int(number))
    for table in TABLES:
        for name, numbers in table.items():
            alias = GENERIC_NAMES.get(name, name) if machine == "aarch64" else name
            assert numbers[MACHINES.index(machine)] == known.get(alias), name


def test_every_number_gets_the_verdict_of_its_table_and_all_others_eperm(machine: str):
    expected: dict[int, int] = {}
    for table, wanted in VERDICTS:
        expected.update({n[MACHINES.index(machine)]: wanted for n in table.values()})
    checked = {numbers[MACHINES.index(machine)] for numbers in seccomp.CHECKED.values()}
    program = seccomp.build_filter(machine)
    for number in (*range(700), 10**6, 0x3FFFFFFF):
        if number not in checked:
            got = run_filter(program, arch=seccomp.ARCHITECTURES[machine], number=number)
            assert got == expected.get(number, EPERM), number


def test_no_number_is_in_two_tables(machine: str):
    numbers = [n for table in TABLES for row in table.values() if (n := row[MACHINES.index(machine)]) is not None]
    assert len(numbers) == len(set(numbers))


def test_another_architecture_and_x32_numbers_kill(machine: str):
    program = seccomp.build_filter(machine)
    assert run_filter(program, arch=0x40000003, number=0) == seccomp.KILL_PROCESS
    for number in (0x40000000, 0x40000001, 0xFFFFFFFF):
        assert verdict(machine, number) == seccomp.KILL_PROCESS


@pytest.mark.parametrize("name", ["mmap", "mprotect"])
def test_memory_may_be_mapped_but_not_executable(machine: str, name: str):
    number = number_of(machine, name)
    for protection in range(16):
        wanted = EPERM if protection & 4 else seccomp.ALLOW
        assert verdict(machine, number, 0, 4096, protection) == wanted
        assert verdict(machine, number, 0, 4096, protection | 1 << 40) == wanted


def test_only_the_flags_of_a_thread_may_be_cloned(machine: str):
    number = number_of(machine, "clone")
    assert verdict(machine, number, 0x3D0F00) == seccomp.ALLOW
    assert verdict(machine, number, 0x7D0F00) == seccomp.ALLOW
    for flags in (0, 17, 0x01200011, 0x3D0F00 | 0x10000000, 0x3D0F00 & ~0x10000, 0x4111):
        assert verdict(machine, number, flags) == EPERM


def test_limits_may_be_read_and_not_set(machine: str):
    number = number_of(machine, "prlimit64")
    assert verdict(machine, number, 0, 7, 0, 0x7FFF0000) == seccomp.ALLOW
    for args in ((1, 7, 0), (0, 7, 0x7FFF0000), (0, 7, 1 << 32), (1 << 31, 7, 0)):
        assert verdict(machine, number, *args) == EPERM


def test_descriptor_flags_may_be_read_and_nothing_else(machine: str):
    number = number_of(machine, "fcntl")
    for command in range(2000):
        wanted = seccomp.ALLOW if command in (1, 3) else EPERM
        assert verdict(machine, number, 3, command) == wanted
