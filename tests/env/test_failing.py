"""First searches that are made to fail: which, how, and for how long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from seekling.config import EnvConfig, SandboxConfig
from seekling.env.environment import SearchEnv
from seekling.env.withholding import missed_pages
from seekling.env.protocol import make_protocol
from seekling.env.sandbox import open_sandbox
from seekling.env.tools import library_tools
from seekling.errors import SandboxError
from seekling.types import Hop, Question
from tests.env.fakes import QUESTION, FakeLibrary, count_words

ASKED = replace(QUESTION, supporting_ids=("harbour_of_fowey", "maud_trethewey"))
SEARCH = "<search> harbour of Fowey river </search>"


def env_of(protocol="tags", share=1.0, sandbox=None):
    config = EnvConfig(protocol=protocol, failing_share=share, max_turns=6)
    tools = library_tools(FakeLibrary(), 3)
    return SearchEnv(make_protocol(config, tools), tools, config, sandbox=sandbox, count_tokens=count_words)


def found(session, text=SEARCH):
    return [page for call in session.step(text, finish="stop").turn.calls for page in call.document_ids]


def test_the_first_search_misses_the_needed_pages_and_later_ones_do_not():
    with env_of().start(ASKED) as session:
        first = session.step(SEARCH, finish="stop").turn
        assert [call.document_ids for call in first.calls] == [("alnwick",)]
        assert "1457" not in first.observation
        assert "Alnwick lies" in first.observation
        assert found(session) == ["harbour_of_fowey", "alnwick", "maud_trethewey"]


def test_when_nothing_else_is_found_the_observation_says_so():
    every = replace(ASKED, supporting_ids=("harbour_of_fowey", "maud_trethewey", "alnwick"))
    with env_of().start(every) as session:
        assert "No results" in session.step(SEARCH, finish="stop").turn.observation


def test_what_is_not_a_search_uses_the_failure_up_for_no_one():
    with env_of().start(ASKED) as session:
        session.step("I wonder.", finish="stop")
        assert found(session) == ["alnwick"]
        assert "harbour_of_fowey" in found(session)


def test_other_episodes_of_the_same_question_fail_too_and_on_their_own():
    env = env_of()
    with env.start(ASKED) as one, env.start(ASKED) as other:
        assert found(one) == ["alnwick"]
        assert "harbour_of_fowey" in found(one)
        assert found(other) == ["alnwick"]


def test_pages_listed_for_a_program_are_missing_in_its_first_program_only():
    try:
        opened = open_sandbox(SandboxConfig())
    except SandboxError as error:
        pytest.skip(f"no sandbox on this machine: {error}")
    program = "```python\nprint([p['page_id'] for p in search_pages('harbour of Fowey')])\n```"
    with opened as sandbox, env_of("code", sandbox=sandbox).start(ASKED) as session:
        assert "harbour_of_fowey" not in session.step(program, finish="stop").turn.observation
        assert "harbour_of_fowey" in session.step(program, finish="stop").turn.observation


def test_an_unanswerable_question_fails_on_the_page_it_is_about():
    hop = Hop("Harbour of Fowey", "name of the dog", "unknown", "harbour_of_fowey")
    with env_of().start(Question("8", "?", ("unknown",), kind="unanswerable", hops=(hop,))) as session:
        assert "harbour_of_fowey" not in found(session)


def test_without_a_share_and_without_known_pages_nothing_fails():
    for env, question in ((env_of(share=0.0), ASKED), (env_of(), QUESTION)):
        with env.start(question) as session:
            assert "harbour_of_fowey" in found(session)
    env = env_of()
    assert env.with_config(env.config) is env
    with env.with_config(env.config.model_copy(update={"failing_share": 0.0})).start(ASKED) as session:
        assert "harbour_of_fowey" in found(session)


def test_the_share_is_drawn_by_id_and_a_larger_one_holds_the_smaller():
    questions = [replace(ASKED, id=str(number)) for number in range(2000)]
    half = {each.id for each in questions if missed_pages(each, 0.5)}
    third = {each.id for each in questions if missed_pages(each, 1 / 3)}
    assert third < half
    assert abs(len(half) - 1000) < 100
    assert half == {each.id for each in questions if missed_pages(replace(each, question="other words"), 0.5)}
    assert all(missed_pages(each, 1.0) for each in questions)
