"""Groups to batches, the walk through the questions, stopping when nothing can be learned, and learning a toy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from seekling.errors import ConfigError, InfrastructureError, NothingToLearnError
from seekling.learn.local import LocalLearner
from seekling.learn.rl import PATIENCE_STEPS, RlRun, Teacher, rollout_metrics, score_groups, train
from seekling.models import load_model, load_policy
from seekling.pipeline.sync import InMemorySync
from seekling.reward.functions import make_reward
from seekling.rollout.loop import Decoding, Roller
from seekling.rollout.render import Renderer
from seekling.types import Episode, EpisodeGroup, Message, Question, Reward, StopReason, ToolCall, Turn
from tests.env.fakes import FakeLibrary, make_env
from tests.learn.models import trajectory
from tests.learn.recording import RecordingLearner, RecordingSync
from tests.rollout.policies import ScriptedSampler, encode, open_sampler
from tests.settings import recipe_of, rl_config

QUESTIONS = [Question(str(n), f"Question {n}?", ("x",), source="toy") for n in range(5)]


def episode(question, answer, **fields):
    turns = (Turn("<answer>", "answer", num_action_tokens=3),)
    given = {"stop_reason": StopReason.ANSWERED, "turns": turns} | fields
    return Episode(question.id, question.source, "tags", (), answer=answer, **given)


def failure(question):
    return episode(question, None, stop_reason=StopReason.INFRA_FAILURE, failure="no search server", turns=())


def make_group(question, answers, *, failed=0):
    episodes = tuple(episode(question, answer) for answer in answers)
    tails = itertools.count(20)
    trajectories = tuple(trajectory([5, 6, next(tails), 7], [0, 0, 1, 1]) for _ in answers)
    return EpisodeGroup(question, episodes, trajectories, tuple(failure(question) for _ in range(failed)))


def scored(groups, **settings):
    return score_groups(groups, make_reward("em"), rl_config(**settings), step=3)


def test_a_group_becomes_advantages_of_its_own_mean():
    groups = [make_group(QUESTIONS[0], ["x", "y", "y", "y"]), make_group(QUESTIONS[1], ["x", "x", "y"])]
    records, batch = scored(groups, scale="none")
    expected = [0.75, -0.25, -0.25, -0.25, 1 / 3, 1 / 3, -2 / 3]
    np.testing.assert_allclose(batch.advantages_B, expected)
    assert [t.token_ids_T[2] for t in batch.trajectories] == [20, 21, 22, 23, 20, 21, 22]
    assert [record.advantage for record in records] == pytest.approx(expected)
    assert [record.reward.total for record in records] == [1, 0, 0, 0, 1, 1, 0]
    assert {(record.stage, record.step) for record in records} == {("rl", 3)}
    assert [record.question.id for record in records] == ["0"] * 4 + ["1"] * 3


def test_of_a_group_only_the_most_varied_are_learned_from_when_asked():
    groups = [make_group(QUESTIONS[0], ["y", "y", "y", "x", "y"], failed=1), make_group(QUESTIONS[1], ["x", "x", "x"])]
    records, batch = scored(groups, learn_per_group=2)
    # The mean is 0.2 and the deviation 0.4: those of all five.
    advantages = [None if each.advantage is None else round(each.advantage, 9) for each in records]
    assert advantages == [-0.5, None, None, 2.0, None, None, 0.0, 0.0, None]
    assert [t.token_ids_T[2] for t in batch.trajectories] == [20, 23]
    np.testing.assert_allclose(batch.advantages_B, [-0.5, 2.0])
    np.testing.assert_allclose(batch.weights_B, [4.0, 1.0])
    assert rollout_metrics(groups, records)["num_zero_variance_groups"] == 1
    assert rollout_metrics(groups, records)["reward_mean"] == pytest.approx(4 / 8)


def test_episodes_of_advantage_0_in_a_mixed_group_count_in_means_and_feel_the_kl():
    group = make_group(QUESTIONS[0], ["x", "y", "z"])
    rewards = {"x": 1.0, "y": 0.5, "z": 0.0}
    _, batch = score_groups([group], lambda each, question: Reward(rewards[each.answer]), rl_config(), step=1)
    np.testing.assert_allclose(batch.advantages_B, [1.5**0.5, 0, -(1.5**0.5)], atol=1e-12)
    assert batch.num_trained_B.tolist() == [2, 2, 2]


def test_a_kl_in_the_reward_makes_no_advantage_of_1_where_rewards_agree():
    groups = [make_group(QUESTIONS[0], ["x", "x", "x"])]
    charges = [np.array([0.0, 0.0, 0.0, cost]) for cost in (1e-3, 2e-3, 3e-3)]
    _, batch = score_groups(groups, make_reward("em"), rl_config(), step=1, charges=charges)
    assert batch.trajectories == []
    # Kept groups feel it at its own size.
    _, batch = score_groups(groups, make_reward("em"), rl_config(constant_groups="keep"), step=1, charges=charges)
    np.testing.assert_allclose(batch.advantages_B, [1e-3, 0, -1e-3], atol=1e-12)


def test_groups_of_equal_rewards_are_recorded_and_counted_but_not_learned_from():
    groups = [make_group(QUESTIONS[0], ["x", "x", "x"]), make_group(QUESTIONS[1], ["y", "y", "x"])]
    records, batch = scored(groups)
    assert len(records) == 6
    assert [record.advantage for record in records[:3]] == [0.0, 0.0, 0.0]
    assert len(batch.trajectories) == 3
    metrics = rollout_metrics(groups, records)
    assert (metrics["num_groups"], metrics["num_zero_variance_groups"], metrics["num_dropped_groups"]) == (2, 1, 0)
    assert metrics["reward_mean"] == metrics["em_mean"] == pytest.approx(4 / 6)


def test_failed_episodes_have_no_reward_and_groups_below_two_are_dropped_and_counted():
    groups = [
        make_group(QUESTIONS[0], ["x", "y"], failed=2),
        make_group(QUESTIONS[1], ["x"], failed=3),
        make_group(QUESTIONS[2], [], failed=4),
    ]
    asked = []

    def reward(each, question):
        asked.append(each)
        return make_reward("em")(each, question)

    records, batch = score_groups(groups, reward, rl_config(), step=1)
    assert len(asked) == 3
    assert all(each.stop_reason is StopReason.ANSWERED for each in asked)
    np.testing.assert_allclose(batch.advantages_B, [1.0, -1.0])
    failures = [record for record in records if record.episode.stop_reason is StopReason.INFRA_FAILURE]
    assert len(failures) == 9
    assert all(record.reward is None and record.advantage is None for record in failures)
    (lonely,) = [record for record in records if record.question.id == "1" and record.reward is not None]
    assert lonely.advantage is None
    metrics = rollout_metrics(groups, records)
    assert metrics["num_failed_episodes"] == 9
    assert metrics["num_dropped_groups"] == 2
    # One episode alone says nothing about variance: it is a dropped group, not a zero-variance one.
    assert metrics["num_zero_variance_groups"] == 0
    assert metrics["reward_mean"] == pytest.approx(2 / 3)


def test_two_groups_of_one_question_are_counted_each_by_itself():
    groups = [make_group(QUESTIONS[0], ["x", "x"]), make_group(QUESTIONS[0], ["y", "y"])]
    records, batch = scored(groups)
    assert batch.trajectories == []
    assert rollout_metrics(groups, records)["num_zero_variance_groups"] == 2


def test_metrics_describe_the_episodes_that_did_not_fail():
    call = ToolCall("search", {"query_list": ["a"]})
    searched = (Turn("", "search", calls=(call,), num_action_tokens=5), Turn("", "answer", num_action_tokens=3))
    cut = (Turn("", "invalid", num_action_tokens=4),)
    question = QUESTIONS[0]
    episodes = (
        episode(question, "x", turns=searched),
        episode(question, None, turns=cut, stop_reason=StopReason.MAX_TOKENS),
    )
    group = EpisodeGroup(question, episodes, (trajectory([5, 6], [0, 1]),) * 2, (failure(question),))
    records, _ = scored([group])
    metrics = rollout_metrics([group], records)
    assert metrics == {
        "num_groups": 1,
        "num_zero_variance_groups": 0,
        "num_dropped_groups": 0,
        "num_failed_episodes": 1,
        "num_truncated_episodes": 1,
        "reward_mean": 0.5,
        "em_mean": 0.5,
        "searches_mean": 0.5,
        "turns_mean": 1.5,
        "action_tokens_mean": 6.0,
        "invalid_rate": pytest.approx(1 / 3),
        "answered_rate": 0.5,
    }


def test_a_step_may_be_larger_than_the_set():
    run = RlRun(QUESTIONS, rl_config(questions_per_step=12), seed=0)
    names = [q.id for q in run.curriculum.choose(0)]
    assert len(names) == 12
    assert {names.count(name) for name in "01234"} == {2, 3}


# Training


IN_MEMORY = InMemorySync(load_model)


def run_training(
    learner, sampler, roller, config, *, reward, questions=QUESTIONS, decoding=None, sync=IN_MEMORY, rows=None, **more
):
    """The steps of a run as (step, metrics, records), added to `rows` where a test needs those before an error."""
    rows = [] if rows is None else rows
    train(
        learner,
        sampler,
        roller,
        RlRun(questions, config, seed=0),
        sync=sync,
        decoding=decoding or Decoding(96, 4096),
        reward=reward,
        on_step=lambda *row: rows.append(row),
        **more,
    )
    return rows


EM = {"reward": make_reward("em")}


def scripted_roller(tiny_model_dir, scripts, **env):
    tokenizer = load_policy(tiny_model_dir, dtype="float32")[1]
    renderer = Renderer(tokenizer)
    turns = [[(encode(tokenizer, text), "stop") for text in script] for script in scripts]
    sampler = ScriptedSampler(turns)
    return sampler, Roller(make_env(count_tokens=renderer.count_tokens, **env), sampler, renderer)


def tiny_learner(tiny_model_dir, **settings):
    return LocalLearner(load_policy(tiny_model_dir, dtype="float32")[0], **settings)


@pytest.mark.parametrize(
    ("answer", "says"),
    [("y", r"reward \(last step: \[0\.0\]\).*never succeeds: more SFT"), ("x", r"last step: \[1\.0\].*always does")],
)
def test_ten_steps_without_a_difference_end_the_run_and_say_why(tiny_model_dir, answer, says):
    sampler, roller = scripted_roller(tiny_model_dir, [[f"<answer> {answer} </answer>"]])
    learner, rows = RecordingLearner(), []
    config = rl_config(steps=50, questions_per_step=2, group_size=2)
    with pytest.raises(NothingToLearnError, match=f"for {PATIENCE_STEPS} steps in a row.*{says}"):
        run_training(learner, sampler, roller, config, sync=RecordingSync(), rows=rows, **EM)
    assert PATIENCE_STEPS == 10
    assert len(rows) == 10
    assert {metrics["num_zero_variance_groups"] for _, metrics, _ in rows} == {2}
    assert learner.calls == []


def test_steps_with_a_difference_begin_the_count_anew(tiny_model_dir):
    wrong, right = ["<answer> y </answer>"], ["<answer> x </answer>"]
    # Two episodes a step; in step 8 they differ.
    sampler, roller = scripted_roller(tiny_model_dir, [*[wrong] * 14, right, *[wrong] * 300])
    learner, rows = RecordingLearner(), []
    config = rl_config(steps=50, questions_per_step=1, group_size=2)
    with pytest.raises(NothingToLearnError):
        run_training(learner, sampler, roller, config, sync=RecordingSync(), rows=rows, **EM)
    assert [step for step, metrics, _ in rows if "grad_norm" in metrics] == [8]
    assert rows[-1][0] == 18
    assert learner.calls == ["forward_backward", "optim_step"]


def test_a_group_without_a_right_episode_learns_from_the_expert_s(tiny_model_dir):
    wrong, right = ["<answer> y </answer>"], ["<answer> x </answer>"]
    # The first question's two episodes are wrong, of the second's one is right: it needs no help.
    sampler, roller = scripted_roller(tiny_model_dir, [wrong, wrong, wrong, right])
    learner = tiny_learner(tiny_model_dir)
    shown = trajectory([5, 6, 20, 7], [0, 0, 1, 1])
    asked = []

    def demonstrate(group):
        asked.append(group.question.id)
        return episode(group.question, "x"), shown

    before = learner.logprobs([shown])[0].sum()
    config = rl_config(steps=1, questions_per_step=2, group_size=2, learning_rate=1e-3)
    more = {"questions": QUESTIONS[:2], "sync": RecordingSync(), "demonstrate": demonstrate, **EM}
    ((_, metrics, kept),) = run_training(learner, sampler, roller, config, **more)
    assert len(asked) == metrics["num_demonstrations"] == 1
    # What the policy did is counted without the expert.
    assert len(kept) == 4
    assert metrics["reward_mean"] == pytest.approx(1 / 4)
    assert metrics["num_zero_variance_groups"] == 1
    assert learner.logprobs([shown])[0].sum() > before


def test_an_expert_s_tokens_have_the_weight_of_what_the_learner_would_have_sampled():
    learner, shown = RecordingLearner(), trajectory([5, 6, 20, 7], [0, 0, 1, 1])
    teacher = Teacher(lambda group: (episode(group.question, "x"), shown), learner, temperature=0.7)
    joined = teacher.join(make_group(QUESTIONS[0], ["y", "y"]))
    assert [each.answer for each in joined.episodes] == ["y", "y", "x"]
    given = joined.trajectories[-1]
    assert given.temperature == 0.7
    np.testing.assert_array_equal(given.logprobs_T, learner.logprobs([given])[0].astype(np.float32))
    right, wrong = make_group(QUESTIONS[0], ["y", "x"]), make_group(QUESTIONS[0], ["y", "y"])
    assert teacher.join(right) is right
    assert teacher.num_given == 1
    assert Teacher(lambda group: None, learner, temperature=0.7).join(wrong) is wrong


def rewards_of(groups, **settings):
    records, _ = scored(groups, **settings)
    return [record.reward.total for record in records]


def test_not_to_know_is_worth_something_where_nobody_of_the_group_is_right():
    nobody, somebody = make_group(QUESTIONS[0], ["y", "unknown", "y"]), make_group(QUESTIONS[1], ["x", "unknown"])
    assert rewards_of([nobody, somebody], unknown=0.5, unknown_limit=0.4) == [0, 0.5, 0, 1, 0]
    assert rewards_of([nobody, somebody]) == [0, 0, 0, 1, 0]
    # Of five episodes two say so: more than a tenth, and then it is worth nothing.
    assert rewards_of([nobody, somebody], unknown=0.5, unknown_limit=0.1) == [0, 0, 0, 1, 0]


def test_saying_it_of_what_no_page_says_is_no_overuse_and_as_right_as_ever():
    nothing = Question("none", "?", ("unknown",), kind="unanswerable", source="toy")
    groups = [make_group(nothing, ["unknown", "y"]), make_group(QUESTIONS[0], ["y", "y"])]
    assert rewards_of(groups, unknown=0.5, unknown_limit=0.0) == [1, 0, 0, 0]


def test_a_run_in_which_every_episode_fails_names_the_failure(tiny_model_dir):
    library = FakeLibrary(failure=InfrastructureError("the search server is down"))
    sampler, roller = scripted_roller(tiny_model_dir, [["<search> x </search>"]], library=library)
    config = rl_config(steps=50, questions_per_step=1, group_size=2)
    with pytest.raises(NothingToLearnError, match=r"last 10 steps ended in an infrastructure failure.*server is down"):
        run_training(RecordingLearner(), sampler, roller, config, reward=make_reward("em"), sync=RecordingSync())


class OneTokenSession:
    def __init__(self):
        self.prompt = [Message("user", "Say something.")]

    def step(self, action_text, *, finish):
        from seekling.env.environment import StepResult

        return StepResult(Turn(action_text, "answer"), True, StopReason.ANSWERED, answer=action_text)

    def close(self):
        pass


class OneTokenEnv:
    """An episode is one token; the answer is its text."""

    may_wait = False

    def __init__(self):
        self.protocol = make_env().protocol

    def start(self, question):
        return OneTokenSession()


def toy(tiny_model_dir, tokenizer):
    """Reward 1 for tokens of which the id divides by four: a quarter of them at first."""
    good = {tokenizer.decode([n]) for n in range(len(tokenizer)) if n % 4 == 0}
    sampler = open_sampler(tiny_model_dir, in_flight=32, episode_tokens=64)
    roller = Roller(OneTokenEnv(), sampler, Renderer(tokenizer))
    return (
        sampler,
        roller,
        lambda each, question: Reward(float(each.answer in good), {"good": float(each.answer in good)}),
    )


def train_on_the_toy(tiny_model_dir, **settings):
    """Learner, its sampler and roller, the reward, and the steps of a run with these settings."""
    model, tokenizer = load_policy(tiny_model_dir, dtype="float32")
    learner = LocalLearner(model)
    learner.keep_reference()
    sampler, roller, reward = toy(tiny_model_dir, tokenizer)
    config = rl_config(**({"questions_per_step": 4, "group_size": 8} | settings))
    if config.has_critic:
        learner.add_critic(config, lora_rank=0)
    rows = run_training(learner, sampler, roller, config, reward=reward, decoding=Decoding(1, 64))
    return learner, sampler, roller, reward, rows


@pytest.mark.parametrize("settings", [{}, {"kl_coefficient": 0.01, "scale": "none"}])
def test_reward_rises_on_a_toy(tiny_model_dir, settings):
    _, sampler, roller, reward, rows = train_on_the_toy(tiny_model_dir, steps=30, learning_rate=0.01, **settings)
    rewards = [metrics["reward_mean"] for _, metrics, _ in rows]
    assert [step for step, _, _ in rows] == list(range(1, 31))
    assert np.mean(rewards[:3]) < 0.5
    assert np.mean(rewards[-5:]) > 0.9
    learned = [metrics for _, metrics, _ in rows if "grad_norm" in metrics]
    assert learned[-1]["entropy"] < learned[0]["entropy"]
    # Behaviour and learner are the same weights, so all that is left is rounding.
    assert all(metrics["kl_sampler"] < 1e-6 for metrics in learned)
    assert all(metrics["learning_rate"] == 0.01 for metrics in learned[2:])
    # The sampler ends with the newest weights.
    assert sampler.policy_version == 30
    (after,) = roller.rollout(QUESTIONS[:1], Decoding(1, 64), group_size=32)
    assert np.mean([reward(each, QUESTIONS[0]).total for each in after.episodes]) > 0.9


TINKER = {"loss": "importance_sampling", "aggregation": "sum", "scale": "none", "stream_minibatches": 2}
SLIME = {
    "scale": "sample_std",
    "constant_groups": "keep",
    "aggregation": "sequence_mean",
    "kl_coefficient": 1e-3,
    "old_logprobs": "recomputed",
    "correction": "tis",
    "betas": (0.9, 0.98),
    "weight_decay": 0.01,
}


@pytest.mark.parametrize(
    "settings", [TINKER, SLIME, {"loss": "cispo", "baseline": "leave_one_out"}, {"loss": "gspo", "minibatches": 2}]
)
def test_reward_rises_with_other_pieces_too(tiny_model_dir, settings):
    *_, rows = train_on_the_toy(tiny_model_dir, steps=16, learning_rate=0.02, **settings)
    rewards = [metrics["reward_mean"] for _, metrics, _ in rows]
    assert rewards[0] < 0.5
    assert np.mean(rewards[-4:]) > 0.8
    assert [len(records) for _, _, records in rows] == [32] * 16
    assert [metrics["num_groups"] for _, metrics, _ in rows] == [4] * 16


def test_ppo_raises_the_reward_from_one_episode_per_question_and_its_critic_learns(tiny_model_dir):
    learner, *_, rows = train_on_the_toy(
        tiny_model_dir,
        steps=25,
        questions_per_step=32,
        group_size=1,
        baseline="gae",
        learning_rate=0.01,
        kl_coefficient=1e-3,
        kl_in="reward",
        kl="k1",
        minibatches=2,
        old_logprobs="recomputed",
        critic={"learning_rate": 0.003},
    )
    rewards = [metrics["reward_mean"] for _, metrics, _ in rows]
    assert rewards[0] < 0.6
    assert np.mean(rewards[-5:]) > 0.8
    losses = [metrics["value_loss"] for _, metrics, _ in rows]
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) / 2
    # It expects what episodes really earn; at first it expected nothing.
    assert rows[0][1]["value_mean"] == 0.0
    assert rows[-1][1]["value_mean"] == pytest.approx(np.mean(rewards[-3:]), abs=0.25)
    assert learner.num_steps == 50
    assert all(record.advantage is None for _, _, records in rows for record in records)


def test_a_kl_in_the_reward_changes_advantages_and_not_the_recorded_reward():
    groups = [make_group(QUESTIONS[0], ["x", "y", "y"])]
    charges = [np.array([0.0, 0.0, 0.3, 0.2]), np.zeros(4), np.array([0.0, 0.0, 0.0, 0.25])]
    config = rl_config(scale="none")
    records, batch = score_groups(groups, make_reward("em"), config, step=1, charges=charges)
    np.testing.assert_allclose(batch.advantages_B, np.array([0.5, 0.0, -0.25]) - 0.25 / 3)
    assert [record.reward.total for record in records] == [1, 0, 0]


def test_groups_of_equal_rewards_are_kept_when_asked_and_critics_need_no_groups():
    groups = [make_group(QUESTIONS[0], ["x", "x"]), make_group(QUESTIONS[1], ["y", "x"])]
    _, batch = scored(groups, constant_groups="keep")
    assert batch.advantages_B.tolist() == [0.0, 0.0, -1.0, 1.0]
    records, batch = scored([*groups, make_group(QUESTIONS[2], ["x"], failed=1)], baseline="gae")
    # In the place of advantages, which only the critic can tell, stand the rewards.
    assert batch.advantages_B.tolist() == [1.0, 1.0, 0.0, 1.0, 1.0]
    assert {record.advantage for record in records} == {None}


def test_an_episode_that_outgrows_its_budget_costs_a_tenth_and_is_learned_from(tiny_model_dir):
    """tinker's overflow rule: after the observation there is no room left, so the next turn is not taken."""
    tokenizer = load_policy(tiny_model_dir, dtype="float32")[1]
    renderer = Renderer(tokenizer)
    call = encode(tokenizer, '<tool_call>{"name": "search", "arguments": {"query_list": ["x", "y"]}}</tool_call>')
    sampler = ScriptedSampler([[(call, "stop"), ((), "length")], [(encode(tokenizer, "Answer: x"), "eos")]])
    env = make_env(protocol="tools", count_tokens=renderer.count_tokens)
    room = len(renderer.prompt(env.protocol.prompt(QUESTIONS[0]))) + len(call)
    (group,) = Roller(env, sampler, renderer).rollout(QUESTIONS[:1], Decoding(96, room), group_size=2)
    assert [each.stop_reason for each in group.episodes] == [StopReason.MAX_TOKENS, StopReason.ANSWERED]
    assert sampler.requests[-1].max_new_tokens < 1 or sampler.requests[1].max_new_tokens < 1
    _, batch = score_groups([group], make_reward("tinker"), rl_config(scale="none"), step=1)
    np.testing.assert_allclose(batch.advantages_B, [-0.55, 0.55])
    assert batch.num_trained_B[0] == len(call)


@pytest.mark.parametrize(
    ("rollout", "shown"),
    [
        ({"top_p": 0.9}, r"rollout\.top_p = 0\.9"),
        ({"min_p": 0.05}, r"rollout\.min_p = 0\.05"),
        ({"temperature": 0.0}, r"rollout\.temperature = 0,"),
    ],
)
def test_rl_over_another_distribution_than_the_one_that_acts_is_refused_by_the_recipe(rollout, shown):
    with pytest.raises(ConfigError, match=rf"{shown}.* or rl\.steps = 0 to collect or evaluate only"):
        recipe_of({"rollout": rollout})
    recipe_of({"rollout": rollout, "rl": {"steps": 0}})
    recipe_of({"eval": rollout})
    recipe_of({"rollout": {"temperature": 0.0, "temperature_range": [0.7, 1.15]}})
