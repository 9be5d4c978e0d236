"""Episodes for the terminal: which are chosen, what is shown of them, and that model text cannot touch the screen."""

import dataclasses
import io
import json

import pytest
from rich.console import Console

from seekling.cli.main import main
from seekling.errors import DataError
from seekling.report.terminal import Selection, list_line, plain, render, select
from tests.evaluate.episodes import evaluation, invalid, question, record, search


@pytest.fixture
def records():
    bridge = record(question(7, kind="bridge"), "Paris", search(("page-9",)), search(), stage="rl")
    return [
        *evaluation("rwf", stage="eval-rl"),
        dataclasses.replace(bridge, step=3),
        record(question(8), None, invalid()),
    ]


def scored(records):
    made = {"Paris": 1.0, "Lyon": 0.0, None: 0.0}
    return [
        dataclasses.replace(each, scores={} if each.episode.failure else {"em": made[each.episode.answer]})
        for each in records
    ]


def chosen(records, **wanted):
    return [shown.record.question.id for shown in select(scored(records), Selection(**wanted))]


def shown_text(shown, place="1 of 1", **settings):
    console = Console(file=io.StringIO(), width=100, highlight=False, soft_wrap=True)
    console.print(render(shown, place=place, **settings))
    return console.file.getvalue()


def test_filters_choose_by_what_is_recorded_and_by_what_is_worked_out(records):
    assert chosen(records) == ["q0", "q1", "q2", "q7", "q8"]
    assert chosen(records, stage="rl") == ["q7"]
    assert chosen(records, stage="eval-rl", outcome="wrong") == ["q1"]
    assert chosen(records, outcome="failed") == ["q2"]
    assert chosen(records, outcome="none") == ["q8"]
    assert chosen(records, kind="bridge") == ["q7"]
    assert chosen(records, step=3) == ["q7"]
    assert chosen(records, cause="no_answer") == ["q8"]
    assert chosen(records, behaviours=("failed_search",)) == ["q0", "q2", "q7"]
    assert chosen(records, behaviours=("failed_search", "not-repetition")) == ["q0", "q2"]
    assert chosen(records, question="QUESTION 7") == ["q7"]
    assert chosen(records, question="Q1") == ["q1"]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"outcome": "good"}, "no outcome named 'good'; choose from right, wrong"),
        ({"behaviours": ("not-loops",)}, "no behaviour named 'loops'"),
        ({"stage": "eval-tl"}, "no stage in this run named 'eval-tl'; choose from eval-rl, rl"),
        ({"cause": "bad"}, "no cause of an error named 'bad'"),
    ],
)
def test_a_misspelt_filter_is_named_instead_of_matching_nothing(records, wanted, message):
    with pytest.raises(DataError, match=message):
        select(records, Selection(**wanted))


def test_an_episode_is_laid_out_with_everything_that_is_known_of_it(records):
    text = shown_text(select(scored(records), Selection(question="q8"))[0], place="5 of 5")
    assert "5 of 5" in text
    assert "Question 8?" in text
    assert "gold: Paris" in text
    assert "turn 1: invalid, 4 tokens" in text
    assert "That was not an action." in text
    assert "why not right: no_answer" in text
    assert "behaviours: format_break" in text


def test_long_texts_are_shortened_unless_all_is_asked_for():
    long = dataclasses.replace(search(), observation="x" * 2000)
    shown = select([record(question(1), "Paris", long)], Selection())[0]
    assert "... 500 more characters (--full shows them)" in shown_text(shown)
    assert shown_text(shown, is_full=True).count("x") >= 2000


EVIL = "\x1b]0;owned\x07\x1b[2J[bold red]not markup[/]\u202egnp.exe\r\x9b31m"


def test_model_text_reaches_the_terminal_without_a_control_character():
    evil = record(question(1), EVIL, dataclasses.replace(search(), action=EVIL, observation=EVIL), invalid())
    console = Console(file=io.StringIO(), width=100, highlight=False)
    shown = select([evil], Selection())
    console.print(render(shown[0], place="1 of 1", is_full=True))
    console.print(list_line(shown[0], 1))
    text = console.file.getvalue()
    assert not set(text) & set("\x1b\x07\r\x9b\u202e")
    assert "[bold red]not markup[/]" in text
    assert plain("a\x1bb\tc\nd") == "a\\x1bb\tc\nd"


@pytest.fixture
def run(tmp_path, records):
    (tmp_path / "episodes").mkdir()
    for stage in ("eval-rl", "rl"):
        lines = [json.dumps(each.to_json()) for each in scored(records) if each.stage == stage]
        (tmp_path / "episodes" / f"{stage}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def command(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(["report", "--episodes", *map(str, words)])
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def test_the_command_prints_episodes(capsys, run):
    code, out, _ = command(capsys, run, "--outcome", "right")
    assert code == 0
    assert "===  1 of 2  right  rl, step 3  bridge  tags" in out
    assert not set(out) & set("\x1b╭│─")


def test_the_command_lists_and_limits_and_prints_json(capsys, run):
    assert len(command(capsys, run, "--list", "--limit", "2")[1].splitlines()) == 2
    code, out, _ = command(capsys, run, "--behaviour", "answer_from_memory", "--json")
    rows = json.loads(out)
    assert code == 0
    assert [(row["question"]["id"], row["outcome"], row["cause"]) for row in rows] == [("q1", "wrong", "not_retrieved")]
