"""The fork server: a clean interpreter that holds nothing worth stealing and forks one child per session.

It is started with an empty environment, never sees the trainer's memory, and takes two kinds of messages from the
trainer, on a socket that no program can reach: how to set itself up, then one socket per session to serve. On that it
says one thing, before the program's process can say any: it hands over a process descriptor, with which the host can
kill that very process and no other, and the end of a pipe, on which it reports how the process ended.

Lines of defence against outliving the trainer: the control socket's end of file, a descriptor of the trainer's
process, the parent-death signal, and the process id namespace whose init this is.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import platform
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable

from . import confine, seccomp
from .channel import Limits
from .runner import run_session

_MAX_MESSAGE_BYTES = 65536
_SESSION_FD = 3
_EXTRA_THREADS = 512
_MODULES = tuple(
    """
abc array ast base64 binascii bisect builtins calendar cmath codecs collections collections.abc concurrent.futures
concurrent.futures.thread contextlib contextvars copy copyreg csv ctypes dataclasses datetime decimal difflib dis enum
errno fnmatch fractions functools gc glob graphlib hashlib heapq hmac html html.entities html.parser inspect io
itertools json json.decoder json.encoder keyword linecache locale logging math mmap numbers operator os os.path pathlib
pickle platform pprint queue random re reprlib resource sched secrets select shlex signal socket stat statistics string
struct subprocess sys tempfile textwrap threading time timeit token tokenize traceback types typing unicodedata
urllib.parse uuid warnings weakref xml.etree.ElementTree zlib zoneinfo
_strptime encodings.ascii encodings.idna encodings.latin_1 encodings.punycode encodings.utf_16 encodings.utf_32
encodings.utf_8_sig encodings.unicode_escape encodings.raw_unicode_escape encodings.cp1252 encodings.hex_codec
encodings.base64_codec encodings.rot_13
""".split()  # noqa: SIM905  # a list literal of it would be a hundred lines
)
"""The part of the standard library that programs may import; there is no file system to import from later."""


class Zygote:
    """One fork server. `without` names layers that it leaves out."""

    def __init__(self, control: socket.socket, trainer_fd: int, limits: Limits, without: set[str]) -> None:
        self._control, self._trainer_fd = control, trainer_fd
        self._limits, self._without = limits, without
        self._machine = platform.machine()
        self._filter: confine.Filter | None = None
        self._num_tasks = confine.THREADS_PER_PROGRAM
        self._has_own_user_namespaces = False
        self._sessions: dict[int, tuple[int, int]] = {}
        """pidfd -> (pid, the pipe for the report of its end)"""

    def set_up(self) -> None:
        """Put up the walls and report which of them stand."""
        notes: dict[str, str] = {}
        missing = []
        for name in _MODULES:
            try:
                importlib.import_module(name)
            except ImportError:
                missing.append(name)
        if missing:
            notes["modules"] = f"not in this interpreter: {', '.join(missing)}"
        confine.use_one_heap()
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # each open session takes two descriptors here
        confine.prefer_for_oom_killer()
        num_tasks_now = confine.num_tasks_of_this_user() if os.geteuid() != 0 else 0
        has_namespaces = self._try("namespaces", self._enter_namespaces, notes)
        if has_namespaces:
            self._become_init()
        confine.drop_root()
        if has_namespaces:
            confine.drop_capabilities(self._machine)
            confine.die_with_parent()
        confine.forbid_new_privileges()
        has_landlock = self._try("landlock", confine.forbid_files_and_network, notes)
        confine.forbid_inspection()
        has_seccomp = self._try("seccomp", self._prepare_filter, notes)
        self._has_own_user_namespaces = has_namespaces and self._in_child(confine.enter_own_user_namespace) == 0
        if not self._has_own_user_namespaces:
            # Threads of all programs, and of all else that this user runs, then share one count.
            self._num_tasks = num_tasks_now + _EXTRA_THREADS
        status = self._in_child(self._confine_child)  # all of a child's walls, once
        problem = f"a first child could not be confined (status {status})" if status else ""
        self._clear_traces()
        stands = {"seccomp": has_seccomp, "landlock": has_landlock, "rlimits": True, "namespaces": has_namespaces}
        layers = [layer for layer, stands_here in stands.items() if stands_here]
        reply = {"layers": layers, "notes": notes, "problem": problem}
        self._control.send(json.dumps(reply).encode())

    def _try(self, layer: str, put_up: Callable[[], None], notes: dict[str, str]) -> bool:
        if layer in self._without:
            notes[layer] = "switched off"
            return False
        try:
            put_up()
        except OSError as error:
            notes[layer] = str(error)
            return False
        return True

    def _enter_namespaces(self) -> None:
        """Enter them all, or none: who was let into some and then refused the rest can no longer fork.

        Docker with SYS_ADMIN under its default AppArmor profile is such a place, and Ubuntu's restriction of user
        namespaces: unshare is allowed there and mount is not. So a child goes first.
        """
        status = self._in_child(self._try_namespaces)
        if status != 0:
            raise OSError(status, f"tried in a child: {os.strerror(status)}")
        confine.enter_namespaces(self._machine)

    def _try_namespaces(self) -> None:
        confine.enter_namespaces(self._machine)
        if status := self._in_child(lambda: None):  # the first process of the new namespace
            raise OSError(status, "fork")

    def _become_init(self) -> None:
        """Continue in a child, which is the first process of the new process id namespace.

        The parent stays behind to hold the namespace's end: it waits, and dies with the same status.
        """
        pid = os.fork()
        if pid == 0:
            return
        self._control.close()
        confine.close_from(3)
        confine.drop_root()
        _, status = os.waitpid(pid, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)

    def _prepare_filter(self) -> None:
        if self._machine not in seccomp.ARCHITECTURES:
            raise OSError(f"no system call table for {self._machine}")
        prepared = confine.Filter(seccomp.build_filter(self._machine))
        if status := self._in_child(prepared.install):
            raise OSError(f"the kernel refused the filter (status {status})")
        self._filter = prepared

    def _in_child(self, action: Callable[[], None]) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                action()
                os._exit(0)
            except OSError as error:
                os._exit(error.errno or 1)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def _clear_traces(self) -> None:
        os.environ.clear()
        sys.path.clear()
        sys.path_importer_cache.clear()
        sys.argv[:] = [""]
        os.dup2(0, 2)  # /dev/null; until now standard error told the host why a start failed
        # Forked children then touch, and so copy, fewer pages.
        gc.collect()
        gc.freeze()

    def serve(self) -> None:
        """Fork sessions until the trainer is gone."""
        poller = select.epoll()
        poller.register(self._control, select.EPOLLIN)
        poller.register(self._trainer_fd, select.EPOLLIN)
        while True:
            for fd, _ in poller.poll():
                if fd == self._control.fileno():
                    self._fork_session(poller)
                elif fd == self._trainer_fd:
                    os._exit(0)
                elif fd in self._sessions:
                    poller.unregister(fd)
                    self._reap(fd)

    def _fork_session(self, poller: select.epoll) -> None:
        message, fds, _, _ = socket.recv_fds(self._control, 16, 1, socket.MSG_CMSG_CLOEXEC)
        if not message:
            os._exit(0)
        if not fds:
            return  # we are out of descriptors; the host sees the end of its socket and says so
        with socket.socket(fileno=fds[0]) as session:
            pid = 0
            opened: list[int] = []
            try:
                opened += os.pipe()
                pid = os.fork()
                if pid == 0:
                    self._become_session(session)
                opened.append(os.pidfd_open(pid))
                poller.register(opened[-1], select.EPOLLIN)
            except OSError:  # out of processes or descriptors
                for fd in opened:
                    os.close(fd)
                if pid:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                return
            host_end, our_end, pidfd = opened
            self._sessions[pidfd] = (pid, our_end)
            # When the host has closed the session already, the child sees that too.
            with contextlib.suppress(OSError):
                socket.send_fds(session, [b"born"], [pidfd, host_end])
            os.close(host_end)

    def _reap(self, pidfd: int) -> None:
        """Reap a child and tell the host how it ended."""
        pid, report_fd = self._sessions.pop(pidfd)
        _, status, usage = os.wait4(pid, 0)
        os.close(pidfd)
        report = {"status": os.waitstatus_to_exitcode(status), "cpu_s": usage.ru_utime + usage.ru_stime}
        with contextlib.suppress(OSError):  # when nobody listens any more
            os.write(report_fd, json.dumps(report).encode())
        os.close(report_fd)

    def _become_session(self, session: socket.socket) -> None:
        """In the child: put up the program's own walls and serve its socket."""
        try:
            fd = session.detach()
            if fd != _SESSION_FD:
                os.dup2(fd, _SESSION_FD, inheritable=False)
            confine.close_from(_SESSION_FD + 1)
            gc.enable()
            self._confine_child()
            run_session(_SESSION_FD, self._limits)
        finally:
            os._exit(70)  # whatever happened: a child must never return into the fork server's loop

    def _confine_child(self) -> None:
        confine.die_with_parent()
        confine.forbid_inspection()
        os.nice(10)
        if self._has_own_user_namespaces:
            confine.enter_own_user_namespace()
            confine.drop_capabilities(self._machine)
        confine.limit_resources(
            memory_bytes=self._limits["memory_bytes"], cpu_s=self._limits["session_cpu_s"], num_tasks=self._num_tasks
        )
        if self._filter is not None:
            self._filter.install()


def main() -> None:
    """Serve the control socket, whose number is the first argument; the second is a descriptor of the trainer."""
    gc.disable()
    control = socket.socket(fileno=int(sys.argv[1]))
    orders = json.loads(control.recv(_MAX_MESSAGE_BYTES))
    zygote = Zygote(control, int(sys.argv[2]), orders["limits"], set(orders["without"]))
    zygote.set_up()  # what it raises goes to standard error, where the host reads it
    zygote.serve()
