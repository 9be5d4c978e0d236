"""Which questions a run learns from, and which it is asked."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from seekling.config import ExpertConfig, build_recipe
from seekling.env.withholding import with_twins
from seekling.errors import ConfigError, DataError
from seekling.pipeline import reporter
from seekling.pipeline.experts_file import split_for_sft
from seekling.pipeline.world import open_world
from tests.experts.village import SINGLE
from tests.pipeline.runs import QuietReporter
from tests.retrieval.towns import write_tiny_encoder
from tests.search_server import serve
from tests.settings import recipe_of


def world_of(folder, **data):
    return open_world(recipe_of({"data": {"almanac_pages": 150, **data}}), folder, QuietReporter())


def test_the_index_of_a_run_is_found_from_wherever_it_is_asked(tmp_path, monkeypatch):
    retrieval = recipe_of({"retrieval": {"index_dir": "mine.index"}}).retrieval
    run, index = tmp_path / "home" / "runs" / "mine", tmp_path / "home" / "mine.index"
    run.mkdir(parents=True)
    index.mkdir()
    monkeypatch.chdir(tmp_path / "home")
    assert retrieval.folder(run).resolve() == index
    monkeypatch.chdir(tmp_path)
    assert retrieval.folder(run) == index
    index.rmdir()
    assert str(retrieval.folder(run)) == "mine.index"


def test_kinds_to_learn_from_leave_the_held_out_questions_as_they_are(tmp_path):
    plain, some = world_of(tmp_path), world_of(tmp_path, train_kinds=["single", "several"])
    assert {question.kind for question in some.train} == {"single", "several"}
    assert some.train == [question for question in plain.train if question.kind in ("single", "several")]
    assert some.test == plain.test
    assert some.dev == plain.dev
    assert {"bridge", "unanswerable"} <= {question.kind for question in some.test}
    assert "unanswerable" in {question.kind for question in some.dev}
    assert some.hashes["train_questions"] != plain.hashes["train_questions"]
    assert some.hashes["test_questions"] == plain.hashes["test_questions"]


def test_a_log_that_is_no_terminal_tells_how_far_the_index_is(tmp_path, monkeypatch):
    monkeypatch.setattr(reporter, "PLAIN_EVERY_S", 0.0)
    told, index = QuietReporter(), {"kind": "dense", "encoder": str(write_tiny_encoder(tmp_path / "encoder"))}
    open_world(recipe_of({"data": {"almanac_pages": 150}, "retrieval": {"index": index}}), tmp_path, told)
    assert any(re.fullmatch(r"cut passages: \d+", line) for line in told.lines)
    assert any(re.fullmatch(r"encode: [\d,]+ of [\d,]+", line) for line in told.lines)


def test_kinds_that_no_question_has_are_named(tmp_path):
    with pytest.raises(DataError, match=r"0 training .*fraction = 0.2, data.questions.train_kinds = \['riddle'\]; "):
        world_of(tmp_path, train_kinds=["riddle"])


def test_questions_of_ones_own_have_no_kind_and_are_all_learned_from(tmp_path):
    pages, questions = tmp_path / "pages.jsonl", tmp_path / "questions.jsonl"
    pages.write_text('{"id": "a", "title": "Mill", "content": "The mill was built in 1655."}\n', encoding="utf-8")
    rows = [f'{{"id": "q{n}", "question": "When {n}?", "answers": ["1655"]}}\n' for n in range(10)]
    questions.write_text("".join(rows), encoding="utf-8")
    world = world_of(tmp_path / "run", corpus=str(pages), train=str(questions), train_kinds=["single"])
    assert (len(world.train), len(world.dev), len(world.test)) == (7, 1, 2)


def files_of(folder, **questions):
    """Question files by name: (text, page) of each row, without ids."""
    folder.mkdir()
    (folder / "pages.jsonl").write_text('{"id": "a", "title": "Mill", "content": "Built in 1655."}\n', encoding="utf-8")
    for name, rows in questions.items():
        lines = [json.dumps({"question": text, "answers": ["1655"], "supporting_ids": [page]}) for text, page in rows]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {"corpus": str(folder / "pages.jsonl")} | {name: str(folder / f"{name}.jsonl") for name in questions}


def test_rows_without_ids_of_two_files_are_different_questions(tmp_path):
    data = files_of(tmp_path / "in", train=[("When?", "a"), ("Why?", "b")], test=[("Where?", "c")])
    world = world_of(tmp_path / "run", **data, dev_fraction=0)
    assert (len(world.train), len(world.dev), len(world.test)) == (2, 0, 1)
    assert not {each.key for each in world.train} & {each.key for each in world.test}
    assert world.notes == ()


def test_the_same_question_in_other_words_of_punctuation_and_case_is_refused_or_dropped(tmp_path):
    rows = {"train": [("When was it?", "a"), ("Why?", "b")], "dev": [("Who?", "d")], "test": [("WHEN  was it", "c")]}
    data = files_of(tmp_path / "in", **rows)
    with pytest.raises(DataError, match=r"1 questions are in both the training and the test set, such as 'When was it"):
        world_of(tmp_path / "run", **data)
    world = world_of(tmp_path / "run", **data, overlap="drop")
    assert [each.question for each in world.train] == ["Why?"]
    assert [each.question for each in world.dev] == ["Who?"]


def test_a_page_in_two_sets_is_a_warning_and_on_record(tmp_path):
    data = files_of(tmp_path / "in", train=[("When?", "a"), ("Why?", "b")], test=[("Where?", "a"), ("Who?", "c")])
    reporter = QuietReporter()
    world = open_world(recipe_of({"data": data}), tmp_path / "run", reporter)
    assert world.notes == (
        "1 of 2 test questions are about a page that training or development questions are about too",
    )
    assert f"warning: {world.notes[0]}" in reporter.lines


def test_one_file_is_divided_by_page_or_by_order(tmp_path):
    rows = [(f"When {number}?", f"p{number // 2}") for number in range(20)]
    data = files_of(tmp_path / "in", train=rows)
    world = world_of(tmp_path / "run", **data)
    pages = [{page for each in some for page in each.supporting_ids} for some in (world.train, world.dev, world.test)]
    assert sum(map(len, pages)) == len(set().union(*pages)) == 10
    assert [len(some) for some in (world.train, world.dev, world.test)] == [14, 2, 4]
    by_order = world_of(tmp_path / "other", **data, split="order", dev_fraction=0)
    assert [each.question for each in by_order.test] == ["When 16?", "When 17?", "When 18?", "When 19?"]


def test_only_so_many_development_questions_are_asked(tmp_path):
    whole, some = (
        open_world(recipe_of({"data": {"almanac_pages": 150}, "eval": {"dev_questions": n}}), tmp_path, QuietReporter())
        for n in (100, 7)
    )
    assert some.dev == whole.dev[:7]
    assert some.train == whole.train


def test_a_remote_index_stays_where_it_is(tmp_path):
    local = world_of(tmp_path / "local")
    here = {name: str(tmp_path / "local" / "corpus" / f"{name}.jsonl") for name in ("train", "dev", "test")}
    with serve(str(tmp_path / "local" / "index")) as url:
        recipe = recipe_of({"data": here, "retrieval": {"url": url}})
        remote = open_world(recipe, tmp_path / "remote", QuietReporter())
        assert remote.hashes == local.hashes
        for question in remote.test[:5]:
            assert remote.library.search(question.question, 3) == local.library.search(question.question, 3)
        assert not (tmp_path / "remote").exists()
    with pytest.raises(DataError, match=r"retrieval\.url is set, data\.train is not"):
        open_world(recipe_of({"retrieval": {"url": url}}), tmp_path / "none", QuietReporter())


def test_sft_plays_the_first_questions_plans_for_more_of_them_and_leaves_the_rest_to_rl():
    questions = with_twins([replace(SINGLE, id=str(number)) for number in range(8)], 1.0)
    played, planned, fresh = split_for_sft(ExpertConfig(num_questions=4, num_plans=3), questions)
    assert [each.id for each in played] == ["0", "0-withheld", "1", "1-withheld"]
    assert [each.id for each in planned] == ["2", "3", "4"]
    assert [each.id for each in fresh] == ["5", "6", "7"]
    assert split_for_sft(ExpertConfig(num_questions=4), questions).fresh == questions[4::2]
    assert split_for_sft(ExpertConfig(num_questions=4, num_plans=30), questions).fresh == []
    assert split_for_sft(ExpertConfig(file="experts.jsonl"), questions).fresh == questions[::2]
    with pytest.raises(ConfigError, match="num_plans are the scripted expert's, and file stands in its place"):
        build_recipe({"experts": {"file": "experts.jsonl", "num_plans": 3}})
