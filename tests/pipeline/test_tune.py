"""`seekling tune`: what is tried, what is chosen, what is written, and that an interrupted one leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import islice

import pytest

from seekling.cli.main import main
from seekling.config import Recipe, build_recipe, load_recipe, recipe_to_toml
from seekling.errors import ConfigError
from seekling.learn.pack import pack_rows
from seekling.pipeline.tune import Choice, Trial, Tuned, best, changed, tune, write_tuned
from seekling.pipeline.tune_trial import MadeUp, one_row

WORDS = ["--memory-gb", "4", "--in-flight", "4", "--row-tokens", "512"]


def trial(speed: float, gigabytes: float, setting: int = 1, **fields: str) -> Trial:
    return Trial("rl", {"rl.row_tokens": setting}, speed, round(gigabytes * 1e9), **fields)


def recipe_file(folder, model_dir, **rl: int):
    recipe = build_recipe({"model": {"spec": str(model_dir), "dtype": "float32"}, "rl": {"steps": 1, **rl}})
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
    recipe = build_recipe({"name": "mine", "rl": {"group_size": 4}, "data": {"kinds": ["single"]}})
    found = Tuned(4_000_000_000, chosen=[trial(1234.4, 2.34, 512)])
    write_tuned(recipe, found, tmp_path / "new.toml")
    text = (tmp_path / "new.toml").read_text(encoding="utf-8")
    assert "rl.row_tokens = 512: 1234 tokens/s, 2.3 GB" in text
    settings = 'name = "mine"\n\n[data]\nkinds = ["single"]\n\n[rl]\ngroup_size = 4\nrow_tokens = 512\n'
    assert text.endswith(f"\n{settings}")
    assert load_recipe(tmp_path / "new.toml") == changed(recipe, {"rl.row_tokens": 512})
    with pytest.raises(ConfigError, match=r"new\.toml exists already"):
        write_tuned(recipe, found, tmp_path / "new.toml")
    assert (tmp_path / "new.toml").read_text(encoding="utf-8") == text


def test_settings_that_do_not_go_together_are_refused():
    with pytest.raises(ConfigError, match="group_size = 1"):
        changed(Recipe(), {"rl.group_size": 1})


@pytest.mark.parametrize("row_tokens", [1024, 4096])
@pytest.mark.parametrize("shares_prompts", [True, False])
def test_made_up_episodes_fill_one_row_with_and_without_siblings(row_tokens, shares_prompts):
    made_up = MadeUp(build_recipe({"rl": {"group_size": 4}}), vocabulary=600)
    row = one_row(made_up.trajectories(shares_prompts=shares_prompts), row_tokens, made_up)
    (packed,) = pack_rows(row, row_tokens=row_tokens)
    assert row_tokens - made_up.total_tokens < len(packed.token_ids_N) <= row_tokens
    assert {len(each.token_ids_T) for each in row} <= {made_up.total_tokens, made_up.total_tokens - 1}
    prompts = list(islice(made_up.prompts(), 8))
    assert len(set(prompts)) == 2
    assert prompts[0][:80] == prompts[4][:80]


def test_the_command_measures_every_stage_and_writes_a_recipe_that_trains(tiny_model_dir, tmp_path, capsys):
    source = recipe_file(tmp_path, tiny_model_dir, group_size=2)
    before = source.read_bytes()
    out = tmp_path / "tuned.toml"
    with pytest.raises(SystemExit) as stopped:
        main(["tune", str(source), "--out", str(out), "--json", *WORDS])
    assert stopped.value.code == 0
    said = json.loads(capsys.readouterr().out)
    assert [each["work"] for each in said["trials"]] == ["sample", "sft", "rl"]
    assert all(each["tokens_per_s"] > 0 and 1e8 < each["peak_bytes"] < 4e9 for each in said["trials"])
    # A slot of the tiny model: 2048 tokens, keys and values of 2 layers and 2 heads of 16, 4 bytes each.
    slots = {"rollout.in_flight": 4, "rollout.cache_bytes": 4 * 2048 * 2 * 2 * 2 * 16 * 4}
    assert said["settings"] == slots | {"sft.row_tokens": 512, "rl.row_tokens": 512}
    assert load_recipe(out) == changed(load_recipe(source), said["settings"])
    assert source.read_bytes() == before


def test_a_setting_that_outgrows_the_memory_is_ended_and_larger_ones_are_not_tried(tiny_model_dir, tmp_path):
    recipe, tried = load_recipe(recipe_file(tmp_path, tiny_model_dir)), []
    choice = Choice(group_sizes=(2, 3), in_flight=(4, 8))
    with pytest.raises(ConfigError, match=r"rollout\.in_flight = 4, .* more than the 0\.1 GB"):
        tune(recipe, memory_bytes=60_000_000, choice=choice, on_trial=tried.append)
    # Not with more episodes in flight, but with another group size.
    assert [(each.settings["rl.group_size"], each.settings["rollout.in_flight"]) for each in tried] == [(2, 4), (3, 4)]
    assert {each.failure for each in tried} == {"more than the memory"}


def test_an_interrupted_command_leaves_no_file_and_no_process(tiny_model_dir, tmp_path):
    source = recipe_file(tmp_path, tiny_model_dir)
    words = [sys.executable, "-c", "from seekling.cli.main import main; main()", "tune", str(source), *WORDS]
    process = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE)
    try:
        while not (children := _children(process.pid)) and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert children
    assert not any(os.path.exists(f"/proc/{child}") for child in children)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]


@pytest.mark.parametrize("words", [["--in-flight", "4,x"], ["--row-tokens", "0"]])
def test_sizes_that_are_no_numbers_are_refused(tiny_model_dir, tmp_path, words, capsys):
    with pytest.raises(SystemExit):
        main(["tune", str(recipe_file(tmp_path, tiny_model_dir)), *words])
    assert f"{words[0]} {words[1]!r} is not a list of whole numbers" in capsys.readouterr().err


def _children(parent: int) -> list[int]:
    with open(f"/proc/{parent}/task/{parent}/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]
