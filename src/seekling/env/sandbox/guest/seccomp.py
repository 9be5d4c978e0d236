"""Assembles the system call filter that every program runs under. Pure: bytes out, nothing is installed here.

An allow-list: what is not named gets EPERM. Calls that open or look at files get ENOENT, so that `open("/etc/passwd")`
is an ordinary FileNotFoundError to a program and to the model that reads its traceback. Calls of another architecture
kill the process.

It does NOT look through pointers (no filter can) and does NOT limit how much an allowed call may consume; rlimits do.
"""

from __future__ import annotations

import errno
import struct

KILL_PROCESS = 0x80000000
ALLOW = 0x7FFF0000
ERRNO = 0x00050000

_LOAD_WORD, _JUMP, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_ANY_BIT, _RETURN = 0x20, 0x05, 0x15, 0x35, 0x45, 0x06
_NUMBER_OFFSET, _ARCH_OFFSET, _ARGS_OFFSET = 0, 4, 16

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH_* of the machines that have a table."""

_X32_BIT = 0x40000000
_PROT_EXEC = 4
_THREAD_FLAGS = (0x003D0F00, 0x007D0F00)
"""The exact clone flags of pthread_create in glibc and in musl: nothing else may be cloned."""
_FCNTL_GETTERS = (1, 3)
"""F_GETFD and F_GETFL. F_DUPFD and the setters stay out."""

Instruction = tuple[int, int, int, int]
"""code, jump if true, jump if false, operand"""

_Table = dict[str, tuple[int | None, int | None]]
"""name: (x86_64, aarch64). None: the architecture has no such call."""

# fmt: off
ALLOWED: _Table = {
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "fstat": (5, 80), "poll": (7, None), "lseek": (8, 62),
    "munmap": (11, 215), "brk": (12, 214), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139), "readv": (19, 65), "writev": (20, 66), "select": (23, None), "sched_yield": (24, 124),
    "mremap": (25, 216), "madvise": (28, 233), "nanosleep": (35, 101), "getitimer": (36, 102), "setitimer": (38, 103),
    "getpid": (39, 172), "exit": (60, 93), "uname": (63, 160), "gettimeofday": (96, 169), "getrlimit": (97, 163),
    "getrusage": (98, 165), "times": (100, 153), "getuid": (102, 174), "getgid": (104, 176), "geteuid": (107, 175),
    "getegid": (108, 177), "getppid": (110, 173), "sigaltstack": (131, 132), "gettid": (186, 178),
    "time": (201, None), "futex": (202, 98), "sched_getaffinity": (204, 123), "set_tid_address": (218, 96),
    "restart_syscall": (219, 128), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115), "exit_group": (231, 94), "pselect6": (270, 72), "ppoll": (271, 73),
    "set_robust_list": (273, 99), "getrandom": (318, 278), "rseq": (334, 293),
}
NOT_FOUND: _Table = {
    "open": (2, None), "stat": (4, None), "lstat": (6, None), "access": (21, None), "getcwd": (79, 17),
    "chdir": (80, 49), "readlink": (89, None), "statfs": (137, 43), "openat": (257, 56), "newfstatat": (262, 79),
    "readlinkat": (267, 78), "faccessat": (269, 48), "statx": (332, 291), "openat2": (437, 437),
    "faccessat2": (439, 439),
}
READ_ONLY: _Table = {
    "truncate": (76, 45), "rename": (82, None), "mkdir": (83, None), "rmdir": (84, None), "creat": (85, None),
    "link": (86, None), "unlink": (87, None), "symlink": (88, None), "chmod": (90, None), "chown": (92, None),
    "lchown": (94, None), "mknod": (133, None), "mkdirat": (258, 34), "mknodat": (259, 33), "fchownat": (260, 54),
    "unlinkat": (263, 35), "renameat": (264, 38), "linkat": (265, 37), "symlinkat": (266, 36), "fchmodat": (268, 53),
    "utimensat": (280, 88), "renameat2": (316, 276),
}
NOT_A_TERMINAL: _Table = {"ioctl": (16, 29)}
NOT_IMPLEMENTED: _Table = {"clone3": (435, 435)}
"""ENOSYS makes the C library fall back to clone, whose flags are in a register and can be checked."""
CHECKED: _Table = {
    "mmap": (9, 222), "mprotect": (10, 226), "clone": (56, 220), "fcntl": (72, 25), "prlimit64": (302, 261),
}
"""Allowed for some arguments only."""
# fmt: on


def build_filter(machine: str) -> bytes:
    """Assemble the filter, an array of 8-byte `struct sock_filter`, for a machine that `ARCHITECTURES` has."""
    arch = ARCHITECTURES[machine]
    column = list(ARCHITECTURES).index(machine)  # the order of the tables above
    body = _emit_tree(_ranges(_actions(column)))
    head: list[Instruction] = [
        (_LOAD_WORD, 0, 0, _ARCH_OFFSET),
        (_JUMP_EQUAL, 1, 0, arch),
        (_RETURN, 0, 0, KILL_PROCESS),
        (_LOAD_WORD, 0, 0, _NUMBER_OFFSET),
        (_JUMP_GREATER_EQUAL, 0, 1, _X32_BIT),
        (_RETURN, 0, 0, KILL_PROCESS),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in head + body)


_Block = tuple[Instruction, ...]
_DENIED: _Block = ((_RETURN, 0, 0, ERRNO | errno.EPERM),)


def _actions(column: int) -> dict[int, _Block]:
    """What happens to each named call number: a short block of instructions that ends in a return."""
    actions: dict[int, _Block] = {}
    groups = (
        (ALLOWED, ALLOW),
        (NOT_FOUND, ERRNO | errno.ENOENT),
        (READ_ONLY, ERRNO | errno.EROFS),
        (NOT_A_TERMINAL, ERRNO | errno.ENOTTY),
        (NOT_IMPLEMENTED, ERRNO | errno.ENOSYS),
    )
    for table, verdict in groups:
        for numbers in table.values():
            if (number := numbers[column]) is not None:
                actions[number] = ((_RETURN, 0, 0, verdict),)
    checks = {
        "mmap": _NOT_EXECUTABLE,
        "mprotect": _NOT_EXECUTABLE,
        "clone": _equals_one_of(0, _THREAD_FLAGS),
        "fcntl": _equals_one_of(1, _FCNTL_GETTERS),
        "prlimit64": _READS_OWN_LIMIT,
    }
    for name, check in checks.items():
        number = CHECKED[name][column]
        assert number is not None, f"{name} exists everywhere"
        actions[number] = check
    return actions


def _ranges(actions: dict[int, _Block]) -> list[tuple[int, _Block]]:
    """Cut the number line into runs of one action: (first number, block), ascending from 0."""
    ranges: list[tuple[int, _Block]] = []
    for number in range(max(actions) + 2):
        block = actions.get(number, _DENIED)
        if not ranges or ranges[-1][1] != block:
            ranges.append((number, block))
    return ranges


def _emit_tree(ranges: list[tuple[int, _Block]]) -> list[Instruction]:
    """A binary search over the ranges.

    The kernel runs the filter once per call number when it is installed, for its cache of constant verdicts, and that
    is paid by every session: a tree takes a dozen steps where a list would take two hundred.
    """
    if len(ranges) == 1:
        return list(ranges[0][1])
    middle = len(ranges) // 2
    left, right = _emit_tree(ranges[:middle]), _emit_tree(ranges[middle:])
    # A conditional jump reaches 255 instructions, an unconditional one all of them.
    return [(_JUMP_GREATER_EQUAL, 0, 1, ranges[middle][0]), (_JUMP, 0, 0, len(left)), *left, *right]


def _argument(index: int, *, high: bool = False) -> Instruction:
    return (_LOAD_WORD, 0, 0, _ARGS_OFFSET + 8 * index + (4 if high else 0))


_ALLOWED: _Block = ((_RETURN, 0, 0, ALLOW),)
_NOT_EXECUTABLE: _Block = (_argument(2), (_JUMP_ANY_BIT, 0, 1, _PROT_EXEC), *_DENIED, *_ALLOWED)
_READS_OWN_LIMIT: _Block = (
    _argument(0),
    (_JUMP_EQUAL, 0, 5, 0),
    _argument(2),
    (_JUMP_EQUAL, 0, 3, 0),
    _argument(2, high=True),
    (_JUMP_EQUAL, 0, 1, 0),
    *_ALLOWED,
    *_DENIED,
)
"""prlimit64(0, resource, NULL, old): the pid is ours and no new limit is given (both halves of the pointer)."""


def _equals_one_of(index: int, values: tuple[int, int]) -> _Block:
    return (_argument(index), (_JUMP_EQUAL, 2, 0, values[0]), (_JUMP_EQUAL, 1, 0, values[1]), *_DENIED, *_ALLOWED)
