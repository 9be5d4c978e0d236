"""Judging with a real server: what is asked, cached, tried again, and never scored 0."""

import json

from seekling.config import EndpointConfig
from seekling.evaluate.judging import Judge, JudgeAudit, VerdictCache
from seekling.rollout.chat import ChatClient
from tests.chat_server import chat_server, completion
from tests.evaluate.episodes import question

RIGHT, WRONG = completion("Same city.\nVERDICT: CORRECT"), completion("VERDICT: INCORRECT")


def key_holder(body):
    """Knows the right answers: says CORRECT when the answer holds the first of them."""
    case = json.loads(body["messages"][1]["content"])
    return 200, RIGHT if case["right_answers"][0] in case["answer"] else WRONG


def judge_of(server, cache=None, **changes):
    endpoint = EndpointConfig(url=server.url, model="judge", request_tries=2)
    return Judge(ChatClient(endpoint, first_pause_s=0.001), VerdictCache(cache), **{"in_flight": 2, **changes})


CASES = [
    (question(1), "It is Paris"),
    (question(2), "Lyon"),
    (question(3), None),
    (question(4), "  "),
    (question(5), "Paris"),
]


def test_verdicts_become_a_rate_and_no_answer_is_wrong_without_asking():
    advanced = []
    with chat_server(key_holder) as server:
        judged = judge_of(server).judge(CASES, exact=[0, 0, 0, 0, 1], on_verdict=lambda: advanced.append(1))
    assert judged.verdicts == (True, False, False, False, True)
    assert judged.details.num_unanswered == 2
    assert judged.details.errors == {}
    assert judged.details.audit == JudgeAudit(both=1, only_judge=1, only_em=0, neither=3)
    assert (judged.details.model, judged.details.endpoint) == ("judge", server.url)
    assert (len(server.requests), len(advanced)) == (3, 5)
    assert all(body["temperature"] == 0 for body in server.requests)


def test_errors_are_counted_by_cause_and_are_no_wrong_answers():
    def respond(body):
        answer = json.loads(body["messages"][1]["content"])["answer"]
        if answer == "gone":
            return 503, {}
        return 200, completion("yes, it is correct") if answer == "vague" else RIGHT

    cases = [(question(1), "Paris"), (question(2), "gone"), (question(3), "vague")]
    with chat_server(respond) as server:
        judged = judge_of(server).judge(cases)
    assert judged.verdicts == (True, None, None)
    assert judged.details.errors == {"no_reply": 1, "unreadable_verdict": 1}


def test_an_unreadable_verdict_is_asked_for_again_in_another_way():
    replies = [completion("Hm."), completion("VERDICT: CORRECT", finish="length"), RIGHT]
    with chat_server(lambda body: (200, replies.pop(0))) as server:
        judged = judge_of(server).judge([(question(1), "Paris")])
    assert judged.verdicts == (True,)
    assert [(body["temperature"], body.get("seed")) for body in server.requests] == [(0.0, None), (0.5, 1), (0.5, 2)]


def test_a_verdict_is_asked_for_once_per_content_also_by_a_later_process(tmp_path):
    cache = tmp_path / "deep" / "cache.jsonl"
    with chat_server(key_holder) as server:
        first = judge_of(server, cache).judge(CASES)
        again = judge_of(server, cache).judge(CASES)
        asked = len(server.requests)
        other = judge_of(server, cache).judge([(question(1, answers=("Lyon",)), "It is Paris")])
    assert asked == 3
    assert (first.verdicts, first.details.num_cached) == (again.verdicts, 0)
    assert again.details.num_cached == 3
    assert other.verdicts == (False,)
    assert other.details.num_cached == 0
