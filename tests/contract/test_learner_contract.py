"""What every learner promises, and the sync and the checkpoint that know it, whatever its weights are."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest

from seekling.config import RlConfig, SftConfig
from seekling.errors import DataError, InfrastructureError, ModelError, NothingToLearnError
from seekling.learn.batch import Batch
from seekling.learn.checkpoint import LocalCheckpoint
from seekling.learn.learner import Checkpoint, Learner, WeightSync
from seekling.learn.local import LocalLearner
from seekling.learn.loss import clipped_policy_loss, cross_entropy, value_loss
from seekling.learn.rl import RlRun, train
from seekling.learn.sft import train_sft
from seekling.models import load_model
from seekling.pipeline.sync import CheckedSync, InMemorySync
from seekling.rollout.loop import Decoding, Roller
from seekling.rollout.render import Renderer
from seekling.rollout.sampler import Sampler, SampleRequest
from seekling.types import Question, Reward
from tests.env.fakes import make_env
from tests.learn.models import group, trajectory
from tests.learn.recording import JsonCheckpoint, RecordingLearner, RecordingSync
from tests.rollout.policies import ScriptedSampler, encode, open_sampler, run, sample_all
from tests.settings import rl_config

UNTRAINED = trajectory([3, 4, 5], [0, 0, 0])
RATE = 0.01


@dataclass
class Kind:
    """Implementations that belong together."""

    new_learner: partial[Learner]
    sampler: Sampler
    sync: WeightSync
    checkpoint: Checkpoint
    rank: int = 0
    has_critic: bool = True


@pytest.fixture(scope="module")
def ranks():
    from tests.scale.runs import two_ranks

    with two_ranks() as started:
        yield started


@pytest.fixture(params=["local", "adapters", "checked", "recording", "sharded"])
def kind(request, tiny_model_dir, tokenizer, tmp_path_factory):
    if request.param == "recording":
        script = [(encode(tokenizer, f"<answer> {word} </answer>"), "stop") for word in ("x", "y")]
        sampler = ScriptedSampler([[turn] * 9 for turn in script], keeps_budgets=True)
        return Kind(partial(RecordingLearner), sampler, RecordingSync(), JsonCheckpoint())
    load = partial(load_model, dtype="float32")
    sync, rank = InMemorySync(load), 4 if request.param == "adapters" else 0
    if request.param == "checked":
        sync = CheckedSync(sync, load, encode(tokenizer, "Bergen has"), limit=1e-3)

    def new_learner():
        return LocalLearner(load(tiny_model_dir), lora_rank=rank)

    if request.param == "sharded":
        pytest.importorskip("ray")
        from seekling.scale.rank import LearnerSpec
        from seekling.scale.sharded import ShardedLearner
        from seekling.scale.state import AnyCheckpoint

        ranks, sampler = request.getfixturevalue("ranks"), open_sampler(tiny_model_dir, episode_tokens=1024)

        def new_sharded():
            scratch = tmp_path_factory.mktemp("scratch")
            return ShardedLearner(ranks, LearnerSpec(tiny_model_dir), scratch=scratch)

        return Kind(partial(new_sharded), sampler, sync, AnyCheckpoint(), has_critic=False)
    return Kind(partial(new_learner), open_sampler(tiny_model_dir, episode_tokens=1024), sync, LocalCheckpoint(), rank)


@pytest.fixture
def learner(kind):
    return kind.new_learner()


def batch_of(*seeds):
    trajectories = [each for seed in seeds for each in group(seed)]
    return Batch(trajectories, np.linspace(-1.5, 2.0, len(trajectories)))


def steps(learner, numbers):
    for number in numbers:
        learner.forward_backward(batch_of(number), cross_entropy)
        learner.optim_step(RATE)


def logprobs(learner):
    return np.concatenate(learner.logprobs(group(0)))


# The learner


def test_log_probabilities_are_those_of_trained_tokens(learner):
    batch = [*group(0), UNTRAINED]
    for each, values in zip(batch, learner.logprobs(batch), strict=True):
        assert (values.shape, values.dtype) == (each.token_ids_T.shape, np.float32)
        assert not values[~each.train_mask_T].any()
        assert (values[each.train_mask_T] < 0).all()


def test_steps_make_what_was_shown_more_likely_and_are_counted(learner):
    before = logprobs(learner)
    losses = []
    for _ in range(3):
        losses.append(learner.forward_backward(batch_of(0), cross_entropy).loss)
        assert math.isfinite(learner.optim_step(RATE))
    assert logprobs(learner).sum() > before.sum()
    assert losses == sorted(losses, reverse=True)
    assert learner.num_steps == 3
    learner.start_stage(row_tokens=512, max_grad_norm=1.0)
    assert learner.num_steps == 0


def test_without_trained_tokens_or_gradients_there_is_nothing_to_learn(learner):
    with pytest.raises(NothingToLearnError, match="token"):
        learner.forward_backward(Batch([UNTRAINED] * 2, np.ones(2)), cross_entropy)
    with pytest.raises(NothingToLearnError, match="gradient"):
        learner.optim_step(RATE)
    steps(learner, [0])
    with pytest.raises(NothingToLearnError, match="gradient"):  # they are forgotten
        learner.optim_step(RATE)
    assert learner.num_steps == 1


def test_gradients_add_up_until_the_step_and_are_divided_at_last(learner):
    for seed in (0, 1):
        learner.forward_backward(batch_of(seed), cross_entropy, divide_by=1.0)
    norm = learner.optim_step(0.0, divide_by=50.0)
    learner.forward_backward(batch_of(0, 1), cross_entropy, divide_by=50.0)
    assert norm == pytest.approx(learner.optim_step(0.0), rel=1e-4)


def test_gradients_that_are_not_finite_change_nothing_but_the_count(learner):
    before = logprobs(learner)
    learner.forward_backward(Batch(group(0), np.full(4, math.nan)), clipped_policy_loss)
    assert not math.isfinite(learner.optim_step(RATE))
    np.testing.assert_array_equal(logprobs(learner), before)
    assert learner.num_steps == 1
    steps(learner, [0])
    assert (logprobs(learner) != before).any()


def test_a_reference_stays_while_the_policy_moves_and_may_be_a_policy_of_a_folder(
    kind, learner, tmp_path, tiny_model_dir
):
    kind.checkpoint.export(learner, tmp_path / "first", base=tiny_model_dir)
    first = logprobs(learner)
    steps(learner, range(2))
    assert not learner.has_reference
    learner.keep_reference()
    assert learner.has_reference
    kept = logprobs(learner)
    steps(learner, range(2, 4))
    np.testing.assert_allclose(np.concatenate(learner.reference_logprobs(group(0))), kept, atol=1e-5)
    assert np.abs(logprobs(learner) - kept).max() > 1e-3
    learner.keep_reference(tmp_path / "first")
    np.testing.assert_allclose(np.concatenate(learner.reference_logprobs(group(0))), first, atol=1e-5)


def test_a_critic_begins_at_0_and_learns(kind, learner):
    assert learner.critic is None
    if not kind.has_critic:
        with pytest.raises(ModelError, match="critic"):
            learner.add_critic(RlConfig(), lora_rank=0)
        return
    learner.add_critic(RlConfig(), lora_rank=kind.rank)
    critic, before = learner.critic, logprobs(learner)
    assert not np.concatenate(critic.values(group(0))).any()
    returns = [np.full(len(each.token_ids_T), -0.5, np.float32) for each in group(0)]
    batch = replace(batch_of(0), per_token={"returns_A": returns, "old_values_A": critic.values(group(0))})
    losses = []
    for _ in range(4):
        losses.append(critic.forward_backward(batch, partial(value_loss, value_clip=9.0)).loss)
        critic.optim_step(RATE / 10)
    assert losses[-1] < losses[0]
    np.testing.assert_array_equal(logprobs(learner), before)


# The checkpoint


def test_a_learner_that_was_saved_and_loaded_goes_on_as_if_nothing_had_been(kind, tmp_path):
    straight, first, second = (kind.new_learner() for _ in range(3))
    for each in (straight, first, second) if kind.has_critic else ():
        each.add_critic(RlConfig(), lora_rank=kind.rank)
    steps(straight, range(5))
    steps(first, range(3))
    if kind.has_critic:
        first.critic.forward_backward(batch_of(0), cross_entropy)
        first.critic.optim_step(RATE)
    kind.checkpoint.save(first, tmp_path)
    steps(second, [9])  # whatever it was before is gone
    kind.checkpoint.load(second, tmp_path)
    assert second.num_steps == 3
    values = [each.critic.values(group(0)) for each in (first, second) if kind.has_critic]
    for one, other in zip(*values, strict=True):
        np.testing.assert_array_equal(one, other)
    steps(second, range(3, 5))
    np.testing.assert_array_equal(logprobs(second), logprobs(straight))


@pytest.mark.parametrize("how", ["missing", "cut", "empty", "text"])
def test_a_damaged_state_is_one_clear_error_and_changes_nothing(kind, learner, tmp_path, how):
    kind.checkpoint.save(learner, tmp_path)
    (state,) = tmp_path.iterdir()
    path = max((each for each in tmp_path.rglob("*") if each.is_file()), key=lambda each: each.stat().st_size)
    whole = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes({"cut": whole[: len(whole) // 2], "empty": b"", "text": b"not a state\n" * 40}[how])
    other = kind.new_learner()
    steps(other, [0])
    before = logprobs(other)
    with pytest.raises(DataError, match=str(state)):
        kind.checkpoint.load(other, tmp_path)
    np.testing.assert_array_equal(logprobs(other), before)
    assert other.num_steps == 1


# The sync


def agreement(kind, learner):
    """How far the log-probabilities of what the sampler says now are from the learner's; checks the version."""
    kind.sampler.release_caches()
    requests = [SampleRequest(100 + n, (1, 300, 301, 17, 20 + n), 8, seed=n) for n in range(3)]
    samples = sample_all(kind.sampler, requests)
    made = []
    for request, sample in zip(requests, samples, strict=True):
        kind.sampler.close_session(request.session)
        assert sample.policy_version == kind.sampler.policy_version
        prompt = len(request.prompt_ids)
        mask = [0] * prompt + [1] * len(sample.token_ids)
        made.append(trajectory([*request.prompt_ids, *sample.token_ids], mask, [0.0] * prompt + list(sample.logprobs)))
    return max(
        np.abs(scored_T - each.logprobs_T).max() for each, scored_T in zip(made, learner.logprobs(made), strict=True)
    )


def test_what_is_published_is_what_samples_until_the_next_time(kind, learner):
    steps(learner, range(3))
    kind.sync.publish(learner, kind.sampler, version=7)
    assert kind.sampler.policy_version == 7
    assert agreement(kind, learner) < 1e-4
    steps(learner, range(3, 9))
    assert kind.sampler.policy_version == 7
    assert agreement(kind, learner) > 1e-3
    kind.sync.publish(learner, kind.sampler, version=8)
    assert agreement(kind, learner) < 1e-4


def test_an_exported_policy_is_the_learners(kind, learner, tmp_path, tiny_model_dir):
    steps(learner, range(3))
    kind.checkpoint.export(learner, tmp_path / "out", base=tiny_model_dir)
    kind.sync.publish_exported(tmp_path / "out", kind.sampler, version=-1)
    assert kind.sampler.policy_version == -1
    assert agreement(kind, learner) < 1e-4


def test_nothing_is_published_while_samples_run(kind, learner):
    async def too_early():
        running = asyncio.create_task(kind.sampler.sample(SampleRequest(1, (1, 300, 301), 4)))
        await asyncio.sleep(0)
        with pytest.raises(InfrastructureError, match="samples are still running"):
            kind.sync.publish(learner, kind.sampler, version=1)
        return await running

    assert run(too_early()).policy_version == kind.sampler.policy_version == 0


# The flows, which know none of them


def test_sft_runs_on_any_learner(learner):
    before, rows = logprobs(learner), []
    config = SftConfig(learning_rate=RATE, epochs=2, episodes_per_step=2, warmup_steps=0)
    train_sft(learner, group(0), config, seed=0, on_step=lambda step, metrics: rows.append(metrics["loss"]))
    assert len(rows) == learner.num_steps == 4
    assert logprobs(learner).sum() > before.sum()


def test_rl_runs_on_any_of_them(kind, learner, tokenizer):
    renderer, rows = Renderer(tokenizer), []
    roller = Roller(make_env(count_tokens=renderer.count_tokens), kind.sampler, renderer)
    rewards = iter(range(10**9))
    config = rl_config(steps=3, questions_per_step=2, group_size=2, learning_rate=RATE)
    train(
        learner,
        kind.sampler,
        roller,
        RlRun([Question("0", "Who?", ("x",)), Question("1", "When?", ("x",))], config, seed=0),
        sync=kind.sync,
        decoding=Decoding(6, 900),
        reward=lambda episode, question: Reward(float(next(rewards) % 2)),
        on_step=lambda step, metrics, records: rows.append(
            (metrics, {each.episode.policy_version for each in records})
        ),
    )
    assert learner.num_steps == kind.sampler.policy_version == 3
    assert [versions for _, versions in rows] == [{0}, {1}, {2}]
    assert all(metrics["num_skipped_steps"] == 0 and math.isfinite(metrics["loss"]) for metrics, _ in rows)
