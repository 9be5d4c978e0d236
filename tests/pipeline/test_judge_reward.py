"""Rewards of a judge: judged while others run, errors leave their group, a whole run with one, verdicts kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seekling.config import EndpointConfig, JudgeConfig, QuestionsConfig, build_recipe
from seekling.errors import ConfigError
from seekling.evaluate.judging import Judge, VerdictCache
from seekling.models import load_policy
from seekling.pipeline.eval_request import EvalRequest, run_evaluation
from seekling.pipeline.judge_reward import JudgedRoller, open_judge
from seekling.pipeline.stages import run_recipe
from seekling.report.results import read_policies
from seekling.report.tables import tables_of
from seekling.rollout.chat import ChatClient
from seekling.rollout.loop import Decoding, Roller
from seekling.rollout.render import Renderer
from seekling.types import Question, StopReason
from tests.chat_server import chat_server, completion
from tests.env.fakes import make_env
from tests.evaluate.episodes import question, record, search
from tests.pipeline.runs import QuietReporter, rows, village_recipe
from tests.rollout.policies import ScriptedSampler, encode

QUESTIONS = [Question(name, f"Who is {name}?", ("Alnwick",), source="toy") for name in ("ada", "bob")]
ANSWERS = ["Alnwick", "Bergen", "Cahors", "Delft"]


def rated(body):
    """Alnwick is right; Bergen gets no reply, Cahors no readable one; Delft is wrong in a good way."""
    case = json.loads(body["messages"][1]["content"])
    replies = {
        "Alnwick": (200, completion("VERDICT: CORRECT, APPROACH: 80")),
        "Bergen": (503, {}),
        "Cahors": (200, completion("I would say 50")),
        "Delft": (200, completion("VERDICT: INCORRECT, APPROACH: 75")),
    }
    return replies[case["answer"]]


def rolled(server, tiny_model_dir):
    tokenizer = load_policy(tiny_model_dir, dtype="float32")[1]
    scripts = [[(encode(tokenizer, f"<answer> {answer} </answer>"), "stop")] for answer in ANSWERS]
    renderer = Renderer(tokenizer)
    env = make_env(count_tokens=renderer.count_tokens)
    endpoint = EndpointConfig(url=server.url, model="judge", request_tries=1)
    judge = Judge(ChatClient(endpoint), VerdictCache(None), num_tries=2)
    roller = JudgedRoller(Roller(env, ScriptedSampler(scripts), renderer), judge, in_flight=3)
    told = []
    groups = roller.rollout(QUESTIONS, Decoding(64, 512), group_size=4, seed=1, on_group=told.append)
    return roller, groups, told


def test_episodes_without_a_verdict_leave_their_group_as_failures_and_never_score_0(tiny_model_dir):
    with chat_server(rated) as server:
        roller, groups, told = rolled(server, tiny_model_dir)
    assert [group.question.id for group in groups] == ["ada", "bob"]
    assert sorted(group.question.id for group in told) == ["ada", "bob"]
    assert all(any(group is each for each in groups) for group in told)
    for group in groups:
        assert [episode.answer for episode in group.episodes] == ["Alnwick", "Delft"]
        assert len(group.trajectories) == 2
        assert [episode.answer for episode in group.failed] == ["Bergen", "Cahors"]
        assert {episode.stop_reason for episode in group.failed} == {StopReason.INFRA_FAILURE}
        failures = [episode.failure for episode in group.failed]
        assert failures == [f"the judge gave no verdict: {why}" for why in ("no_reply", "unreadable_verdict")]
        rewards = [roller.reward(episode, group.question) for episode in group.episodes]
        assert [reward.total for reward in rewards] == [0.8, -0.25]
        assert [reward.parts["em"] for reward in rewards] == [1.0, 0.0]
    assert roller.notes == {"asked": 4, "no_reply": 2, "unreadable_verdict": 2}
    assert str(roller).startswith("4 asked, 2 ")


def test_a_judge_that_refuses_us_ends_the_rollout(tiny_model_dir):
    with chat_server(lambda body: (401, {"error": "bad key"})) as server, pytest.raises(ConfigError, match="bad key"):
        rolled(server, tiny_model_dir)


def test_further_fields_of_a_judge_that_are_no_object_are_refused():
    for extra in ("{", "[]"):
        with pytest.raises(ConfigError, match=r"judge\.extra: .* expected a JSON object"):
            build_recipe({"judge": {"url": "http://here", "extra": extra}})


def test_a_local_judge_is_asked_like_a_served_one(tiny_model_dir, tmp_path):
    asked = record(question(1), "Paris", search())
    config = JudgeConfig(model=str(tiny_model_dir), max_tokens=5, tries=2)
    with open_judge(config, tmp_path, QuietReporter()) as judge:
        # A random model gives no verdict; that is an error of the judge, not a wrong answer.
        assert judge.judge_episode(asked.question, asked.episode) == (None, "unreadable_verdict")


def test_a_run_learns_from_a_judge_and_says_how_often_it_was_asked(tmp_path, tiny_model_dir):
    def respond(body):
        case = json.loads(body["messages"][1]["content"])
        is_right = case["answer"] in case["right_answers"]
        rating = min(len(case["steps"][0]["done"]), 100)  # differs between episodes, so that groups vary
        return 200, completion(f"VERDICT: {'CORRECT' if is_right else 'INCORRECT'}, APPROACH: {rating}")

    with chat_server(respond) as server:
        recipe = village_recipe(
            tmp_path / "village",
            tiny_model_dir,
            sft={"epochs": 20},
            rl={"steps": 1, "reward": "judge", "kl_coefficient": 0.0},
            judge={"url": server.url, "model": "judge"},
            eval={"stages": []},
        )
        reporter = QuietReporter()
        run_recipe(recipe, tmp_path / "run", reporter)
    (step,) = [row for row in rows(tmp_path / "run" / "metrics.jsonl") if row["stage"] == "rl"]
    assert {"reward_mean", "judge_approach_mean", "judge_correct_mean", "em_mean"} <= step.keys()
    episodes = rows(tmp_path / "run" / "episodes" / "rl.jsonl")
    assert len(episodes) == 8
    for row in episodes:
        parts = row["reward"]["parts"]
        share, is_right = parts["judge_approach"], parts["judge_correct"]
        assert row["reward"]["total"] == pytest.approx(share if is_right else share - 1)
    assert (tmp_path / "run" / "judge-cache.jsonl").exists()
    assert any(line.startswith("judge: ") and "asked" in line for line in reporter.lines)


def test_a_run_that_asks_its_judge_in_evaluations_has_a_figure_beside_the_expected_one(tmp_path, tiny_model_dir):
    def key_holder(body):
        case = json.loads(body["messages"][1]["content"])
        if "steps" in case or "Birch Mill built" in case["question"]:
            return 200, completion("I would rather not say.")
        is_right = case["answer"] in case["right_answers"]
        return 200, completion(f"VERDICT: {'CORRECT' if is_right else 'INCORRECT'}")

    with chat_server(key_holder) as server:
        recipe = village_recipe(
            tmp_path / "village",
            tiny_model_dir,
            rl={"steps": 0},
            judge={"url": server.url, "model": "judge"},
            eval={"stages": ["sft"], "judge": True},
            expected={"metrics": ["rare-wiki/judge"], "values": [0.4268], "source": "a paper"},
        )
        recipe = without_sources(recipe, "rare-wiki")
        (summary,) = run_recipe(recipe, tmp_path / "run", QuietReporter())
        num_requests = len(server.requests)
        (again,) = run_recipe(recipe, tmp_path / "run", QuietReporter())
        assert len(server.requests) == num_requests
        (alone,) = run_evaluation(recipe, tmp_path / "alone", EvalRequest("untrained"), QuietReporter()).summaries
        assert alone.judge_details.model == "judge"
    asked = [row for row in rows(tmp_path / "run" / "episodes" / "eval-sft.jsonl") if row["episode"]["answer"]]
    assert {row["question"]["source"] for row in asked} == {"rare-wiki"}
    # Both questions about Birch Mill got no verdict: they are no errors of the policy, and count nowhere.
    assert summary.judge_details.errors == {"unreadable_verdict": 2}
    assert (summary.judge.n, summary.judge, summary.em.n) == (2, again.judge, 4)
    assert summary.judge_details == again.judge_details
    assert summary.judge.k == sum(row["scores"].get("judge", 0) for row in asked)
    (row,) = tables_of(read_policies([tmp_path / "run"])[0], ["expected"])[0].rows
    assert row[1:] == ("rare-wiki/judge", None, None, "42.7 %", summary.judge, "a paper")


def without_sources(recipe, name):
    """The recipe with question files whose rows do not say which data set they are of."""
    for path in (recipe.data.train, recipe.data.test):
        kept = [{key: value for key, value in row.items() if key != "source"} for row in rows(Path(path))]
        Path(path).write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    return recipe.model_copy(
        update={"data": recipe.data.model_copy(update={"questions": QuestionsConfig(source=name)})}
    )
