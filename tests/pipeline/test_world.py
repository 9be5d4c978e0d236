"""Which questions a run learns from, and which it is asked."""

from __future__ import annotations

import pytest

from seekling.config import build_recipe
from seekling.errors import DataError
from seekling.pipeline.world import open_world
from tests.pipeline.runs import QuietReporter
from tests.search_server import serve


def world_of(folder, **data):
    return open_world(build_recipe({"data": {"almanac_pages": 100, **data}}), folder, QuietReporter())


def test_kinds_to_learn_from_leave_the_held_out_questions_as_they_are(tmp_path):
    plain, some = world_of(tmp_path), world_of(tmp_path, train_kinds=["single", "comparison"])
    assert {question.kind for question in some.train} == {"single", "comparison"}
    assert some.train == [question for question in plain.train if question.kind in ("single", "comparison")]
    assert some.test == plain.test
    assert {"bridge", "unanswerable"} <= {question.kind for question in some.test}
    assert some.hashes["train_questions"] != plain.hashes["train_questions"]
    assert some.hashes["test_questions"] == plain.hashes["test_questions"]


def test_kinds_that_no_question_has_are_named(tmp_path):
    with pytest.raises(DataError, match=r"0 training .*train_kinds = \['riddle'\]"):
        world_of(tmp_path, train_kinds=["riddle"])


def test_questions_of_ones_own_have_no_kind_and_are_all_learned_from(tmp_path):
    pages, questions = tmp_path / "pages.jsonl", tmp_path / "questions.jsonl"
    pages.write_text('{"id": "a", "title": "Mill", "content": "The mill was built in 1655."}\n', encoding="utf-8")
    rows = [f'{{"id": "q{n}", "question": "When {n}?", "answers": ["1655"]}}\n' for n in range(10)]
    questions.write_text("".join(rows), encoding="utf-8")
    world = world_of(tmp_path / "run", corpus=str(pages), train=str(questions), train_kinds=["single"])
    assert (len(world.train), len(world.test)) == (8, 2)


def test_a_remote_index_stays_where_it_is(tmp_path):
    local = world_of(tmp_path / "local")
    here = {name: str(tmp_path / "local" / "corpus" / f"{name}.jsonl") for name in ("train", "test")}
    with serve(str(tmp_path / "local" / "index")) as url:
        recipe = build_recipe({"data": here, "retrieval": {"kind": "remote", "url": url}})
        remote = open_world(recipe, tmp_path / "remote", QuietReporter())
        assert remote.hashes == local.hashes
        for question in remote.test[:5]:
            assert remote.library.search(question.question, 3) == local.library.search(question.question, 3)
        assert not (tmp_path / "remote").exists()
    with pytest.raises(DataError, match=r"retrieval\.kind is remote, data\.train is not"):
        open_world(build_recipe({"retrieval": {"kind": "remote", "url": url}}), tmp_path / "none", QuietReporter())
