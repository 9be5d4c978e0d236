"""The run folder: whole lines, whole files, one pointer to the newest state, and one recipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from seekling.config import Recipe, build_recipe, load_recipe
from seekling.errors import ConfigError, DataError
from seekling.pipeline.run_folder import RunFolder
from seekling.types import Episode, EpisodeRecord, Question, Reward, StopReason, Turn

RECIPE = Recipe(name="demo", seed=3)


def record(stage="rl", step=1, text="passage", number=0):
    turn = Turn("<search>", "search", observation=text)
    episode = Episode(str(number), "s", "tags", (), (turn,), "x", StopReason.ANSWERED)
    return EpisodeRecord(stage, Question(str(number), "?", ("x",), source="s"), episode, step=step, reward=Reward(1.0))


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "run", RECIPE)


def test_another_recipe_is_refused_and_every_differing_setting_named(folder):
    other = build_recipe({"name": "demo", "seed": 4, "rl": {"steps": 7}, "env": {"protocol": "code", "max_turns": 9}})
    with pytest.raises(ConfigError) as error:
        RunFolder(folder.path, other)
    assert "(it differs in seed, env.protocol, env.max_turns, rl.steps)" in str(error.value)
    assert "--out" in str(error.value)
    assert load_recipe(folder.path / "recipe.toml") == RECIPE
    RunFolder(folder.path, Recipe(name="demo", seed=3))


def test_only_one_process_writes_to_a_run_and_a_killed_one_leaves_it_free(folder):
    program = (
        "import sys, pathlib; from seekling.files import sole_process\n"
        "with sole_process(pathlib.Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(folder.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=r"another process is writing to .*--out"), folder.written_here_only():
            pass
        other.kill()
    with folder.written_here_only():
        pass


def test_a_run_goes_on_with_more_samplers_but_not_on_another_service(tmp_path):
    settings = {"model": {"lora_rank": 8}, "rl": {"steps": 0}, "scale": {"engine": "local"}}
    RunFolder(tmp_path / "run", build_recipe(settings))
    RunFolder(tmp_path / "run", build_recipe({**settings, "scale": {"engine": "ray", "num_samplers": 2}}))
    with pytest.raises(ConfigError, match=r"differs in .*scale\.engine"):
        RunFolder(tmp_path / "run", build_recipe({**settings, "scale": {"engine": "tinker"}}))


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work", encoding="utf-8")
    with pytest.raises(ConfigError, match="not empty and not a run folder"):
        RunFolder(tmp_path, RECIPE)
    with pytest.raises(ConfigError, match="not empty and not a run folder"):
        RunFolder(tmp_path / "thesis.tex", RECIPE)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_recipe_that_cannot_be_read_is_refused(folder):
    (folder.path / "recipe.toml").write_text("seed = ", encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be read"):
        RunFolder(folder.path, RECIPE)


def test_a_damaged_progress_file_is_one_clear_error(folder):
    folder.note(done=["expert"])
    (folder.path / "progress.json").write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match=r"progress\.json"):
        RunFolder(folder.path, RECIPE)


def test_finished_stages_and_seconds_are_remembered(folder):
    folder.add_seconds("sft", 2.5)
    folder.add_seconds("sft", 1.0)
    folder.note(done=["sft"])
    again = RunFolder(folder.path, RECIPE)
    assert again.progress.done == ["sft"]
    assert again.progress.seconds == {"sft": 3.5}
    assert 3.5 <= again.elapsed_s < 60


def test_time_goes_on_where_a_killed_process_left_it(folder):
    with (folder.path / "metrics.jsonl").open("w", encoding="utf-8") as file:
        file.write(json.dumps({"stage": "rl", "step": 1, "time_s": 500.0}) + '\n{"stage": "rl", "st')
    again = RunFolder(folder.path, RECIPE)
    again.log_metrics("rl", 2, {})
    assert [500 <= row["time_s"] < 560 for row in again.read_metrics("rl")] == [True, True]


def write_state(path):
    (path / "policy.pt").write_bytes(path.name.encode())


def states_of(folder):
    return sorted(each.name for each in (folder.path / "checkpoints").iterdir())


def test_the_newest_state_is_the_one_to_resume_from_and_the_only_one_kept(folder):
    for stage, step in (("sft", 2), ("sft", 4), ("rl", 1), ("rl", 1)):
        folder.save_state(stage, step, write_state)
        path = folder.path / "checkpoints" / f"state-{stage}-{step}"
        assert RunFolder(folder.path, RECIPE).saved == (stage, step, path)
        assert states_of(folder) == [path.name]
    folder.drop_states()
    assert RunFolder(folder.path, RECIPE).saved is None
    assert states_of(folder) == []


def test_as_many_of_the_newest_states_as_asked_for_stay(folder):
    for step in range(1, 6):
        folder.save_state("rl", step, write_state, keep_last=2)
    assert states_of(folder) == ["state-rl-4", "state-rl-5"]


def test_a_state_that_could_not_be_written_leaves_the_pointer_at_the_one_before(folder):
    folder.save_state("sft", 2, write_state)

    def fail(path):
        (path / "policy.pt").write_bytes(b"half")
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        folder.save_state("sft", 4, fail)
    path = folder.path / "checkpoints" / "state-sft-2"
    assert RunFolder(folder.path, RECIPE).saved == ("sft", 2, path)
    assert states_of(folder) == ["state-sft-2"]


def test_what_a_killed_process_left_half_done_is_removed(folder):
    folder.save_state("sft", 2, write_state)
    checkpoints = folder.path / "checkpoints"
    (checkpoints / "state-sft-4").mkdir()  # written, and never noted in progress.json
    (checkpoints / ".state-sft-6.999999999.tmp").mkdir()
    (checkpoints / ".state-sft-6.999999999.tmp" / "policy.pt").write_bytes(b"half")
    (folder.path / ".metrics.jsonl.999999999.tmp").write_text("half", encoding="utf-8")
    running = folder.path / f".record.json.{os.getppid()}.tmp"  # somebody is writing it now
    running.write_text("half", encoding="utf-8")
    RunFolder(folder.path, RECIPE)
    assert states_of(folder) == ["state-sft-2"]
    hidden = [path.name for path in folder.path.iterdir() if path.name.startswith(".")]
    assert hidden == [running.name]


def test_records_come_back_as_they_were(folder):
    # Line separators of Unicode are not line ends of the file.
    texts = ["plain", "two\nlines\r\n", "a\u2028b", "a\u2029b", "a\x85b", "a\x0bb\x0cc\x1cd\x1ee", "\u00e9\U0001f41d"]
    records = [record(text=text, number=number) for number, text in enumerate(texts)]
    folder.append_records(records)
    assert folder.read_records("rl") == records
    assert folder.read_records("eval-base") == []
    folder.replace_records("rl", records[::-1])
    assert folder.read_records("rl") == records[::-1]


@pytest.mark.parametrize("is_cut_in_a_character", [False, True])
def test_a_last_line_that_a_crash_cut_is_dropped_from_the_file_too(folder, is_cut_in_a_character):
    kept = record(number=0, text="a\x85b\u2029c")  # separators of lines elsewhere
    folder.append_records([kept, record(number=1, text="é" * 50)])
    path = folder.episodes_path("rl")
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.index("é".encode()) + 1] if is_cut_in_a_character else whole[:-70])
    assert folder.read_records("rl") == [kept]
    folder.append_records([record(number=2)])
    assert folder.read_records("rl") == [kept, record(number=2)]
    folder.rewind("rl", 1)
    assert folder.read_records("rl") == [kept, record(number=2)]


@pytest.mark.parametrize("damage", ["not json", '{"stage": "rl"}', "[]", "null"])
def test_a_damaged_line_elsewhere_is_an_error_with_file_and_line(folder, damage):
    folder.append_records([record(number=0), record(number=1)])
    path = folder.episodes_path("rl")
    lines = path.read_text(encoding="utf-8").split("\n")
    path.write_text("\n".join([lines[0], damage, lines[1]]) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"rl\.jsonl:2: not an episode record"):
        folder.read_records("rl")


def test_rewinding_forgets_what_came_after_the_saved_step_of_this_stage_only(folder):
    for stage, step in (("sft", 1), ("sft", 2), ("rl", 1), ("rl", 2), ("rl", 3)):
        folder.log_metrics(stage, step, {"loss": float(step)})
    folder.append_records([replace(record(), step=step) for step in (1, 1, 2, 3)])
    with (folder.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"stage": "rl", "st')
    folder.rewind("rl", 1)
    metrics = [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(row["stage"], row["step"], row["loss"]) for row in metrics] == [("sft", 1, 1), ("sft", 2, 2), ("rl", 1, 1)]
    assert [each.step for each in folder.read_records("rl")] == [1, 1]
    folder.rewind("rl", 0)
    assert folder.read_records("rl") == []
