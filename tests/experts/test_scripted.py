"""The scripted expert acts through the real environment: a real index, and a real sandbox for programs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from seekling.config import EnvConfig, ExpertConfig, IndexConfig
from seekling.env.environment import SearchEnv
from seekling.env.protocol import Action, make_protocol
from seekling.env.tools import library_tools
from seekling.env.withholding import with_twins
from seekling.errors import DataError, InfrastructureError
from seekling.experts.scripted import first_plan
from seekling.experts.select import collect
from seekling.models import load_policy
from seekling.retrieval.index import build_index
from seekling.retrieval.library import open_library
from seekling.rollout.render import Renderer, expert_trajectory, opening_trajectory
from seekling.types import Episode, Hop, StopReason
from tests.env.fakes import FakeLibrary, count_words, make_env
from tests.experts.village import BRIDGE, COMPARISON, PAGES, QUESTIONS, SINGLE, UNANSWERABLE, play, write_village

PROTOCOLS = ["tags", "tools", "code"]
IN_PAGE_WORDS = ExpertConfig(own_words_share=0.0)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("village")
    build_index(write_village(folder), folder / "index", IndexConfig(passage_words=30))
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
    # Of what no page says the expert convinces itself in other words too.
    assert len(episode.turns) == (3 if question is UNANSWERABLE else num_look_ups(protocol, question) + 1)
    for hop, turn in zip(question.hops, episode.turns[: num_look_ups(protocol, question)], strict=False):
        assert turn.calls[0].name in ("search", "search_pages")
        assert hop.document_id in [page for call in turn.calls for page in call.document_ids]
        if question is not UNANSWERABLE:
            assert hop.answer in turn.observation
        assert hop.query_subject in turn.payload
    # Every turn is in the grammar of the policy.
    for turn in episode.turns:
        assert env.protocol.parse(turn.action).kind == turn.kind != "invalid"
    assert [turn.kind for turn in episode.turns][-1] == "answer"


def num_look_ups(protocol, question):
    """What one search has shown of both mills is not looked up again; a program looks up all at once anyway."""
    return 1 if question.is_side_by_side else len(question.hops)


def payloads(episode):
    return [turn.payload for turn in episode.turns]


def thoughts(episode):
    return [turn.action.partition("\n")[0].removeprefix("<think> ").removesuffix(" </think>") for turn in episode.turns]


def test_an_expert_says_what_it_looks_for_and_whether_that_was_shown(make):
    def thoughts_on(question):
        return thoughts(play(make(), question).episode)

    assert thoughts_on(BRIDGE) == [
        "Alder Mill > built by > born in?",
        "[Alder Mill] built by: Tobias Wren > born in?",
        "[Tobias Wren] born in: Harrow Dell.",
    ]
    assert thoughts_on(SINGLE)[-1] == "[Alder Mill] built in: 1612."
    assert thoughts_on(UNANSWERABLE) == [
        "Maud Ferris > name of the dog?",
        "[Maud Ferris] name of the dog: not here. Maud Ferris > name of the dog?",
        "[Maud Ferris] name of the dog: not here.",
    ]
    assert thoughts_on(COMPARISON) == [
        "Alder Mill; Birch Mill > built in?",
        "[Alder Mill] built in: 1612. [Birch Mill] built in: 1655. Alder Mill: 1612; Birch Mill: 1655.",
    ]


def test_where_many_subjects_share_a_page_the_subject_is_named(make):
    titles = {"alder_mill": "The mills of the Sorrel", "maud_ferris": "Builders"}
    assert thoughts(play(make(), SINGLE, titles=titles).episode)[-1] == "[Alder Mill] built in: 1612."
    unknown = thoughts(play(make(), UNANSWERABLE, titles=titles).episode)
    assert unknown[-1] == "[Maud Ferris] name of the dog: not here."


def test_a_page_about_somebody_else_is_told_from_one_that_does_not_say(make):
    nobody = replace(UNANSWERABLE, hops=(Hop("Maud Wren", "born in", "unknown", ""),))
    first = thoughts(play(make(), nobody, IN_PAGE_WORDS, titles={page: page.upper() for page in PAGES}).episode)[1]
    assert first == "[TOBIAS_WREN] another page. Maud Wren > born in?"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_expert_that_searches_in_its_own_words_first_mends_it_with_those_of_the_page(make, protocol):
    asked = replace(SINGLE, question="How old is Alder Mill, the cider hamlet?")
    in_own_words, in_page_words = (
        payloads(play(make(protocol, top_k=1), asked, ExpertConfig(own_words_share=share)).episode)
        for share in (1.0, 0.0)
    )
    assert "cider" in in_own_words[0]
    assert in_own_words[1:] == in_page_words or in_own_words[-1] == in_page_words[-1] == "1612"
    assert "cider" not in in_page_words[0]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("question", [SINGLE, BRIDGE], ids=lambda q: q.kind)
def test_the_twin_of_a_question_begins_as_it_does_and_ends_by_saying_that_it_is_unknown(make, protocol, question):
    env = make(protocol, max_turns=5)
    _, twin = with_twins([question], 1.0)
    told, withheld = play(env, question).episode, play(env, twin).episode
    num = len(question.hops)
    # The same look-ups, and the same observations up to the withheld fact.
    assert payloads(withheld)[:num] == payloads(told)[:num]
    for one, other in zip(withheld.turns[: num - 1], told.turns, strict=False):
        assert one.observation == other.observation
    assert withheld.answer == "unknown"
    assert not any(question.answers[0] in turn.observation for turn in withheld.turns)
    assert question.answers[0] in told.turns[num - 1].observation
    assert thoughts(withheld)[-1].endswith(("not here.", "another page."))


SEVERAL = replace(
    COMPARISON,
    id="several",
    kind="several",
    labels=("the most",),
    hops=tuple(replace(hop, relation="built by") for hop in COMPARISON.hops),
)


@pytest.mark.parametrize(
    ("question", "computed"),
    [
        (SEVERAL, "Alder Mill"),
        (replace(SEVERAL, answers=("Birch Mill",)), "Birch Mill"),
        (replace(SEVERAL, labels=("difference",), answers=("43",)), "43"),
        (replace(SEVERAL, labels=("how many",), question="How many are from before 1650?", answers=("one", "1")), "1"),
    ],
    ids=["smallest", "largest", "difference", "count"],
)
def test_a_program_looks_up_and_compares_several_pages(make, question, computed):
    first, second, last = play(make("code"), question).episode.turns
    assert all(hop.answer in first.observation for hop in question.hops)
    assert second.observation.strip() == f"Output:\n{computed}"
    assert last.payload == computed


def test_what_a_question_takes_for_granted_is_checked_after_what_it_asks_for(make):
    asked = Hop("Alder Mill", "built in", "1612", "alder_mill")
    claimed = Hop("Alder Mill", "built by", "Tobias Wren", "alder_mill", claim="Tobias Wren")
    right = replace(SINGLE, question="When did Tobias Wren build Alder Mill?", hops=(claimed, asked))
    episode = play(make(), right, IN_PAGE_WORDS).episode
    assert episode.answer == "1612"
    assert thoughts(episode) == [
        "Alder Mill > built in; check Tobias Wren?",
        "[Alder Mill] built in: 1612. [Alder Mill] Tobias Wren: here. It fits: 1612.",
    ]
    claimed = replace(claimed, claim="Maud Ferris")
    wrong = replace(UNANSWERABLE, question="When did Maud Ferris build Alder Mill?", hops=(claimed, asked))
    episode = play(make(), wrong, IN_PAGE_WORDS).episode
    assert episode.answer == "unknown"
    assert thoughts(episode) == [
        "Alder Mill > built in; check Maud Ferris?",
        "[Alder Mill] built in: 1612; check Maud Ferris?",
        "[Alder Mill] Maud Ferris: not here.",
    ]


def test_a_query_that_does_not_show_the_fact_is_followed_by_another(make):
    # The words of the question lead elsewhere, those of the relation do not.
    hop = Hop("hamlet", "Alder Mill built", "1612", "alder_mill")
    asked = replace(SINGLE, question="Which cider hamlet is known?", hops=(hop,))
    episode = play(make(top_k=1), asked, ExpertConfig(own_words_share=1.0)).episode
    assert payloads(episode) == ["hamlet cider", "hamlet Alder Mill built", "1612"]
    assert "1612" not in episode.turns[0].observation


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("question", [SINGLE, UNANSWERABLE], ids=lambda q: q.kind)
def test_an_expert_whose_first_search_is_made_to_fail_searches_again_in_other_words(make, protocol, question):
    episode = play(make(protocol, failing_share=1.0), question).episode
    first, second, *_, last = episode.turns
    assert question.hops[0].document_id not in [page for call in first.calls for page in call.document_ids]
    assert question.hops[0].document_id in [page for call in second.calls for page in call.document_ids]
    assert first.payload != second.payload
    assert "another page." in second.action
    assert last.payload == question.answers[0]


def single(answer="1612", **hop):
    return replace(SINGLE, answers=(answer,), hops=(replace(SINGLE.hops[0], answer=answer, **hop),))


STRANGE = single(query_subject="the </search> tag")


@pytest.mark.parametrize(
    ("question", "settings", "reason"),
    [
        *((single("1999"), {"protocol": each, "max_turns": 5}, "the fact was not retrieved") for each in PROTOCOLS),
        # On another page than the supporting one.
        (single(document_id="harrow_dell"), {"top_k": 1}, "the fact was not retrieved"),
        # "161" and "Wre" stand in the text only inside 1612 and Wren.
        (single("161"), {}, "the fact was not retrieved"),
        (single("Wre"), {}, "the fact was not retrieved"),
        (BRIDGE, {"max_turns": 2}, "the episode ended as max_turns"),
        (STRANGE, {}, "the protocol cannot write the query or the answer"),
    ],
)  # fmt: skip
def test_what_was_not_shown_is_not_answered_and_a_failure_has_its_reason(make, question, settings, reason):
    result = play(make(**settings), question)
    assert (result.episode, result.reason) == (None, reason)


def test_an_alias_that_was_shown_is_preferred_to_a_canonical_answer_that_was_not(make):
    alias = replace(BRIDGE, answers=("the hamlet of Harrow", "Harrow Dell"))
    assert play(make(), alias).episode.answer == "Harrow Dell"


def test_a_question_without_hops_is_searched_for_as_it_stands(make):
    episode = play(make(), replace(SINGLE, hops=(), kind="")).episode
    assert payloads(episode) == ["When was Alder Mill built", "1612"]


def test_a_failing_search_is_a_failure_of_the_episode_with_its_text():
    env = make_env(library=FakeLibrary(failure=InfrastructureError("the search server is down")))
    result = play(env, SINGLE)
    assert result.episode is None
    assert result.reason == "the episode ended as infra_failure: InfrastructureError: the search server is down"


# the plan alone


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize("question", [*QUESTIONS, replace(BRIDGE, hops=()), replace(SINGLE, hops=())])
def test_a_plan_is_what_the_whole_episode_begins_with(make, protocol, share, question):
    env, config = make(protocol, max_turns=5), ExpertConfig(own_words_share=share)
    whole = play(env, question, config).episode
    text, opening = first_plan(env, question, config)
    assert text == whole.turns[0].action
    assert text.startswith(opening)
    assert opening.endswith(thoughts(whole)[0] if protocol == "tags" else "?")


def test_a_plan_searches_nothing():
    library = FakeLibrary()
    assert first_plan(make_env(library=library), SINGLE) is not None
    assert library.queries == []
    assert first_plan(make_env(), STRANGE) is None


def test_a_plan_alone_has_the_tokens_with_which_the_whole_turn_begins(make, tiny_model_dir):
    env, renderer = make(), Renderer(load_policy(tiny_model_dir, dtype="float32")[1])
    episode = play(env, BRIDGE).episode
    whole = expert_trajectory(episode, env.protocol, renderer)
    trajectory = opening_trajectory(episode.prompt, *first_plan(env, BRIDGE), renderer)
    length, trained = len(trajectory.token_ids_T), int(trajectory.train_mask_T.sum())
    assert trajectory.token_ids_T.tolist() == whole.token_ids_T[:length].tolist()
    assert trajectory.train_mask_T.tolist() == whole.train_mask_T[:length].tolist()
    assert renderer.decode(trajectory.token_ids_T[-trained:].tolist()).endswith("Alder Mill > built by > born in?")


# pages without hops


PAGES_ONLY = replace(BRIDGE, hops=(), question="Where was the builder of Alder Mill born?")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_of_two_pages_the_second_is_searched_for_by_the_name_that_the_first_gives_it(make, protocol):
    env = make(protocol, top_k=1, max_turns=5)
    episode = play(env, PAGES_ONLY).episode
    assert episode.answer == "Harrow Dell"
    assert [turn.kind == "answer" for turn in episode.turns] == [False, False, True] or protocol == "code"
    if protocol != "code":
        assert thoughts(episode) == [
            "Where was the builder of Alder Mill born?",
            "Alder Mill is here. Tobias Wren?",
            "Where was the builder of Alder Mill born? Harrow Dell.",
        ]


def test_what_several_pages_without_relations_do_not_say_is_said_to_be_missing(make):
    asked = replace(PAGES_ONLY, kind=UNANSWERABLE.kind, answers=UNANSWERABLE.answers)
    episode = play(make(top_k=1, max_turns=5), asked).episode
    assert thoughts(episode)[-1] == "Where was the builder of Alder Mill born? Not here."


def test_a_page_that_nothing_names_is_not_searched_for(make):
    asked = replace(PAGES_ONLY, supporting_ids=("alder_mill", "birch_mill"))
    result = play(make(top_k=1, max_turns=5), asked)
    assert result.reason == "nothing names the page to look up"


# going on from a policy's episode


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_expert_goes_on_from_where_a_policy_was_and_says_what_is_missing(make, protocol):
    env = make(protocol, top_k=1, max_turns=5)
    with env.start(SINGLE) as session:
        if protocol == "code":
            act = Action("code", 'page = search_pages("Birch Mill")[0]\nprint(read_section(page["page_id"] + ":full"))')
        else:
            act = env.protocol.search_action("Birch Mill")
        missed = session.step(env.protocol.act(act, think="Let me see."), finish="stop").turn
        answer = session.step(env.protocol.act(env.protocol.answer_action("1655")), finish="stop").turn
    wrong = Episode(SINGLE.id, "village", protocol, (), (missed, answer), "1655", StopReason.ANSWERED)
    episode = play(env, SINGLE, after=wrong).episode
    assert episode.turns[0] == replace(missed, is_given=True)
    assert [turn.is_given for turn in episode.turns] == [True] + [False] * (len(episode.turns) - 1)
    assert thoughts(episode)[1] == "[Birch Mill] another page. Alder Mill > built in?"
    assert episode.answer == "1612"


def test_what_a_policy_has_found_is_context_not_looked_up_again_and_not_learned_from(make, tiny_model_dir):
    env = make(max_turns=5)
    whole = play(env, BRIDGE).episode
    wrong = Episode(BRIDGE.id, "village", "tags", (), whole.turns[:1], None, StopReason.MAX_TURNS)
    continued = play(env, BRIDGE, after=wrong).episode
    assert thoughts(continued)[1] == "[Alder Mill] built by: Tobias Wren > born in?"
    assert [turn.kind for turn in continued.turns] == ["search", "search", "answer"]
    renderer = Renderer(load_policy(tiny_model_dir, dtype="float32")[1])
    one, other = (expert_trajectory(each, env.protocol, renderer) for each in (whole, continued))
    np.testing.assert_array_equal(one.token_ids_T, other.token_ids_T)
    assert 0 < other.train_mask_T.sum() < one.train_mask_T.sum()
    assert (one.train_mask_T & other.train_mask_T == other.train_mask_T).all()


# collect


def test_failures_and_duplicates_are_dropped_with_their_reasons(make):
    unseen = replace(single("1999"), id="unseen")
    again = replace(SINGLE, id="again", question="In which year was Alder Mill built?")
    louder = replace(SINGLE, id="louder", hops=(replace(SINGLE.hops[0], query_subject="ALDER  MILL"),))
    asked = []
    selection = collect(
        make(),
        [SINGLE, unseen, again, louder, BRIDGE],
        config=ExpertConfig(own_words_share=0.0),
        on_question=lambda: asked.append(1),
    )
    assert [(each.stage, each.question.id) for each in selection.kept] == [("expert", "single"), ("expert", "bridge")]
    assert len(asked) == 5
    assert str(selection) == (
        "2 of 5 episodes of 5 questions kept (dropped: 2 the same actions as another, 1 the fact was not retrieved)"
    )


def test_collection_stops_when_it_has_enough(make):
    selection = collect(make(), QUESTIONS, config=ExpertConfig(max_episodes=2))
    assert [each.question.id for each in selection.kept] == ["single", "bridge"]
    assert str(selection) == "2 of 2 episodes of 2 questions kept"


def test_nothing_kept_is_an_error_that_says_what_was_dropped(make):
    with pytest.raises(DataError, match=r"answered none of 1 questions: \{'the fact was not retrieved': 1\}") as error:
        collect(make(), [single("1999")])
    assert "retrieval.top_k" in str(error.value)
    with pytest.raises(DataError, match="answered none of 0 questions"):
        collect(make(), [])


def test_an_answer_that_the_score_would_not_accept_is_dropped(make):
    # An answer is given in the form that was shown; without any gold form left there is nothing to accept.
    blank = replace(UNANSWERABLE, answers=("!",))
    selection = collect(make(), [SINGLE, replace(blank, answers=("?",)), blank])
    assert [each.question.id for each in selection.kept] == ["single", "unanswerable", "unanswerable"]
    assert selection.dropped == []
