"""Code for a GPU on a machine without one: tests marked `gpu`, and a whole run, on the stand-in of `cuda_on_cpu`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.patience import FAILS_AFTER_S

ROOT = Path(__file__).parent.parent
GROUPS = {
    "rules": ["tests/cuda_on_cpu"],
    "gpu": ["-m", "gpu", "tests/learn/test_gpu.py", "tests/rollout/test_graphs.py"],
    "recipe": ["tests/pipeline/test_run_recipe.py", "-k", "tools or rl-2-False"],
}


@pytest.mark.skipif(shutil.which("g++") is None, reason="the stand-in for a GPU needs a C++ compiler")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, whose tests run on it")
@pytest.mark.parametrize(
    "group", ["rules", *(pytest.param(each, marks=pytest.mark.long) for each in ("gpu", "recipe"))]
)
def test_what_a_gpu_runs_keeps_its_rules(group):
    command = [sys.executable, "-m", "pytest", "-p", "tests.cuda_on_cpu.plugin", "-p", "no:cacheprovider"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *GROUPS[group]], capture_output=True, text=True, env=environment, cwd=ROOT, timeout=6 * FAILS_AFTER_S
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    last = done.stdout.strip().splitlines()[-1]
    assert re.search(r"\d+ passed", last)
    assert "skipped" not in last
