"""A trained run behind `ask`, and the README's example as it is written there."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from seekling.cli.main import app
from seekling.errors import ConfigError
from seekling.pipeline.stages import run_recipe
from seekling.serve import load_agent
from seekling.types import StopReason
from tests.pipeline.runs import QuietReporter, village_recipe

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture(scope="module")
def home(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run in runs/demo: a tiny model that has learned two answers by heart, through search."""
    folder = tmp_path_factory.mktemp("home")
    recipe = village_recipe(folder, tiny_model_dir, rl={"steps": 0}, eval={"stages": ("sft",)})
    run_recipe(recipe, folder / "runs" / "demo", QuietReporter())
    return folder


def test_a_trained_agent_answers_and_names_the_page_that_says_so(home: Path):
    with load_agent(home / "runs" / "demo") as agent:
        answer = agent.ask("When was Alder Mill built?")
        assert agent.sampler.num_slots == 1  # one question at a time: no memory is kept for others
    assert answer.text == "1612"
    assert answer.stop_reason is StopReason.ANSWERED
    assert [(source.document_id, source.title, source.states_answer) for source in answer.sources] == [
        ("alder_mill", "Alder Mill", True)
    ]


def test_the_readme_example_runs_as_written(home: Path, monkeypatch: pytest.MonkeyPatch):
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(example.strip().splitlines()) <= 5
    monkeypatch.chdir(home)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example, "README.md", "exec"), {})
    assert printed.getvalue().strip()


def test_ask_prints_the_answer_and_its_sources_as_json(home: Path):
    words = ["ask", str(home / "runs" / "demo"), "When was Alder Mill built?", "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    row = json.loads(result.stdout)
    assert row["answer"] == "1612"
    assert row["sources"] == [{"document_id": "alder_mill", "title": "Alder Mill", "states_answer": True}]


def test_a_chat_answers_one_question_after_another_until_an_empty_line(home: Path):
    lines = "When was Alder Mill built?\n" * 2 + "\nWhen was Alder Mill built?\n"
    result = CliRunner().invoke(app, ["chat", str(home / "runs" / "demo")], input=lines)
    assert result.exit_code == 0, result.output
    assert result.stdout.count("1612\n") == 2
    assert result.stdout.count("* Alder Mill [alder_mill]") == 2


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="is not a run folder"), load_agent(tmp_path):
        pass


def test_a_run_without_a_trained_policy_is_refused(home: Path, tmp_path: Path):
    shutil.copy(home / "runs" / "demo" / "recipe.toml", tmp_path)
    with pytest.raises(ConfigError, match="no trained policy yet"), load_agent(tmp_path):
        pass
