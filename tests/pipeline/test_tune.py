"""`seekling doctor --tune`: what is tried, what is chosen, what is written, and what an interruption leaves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from seekling.cli.main import main
from seekling.config import Recipe, load_recipe, recipe_to_toml
from seekling.doctor.shape import read_model_shape
from seekling.errors import ConfigError
from seekling.models import load_policy
from seekling.pipeline import tune as tune_module
from seekling.pipeline.tune import Choice, Trial, Tuned, best, changed, memory_limit, tune, write_tuned
from seekling.pipeline.tune_trial import RandomEpisodes, unfilled_bytes
from seekling.serve.agent import make_sampler
from tests.patience import FAILS_AFTER_S
from tests.settings import recipe_of

WORDS = ["--memory-gb", "4", "--in-flight", "4", "--row-tokens", "512"]


def trial(speed: float, gigabytes: float, setting: int = 1, **fields: str) -> Trial:
    return Trial("rl", {"rl.row_tokens": setting}, speed, round(gigabytes * 1e9), **fields)


def recipe_file(folder, model_dir, **rl: int):
    recipe = recipe_of({"model": {"spec": str(model_dir), "dtype": "float32"}, "rl": {"steps": 1, **rl}})
    path = folder / "mine.toml"
    path.write_text("# by hand\n" + recipe_to_toml(recipe, only_changes=True), encoding="utf-8")
    return path


def test_the_fastest_that_fits_is_chosen_and_of_equally_fast_ones_the_smallest():
    slow, fast, as_fast, too_large = trial(50, 1), trial(100, 2), trial(98, 1.5), trial(200, 3)
    assert best([slow, fast, too_large], 2_500_000_000) is fast
    assert best([slow, as_fast, fast, too_large], 2_500_000_000) is as_fast
    assert best([slow, as_fast, fast, too_large], 3_000_000_000) is too_large
    assert best([slow, trial(0, 1, failure="out of memory")], 3_000_000_000) is slow


def test_when_nothing_fits_the_message_says_how_much_was_missing():
    with pytest.raises(ConfigError, match=r"rl\.row_tokens = 512 takes 2\.0 GB, more than the 1\.5 GB.*--memory-gb"):
        best([trial(0, 2, 512, failure="more than the memory")], 1_500_000_000)


def test_the_new_recipe_has_the_old_ones_differences_and_the_winners(tmp_path):
    recipe = recipe_of({"name": "mine", "rl": {"group_size": 4}, "data": {"kinds": ["single"]}})
    found = Tuned(4_000_000_000, chosen=[trial(1234.4, 2.34, 512)])
    write_tuned(recipe, found, tmp_path / "new.toml")
    text = (tmp_path / "new.toml").read_text(encoding="utf-8")
    assert "rl.row_tokens = 512: 1234 tokens/s, 2.3 GB" in text
    settings = 'name = "mine"\n\n[data.questions]\nkinds = ["single"]\n\n[rl]\ngroup_size = 4\nrow_tokens = 512\n'
    assert text.endswith(f"\n{settings}")
    assert load_recipe(tmp_path / "new.toml") == changed(recipe, {"rl.row_tokens": 512})
    with pytest.raises(ConfigError, match=r"new\.toml exists already"):
        write_tuned(recipe, found, tmp_path / "new.toml")
    assert (tmp_path / "new.toml").read_text(encoding="utf-8") == text


def scripted_trials(monkeypatch, **by_setting) -> list[Recipe]:
    """No process is started: every setting is as fast as its value, and what is said here replaces that."""
    tried = []

    def run(recipe, asked, memory_bytes):
        tried.append(recipe)
        name = next(iter(asked.settings))
        found = replace(asked, tokens_per_s=float(asked.settings[name]), peak_bytes=asked.settings[name])
        return replace(found, **by_setting.get(name.replace(".", "_"), {}).get(asked.settings[name], {}))

    monkeypatch.setattr(tune_module, "_try", run)
    return tried


def settings_of(trials, name):
    return [each.settings[name] for each in trials if name in each.settings]


def test_the_recipes_own_values_are_tried_too(tiny_model_dir, monkeypatch):
    scripted_trials(monkeypatch, rl_row_tokens={1024: {"failure": "out of memory"}})
    recipe = recipe_of(
        {
            "model": {"spec": str(tiny_model_dir), "dtype": "float32"},
            "rollout": {"in_flight": 20},
            "sft": {"row_tokens": 768},
            "rl": {"row_tokens": 700, "questions_per_step": 4, "group_size": 8},
        }
    )
    found = tune(recipe, memory_bytes=10**9, on_trial=lambda trial: None)
    assert settings_of(found.trials, "rollout.in_flight") == [8, 16, 20, 32]
    assert settings_of(found.trials, "sft.row_tokens") == [768, 1024, 2048, 4096, 8192]
    # Where only the recipe's own fits, it stays.
    assert settings_of(found.trials, "rl.row_tokens") == [700, 1024]
    assert found.settings["rl.row_tokens"] == 700
    # A cache for fewer episodes than in_flight says is what the recipe had.
    slot = 2048 * read_model_shape(tiny_model_dir).cache_values_per_token * 4
    small = changed(recipe, {"rollout.cache_bytes": 11 * slot})
    found = tune(small, memory_bytes=10**9, on_trial=lambda trial: None)
    assert settings_of(found.trials, "rollout.in_flight") == [8, 11, 16, 32]
    named = tune(recipe, memory_bytes=10**9, choice=Choice(row_tokens=(512,)), on_trial=lambda trial: None)
    assert settings_of(named.trials, "sft.row_tokens") == [512]


def test_rows_larger_than_a_step_fills_are_not_tried(tiny_model_dir, monkeypatch):
    scripted_trials(monkeypatch, sft_row_tokens={2048: {"is_whole": True}})
    recipe = recipe_of({"model": {"spec": str(tiny_model_dir), "dtype": "float32"}, "rl": {"steps": 0}})
    found = tune(recipe, memory_bytes=10**9, on_trial=lambda trial: None)
    assert settings_of(found.trials, "sft.row_tokens") == [1024, 2048]


def test_the_limit_that_is_given_is_that_of_the_trials_and_of_the_new_recipe(tiny_model_dir, tmp_path, monkeypatch):
    tried = scripted_trials(monkeypatch)
    source, out = recipe_file(tmp_path, tiny_model_dir), tmp_path / "tuned.toml"
    with pytest.raises(SystemExit) as stopped:
        main(["doctor", "--tune", str(source), "--out", str(out), "--memory-gb", "3.5"])
    assert stopped.value.code == 0
    assert {each.model.memory_gb for each in tried} == {3.5}
    assert load_recipe(out).model.memory_gb == 3.5
    assert memory_limit(load_recipe(out)) == 3_500_000_000
    assert memory_limit(load_recipe(source)) > 0


@pytest.mark.parametrize(("work", "streams", "is_held"), [("rl", 0, 0), ("rl", 1, 1), ("sft", 1, 0)])
def test_caches_are_counted_where_a_step_is_learned_from_in_parts(tiny_model_dir, work, streams, is_held):
    rl = {"stream_minibatches": streams, "loss": "importance_sampling"}
    recipe = recipe_of({"model": {"dtype": "float32"}, "rl": rl, "rollout": {"in_flight": 5}})
    sampler = make_sampler(recipe, *load_policy(tiny_model_dir, dtype="float32"))
    slot = 2048 * 2 * 2 * 2 * 16 * 4
    shape = read_model_shape(tiny_model_dir)
    assert unfilled_bytes(recipe, shape, sampler, work, RandomEpisodes(recipe, 600)) == is_held * 5 * slot


def test_slots_that_sampling_left_partly_empty_are_counted_whole(tiny_model_dir):
    recipe = recipe_of({"model": {"dtype": "float32"}, "rollout": {"in_flight": 5}})
    sampler, episodes = make_sampler(recipe, *load_policy(tiny_model_dir, dtype="float32")), RandomEpisodes(recipe, 600)
    untouched = 2048 - -(-episodes.total_tokens // 64) * 64
    expected = 5 * untouched * 2 * 2 * 2 * 16 * 4
    assert unfilled_bytes(recipe, read_model_shape(tiny_model_dir), sampler, "sample", episodes) == expected > 0
    # Slots are made for the longest episodes, which may be those of evaluation.
    longer = recipe_of({"eval": {"episode_tokens": 4096}}).eval
    recipe = recipe.model_copy(update={"eval": longer})
    expected += 5 * 2048 * 2 * 2 * 2 * 16 * 4
    assert unfilled_bytes(recipe, read_model_shape(tiny_model_dir), sampler, "sample", episodes) == expected


def test_the_command_measures_every_stage_and_writes_a_recipe_that_trains(tiny_model_dir, tmp_path, capsys):
    source = recipe_file(tmp_path, tiny_model_dir, group_size=2)
    before = source.read_bytes()
    out = tmp_path / "tuned.toml"
    with pytest.raises(SystemExit) as stopped:
        main(["doctor", "--tune", str(source), "--out", str(out), "--json", *WORDS])
    assert stopped.value.code == 0
    said = json.loads(capsys.readouterr().out)
    assert [each["work"] for each in said["trials"]] == ["sample", "sft", "rl"]
    assert all(each["tokens_per_s"] > 0 and 1e8 < each["peak_bytes"] < 4e9 for each in said["trials"])
    # A slot of the tiny model: 2048 tokens, keys and values of 2 layers and 2 heads of 16, 4 bytes each.
    slots = {"rollout.in_flight": 4, "rollout.cache_bytes": 4 * 2048 * 2 * 2 * 2 * 16 * 4}
    assert said["settings"] == slots | {"sft.row_tokens": 512, "rl.row_tokens": 512}
    assert load_recipe(out) == changed(load_recipe(source, ["model.memory_gb=4.0"]), said["settings"])
    assert source.read_bytes() == before


def test_a_setting_that_outgrows_the_memory_is_ended_and_larger_ones_are_not_tried(tiny_model_dir, tmp_path):
    recipe, tried = load_recipe(recipe_file(tmp_path, tiny_model_dir)), []
    choice = Choice(group_sizes=(2, 3), in_flight=(4, 8))
    with pytest.raises(ConfigError, match=r"rollout\.in_flight = 4, .* more than the 0\.1 GB"):
        tune(recipe, memory_bytes=60_000_000, choice=choice, on_trial=tried.append)
    # Not with more episodes in flight, but with another group size.
    assert [(each.settings["rl.group_size"], each.settings["rollout.in_flight"]) for each in tried] == [(2, 4), (3, 4)]
    assert {each.failure for each in tried} == {"more than the memory"}


def _is_running(pid):
    """Whether a process has not ended; one that has may still wait for whoever started it last to ask how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_an_interrupted_command_leaves_no_file_and_no_process(tiny_model_dir, tmp_path):
    source = recipe_file(tmp_path, tiny_model_dir)
    words = ["doctor", "--tune", str(source), *WORDS]
    process = subprocess.Popen(
        [sys.executable, "-c", "from seekling.cli.main import main; main()", *words],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
    )
    try:
        # Not while it is still starting the measurement: a new process computes for a second before that begins.
        children: list[int] = []
        while not any(_ticks(child) >= 20 for child in children) and process.poll() is None:
            time.sleep(0.05)
            children = _children(process.pid)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=FAILS_AFTER_S)
    finally:
        process.kill()
    assert process.returncode == 130
    assert children
    assert not any(_is_running(child) for child in children)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]


@pytest.mark.parametrize("words", [["--in-flight", "4,x"], ["--row-tokens", "0"]])
def test_sizes_that_are_no_numbers_are_refused(tiny_model_dir, tmp_path, words, capsys):
    with pytest.raises(SystemExit):
        main(["doctor", "--tune", str(recipe_file(tmp_path, tiny_model_dir)), *words])
    assert f"{words[0]} {words[1]!r} is not a list of whole numbers" in capsys.readouterr().err


def _ticks(process: int) -> int:
    """Processor time, in hundredths of a second."""
    with open(f"/proc/{process}/stat", encoding="ascii") as file:
        return int(file.read().rpartition(")")[2].split()[11])


def _children(parent: int) -> list[int]:
    with open(f"/proc/{parent}/task/{parent}/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]
