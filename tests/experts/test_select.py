"""Which collected episodes are kept, and what is said of the others."""

from dataclasses import replace

from seekling.experts.select import is_correct, select_episodes
from seekling.types import StopReason, Turn
from tests.evaluate.episodes import failed, invalid, question, record, search


def said(number, answer, query="x", *, kind="single", **fields):
    asked = question(number, kind=kind)
    turn = replace(search(), payload=query, action=f"<search>{query}</search>")
    return record(asked, answer, turn, stage="teacher", **fields)


def ids(records):
    return [each.question.id for each in records]


def test_each_reason_is_named_and_counted_and_the_rest_is_kept_as_expert_episodes():
    records = [
        said(1, "Paris", "a"),
        said(2, "Lyon", "b"),
        said(3, None, "c"),
        failed(question(4), stage="teacher"),
        said(5, "paris", " A "),
        record(question(6), "Paris", invalid(), search(), stage="teacher"),
        said(7, None, "g", stop=StopReason.MAX_TOKENS),
        said(8, "Paris", "h"),
    ]
    selection = select_episodes(records)
    assert ids(selection.kept) == ["q1", "q8"]
    assert {each.stage for each in selection.kept} == {"expert"}
    assert selection.kept[0].episode == records[0].episode
    assert [(question.id, reason) for question, reason in selection.dropped] == [
        ("q2", "a wrong answer"),
        ("q3", "no answer (max_turns)"),
        ("q4", "an infrastructure failure"),
        ("q5", "the same actions as another"),
        ("q6", "an action outside the grammar"),
        ("q7", "no answer (max_tokens)"),
    ]
    row = selection.to_json()
    assert (row["num_questions"], row["num_episodes"], row["num_kept"]) == (8, 8, 2)
    assert row["reasons"]["a wrong answer"] == 1
    assert row["dropped"][0] == {"source": "", "id": "q2", "reason": "a wrong answer"}
    assert str(selection).startswith("2 of 8 episodes of 8 questions kept (dropped: 1 a wrong answer, ")


def test_a_judge_may_accept_what_does_not_match_and_never_refuses_what_does():
    accepted = replace(said(1, "the city of Paris", "a"), scores={"judge": 1.0})
    refused = replace(said(2, "Lyon", "b"), scores={"judge": 0.0})
    exact = replace(said(3, "Paris", "c"), scores={"judge": 0.0})
    assert [is_correct(each) for each in (accepted, refused, exact)] == [True, False, True]
    assert ids(select_episodes([accepted, refused, exact]).kept) == ["q1", "q3"]


def test_no_kind_has_more_than_the_rarest():
    kinds = ["single", "single", "bridge", "single", "bridge"]
    records = [said(number, "Paris", str(number), kind=kind) for number, kind in enumerate(kinds)]
    wrong = said(9, "Lyon", "w", kind="comparison")
    selection = select_episodes([*records, wrong], balance="kind")
    assert ids(selection.kept) == ["q0", "q1", "q2", "q4"]
    assert selection.reasons() == {"more of its kind than of the rarest": 1, "a wrong answer": 1}
    assert selection.by_kind() == {"bridge": (2, 2), "comparison": (0, 1), "single": (2, 3)}


def test_of_each_question_the_shortest_episode_stays():
    records = [said(1, "Paris", "a long query"), said(2, "Paris", "b"), said(1, "Paris", "short")]
    selection = select_episodes(records, balance="question")
    assert [each.episode.turns[0].payload for each in selection.kept] == ["b", "short"]
    assert selection.reasons() == {"longer than another of its question": 1}
    assert selection.num_questions == 2


def test_enough_is_enough_after_balancing_and_a_rule_of_the_caller_comes_first():
    records = [said(number, "Paris", str(number)) for number in range(4)]
    selection = select_episodes(records, max_episodes=2, refuse=lambda each: "mine" * (each.question.id == "q0"))
    assert ids(selection.kept) == ["q1", "q2"]
    assert selection.reasons() == {"mine": 1, "there are enough": 1}


def test_an_episode_of_several_programs_is_told_apart_by_all_of_them():
    def programs(*codes):
        turns = [Turn(action=code, kind="code", payload=code, observation="out") for code in codes]
        return record(question(1), "Paris", *turns, stage="teacher")

    records = [programs("a()", "b()"), programs("a()"), programs("a( )", "b()"), programs("A()", "b()")]
    assert len(select_episodes(records).kept) == 3
