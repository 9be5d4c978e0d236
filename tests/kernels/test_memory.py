"""Sizes of packed sequences come in steps, so that few matrix products are compiled; freed memory stays or goes."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from seekling.kernels.memory import in_steps

BLOCKS = """
import contextlib
from seekling.kernels.memory import keep_freed_memory, large_blocks_apart, resident_bytes
keep_freed_memory()
for place in (large_blocks_apart(), contextlib.nullcontext()):
    before = resident_bytes()
    with place:
        block, kept = b"x" * 50_000_000, b"x" * 100_000
        del block
    print(resident_bytes() - before > 40_000_000)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_freed_blocks_are_kept_but_where_memory_is_short():
    done = subprocess.run([sys.executable, "-c", BLOCKS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_a_size_is_never_smaller_and_wastes_at_most_an_eighth_or_fifteen_tokens():
    for num_tokens in range(1, 5000):
        size = in_steps(num_tokens)
        assert num_tokens <= size <= max(num_tokens + 15, num_tokens * 9 / 8)
        assert in_steps(size) == size


def test_the_sizes_up_to_a_row_of_a_thousand_tokens_are_few():
    assert len({in_steps(num_tokens) for num_tokens in range(1, 1025)}) == 4 + 16 + 8 + 8
