"""The walls, as system calls: privileges, namespaces, Landlock, rlimits, and the filter of `seccomp.py`.

Two of them go up once, around the fork server (namespaces, Landlock); the others around every program. Each function
raises OSError when the kernel refuses; what is required and what is optional is decided in `zygote.py`.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct

_LIBC = ctypes.CDLL(None, use_errno=True)

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
_SECCOMP_MODE_FILTER = 2
_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
_CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_NAMESPACES = _CLONE_NEWNS | _CLONE_NEWUTS | _CLONE_NEWIPC | _CLONE_NEWPID | _CLONE_NEWNET
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 1, 2, 4, 8, 32
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000
_MNT_DETACH = 2
_LANDLOCK_CREATE_RULESET, _LANDLOCK_RESTRICT_SELF = 444, 446
_LANDLOCK_CREATE_RULESET_VERSION = 1
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION_3 = 0x20080522
_CLOSE_RANGE = 436
_M_ARENA_MAX = -8
_SPARE_CPU_S = 5

NOBODY = 65534
THREADS_PER_PROGRAM = 64


class _SockFprog(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def use_one_heap() -> None:
    """Keep the C library from reserving 128 MB of address space for every thread of a program."""
    _LIBC.mallopt(_M_ARENA_MAX, 1)


def close_from(fd: int) -> None:
    """Close this descriptor and all above it. os.closerange may be a loop over a million numbers."""
    if _LIBC.syscall(_CLOSE_RANGE, fd, 0xFFFFFFFF, 0) < 0:
        os.closerange(fd, 65536)


def die_with_parent() -> None:
    """Have the kernel SIGKILL this process when its parent dies. A change of user id undoes it, so call it last."""
    _check(_LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def forbid_inspection() -> None:
    """No core dump, no ptrace, and /proc/<pid> belongs to root."""
    _check(_LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl(PR_SET_DUMPABLE)")


def forbid_new_privileges() -> None:
    """Required by Landlock and by the filter of an unprivileged process."""
    _check(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")


def drop_root() -> None:
    """Become `nobody` if we are root; otherwise stay who we are."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)


def drop_capabilities(machine: str) -> None:
    """Give up every capability, also those that a new user namespace grants."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _check(_LIBC.syscall(_CAPSET[machine], header, bytes(24)), "capset")


def enter_namespaces(machine: str) -> None:
    """Leave the host's network, mounts, IPC, host name and (for children to come) process ids; empty the root.

    Root does it directly and an ordinary user through a user namespace. OSError: the kernel, a container or a security
    module forbids it. Some may have been entered: then this process is of no more use.
    """
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        _check(_LIBC.unshare(_NAMESPACES), "unshare")
    else:
        _check(_LIBC.unshare(_NAMESPACES | _CLONE_NEWUSER), "unshare")
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{NOBODY} {uid} 1")
        _write("/proc/self/gid_map", f"{NOBODY} {gid} 1")
    _LIBC.sethostname(b"program", 7)
    _check(_LIBC.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "mount /")
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    _check(_LIBC.mount(b"none", b"/tmp", b"tmpfs", flags, b"size=4k,nr_inodes=2,mode=555"), "mount tmpfs")
    os.chdir("/tmp")
    _check(_LIBC.syscall(_PIVOT_ROOT[machine], b".", b"."), "pivot_root")
    _check(_LIBC.umount2(b".", _MNT_DETACH), "umount")
    os.chdir("/")
    _check(_LIBC.mount(b"none", b"/", None, flags | _MS_REMOUNT | _MS_RDONLY, None), "remount")


def enter_own_user_namespace() -> None:
    """Give one program a user namespace, so that its threads are counted apart from every other program's."""
    _check(_LIBC.unshare(_CLONE_NEWUSER), "unshare(CLONE_NEWUSER)")


def forbid_files_and_network() -> None:
    """Enforce an empty Landlock ruleset: everything it can handle is denied from here on.

    Raises:
        OSError: this kernel has no Landlock.
    """
    version = int(_LIBC.syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_CREATE_RULESET_VERSION))
    if version <= 0:
        raise OSError("this kernel has no Landlock")
    num_file_rights = {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)
    network = 0b11 if version >= 4 else 0
    scopes = 0b11 if version >= 6 else 0
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    attributes = struct.pack("=QQQ", (1 << num_file_rights) - 1, network, scopes)[:size]
    ruleset = _check(_LIBC.syscall(_LANDLOCK_CREATE_RULESET, attributes, size, 0), "landlock_create_ruleset")
    try:
        _check(_LIBC.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    finally:
        os.close(ruleset)


def limit_resources(*, memory_bytes: int, cpu_s: int, num_tasks: int) -> None:
    """Set the rlimits of one program, hard ones, so that it cannot raise them.

    `memory_bytes` is address space, `num_tasks` counts this user id in this user namespace, threads included. `cpu_s`
    is a backstop over the session's life: SIGXCPU, and a little later a kill, so that the reason can be told.
    """
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + _SPARE_CPU_S))
    limits = {"AS": memory_bytes, "NPROC": num_tasks, "NOFILE": 32, "FSIZE": 0, "CORE": 0, "MEMLOCK": 0, "MSGQUEUE": 0}
    for name, value in limits.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))


def num_tasks_of_this_user() -> int:
    """How many tasks our user id runs on this machine, ours included; 0 when /proc does not say."""
    count, uid = 0, os.getuid()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == uid:
                    count += len(os.listdir(f"/proc/{name}/task"))
            except OSError:
                continue  # it ended meanwhile
    return count


class Filter:
    """A system call filter, assembled once and kept ready for every child."""

    def __init__(self, program: bytes) -> None:
        self._code = ctypes.create_string_buffer(program, len(program))
        self._prog = _SockFprog(len(program) // 8, ctypes.addressof(self._code))
        self._address = ctypes.addressof(self._prog)

    def install(self) -> None:
        """Put this process under the filter, for good.

        Raises:
            OSError: the kernel has no seccomp filters, or a container forbids them.
        """
        address = ctypes.c_void_p(self._address)
        _check(_LIBC.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, address, 0, 0), "prctl(PR_SET_SECCOMP)")


def prefer_for_oom_killer() -> None:
    """Make this process and its children the first that a machine out of memory kills."""
    _write("/proc/self/oom_score_adj", "1000")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
