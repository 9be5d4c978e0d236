"""Steps: streamed ones equal whole ones, minibatches and epochs, critics on packed rows, KL costs, saving."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from seekling.errors import DataError, InfrastructureError
from seekling.learn.advantage import generalized_advantages
from seekling.learn.batch import Batch
from seekling.learn.checkpoint import LocalCheckpoint
from seekling.learn.local import LocalLearner
from seekling.learn.loss import value_loss
from seekling.learn.rl import score_groups
from seekling.learn.update import Updater
from seekling.reward.functions import make_reward
from seekling.types import Episode, EpisodeGroup, Question, StopReason
from tests.learn.models import assert_close_gradients, group, small_model, trajectory
from tests.settings import rl_config

UNTRAINED = trajectory([3, 4, 5], [0, 0, 0])


def batch_of(*seeds, advantages=None):
    trajectories = [each for seed in seeds for each in group(seed)]
    given = np.linspace(-1.5, 2.0, len(trajectories)) if advantages is None else np.asarray(advantages)
    return Batch(trajectories, given)


def joined(parts):
    return Batch([t for part in parts for t in part.trajectories], np.concatenate([p.advantages_B for p in parts]))


def with_critic(learner, lora_rank=0):
    learner.add_critic(rl_config(row_tokens=100, critic={"max_grad_norm": 1.0}), lora_rank=lora_rank)
    return learner


def at_reference(learner):
    """The learner, with the weights of another seed as its reference."""
    learner._reference = LocalLearner(small_model(1))._model
    return learner


def weights_of(learner):
    return {name: master.clone() for name, master in learner.state()["masters"].items()}


def steps_of(config, batches, *, seed=0, reference=False, rate=0.003):
    learner = LocalLearner(small_model(seed), row_tokens=90)
    if reference:
        at_reference(learner)
    if config.has_critic:
        with_critic(learner)
    updater = Updater(learner, config)
    for batch in batches:
        updater.add(batch, version=0)
    return learner, updater.finish(rate=rate, critic_rate=0.01)


def sgd_gradient(config, batches, monkeypatch, **more):
    """The gradient that reaches the optimizer, read off before it acts."""
    found = {}

    def note(self, rate, divide_by=1.0):
        found.update({name: master.grad.detach() * (1 / divide_by) for name, master in self._masters.items()})
        return 0.0

    monkeypatch.setattr(LocalLearner, "optim_step", note)
    steps_of(config, batches, **more)
    return found


STREAMS = [
    {},
    {"aggregation": "sum", "loss": "importance_sampling"},
    {"aggregation": "sequence_mean", "kl_coefficient": 0.3},
    {"aggregation": "constant", "aggregation_tokens": 7, "loss": "gspo"},
    {"old_logprobs": "recomputed", "correction": "tis", "loss": "cispo"},
]


@pytest.mark.parametrize("settings", STREAMS)
def test_gradients_of_a_streamed_step_are_those_of_the_whole_one(settings, monkeypatch):
    whole = rl_config(questions_per_step=3, **settings)
    streamed = rl_config(questions_per_step=3, stream_minibatches=3, **settings)
    parts = [batch_of(2), batch_of(0, advantages=[1.0, -1.0, 0.5, -0.5]), batch_of(1)]
    expected = sgd_gradient(whole, [joined(parts)], monkeypatch, reference=True)
    # One of four parts has nothing to learn from: it is left out and does not count.
    found = sgd_gradient(streamed, [*parts[:2], Batch([], np.zeros(0)), parts[2]], monkeypatch, reference=True)
    assert_close_gradients(found, expected, relative=1e-4)


def test_a_streamed_step_has_the_metrics_of_the_whole_one():
    parts = [batch_of(0), batch_of(1)]
    _, whole = steps_of(rl_config(questions_per_step=2), [joined(parts)])
    learner, streamed = steps_of(rl_config(questions_per_step=2, stream_minibatches=2), parts)
    assert learner.num_steps == 1
    for name in ("loss", "entropy", "kl_sampler", "trained_tokens", "plain_tokens", "grad_norm"):
        assert streamed[name] == pytest.approx(whole[name], rel=1e-4), name


@pytest.mark.parametrize("settings", [*STREAMS[:4], {"stream_minibatches": 2}])
def test_the_gradient_of_a_few_that_stand_for_their_group_is_the_groups_where_the_others_are_their_like(
    settings, monkeypatch
):
    """A success and seven times the same failure: two of them, weighed, are all eight, whatever the aggregation."""
    found = []
    for learn_per_group in (0, 3):
        config = rl_config(questions_per_step=2, learn_per_group=learn_per_group, **settings)
        groups = []
        for question, seed in ((Question("1", "?", ("x",)), 0), (Question("2", "?", ("x",)), 1)):
            right, wrong = group(seed)[:2]
            answers = [*"yyyyyyy", "x"]
            episodes = tuple(Episode(question.id, "", "tags", (), (), each, StopReason.ANSWERED) for each in answers)
            groups.append(EpisodeGroup(question, episodes, (*[wrong] * 7, right)))
        parts = [groups[:1], groups[1:]] if config.optimizer.stream_minibatches else [groups]
        batches = [score_groups(part, make_reward("em"), config, step=1)[1] for part in parts]
        assert sum(len(batch.trajectories) for batch in batches) == 2 * (learn_per_group or 8)
        found.append(sgd_gradient(config, batches, monkeypatch, reference=True))
    assert_close_gradients(found[1], found[0], relative=1e-4)


def test_a_step_says_what_was_clipped_how_far_ratios_went_and_how_many_tokens_weigh():
    first = steps_of(rl_config(), [batch_of(0)])[1]
    assert (first["ratio_mean"], first["ratio_max"], first["clip_fraction"]) == (1.0, 1.0, 0.0)
    recorded = np.concatenate([each.logprobs_T[each.train_mask_T] for each in group(0)])
    scored = np.concatenate(
        [
            own[each.train_mask_T]
            for own, each in zip(LocalLearner(small_model()).logprobs(group(0)), group(0), strict=True)
        ]
    )
    weights = np.minimum(np.exp(scored - recorded), 2.0)
    assert first["correction_ess"] == pytest.approx(weights.sum() ** 2 / (len(weights) * (weights**2).sum()), rel=1e-4)
    assert 0 < first["correction_ess"] < 1
    config = rl_config(old_logprobs="rollout", correction="none", clip_low=0.2, clip_high=0.3)
    metrics = steps_of(config, [batch_of(0)])[1]
    ratios = np.exp(scored - recorded)
    advantages = np.repeat(batch_of(0).advantages_B, [int(each.train_mask_T.sum()) for each in group(0)])
    low, high = (ratios < 0.8) & (advantages < 0), (ratios > 1.3) & (advantages > 0)
    assert low.any()
    assert high.any()
    assert metrics["clip_fraction_low"] == pytest.approx(low.mean())
    assert metrics["clip_fraction_high"] == pytest.approx(high.mean())
    assert metrics["clip_fraction"] == pytest.approx((low | high).mean())
    assert metrics["ratio_mean"] == pytest.approx(ratios.mean(), rel=1e-4)
    assert metrics["ratio_max"] == pytest.approx(ratios.max(), rel=1e-4)
    assert metrics["correction_ess"] == 1.0


def test_a_gradient_of_a_critic_that_is_not_finite_is_skipped_and_counted(monkeypatch):
    learner = with_critic(LocalLearner(small_model(), row_tokens=90))
    updater = Updater(learner, rl_config(baseline="gae", whiten=False))
    before = weights_of(learner.critic)
    updater.add(batch_of(0, advantages=[0, 1, 0, math.nan]), version=0)
    metrics = updater.finish(rate=0.01, critic_rate=0.01)
    assert metrics["num_skipped_steps"] == 2  # the policy's too: its advantage is not finite either
    assert "value_loss" not in metrics
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights_of(learner.critic).items())
    updater.add(batch_of(0, advantages=[0, 1, 0, 1]), version=0)
    metrics = updater.finish(rate=0.01, critic_rate=0.01)
    assert (metrics["num_skipped_steps"], "value_loss" in metrics) == (0, True)


@pytest.mark.parametrize(("minibatches", "taken"), [(1, 1), (2, 1 + 4)])
def test_one_bad_batch_ends_no_run_however_often_it_would_be_gone_over(minibatches, taken):
    config = rl_config(minibatches=minibatches, rollout_epochs=4)
    learner, metrics = steps_of(config, [batch_of(0, 1, advantages=[math.nan, 1, 1, 1, 1, -1, 1, -1])])
    assert (metrics["num_skipped_steps"], learner.num_steps) == (1, taken)
    assert ("grad_norm" in metrics) is (minibatches == 2)


def test_the_oldest_version_of_an_episode_counts():
    updater = Updater(LocalLearner(small_model()), rl_config(max_staleness=2))
    mixed = [replace(each, policy_versions=(5, 3, 5)) for each in group(0)]
    updater.add(Batch(mixed, np.ones(4)), version=5)
    with pytest.raises(InfrastructureError, match=r"version 3, and the learner is at version 6: 3 rollouts older"):
        updater.add(Batch(mixed, np.ones(4)), version=6)
    updater.add(batch_of(0), version=6)  # nobody sampled these: there is nothing to be late


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_part_of_a_streamed_step_in_which_no_token_is_trained_changes_nothing(place, monkeypatch):
    """Episodes whose prompt leaves no room for an action; a whole step takes them too."""
    config = rl_config(questions_per_step=3, stream_minibatches=3, aggregation="sequence_mean", constant_groups="keep")
    parts = [batch_of(0, advantages=[1.0, -1.0, 0.5, -0.5]), batch_of(1)]
    expected = sgd_gradient(config, parts, monkeypatch)
    parts.insert(place, Batch([UNTRAINED, UNTRAINED], np.zeros(2)))
    found = sgd_gradient(config, parts, monkeypatch)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())


def test_nothing_added_is_no_step():
    learner, metrics = steps_of(rl_config(), [Batch([], np.zeros(0))])
    assert metrics == {}
    assert learner.num_steps == 0


@pytest.mark.parametrize(("minibatches", "epochs", "steps"), [(1, 1, 1), (4, 1, 4), (2, 3, 6), (9, 1, 8)])
def test_a_rollout_is_learned_from_in_so_many_steps(minibatches, epochs, steps):
    config = rl_config(minibatches=minibatches, rollout_epochs=epochs)
    learner, metrics = steps_of(config, [batch_of(0, 1)])
    assert learner.num_steps == steps
    counted = sum(int(t.train_mask_T.sum()) for t in batch_of(0, 1).trajectories)
    assert metrics["trained_tokens"] == counted * epochs


def test_later_steps_divide_by_the_weights_before_the_first_when_they_are_recomputed():
    # The sampler's log-probabilities are far from the learner's: with them every ratio would be clipped at once.
    config = rl_config(minibatches=2, rollout_epochs=2, old_logprobs="recomputed", aggregation="sum")
    learner, _ = steps_of(config, [batch_of(0)], rate=0.002)
    plain = LocalLearner(small_model(), row_tokens=90)
    old = plain.logprobs(group(0))
    batch = Batch(group(0), batch_of(0).advantages_B, {"old_logprobs_A": old})
    from seekling.learn.loss import make_policy_loss

    for start in (0, 2, 0, 2):
        plain.forward_backward(batch.part(start, start + 2), make_policy_loss(config.loss), aggregation="sum")
        plain.optim_step(0.002)
    expected = weights_of(plain)
    for name, tensor in weights_of(learner).items():
        np.testing.assert_allclose(tensor, expected[name], atol=1e-6, err_msg=name)


# The critic


def plain_values(critic, each):
    """Values from a forward pass over this sequence alone: the head on the state before each action token."""
    states_TD = small_model().model(input_ids=torch.from_numpy(each.token_ids_T)[None]).last_hidden_state[0]
    places = torch.from_numpy(np.flatnonzero(each.train_mask_T[1:]))
    return (states_TD[places] @ critic._model.lm_head.weight[0]).detach().numpy()


def test_a_critic_begins_at_0_and_its_packed_values_are_those_of_single_sequences():
    learner = with_critic(LocalLearner(small_model(), row_tokens=60))
    critic, batch = learner.critic, [*group(0), UNTRAINED, *group(1)]
    assert all(not values.any() for values in critic.values(batch))
    with torch.no_grad():
        critic._model.lm_head.weight.copy_(torch.linspace(-1, 1, 32)[None])
    for each, values in zip(batch, critic.values(batch), strict=True):
        assert not values[~each.train_mask_T].any()
        np.testing.assert_allclose(values[each.train_mask_T], plain_values(critic, each), atol=1e-4)


def test_advantages_of_tokens_are_gae_over_action_tokens_with_the_reward_at_the_last():
    learner = with_critic(LocalLearner(small_model(), row_tokens=90))
    with torch.no_grad():
        learner.critic._model.lm_head.weight.copy_(0.2 * torch.linspace(-1, 1, 32)[None])
    seen = {}

    def spy(batch, loss, **more):
        seen.update(batch.per_token)
        return forward_backward(batch, loss, **more)

    forward_backward, learner.forward_backward = learner.forward_backward, spy
    updater = Updater(learner, rl_config(baseline="gae", gamma=0.9, gae_lambda=0.8, whiten=False))
    values = learner.critic.values(group(0))
    updater.add(batch_of(0, advantages=[1.0, 0.0, 0.5, 0.0]), version=0)
    updater.finish(rate=0.0, critic_rate=0.01)
    for index, each in enumerate(group(0)):
        actions = each.train_mask_T
        rewards = np.zeros(int(actions.sum()))
        rewards[-1] = [1.0, 0.0, 0.5, 0.0][index]
        advantages, returns = generalized_advantages(rewards, values[index][actions], gamma=0.9, gae_lambda=0.8)
        np.testing.assert_allclose(seen["advantages_A"][index][actions], advantages, atol=1e-6)
        np.testing.assert_allclose(seen["returns_A"][index][actions], returns, atol=1e-6)
        # Observations and prompt have neither.
        assert not seen["advantages_A"][index][~actions].any()
        assert not seen["returns_A"][index][~actions].any()


@pytest.mark.parametrize("kl", ["k1", "k3"])
def test_a_kl_in_the_reward_is_charged_to_the_tokens_that_cause_it(kl):
    learner = at_reference(with_critic(LocalLearner(small_model())))
    reference = learner.reference_logprobs(group(0))
    config = rl_config(baseline="gae", kl_coefficient=0.1, kl_in="reward", kl=kl, gae_lambda=0.0, whiten=False)
    updater = Updater(learner, config)
    batch, _ = updater._with_critic(batch_of(0, advantages=np.ones(4)))
    for index, each in enumerate(group(0)):
        gap = each.logprobs_T - reference[index]
        cost = gap if kl == "k1" else np.exp(-gap) + gap - 1
        expected = np.where(each.train_mask_T, -0.1 * cost, 0.0)
        expected[np.flatnonzero(each.train_mask_T)[-1]] += 1.0
        # Values are 0 and lambda is 0, so an advantage is the token's own reward.
        np.testing.assert_allclose(batch.per_token["advantages_A"][index], expected, rtol=1e-4, atol=1e-6)


def test_a_state_without_a_critic_is_refused_by_a_run_that_has_one(tmp_path):
    LocalCheckpoint().save(LocalLearner(small_model()), tmp_path)
    with pytest.raises(DataError, match="not a readable training state"):
        LocalCheckpoint().load(with_critic(LocalLearner(small_model())), tmp_path)


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_a_critic_of_a_bfloat16_policy_keeps_its_head_and_adapters_in_float32(lora_rank):
    """A value in bfloat16 has two digits."""
    learner = with_critic(LocalLearner(small_model(dtype=torch.bfloat16)), lora_rank=lora_rank)
    critic = learner.critic
    wide = {name for name, weight in critic._trained.items() if weight.dtype == torch.float32}
    assert {name for name in critic._trained if "lm_head" in name or "lora_" in name} == wide
    predicted = critic.values(group(0))
    assert not any(values.any() for values in predicted)
    returns = [np.full(len(each.token_ids_T), 0.7) for each in group(0)]
    batch = Batch(group(0), np.ones(4), {"returns_A": returns, "old_values_A": predicted})
    errors = []
    for _ in range(20):
        errors.append(critic.forward_backward(batch, partial(value_loss, value_clip=10.0)).loss)
        critic.optim_step(0.01)
    assert errors[-1] < 0.5 * errors[0]
