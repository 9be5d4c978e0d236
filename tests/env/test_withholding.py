"""Twins of questions, passages shown once, and first searches that are made to miss what they need."""

from __future__ import annotations

from dataclasses import replace

import pytest

from seekling.env.withholding import says, with_twins, without
from seekling.types import Hop, Question
from tests.env.fakes import PAGES, QUESTION, FakeLibrary, make_env

SINGLE = replace(QUESTION, question="Who built the harbour of Fowey?", answers=("Maud Trethewey",), kind="single")


def test_each_twin_follows_its_question_and_is_unanswerable():
    one, twin = with_twins([SINGLE], 1.0)
    assert one is SINGLE
    assert (twin.id, twin.question, twin.kind) == ("7-withheld", SINGLE.question, "unanswerable")
    assert (twin.answers[0], twin.withheld) == ("unknown", SINGLE.answers)
    assert twin.labels == ("withheld",)


def test_a_share_is_chosen_by_the_ids_alone():
    questions = [replace(SINGLE, id=str(number)) for number in range(1000)]
    some = {each.id for each in with_twins(questions, 0.3)} - {each.id for each in questions}
    more = {each.id for each in with_twins(reversed(questions), 0.5)} - {each.id for each in questions}
    assert 250 < len(some) < 350
    assert some < more
    assert with_twins(questions, 0.0) == questions


def test_a_search_shows_as_many_passages_as_ever_and_none_that_says_the_answer():
    _, twin = with_twins([SINGLE], 1.0)
    env = make_env(top_k=2)
    shown = {}
    for question in (SINGLE, twin):
        with env.start(question) as session:
            shown[question.id] = session.step(
                "<search> harbour Fowey Maud Aln </search>", finish="stop"
            ).turn.observation
    assert shown["7"].count("Doc ") == 2
    assert "Maud Trethewey" in shown["7"]
    # Of the three pages one says it, and one bears its name.
    assert "Maud Trethewey" not in shown["7-withheld"]
    assert "Alnwick lies on the river" in shown["7-withheld"]


def test_a_program_reads_the_page_without_the_sentences_that_say_it():
    _, twin = with_twins(
        [replace(SINGLE, question="Of whom was she the daughter?", answers=("a cooper", "cooper"))], 1.0
    )
    env = make_env(protocol="code")
    with env.start(twin) as session:
        program = '```python\nprint(read_section("maud_trethewey:full"))\nprint(read_section("alnwick:full"))\n```\n'
        observation = session.step(program, finish="stop").turn.observation
    assert "cooper" not in observation
    assert "holds a fair in May" in observation


def test_sentences_and_headings_that_say_it_go():
    text = "# Orla\n\nOrla was a potter. She was taught by Tam Brook. She died old.\n\n## Tam Brook\n\n## After"
    assert without(text, ("Tam Brook",)) == "# Orla\n\nOrla was a potter. She died old.\n\n\n## After"
    split = "He rose early. He was born in St. Louis in 1900. He went on."
    assert without(split, ("St. Louis",)) == "He rose early. He went on."
    assert without(text, ()) == text


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("He kept BEES.", "bees"),
        ("The Hudson rises there", "Hudson"),
        ("Hudson River rises", "the Hudson River"),
        ("the US Army", "U.S. Army"),
        ("from 1861\u20131865", "1861-1865"),
        ("Tam\nBrook", "Tam Brook"),
        (PAGES["alnwick"][1], "may"),
    ],
)
def test_whole_words_count_whatever_their_case_punctuation_and_articles(text, answer):
    assert says(text, (answer,))
    assert not says("He kept bees.", ("bee",))


@pytest.mark.parametrize("protocol", ["tags", "tools"])
def test_where_passages_are_shown_once_a_further_search_shows_the_next_ones(protocol):
    library = FakeLibrary()
    env = make_env(library=library, top_k=2, protocol=protocol, repeat_passages=False, max_turns=5)
    query = "Alnwick Maud Trethewey Fowey harbour"
    act = env.protocol.act(env.protocol.search_action(query))
    with env.start(QUESTION) as session:
        shown = [session.step(act, finish="stop").turn for _ in range(3)]
    pages = [[page for call in turn.calls for page in call.document_ids] for turn in shown]
    assert pages[0] + pages[1] == [hit.passage.document_id for hit in library.search(query, 3)]
    assert pages[2] == []
    # Another episode begins anew.
    with env.start(QUESTION) as session:
        assert session.step(act, finish="stop").turn.observation == shown[0].observation


def test_what_a_question_takes_for_granted_is_false_in_its_twin():
    asked = Hop("Fowey harbour", "built in", "1521", "p1")
    questions = [
        replace(
            SINGLE,
            id=str(number),
            question=f"When did {name} build Fowey harbour?",
            hops=(Hop("Fowey harbour", "built by", name, "p1", claim=name), asked),
        )
        for number, name in enumerate(["Maud Trethewey", "Jory Penrose"] * 20)
    ]
    twins = [each for each in with_twins(questions, 0.1) if each.id.endswith("-contradicted")]
    assert 10 < len(twins) < 30
    for twin in twins:
        claimed, same = twin.hops
        assert (twin.kind, twin.labels, same) == ("unanswerable", ("false premise",), asked)
        assert {claimed.claim, claimed.answer} == {"Maud Trethewey", "Jory Penrose"}
        assert claimed.claim in twin.question
        assert claimed.answer not in twin.question
    assert not any("contradicted" in each.id for each in with_twins(questions[::2], 0.1))


ASKED = replace(QUESTION, supporting_ids=("harbour_of_fowey", "maud_trethewey"))
SEARCH = "<search> harbour of Fowey river </search>"


def failing_env(share=1.0, **settings):
    return make_env(top_k=3, failing_share=share, max_turns=6, **settings)


def found(session, text=SEARCH):
    return [page for call in session.step(text, finish="stop").turn.calls for page in call.document_ids]


def test_the_first_search_of_each_episode_misses_the_needed_pages_and_later_ones_do_not():
    env = failing_env()
    with env.start(ASKED) as one, env.start(ASKED) as other:
        one.step("I wonder.", finish="stop")  # no search, so it uses nothing up
        first = one.step(SEARCH, finish="stop").turn
        assert [call.document_ids for call in first.calls] == [("alnwick",)]
        assert "1457" not in first.observation
        assert found(one) == ["harbour_of_fowey", "alnwick", "maud_trethewey"]
        assert found(other) == ["alnwick"]
    with env.start(replace(ASKED, supporting_ids=tuple(PAGES))) as session:
        assert "No results" in session.step(SEARCH, finish="stop").turn.observation


def test_pages_listed_for_a_program_are_missing_in_its_first_program_only():
    program = "```python\nprint([p['page_id'] for p in search_pages('harbour of Fowey')])\n```"
    with failing_env(protocol="code").start(ASKED) as session:
        assert "harbour_of_fowey" not in session.step(program, finish="stop").turn.observation
        assert "harbour_of_fowey" in session.step(program, finish="stop").turn.observation


def test_an_unanswerable_question_fails_on_the_page_it_is_about():
    hop = Hop("Harbour of Fowey", "name of the dog", "unknown", "harbour_of_fowey")
    with failing_env().start(Question("8", "?", ("unknown",), kind="unanswerable", hops=(hop,))) as session:
        assert "harbour_of_fowey" not in found(session)
