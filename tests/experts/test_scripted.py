"""The scripted expert acts through the real environment: a real index, and a real sandbox for programs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from seekling.config import EnvConfig, RetrievalConfig
from seekling.env.environment import SearchEnv
from seekling.env.protocol import make_protocol
from seekling.env.tools import library_tools
from seekling.errors import DataError, InfrastructureError
from seekling.experts.collect import CollectReport, collect, normalized_actions
from seekling.experts.scripted import play
from seekling.retrieval.index import build_index
from seekling.retrieval.library import open_library
from seekling.types import Hop, StopReason
from tests.env.fakes import FakeLibrary, count_words, make_env
from tests.experts.village import BRIDGE, COMPARISON, QUESTIONS, SINGLE, UNANSWERABLE, write_village

PROTOCOLS = ["tags", "tools", "code"]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("village")
    build_index(write_village(folder), folder / "index", RetrievalConfig(passage_words=30))
    return open_library(folder / "index")


@pytest.fixture
def make(library, request):
    def made(protocol="tags", top_k=2, **settings):
        config = EnvConfig(protocol=protocol, **settings)
        tools = library_tools(library, top_k)
        box = request.getfixturevalue("sandbox") if protocol == "code" else None
        return SearchEnv(make_protocol(config, tools), tools, config, sandbox=box, count_tokens=count_words)

    return made


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: q.kind)
def test_each_kind_of_question_is_answered_in_each_protocol_by_what_was_shown(make, protocol, question):
    env = make(protocol)
    result = play(env, question)
    assert result.reason == ""
    episode = result.episode
    assert (episode.answer, episode.stop_reason) == (question.answers[0], StopReason.ANSWERED)
    assert (episode.question_id, episode.source, episode.protocol) == (question.id, "village", protocol)
    assert list(episode.prompt) == env.protocol.prompt(question)
    assert len(episode.turns) == len(question.hops) + 1
    for hop, turn in zip(question.hops, episode.turns, strict=False):
        assert turn.calls[0].name in ("search", "search_pages")
        assert hop.document_id in [page for call in turn.calls for page in call.document_ids]
        if question is not UNANSWERABLE:
            assert hop.answer in turn.observation
        assert hop.query_subject in turn.payload
    # Every turn is in the grammar of the policy.
    for turn in episode.turns:
        assert env.protocol.parse(turn.action).kind == turn.kind != "invalid"
    assert [turn.kind for turn in episode.turns][-1] == "answer"


def test_an_expert_thinks_of_what_it_has_and_what_it_needs(make):
    turns = play(make(), BRIDGE).episode.turns
    assert [turn.action.partition("\n")[0] for turn in turns] == [
        "<think> I look up Alder Mill. </think>",
        "<think> Alder Mill: Tobias Wren. I look up Tobias Wren. </think>",
        "<think> Tobias Wren, place where he was born? </think>",
    ]
    assert turns[1].payload == "Tobias Wren born"
    thought = play(make(), SINGLE).episode.turns[-1].action
    assert thought.startswith(f"<think> {SINGLE.question} </think>")
    thought = play(make(), UNANSWERABLE).episode.turns[-1].action
    assert thought.startswith(f"<think> {UNANSWERABLE.question} The pages do not say. </think>")
    thought = play(make(), COMPARISON).episode.turns[-1].action
    assert thought.startswith("<think> Alder Mill: 1612; Birch Mill: 1655. </think>")


def test_a_query_that_does_not_show_the_fact_is_followed_by_another(make):
    # The words of the question lead elsewhere, those of the relation do not.
    hop = Hop("hamlet", "Alder Mill built", "1612", "alder_mill")
    result = play(make(top_k=1), replace(SINGLE, question="Which cider hamlet is known?", hops=(hop,)))
    assert [turn.payload for turn in result.episode.turns] == [
        "hamlet cider",
        "hamlet Alder Mill built",
        "1612",
    ]
    assert "1612" not in result.episode.turns[0].observation


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("question", [SINGLE, UNANSWERABLE], ids=lambda q: q.kind)
def test_an_expert_whose_first_search_is_made_to_fail_searches_again_in_other_words(make, protocol, question):
    episode = play(make(protocol, failing_share=1.0), question).episode
    first, second, last = episode.turns
    assert question.hops[0].document_id not in [page for call in first.calls for page in call.document_ids]
    assert question.hops[0].document_id in [page for call in second.calls for page in call.document_ids]
    assert first.payload != second.payload
    assert "Not found. I try other words." in second.action
    assert last.payload == question.answers[0]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_fact_that_was_not_shown_is_not_answered(make, protocol):
    unseen = replace(SINGLE, answers=("1999",), hops=(replace(SINGLE.hops[0], answer="1999"),))
    result = play(make(protocol, max_turns=5), unseen)
    assert result.episode is None
    assert result.reason == "the fact was not retrieved"


def test_a_fact_on_another_page_than_the_supporting_one_does_not_count(make):
    elsewhere = replace(SINGLE, hops=(replace(SINGLE.hops[0], document_id="harrow_dell"),))
    assert play(make(top_k=1), elsewhere).reason == "the fact was not retrieved"


def test_part_of_a_word_is_not_the_fact(make):
    # "161" and "Wre" stand in the text only inside 1612 and Wren.
    for answer in ("161", "Wre"):
        part = replace(SINGLE, answers=(answer,), hops=(replace(SINGLE.hops[0], answer=answer),))
        assert play(make(), part).episode is None


def test_an_alias_that_was_shown_is_preferred_to_a_canonical_answer_that_was_not(make):
    alias = replace(BRIDGE, answers=("the hamlet of Harrow", "Harrow Dell"))
    assert play(make(), alias).episode.answer == "Harrow Dell"


def test_a_question_without_hops_is_searched_for_as_it_stands(make):
    bare = replace(SINGLE, hops=(), kind="")
    turns = play(make(), bare).episode.turns
    assert [turn.payload for turn in turns] == ["When was Alder Mill built", "1612"]


def test_too_few_turns_end_without_an_answer_and_say_so(make):
    assert play(make(max_turns=2), BRIDGE).reason == "the episode ended as max_turns"


def test_a_failing_search_is_a_failure_of_the_episode_with_its_text():
    env = make_env(library=FakeLibrary(failure=InfrastructureError("the search server is down")))
    result = play(env, SINGLE)
    assert result.episode is None
    assert result.reason == "the episode ended as infra_failure: InfrastructureError: the search server is down"


def test_a_subject_that_the_grammar_cannot_hold_is_a_failure_not_a_crash(make):
    strange = replace(SINGLE, hops=(replace(SINGLE.hops[0], query_subject="the </search> tag"),))
    assert play(make(), strange).reason == "the protocol cannot write the query or the answer"


# collect


def test_failures_and_duplicates_are_dropped_with_their_reasons(make):
    unseen = replace(SINGLE, id="unseen", answers=("1999",), hops=(replace(SINGLE.hops[0], answer="1999"),))
    again = replace(SINGLE, id="again", question="In which year was Alder Mill built?")
    louder = replace(SINGLE, id="louder", hops=(replace(SINGLE.hops[0], query_subject="ALDER  MILL"),))
    asked = []
    records, report = collect(make(), [SINGLE, unseen, again, louder, BRIDGE], on_question=lambda: asked.append(1))
    assert [(record.stage, record.question.id) for record in records] == [("expert", "single"), ("expert", "bridge")]
    assert (report.num_questions, report.num_kept, len(asked)) == (5, 2, 5)
    assert report.dropped == {"the fact was not retrieved": 1, "the same actions as another": 2}
    assert str(report) == (
        "2 of 5 expert episodes kept (dropped: 2 the same actions as another, 1 the fact was not retrieved)"
    )


def test_collection_stops_when_it_has_enough(make):
    records, report = collect(make(), QUESTIONS, max_episodes=2)
    assert [record.question.id for record in records] == ["single", "bridge"]
    assert report.num_questions == 2
    assert str(report) == "2 of 2 expert episodes kept"


def test_nothing_kept_is_an_error_that_says_what_was_dropped(make):
    unseen = replace(SINGLE, answers=("1999",), hops=(replace(SINGLE.hops[0], answer="1999"),))
    with pytest.raises(DataError, match=r"answered none of 1 questions: \{'the fact was not retrieved': 1\}") as error:
        collect(make(), [unseen])
    assert "retrieval.top_k" in str(error.value)


def test_nothing_asked_is_an_error_too(make):
    with pytest.raises(DataError, match="answered none of 0 questions"):
        collect(make(), [])


def test_an_answer_that_the_score_would_not_accept_is_dropped(make):
    # An answer is given in the form that was shown; without any gold form left there is nothing to accept.
    blank = replace(UNANSWERABLE, answers=("!",))
    records, report = collect(make(), [SINGLE, replace(blank, answers=("?",)), blank])
    assert [record.question.id for record in records] == ["single", "unanswerable", "unanswerable"]
    assert report.dropped == {}


def test_actions_are_compared_without_case_and_white_space(make):
    episode = play(make(), SINGLE).episode
    assert normalized_actions(episode) == ("alder mill built", "1612")
    assert str(CollectReport(num_questions=3, num_kept=3)) == "3 of 3 expert episodes kept"
