"""Case 59: a machine that lacks a wall is reported, refused or served with what it has; and another user's turn."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

from seekling.env.sandbox import Sandbox
from seekling.errors import SandboxError
from tests.attack.arena import FUNCTIONS, LIMITS, SANE_OUTPUT, SANE_PROGRAM

ROOT = Path(__file__).parents[2]
USER = 1000


def test_every_layer_that_stands_is_reported():
    with Sandbox(LIMITS) as sandbox:
        assert sandbox.layers[0] == "seccomp"
        assert set(sandbox.layers) <= {"seccomp", "landlock", "rlimits", "namespaces"}
        assert "rlimits" in sandbox.layers


@pytest.mark.parametrize("missing", [("landlock",), ("namespaces",), ("landlock", "namespaces")], ids="+".join)
def test_an_optional_layer_that_is_missing_is_not_reported_and_not_needed(missing: tuple[str, ...]):
    with Sandbox(LIMITS, without=missing) as sandbox:
        assert not set(missing) & set(sandbox.layers)
        session = sandbox.open(FUNCTIONS)
        assert session.run(SANE_PROGRAM).stdout == SANE_OUTPUT


def test_without_a_system_call_filter_it_refuses_to_start_and_says_what_to_do():
    with pytest.raises(SandboxError) as caught:
        Sandbox(LIMITS, without=("seccomp",))
    assert "no system call filter" in str(caught.value)
    assert 'env.protocol = "tags"' in str(caught.value)
    assert "env.sandbox.allow_unsafe = true" in str(caught.value)


def test_who_asks_for_it_gets_an_unsafe_sandbox_with_a_warning(caplog: pytest.LogCaptureFixture):
    unsafe = LIMITS.model_copy(update={"allow_unsafe": True})
    with (
        caplog.at_level(logging.WARNING, logger="seekling.sandbox"),
        Sandbox(unsafe, without=("seccomp",)) as sandbox,
    ):
        assert "seccomp" not in sandbox.layers
        session = sandbox.open(FUNCTIONS)
        assert session.run(SANE_PROGRAM).stdout == SANE_OUTPUT
    assert "WITHOUT a system call filter" in caplog.text


CONTAINER = """
import struct, sys
from seekling.env.sandbox.guest import confine
# What Docker's default profile does to an unprivileged process: these calls are EPERM, all others pass.
denied = {"unshare": 272, "setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155}
rules = [(0x20, 0, 0, 0)]
for number in denied.values():
    rules += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050001)]
rules.append((0x06, 0, 0, 0x7FFF0000))
confine.forbid_new_privileges()
confine.Filter(b"".join(struct.pack("=HBBI", *rule) for rule in rules)).install()
from seekling.env.sandbox import Sandbox
from seekling.config import SandboxConfig
with Sandbox(SandboxConfig()) as sandbox:
    result = sandbox.open({}).run("print(6 * 7)")
    print(sandbox.layers, result.stdout.strip())
"""


def contained(denied: str) -> subprocess.CompletedProcess[str]:
    """The script, with other calls denied."""
    script = re.sub(r"denied = .*", f"denied = {denied}", CONTAINER) if denied else CONTAINER
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)


on_x86_64 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the call numbers in this test are x86_64's")


@on_x86_64
# The last three: Docker with SYS_ADMIN under its default AppArmor profile, and Ubuntu's restriction of user namespaces:
# unshare is allowed and mount is not. A process that went half the way cannot fork twice.
@pytest.mark.parametrize("denied", ["", '{"mount": 165}', '{"pivot_root": 155}', '{"umount2": 166}'])
def test_in_a_container_where_namespaces_cannot_be_entered_or_only_half_they_are_left_out(denied: str):
    done = contained(denied)
    assert done.returncode == 0, done.stderr
    assert "namespaces" not in done.stdout
    assert done.stdout.strip().endswith("42")


@on_x86_64
def test_where_there_is_no_filter_at_all_it_refuses_to_start():
    # A filter that forbids prctl(PR_SET_SECCOMP) and seccomp() stands in for a kernel without them.
    done = contained('{"seccomp": 317, "prctl": 157}')
    assert (done.returncode, done.stdout) == (1, "")
    assert "SandboxError: " in done.stderr


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="not root: this whole suite is already an ordinary user's run")
@pytest.mark.parametrize("half", ["all and layers", "not (all and layers)"])  # two, so that two workers share them
def test_every_case_holds_for_an_ordinary_user_too(half: str):
    # A basetemp under pytest's own folder would be closed to this user.
    folder = Path(tempfile.mkdtemp(prefix="seekling-user-"))
    folder.chmod(0o777)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), sysconfig.get_path("purelib")]),
    }

    def run(python: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, "-B", *words],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            user=USER,
            group=USER,
            extra_groups=[],
        )

    # Root's own interpreter may live where nobody else can read; one of the same version of the system's will do.
    pythons = [sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"]
    probe = "import subprocess, sys, pytest; subprocess.run([sys.executable, '-c', ''], check=True)"
    python = None
    for candidate in pythons:
        with contextlib.suppress(OSError):
            if run(candidate, "-c", probe).returncode == 0:
                python = candidate
                break
    if python is None:
        pytest.skip(f"uid {USER} can run none of {pythons} with this project's packages")
    arguments = ("-p", "no:cacheprovider", "tests/attack", "-v", "-k", half, f"--basetemp={folder}/pytest")
    done = run(python, "-m", "pytest", *arguments)
    shutil.rmtree(folder)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed, skipped = (int((re.findall(rf"(\d+) {word}", done.stdout) or ["0"])[-1]) for word in ("passed", "skipped"))
    assert passed > 150, f"only {passed} cases ran as uid {USER}"
    assert skipped <= 3, "skipped is only what needs root"
