"""`seekling doctor --tune`: the largest settings that fit, and the recipe that is written."""

from __future__ import annotations

import json

import pytest

from seekling.cli.main import main
from seekling.config import load_recipe, recipe_to_toml
from seekling.doctor.memory import MemoryPlan
from seekling.doctor.shape import SMOLLM2_135M, read_model_shape
from seekling.errors import ConfigError
from seekling.pipeline.tune import changed, memory_limit, tune
from tests.settings import recipe_of


@pytest.fixture
def recipe(tiny_model_dir):
    model = {"spec": str(tiny_model_dir), "dtype": "float32"}
    return recipe_of({"name": "mine", "model": model, "rl": {"questions_per_step": 4, "group_size": 8}})


@pytest.fixture
def shape(tiny_model_dir):
    return read_model_shape(tiny_model_dir)


def test_with_enough_memory_all_episodes_of_a_step_are_in_flight_and_rows_are_long(recipe, shape):
    found = tune(recipe, shape, 10**12)
    slot = 2048 * shape.cache_values_per_token * 4
    slots = {"rollout.in_flight": 32, "rollout.cache_bytes": 32 * slot}
    assert found == slots | {"sft.row_tokens": 8192, "rl.row_tokens": 8192}
    no_rl = changed(recipe, {"rl.steps": 0})
    assert set(tune(no_rl, shape, 10**12)) == {*slots, "sft.row_tokens"}


def test_with_less_memory_rows_are_as_long_as_fits_without_computing_layers_twice(recipe):
    def plan(settings, memory_bytes=None):
        return MemoryPlan(changed(recipe, settings), SMOLLM2_135M, dtype="float32", free_bytes=memory_bytes)

    shorter = {"sft.row_tokens": 2048, "rl.row_tokens": 2048}
    limit = max(plan(shorter).sft().total_bytes, plan(shorter).rl().total_bytes)
    found = tune(recipe, SMOLLM2_135M, limit)
    assert (found["rollout.in_flight"], found["sft.row_tokens"], found["rl.row_tokens"]) == (32, 2048, 2048)
    assert not plan(found, limit).checkpoints
    fewer = {"rollout.in_flight": 8, "rollout.cache_bytes": 8 * plan({}).slot_bytes()}
    untrained = {"rl.steps": 0, "experts.num_questions": 0}
    assert tune(changed(recipe, untrained), SMOLLM2_135M, plan(untrained | fewer).evaluation().total_bytes) == fewer


def test_when_nothing_fits_it_is_said_how_much_is_missing(recipe, shape):
    message = r"rollout\.in_flight = 1, .* takes 1\.\d GB, more than the 0\.1 GB.*--memory-gb"
    with pytest.raises(ConfigError, match=message):
        tune(recipe, shape, 60_000_000)


def test_the_command_writes_the_recipe_with_its_limit_and_leaves_the_old_one(recipe, tmp_path, capsys):
    source, out = tmp_path / "mine.toml", tmp_path / "tuned.toml"
    source.write_text("# by hand\n" + recipe_to_toml(recipe, only_changes=True), encoding="utf-8")
    before = source.read_bytes()
    for code in (0, 1):  # a recipe that exists is not written over
        with pytest.raises(SystemExit) as stopped:
            main(["doctor", "--tune", str(source), "--out", str(out), "--memory-gb", "3.5", "--json"])
        assert stopped.value.code == code
    said = json.loads(capsys.readouterr().out)
    assert said["memory_bytes"] == memory_limit(load_recipe(out)) == 3_500_000_000
    assert load_recipe(out) == changed(load_recipe(source, ["model.memory_gb=3.5"]), said["settings"])
    assert "# Fitted to 3.5 GB by `seekling doctor --tune`: rollout.in_flight = " in out.read_text(encoding="utf-8")
    assert source.read_bytes() == before
    assert memory_limit(load_recipe(source)) > 0
