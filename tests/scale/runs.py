"""A run at the beginning of its RL, copied as often as wanted; what of it must repeat anywhere."""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import load_file

from seekling.config import Recipe, ScaleConfig
from seekling.pipeline.stages import run_recipe
from seekling.scale.ledger import problems, read_attempts
from tests.pipeline.runs import QuietReporter, rows, village_recipe

if TYPE_CHECKING:
    from seekling.scale.sharded import Ranks

STEPS = 5
TOLERANCE = 1e-5
"""Of losses. Which episodes are sampled side by side plays a part in the last digits of float32."""


def scaled(recipe: Recipe, **settings: object) -> Recipe:
    """The recipe with other settings of its section scale."""
    return recipe.model_copy(update={"scale": ScaleConfig.model_validate(settings)})


def until_rl(folder: Path, model: Path) -> tuple[Recipe, Path]:
    """A recipe in float32, and a run of it in this process that has done its SFT and no step of RL."""
    recipe = village_recipe(
        folder, model, rl={"steps": STEPS}, eval={"stages": []}, checkpoint={"every_steps": 2}, sft={"epochs": 50}
    )
    run = folder / "until rl"
    with pytest.raises(KeyboardInterrupt):
        run_recipe(recipe, run, QuietReporter("rl", 1))
    return recipe, run


def go_on(recipe: Recipe, begun: Path, run: Path) -> QuietReporter:
    """End a copy of a run that was begun; the reporter has what was said."""
    if not run.exists():
        shutil.copytree(begun, run)
    reporter = QuietReporter()
    run_recipe(recipe, run, reporter)
    return reporter


def assert_same_rl(run: Path, expected: Path) -> None:
    """The same episodes, losses and weights."""
    mine, theirs = (
        [[turn["action"] for turn in row["episode"]["turns"]] for row in rows(each / "episodes" / "rl.jsonl")]
        for each in (run, expected)
    )
    assert mine == theirs
    mine, theirs = ([row for row in rows(each / "metrics.jsonl") if row["stage"] == "rl"] for each in (run, expected))
    assert [row["step"] for row in mine] == [row["step"] for row in theirs] == list(range(1, STEPS + 1))
    for name in ("loss", "reward_mean", "entropy"):
        np.testing.assert_allclose(
            [row.get(name, 0.0) for row in mine], [row.get(name, 0.0) for row in theirs], atol=TOLERANCE, err_msg=name
        )
    assert sum("loss" in row for row in mine) >= 3, "too few steps had anything to learn from"
    mine, theirs = (load_file(each / "checkpoints" / "rl" / "model.safetensors") for each in (run, expected))
    for name, tensor in theirs.items():
        np.testing.assert_allclose(mine[name], tensor, atol=1e-3, err_msg=name)


def assert_balanced(run: Path, recipe: Recipe) -> list[str]:
    """The ledger agrees with the episodes that were kept; why attempts were dropped."""
    kept = Counter(row["step"] for row in rows(run / "episodes" / "rl.jsonl"))
    assert kept == dict.fromkeys(range(1, STEPS + 1), recipe.rl.questions_per_step * recipe.rl.group_size)
    ledger, used = run / "ledger.jsonl", Counter[int]()
    assert problems(ledger, kept) == []
    attempts = read_attempts(ledger)
    for each in attempts:
        used[each.step] += each.num_returned * each.counts
    assert used == kept
    return [reason for each in attempts for reason in each.reasons]


@contextlib.contextmanager
def two_ranks(*, timeout_s: float = 120.0) -> Iterator[Ranks]:
    """Two learner processes on a real local Ray; they stay when a learner is closed, so that starting is paid once."""
    from seekling.scale.cluster import connect
    from seekling.scale.sharded import Ranks

    disconnect = connect(ScaleConfig(engine="ray"), lambda line: None)
    ranks = Ranks(2, timeout_s=timeout_s)
    ranks.learners.add(-1)
    try:
        yield ranks
    finally:
        ranks.stop()
        disconnect()
