"""Cases 28-34: a program can neither read nor write nor even see files, and holds no descriptor of ours."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.attack.arena import Arena, fork_server_pid


@pytest.mark.parametrize("path", ["/etc/passwd", "{secret}", "/etc/hostname", "/dev/zero", "/proc/self/status"])
def test_a_file_to_read_does_not_exist(arena: Arena, path: str):
    path = path.format(secret=arena.secret_path)
    result = arena.attack(f"print(open({path!r}).read()[:200])")
    assert (result.outcome, result.stdout) == ("error", "")
    assert result.error_text.endswith(f"FileNotFoundError: [Errno 2] No such file or directory: {path!r}")


def test_the_fork_server_has_no_environment_of_the_trainers(arena: Arena):
    if os.geteuid() != 0:
        pytest.skip("only root may look into that process")
    for pid in {arena.sandbox.fork_server_pid, fork_server_pid(arena.sandbox)}:
        assert Path(f"/proc/{pid}/environ").read_bytes() == b"PYTHONHASHSEED=0\0"
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
        assert os.getsid(pid) != os.getsid(0)


def test_proc_shows_no_process(arena: Arena):
    program = """
import os
for who in ("self", "1", str(os.getppid()), str(os.getpid()), "thread-self"):
    for what in ("environ", "cmdline", "mem", "maps", "fd", "root/etc/passwd", "cwd"):
        for read in (lambda p: open(p, "rb").read(), os.listdir, os.readlink, os.stat):
            try:
                print(who, what, read(f"/proc/{who}/{what}"))
            except OSError:
                pass
"""
    result = arena.attack(program)
    assert (result.outcome, result.stdout) == ("ok", "")


def test_the_environment_is_empty(arena: Arena):
    result = arena.attack("import os\nprint(dict(os.environ), os.getenv('SEEKLING_CANARY'), os.environb)")
    assert result.outcome == "ok"
    assert result.stdout.startswith("{} None ")
    assert "PATH" not in result.stdout


@pytest.mark.parametrize(
    "path", ["pwned.txt", "/tmp/pwned.txt", "/dev/shm/pwned", "{folder}/pwned.txt", "/pwned", "../pwned"]
)
def test_no_file_can_be_written(arena: Arena, path: str):
    path = path.format(folder=arena.folder)
    program = f"""
import os, pathlib, tempfile
for make in (
    lambda: open({path!r}, "w").write("x"),
    lambda: os.mkdir({path!r}),
    lambda: os.mknod({path!r}),
    lambda: os.mkfifo({path!r}),
    lambda: os.symlink("/etc", {path!r}),
    lambda: os.link("/etc/passwd", {path!r}),
    lambda: os.rename("/etc/hostname", {path!r}),
    lambda: pathlib.Path({path!r}).touch(),
    lambda: tempfile.mkstemp(prefix="pwned"),
    lambda: os.memfd_create("pwned"),
):
    try:
        print("made", make())
    except OSError:
        pass
"""
    result = arena.attack(program)
    assert (result.outcome, result.stdout) == ("ok", "")


def test_existing_files_cannot_be_removed_or_changed(arena: Arena):
    program = f"""
import os
path = {str(arena.secret_path)!r}
for harm in (
    lambda: os.unlink(path),
    lambda: os.rmdir(path),
    lambda: os.truncate(path, 0),
    lambda: os.chmod(path, 0),
    lambda: os.chown(path, 0, 0),
    lambda: os.utime(path),
    lambda: os.setxattr(path, "user.x", b"x"),
):
    try:
        print("did", harm())
    except OSError:
        pass
"""
    result = arena.attack(program)
    assert (result.outcome, result.stdout) == ("ok", "")
    assert arena.secret_path.read_text() == "CANARY-in-a-file"


def test_the_existence_of_a_file_cannot_be_found_out(arena: Arena):
    program = f"""
import os
answers = []
for path in ({str(arena.secret_path)!r}, "/surely/not/there", "/etc", "/tmp"):
    answers.append([])
    for look in (os.stat, os.lstat, os.listdir, os.scandir, os.path.exists, os.readlink, os.chdir, os.statvfs):
        try:
            answers[-1].append(look(path))
        except OSError as e:
            answers[-1].append(e.errno)
print(all(answer == answers[0] for answer in answers), answers[0])
"""
    result = arena.attack(program)
    assert result.outcome == "ok"
    assert result.stdout.startswith("True [2, 2, 2, 2, False, 2, 2, ")


def test_no_descriptor_is_inherited_but_the_null_device_and_the_programs_own_channel(arena: Arena):
    program = """
import os
found = []
for fd in range(1024):
    try:
        os.get_inheritable(fd)
        found.append(fd)
    except OSError:
        pass
print(found)
for fd in (0, 1, 2):
    print(os.read(fd, 10))
"""
    result = arena.attack(program)
    assert (result.outcome, result.stdout) == ("ok", "[0, 1, 2, 3]\nb''\nb''\nb''\n")


def test_writing_to_every_descriptor_harms_nobody(arena: Arena):
    result = arena.attack(
        "import os\nfor fd in range(1024):\n    if fd != 3:\n"
        "        try: os.write(fd, b'x' * 100)\n        except OSError: pass\nprint('done')"
    )
    assert (result.outcome, result.stdout) == ("ok", "done\n")


def test_closing_every_descriptor_harms_only_the_program(arena: Arena):
    result = arena.attack("import os\nos.closerange(0, 1024)\nprint('still here')\nprint(search_pages('x'))")
    assert result.outcome in ("crashed", "timeout", "protocol")


@pytest.mark.parametrize("module", ["requests", "numpy", "seekling", "pytest", "torch", "sqlite3"])
def test_a_module_that_is_not_provided_is_not_found(arena: Arena, module: str):
    result = arena.attack(f"import {module}")
    assert result.outcome == "error"
    assert result.error_text.endswith(f"ModuleNotFoundError: No module named '{module}'")
