"""What is counted over episodes: exact numbers on episodes made by hand."""

from dataclasses import replace

from seekling.evaluate.episode_facts import facts_of
from seekling.report.overview import panels
from seekling.types import Episode, EpisodeRecord, Question, StopReason, ToolCall, Turn

QUESTION = Question("q1", "Where was Maud Trethewey born?", ("Alnwick",), ("maud", "alnwick"), "single", "test")


def search(query, *documents, observation="", error=""):
    call = ToolCall("search", {"query": query}, observation, error, tuple(documents))
    return Turn(f"<search> {query} </search>", "search", query, observation, (call,), num_action_tokens=10)


def answer(text):
    return Turn(f"<answer> {text} </answer>", "answer", text, num_action_tokens=5)


def record(*turns, said=None, em=0.0, question=QUESTION, stage="eval-rl", stop=StopReason.ANSWERED, **more):
    episode = Episode(question.id, question.source, "tags", (), turns, said, stop, duration_s=2.0)
    return EpisodeRecord(stage, question, episode, scores={} if em is None else {"em": em}, **more)


def panels_of(records):
    return panels(records, [facts_of(one) for one in records])["eval-rl"]


def test_without_a_gold_answer_there_is_no_outcome():
    episode = Episode("q", "", "tags", (), (), "x", StopReason.ANSWERED)
    one = EpisodeRecord("rl", Question("q", "?", ()), episode)
    assert (facts_of(one).outcome, facts_of(one).cause) == ("unscored", "")


def test_facts_say_where_the_gold_page_came_up():
    turns = [search("x", "other", "p2"), search("Maud Trethewey", "other", "maud"), answer("Fowey")]
    facts = facts_of(record(*turns, said="Fowey"))
    assert (facts.found_at, facts.rank, facts.is_complete) == (2, 2, False)
    assert (facts.num_searches, facts.num_empty, facts.action_tokens) == (2, 0, 25)
    both = facts_of(record(*turns[:2], search("Alnwick", "alnwick"), answer("Alnwick"), said="Alnwick", em=1.0))
    assert (both.found_at, both.is_complete, both.cause) == (2, True, "")
    never = facts_of(record(search("x"), search("y", error="timed out"), answer("Fowey"), said="Fowey"))
    assert (never.found_at, never.rank, never.num_empty, never.cause) == (0, None, 2, "not_retrieved")
    unknown = facts_of(record(*turns, said="Fowey", question=replace(QUESTION, supporting_ids=())))
    assert (unknown.found_at, unknown.is_complete) == (None, False)


def test_every_episode_has_one_cause_and_they_add_up():
    questions = [replace(QUESTION, id=f"q{number}") for number in range(6)]
    found = search("Maud Trethewey", "maud", "alnwick", observation="Maud Trethewey was born in Alnwick.")
    records = [
        record(found, answer("Alnwick"), said="Alnwick", em=1.0, question=questions[0]),
        record(found, answer("Fowey"), said="Fowey", question=questions[1]),
        record(search("x", "other"), answer("Fowey"), said="Fowey", question=questions[2]),
        record(found, question=questions[3], stop=StopReason.MAX_TURNS),
        record(question=questions[4], stop=StopReason.INFRA_FAILURE, em=None),
        record(answer("Fowey"), said="Fowey", question=replace(questions[5], answers=()), em=None),
    ]
    made = panels_of(records)
    assert made["episodes"] == 6
    assert made["causes"] == {
        "right": 1, "not_retrieved": 1, "misread": 1, "no_answer": 1, "infrastructure": 1, "unscored": 1,
    }  # fmt: skip
    assert made["is_sample"]
    found_rates = made["retrieval"]
    assert (found_rates["found"]["k"], found_rates["found"]["n"]) == (3, 5)
    assert (found_rates["right_if_found"]["k"], found_rates["right_if_found"]["n"]) == (1, 3)
    assert (found_rates["right_if_not"]["k"], found_rates["right_if_not"]["n"]) == (0, 1)
    assert found_rates["searches"] == [1, 4]
    assert found_rates["found_at"] == [0, 3]
    assert found_rates["empty"] == [0, 4]


def test_episodes_of_one_question_are_no_sample():
    records = [record(answer("Fowey"), said="Fowey") for _ in range(2)]
    assert not panels_of(records)["is_sample"]
    assert panels([], []) == {}
