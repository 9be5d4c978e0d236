"""`seekling doctor --tune`: what is tried, what is chosen, what is written."""

from __future__ import annotations

import json

import pytest

from seekling.cli.main import main
from seekling.config import load_recipe, recipe_to_toml
from seekling.doctor.shape import read_model_shape
from seekling.errors import ConfigError
from seekling.pipeline import tune as tune_module
from seekling.pipeline.tune import Trial, Tuned, best, changed, memory_limit, tune, write_tuned
from tests.settings import recipe_of


def trial(speed: float, gigabytes: float, setting: int = 1) -> Trial:
    return Trial("rl", {"rl.row_tokens": setting}, speed, round(gigabytes * 1e9))


def recipe_with(model_dir, **sections):
    return recipe_of({"model": {"spec": str(model_dir), "dtype": "float32"}, **sections})


def run(*words):
    with pytest.raises(SystemExit) as stopped:
        main(["doctor", "--tune", *map(str, words)])
    return stopped.value.code


def test_the_fastest_is_chosen_and_of_equally_fast_ones_the_smallest():
    slow, fast, as_fast, faster = trial(50, 1), trial(100, 2), trial(98, 1.5), trial(200, 3)
    assert best([slow, fast]) is fast
    assert best([slow, as_fast, fast]) is as_fast
    assert best([slow, as_fast, fast, faster]) is faster


def test_the_new_recipe_has_the_old_ones_differences_and_the_winners(tmp_path):
    recipe = recipe_of({"name": "mine", "rl": {"group_size": 4}, "data": {"kinds": ["single"]}})
    write_tuned(recipe, Tuned(4_000_000_000, chosen=[trial(1234.4, 2.34, 512)]), tmp_path / "new.toml")
    text = (tmp_path / "new.toml").read_text(encoding="utf-8")
    assert "rl.row_tokens = 512: 1234 tokens/s, 2.3 GB" in text
    settings = 'name = "mine"\n\n[data.questions]\nkinds = ["single"]\n\n[rl]\ngroup_size = 4\nrow_tokens = 512\n'
    assert text.endswith(f"\n{settings}")
    assert load_recipe(tmp_path / "new.toml") == changed(recipe, {"rl.row_tokens": 512})


@pytest.fixture
def tried(monkeypatch):
    """Nothing is measured: every setting is as fast as its value, and 2,048 tokens of SFT are all of a step."""
    recipes = []

    def measured(recipe, work, model_dir):
        recipes.append(recipe)
        speed = {"sample": recipe.rollout.in_flight, "sft": recipe.sft.row_tokens, "rl": recipe.rl.row_tokens}[work]
        return float(speed), work == "sft" and speed == 2048

    monkeypatch.setattr(tune_module, "_measured", measured)
    return recipes


def settings_of(found, name):
    return [each.settings[name] for each in found.trials if name in each.settings]


def test_the_recipes_own_values_are_tried_too_and_rows_larger_than_a_step_fills_are_not(tiny_model_dir, tried):
    recipe = recipe_with(
        tiny_model_dir,
        rollout={"in_flight": 20},
        sft={"row_tokens": 768},
        rl={"row_tokens": 700, "questions_per_step": 4, "group_size": 8},
    )
    found = tune(recipe, memory_bytes=10**11, on_trial=lambda trial: None)
    assert settings_of(found, "rollout.in_flight") == [8, 16, 20, 32]
    assert settings_of(found, "sft.row_tokens") == [768, 1024, 2048]
    assert settings_of(found, "rl.row_tokens") == [700, 1024, 2048, 4096, 8192]
    # A cache for fewer episodes than in_flight says is what the recipe had.
    slot = 2048 * read_model_shape(tiny_model_dir).cache_values_per_token * 4
    small = changed(recipe, {"rollout.cache_bytes": 11 * slot})
    found = tune(small, memory_bytes=10**11, on_trial=lambda trial: None)
    assert settings_of(found, "rollout.in_flight") == [8, 11, 16, 32]


def test_what_does_not_fit_is_not_tried_and_when_nothing_fits_it_is_said_how_much_is_missing(tiny_model_dir, tried):
    recipe = recipe_with(tiny_model_dir, rl={"steps": 1, "questions_per_step": 4, "group_size": 8})
    slot = 2048 * read_model_shape(tiny_model_dir).cache_values_per_token * 4
    smallest = tune(recipe, memory_bytes=10**11, on_trial=lambda trial: None).trials[0].peak_bytes
    only_sampling = recipe_with(tiny_model_dir, experts={"num_questions": 0}, rl={"steps": 0})
    assert smallest > 8 * slot
    at_most = tune(only_sampling, memory_bytes=10**11, on_trial=lambda trial: None).trials[1].peak_bytes
    assert settings_of(tune(only_sampling, memory_bytes=at_most, on_trial=lambda trial: None), "rollout.in_flight") == [
        8,
        16,
    ]
    with pytest.raises(
        ConfigError, match=r"rollout\.in_flight = 8, .* takes 1\.\d GB, more than the 0\.1 GB.*--memory"
    ):
        tune(recipe, memory_bytes=60_000_000, on_trial=lambda trial: None)


def test_the_limit_that_is_given_is_that_of_the_trials_and_of_the_new_recipe(tiny_model_dir, tmp_path, tried):
    source, out = tmp_path / "mine.toml", tmp_path / "tuned.toml"
    source.write_text(recipe_to_toml(recipe_with(tiny_model_dir), only_changes=True), encoding="utf-8")
    assert run(source, "--out", out, "--memory-gb", "3.5") == 0
    assert {each.model.memory_gb for each in tried} == {3.5}
    assert load_recipe(out).model.memory_gb == 3.5
    assert memory_limit(load_recipe(out)) == 3_500_000_000
    assert memory_limit(load_recipe(source)) > 0
    assert run(source, "--out", out) == 1, "a recipe that exists is not written over"


def test_the_command_measures_every_stage_and_writes_a_recipe_that_trains(
    tiny_model_dir, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(tune_module, "ROW_TOKENS", ())
    source, out = tmp_path / "mine.toml", tmp_path / "tuned.toml"
    recipe = recipe_with(tiny_model_dir, sft={"row_tokens": 512}, rl={"questions_per_step": 2, "group_size": 2})
    source.write_text("# by hand\n" + recipe_to_toml(recipe, only_changes=True), encoding="utf-8")
    before = source.read_bytes()
    assert run(source, "--out", out, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert [each["work"] for each in said["trials"]] == ["sample", "sft", "rl"]
    assert all(each["tokens_per_s"] > 0 and each["peak_bytes"] > 1e9 for each in said["trials"])
    # A slot of the tiny model: 2048 tokens, keys and values of 2 layers and 2 heads of 16, 4 bytes each.
    slots = {"rollout.in_flight": 4, "rollout.cache_bytes": 4 * 2048 * 2 * 2 * 2 * 16 * 4}
    assert said["settings"] == slots | {"sft.row_tokens": 512, "rl.row_tokens": 2048}
    assert load_recipe(out) == changed(recipe, said["settings"])
    assert source.read_bytes() == before
