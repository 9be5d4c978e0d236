"""kill -9 at any moment of a run, and the same command again: the run ends as if nothing had happened."""

from __future__ import annotations

import random
import signal

import pytest

from seekling.pipeline.run_folder import RunFolder
from tests.pipeline.killing import run_in_child
from tests.pipeline.runs import village_recipe, what_must_repeat

pytestmark = pytest.mark.long

NUM_KILLS = 10


@pytest.fixture(scope="module")
def recipe(tmp_path_factory, tiny_model_dir):
    """States are saved often, two are kept; RL asks questions again and is asked dev."""
    folder = tmp_path_factory.mktemp("village")
    return village_recipe(
        folder,
        tiny_model_dir,
        data={"dev": str(folder / "dev.jsonl")},
        eval={"every_steps": 2},
        sft={"epochs": 40},
        rl={"steps": 6, "ask_again": 0.5},
        checkpoint={"every_steps": 5, "keep_last": 2},
    )


@pytest.fixture(scope="module")
def straight(recipe, tmp_path_factory):
    """Folder of a run that nobody killed, and how many changes it made to its files."""
    folder = tmp_path_factory.mktemp("runs") / "straight"
    code, num_changes = run_in_child(recipe, folder)
    assert code == 0
    return folder, num_changes


def test_a_run_killed_ten_times_at_random_moments_ends_as_the_straight_one(recipe, straight, tmp_path):
    folder, num_changes = straight
    dice, reached = random.Random(0), []
    runs = [tmp_path / "run 1"]
    while len(reached) < NUM_KILLS:
        code, _ = run_in_child(recipe, runs[-1], kill_at=dice.randint(1, num_changes // 3))
        if code == 0:  # it came to its end first; the other kills are another run's
            runs.append(tmp_path / f"run {len(runs) + 1}")
            continue
        assert code == -signal.SIGKILL
        saved = RunFolder(runs[-1], recipe).saved
        reached.append((saved.stage, saved.step) if saved is not None else None)
    assert run_in_child(recipe, runs[-1])[0] == 0
    for run in runs:
        assert what_must_repeat(run) == what_must_repeat(folder)
    assert {state and state[0] for state in reached} == {None, "sft", "rl"}, f"not all over the run: {reached}"


def test_a_run_killed_in_the_middle_of_writing_its_state_goes_on_from_the_state_before(recipe, straight, tmp_path):
    killed = tmp_path / "run"
    first = recipe.model_copy(update={"checkpoint": recipe.checkpoint.model_copy(update={"keep_last": 3})})
    code, _ = run_in_child(first, killed, file_bytes=400_000)
    assert code == -signal.SIGXFSZ
    (half,) = (killed / "checkpoints").rglob(".policy.pt.*")
    assert half.stat().st_size == 400_000
    assert half.parent.name.startswith(".state-sft-5.")
    assert RunFolder(killed, first).saved is None
    assert not any((killed / "checkpoints").iterdir())
    assert run_in_child(first, killed)[0] == 0
    repeated, expected = what_must_repeat(killed), what_must_repeat(straight[0])
    assert repeated.pop("recipe") != expected.pop("recipe")
    assert repeated == expected
