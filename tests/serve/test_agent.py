"""A trained run behind `ask`, and the README's example as it is written there."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
import shutil
import threading
from pathlib import Path

import pytest

from seekling.errors import ConfigError
from seekling.serve import Answer, Asker, load_agent, open_asker
from seekling.types import StopReason, Turn
from tests.commands import seekling

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def home(trained_run: Path) -> Path:
    """A folder with a finished run in runs/demo."""
    return trained_run.parents[1]


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


def test_turns_stream_and_questions_at_once_are_answered_as_one_by_one(home: Path):
    questions = ["When was Alder Mill built?", "When was Birch Mill built?"]
    with load_agent(home / "runs" / "demo") as agent:
        alone = [agent.ask(question) for question in questions]

    async def several(asker: Asker) -> tuple[list[Turn | Answer], list[Answer]]:
        answers = asyncio.gather(*(asker.ask(question) for question in questions * 3))
        said = [each async for each in asker.stream("And Birch Mill?", before=[(questions[0], "1612")])]
        return said, await answers

    with open_asker(home / "runs" / "demo", in_flight=4) as asker:
        said, answers = asyncio.run(several(asker))
    assert alone[0].text == "1612"  # the other answer depends on the machine's arithmetic
    assert [answer.text for answer in answers] == [answer.text for answer in alone] * 3
    assert [answer.quotes for answer in answers[:2]] == [answer.quotes for answer in alone]
    *turns, last = said
    assert isinstance(last, Answer)
    assert tuple(turns) == last.episode.turns
    assert (last.question, last.text) == ("When was Birch Mill built?", alone[1].text)


def test_a_question_that_is_given_up_ends_at_once_and_makes_room(home: Path):
    turns: list[Turn] = []
    begun = threading.Event()

    def give_up(turn: Turn) -> None:
        begun.wait()
        turns.append(turn)
        future.cancel()

    with open_asker(home / "runs" / "demo", in_flight=1) as asker:
        future = asker.submit("When was Alder Mill built?", on_turn=give_up)
        begun.set()
        assert asyncio.run(asker.ask("When was Birch Mill built?")).stop_reason is StopReason.ANSWERED
    assert len(turns) == 1


def test_ask_prints_turns_then_the_answer_with_the_sentence_that_says_so(home: Path):
    words = ["ask", str(home / "runs" / "demo"), "When was Alder Mill built?"]
    printed = seekling(*words).stdout
    assert (
        printed.index("<search>") < printed.index("\n1612\n") < printed.index('"It was built in 1612 by Tobias Wren."')
    )
    assert "<information>" not in printed
    assert "<information>" in seekling(*words, "--trace").stdout


def test_ask_prints_the_answer_and_its_sources_as_json(home: Path):
    words = ["ask", str(home / "runs" / "demo"), "When was Alder Mill built?", "--json"]
    result = seekling(*words)
    assert result.exit_code == 0, result.output
    row = json.loads(result.stdout)
    assert row["answer"] == "1612"
    assert row["sources"] == [{"document_id": "alder_mill", "title": "Alder Mill", "states_answer": True}]
    (quote,) = row["quotes"]
    assert (quote["document_id"], quote["text"]) == ("alder_mill", "It was built in 1612 by Tobias Wren.")
    assert row["is_found"]
    assert [turn["kind"] for turn in row["turns"]] == ["search", "answer"]


def test_a_chat_answers_questions_and_follow_ups_until_an_empty_line(home: Path):
    lines = "When was Alder Mill built?\nAnd Birch Mill?\n\nAnd Birch Mill?\n"
    result = seekling("chat", home / "runs" / "demo", input=lines)
    assert result.exit_code == 0, result.output
    assert "1612\n" in result.stdout
    assert "* Alder Mill [alder_mill]" in result.stdout
    assert result.stdout.count("asked: ") == 1
    assert re.search(r"asked: When was Birch Mill built\?\n\d{4}\n", result.stdout)


def test_pronouns_of_a_chat_mean_what_the_last_question_was_about(home: Path):
    lines = "When was Alder Mill built?\nAnd its river?\nIs that a village?\n"
    result = seekling("chat", home / "runs" / "demo", input=lines)
    assert result.exit_code == 0, result.output
    assert "asked: What is the river of Alder Mill?\n" in result.stdout
    assert "asked: Is Alder Mill a village?\n" in result.stdout


def test_a_chat_for_programs_is_one_json_object_a_line(home: Path):
    lines = "When was Alder Mill built?\nAnd Birch Mill?\n"
    too_long = "mill " * 3000 + "\n"  # costs one question, not the conversation
    result = seekling("chat", home / "runs" / "demo", "--json", input=too_long + lines)
    assert result.exit_code == 0, result.output
    assert "error: the question and what the agent is told with it have" in result.stderr
    first, second = (json.loads(line) for line in result.stdout.splitlines())
    assert (first["question"], first["asked"], first["answer"]) == (lines.splitlines()[0],) * 2 + ("1612",)
    assert (second["question"], second["asked"]) == ("And Birch Mill?", "When was Birch Mill built?")


@pytest.mark.parametrize("question", ["", " \n\t"])
def test_a_question_without_words_is_refused_before_anything_is_opened(question: str):
    result = seekling("ask", "runs/nowhere", question)
    assert result.exit_code == 2
    assert "the text is empty; ask something" in result.output


def test_a_folder_that_is_no_run_or_has_no_trained_policy_is_refused(home: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="is not a run folder"), load_agent(tmp_path):
        pass
    shutil.copy(home / "runs" / "demo" / "recipe.toml", tmp_path)
    with pytest.raises(ConfigError, match="no trained policy yet"), load_agent(tmp_path):
        pass
