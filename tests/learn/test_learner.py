"""The learner's verbs against plain passes over single sequences, PEFT's own merge, and itself after a restart."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

import seekling.learn.trained as learner_module
from seekling.errors import DataError, NothingToLearnError
from seekling.kernels.vocabulary import VOCABULARY_CHUNK
from seekling.learn.batch import Batch
from seekling.learn.checkpoint import WEIGHTS, LocalCheckpoint
from seekling.learn.local import LocalLearner
from seekling.learn.lora import add_lora, merged_weights
from seekling.learn.loss import clipped_policy_loss, cross_entropy
from seekling.models import load_policy
from tests.learn.models import (
    VOCABULARY,
    assert_close_gradients,
    gradients,
    group,
    plain_logprobs,
    small_model,
    trajectory,
)

ROWS = [25, 64, 4096]
UNTRAINED = trajectory([3, 4, 5], [0, 0, 0])


def batch_of(*seeds, extra=()):
    trajectories = [each for seed in seeds for each in group(seed)] + list(extra)
    return Batch(trajectories, np.linspace(-1.5, 2.0, len(trajectories)))


def test_a_vocabulary_of_many_chunks_is_scored_as_one():
    trained = VOCABULARY_CHUNK + 40
    long = trajectory((np.arange(trained + 1) % VOCABULARY).tolist(), [0] + [1] * trained)
    batch = [long, *group(3)]
    scored = LocalLearner(small_model(), row_tokens=4096).logprobs(batch)
    for each, values in zip(batch, scored, strict=True):
        expected = plain_logprobs(small_model(), each).detach()
        np.testing.assert_allclose(values[each.train_mask_T], expected, atol=1e-5)


@pytest.mark.parametrize("lora_rank", [0, 2])
def test_checkpointed_layers_have_the_same_gradients_to_the_bit(lora_rank):
    found = []
    for checkpoint_layers in (False, True):
        model = small_model()
        learner = LocalLearner(model, lora_rank=lora_rank, row_tokens=64, checkpoint_layers=checkpoint_layers)
        assert learner.checkpoints_layers is checkpoint_layers
        with torch.autograd.graph.saved_tensors_hooks(kept := Kept(), lambda tensor: tensor):
            stats = learner.forward_backward(batch_of(0, 1), clipped_policy_loss)
        found.append((stats, gradients(model), kept.num_bytes))
    (plain, expected, plain_bytes), (checkpointed, gradient, checkpointed_bytes) = found
    assert checkpointed == plain
    assert gradient.keys() == expected.keys()
    assert all(torch.equal(gradient[name], tensor) for name, tensor in expected.items())
    assert checkpointed_bytes < plain_bytes / 2  # otherwise it is not on


class Kept:
    """Counts what is kept for the backward pass."""

    def __init__(self):
        self.num_bytes = 0

    def __call__(self, tensor):
        self.num_bytes += tensor.numel() * tensor.element_size()
        return tensor


def test_statistics_are_means_over_trained_tokens():
    batch = batch_of(2)
    stats = LocalLearner(small_model(), row_tokens=40).forward_backward(batch, cross_entropy)
    entropies, kls, differences = [], [], []
    plain = small_model()
    for each in batch.trajectories:
        logits = plain(input_ids=torch.from_numpy(each.token_ids_T)[None]).logits[0].detach()
        trained = np.flatnonzero(each.train_mask_T)
        logprobs = torch.log_softmax(logits, -1)[trained - 1]
        entropies += (-(logprobs.exp() * logprobs).sum(-1)).tolist()
        gap = plain_logprobs(plain, each).detach().numpy() - each.logprobs_T[trained]
        kls += (np.exp(gap) - gap - 1).tolist()
        differences += gap.tolist()
    assert stats.entropy == pytest.approx(np.mean(entropies), rel=1e-5)
    assert stats.kl_behaviour == pytest.approx(np.mean(kls), rel=1e-4)
    assert stats.drift_mean == pytest.approx(np.mean(np.abs(differences)), rel=1e-4)
    assert stats.drift_max == pytest.approx(np.max(np.abs(differences)), rel=1e-4)


@pytest.mark.parametrize("row_tokens", ROWS)
def test_gradients_and_entropies_are_those_of_each_trajectory_alone_at_its_own_temperature(row_tokens):
    warmths = np.linspace(0.6, 1.3, 9)
    batch = batch_of(0, 1, extra=[UNTRAINED])
    batch = replace(
        batch, trajectories=[replace(t, temperature=w) for t, w in zip(batch.trajectories, warmths, strict=True)]
    )
    model, plain = small_model(), small_model()
    stats = LocalLearner(model, row_tokens=row_tokens).forward_backward(batch, clipped_policy_loss, aggregation="sum")
    total, entropies = torch.zeros(()), []
    for each, advantage in zip(batch.trajectories[:-1], batch.advantages_B[:-1], strict=True):
        ids, trained = torch.from_numpy(each.token_ids_T), np.flatnonzero(each.train_mask_T)
        logits_TV = plain(input_ids=ids[None], use_cache=False).logits[0] / each.temperature
        logprobs_AV = torch.log_softmax(logits_TV, -1)[trained - 1]
        entropies += (-(logprobs_AV.exp() * logprobs_AV).sum(-1)).tolist()
        ratio = torch.exp(logprobs_AV[range(len(trained)), ids[trained]] - torch.from_numpy(each.logprobs_T[trained]))
        total = total - torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage).sum()
    total.backward()
    assert stats.loss == pytest.approx(total.item(), rel=1e-5)
    assert stats.num_trained_tokens == len(entropies)
    assert stats.entropy == pytest.approx(np.mean(entropies), rel=1e-5)
    assert_close_gradients(gradients(model), gradients(plain), relative=1e-4)


def test_a_step_is_adamws_with_clipped_gradients():
    model, plain = small_model(), small_model()
    learner = LocalLearner(model, max_grad_norm=0.5, weight_decay=0.1)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.01, weight_decay=0.1)
    for seed in range(3):
        batch = batch_of(seed)
        learner.forward_backward(batch, cross_entropy, aggregation="sum")
        norm = learner.optim_step(0.01)
        loss = sum(-plain_logprobs(plain, each).sum() for each in batch.trajectories)
        optimizer.zero_grad()
        loss.backward()
        expected = float(torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5))
        optimizer.step()
        assert norm == pytest.approx(expected, rel=1e-4)
        assert norm > 0.5
    assert learner.num_steps == 3
    for (name, one), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        np.testing.assert_allclose(one.detach(), other.detach(), atol=2e-4, err_msg=name)


def spoil(learner):
    learner.forward_backward(Batch(group(0), np.full(4, math.nan)), clipped_policy_loss)
    return learner.optim_step(0.01)


def test_gradients_that_are_not_finite_three_times_in_a_row_end_the_run_also_after_a_restart(tmp_path):
    learner, resumed = LocalLearner(small_model()), LocalLearner(small_model())
    for _ in range(2):
        spoil(learner)
        spoil(learner)
        learner.forward_backward(batch_of(0), cross_entropy)
        learner.optim_step(0.01)  # a good one begins the count anew
    spoil(learner)
    spoil(learner)
    LocalCheckpoint().save(learner, tmp_path)
    LocalCheckpoint().load(resumed, tmp_path)
    for each in (learner, resumed):
        with pytest.raises(NothingToLearnError, match=r'norm is nan at step 9, for 3 steps in a row; .*"float32"'):
            spoil(each)


def with_random_adapters(seed=0):
    model = small_model()
    adapted = add_lora(model, rank=3, alpha=6)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model, adapted


def test_merged_adapters_equal_pefts_own_merge_and_leave_the_base_alone():
    model, adapted = with_random_adapters()
    base = {name: p.detach().clone() for name, p in model.named_parameters() if "lora_" not in name}
    merged = merged_weights(model, adapted)
    theirs = dict(copy.deepcopy(adapted).merge_and_unload().named_parameters())
    assert merged.keys() == theirs.keys() == dict(small_model().named_parameters()).keys()
    for name, tensor in theirs.items():
        np.testing.assert_allclose(merged[name], tensor.detach(), atol=1e-5, err_msg=name)
    linear = [name for name in merged if "_proj" in name]
    assert len(linear) == 14
    assert all(not torch.equal(merged[name], dict(small_model().named_parameters())[name]) for name in linear)
    for name, tensor in base.items():
        assert torch.equal(dict(model.named_parameters())[name], tensor)
    assert all(torch.equal(tensor, merged_weights(model, adapted)[name]) for name, tensor in merged.items())


def test_only_adapters_train():
    model = small_model()
    learner = LocalLearner(model, lora_rank=4)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for seed in range(3):
        learner.forward_backward(batch_of(seed), cross_entropy)
        learner.optim_step(0.01)
    after = dict(model.named_parameters())
    changed = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    assert changed == {name for name in before if "lora_" in name}
    assert len(changed) == 2 * 14


# Saving and loading


def steps(learner, numbers):
    for number in numbers:
        learner.forward_backward(batch_of(number), clipped_policy_loss)
        learner.optim_step(0.003 * (1 + number % 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lora_rank", [0, 4])
def test_a_run_that_was_saved_and_loaded_goes_on_bit_for_bit(tmp_path, dtype, lora_rank):
    def learner():
        with torch.random.fork_rng():
            torch.manual_seed(3)  # PEFT draws the adapters
            return LocalLearner(small_model(dtype=dtype), lora_rank=lora_rank, weight_decay=0.01, row_tokens=50)

    straight, first, second = learner(), learner(), learner()
    steps(straight, range(7))
    steps(first, range(3))
    LocalCheckpoint().save(first, tmp_path)
    steps(second, [9])  # whatever it was before is gone
    LocalCheckpoint().load(second, tmp_path)
    assert second.num_steps == 3
    steps(second, range(3, 7))
    assert second.num_steps == straight.num_steps == 7
    expected = straight.export_weights()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in second.export_weights().items())
    assert [p.name for p in tmp_path.iterdir()] == [WEIGHTS]


def moved_by_a_small_gradient(learner, **stage):
    """By how much the weights move when a stage begins with a gradient of a hundredth of the usual one."""
    learner.start_stage(row_tokens=1024, max_grad_norm=0.0, **stage)
    before = {name: tensor.clone() for name, tensor in learner.export_weights().items()}
    learner.forward_backward(batch_of(5), clipped_policy_loss)
    learner.optim_step(0.01, divide_by=100.0)
    after = learner.export_weights()
    moved = [(after[name] - tensor).detach().flatten() for name, tensor in before.items()]
    return float(torch.cat(moved).norm())


def test_kept_moments_make_a_small_gradient_a_small_step_where_fresh_ones_make_it_a_whole_one():
    fresh, kept, one = (LocalLearner(small_model()) for _ in range(3))
    for each in (fresh, kept, one):
        steps(each, range(3))
    whole = moved_by_a_small_gradient(one)
    assert moved_by_a_small_gradient(fresh) == whole
    assert 0 < moved_by_a_small_gradient(kept, keep_moments=True) < whole / 10
    assert kept.num_steps == 1


@pytest.mark.parametrize("how", ["zeros", "list", "masters", "optimizer", "num_steps"])
def test_a_file_that_is_no_whole_training_state_is_one_clear_error_and_changes_nothing(tmp_path, how):
    path = tmp_path / WEIGHTS
    learner, other = LocalLearner(small_model()), LocalLearner(small_model(1))
    steps(learner, range(2))
    LocalCheckpoint().save(learner, tmp_path)
    if how == "zeros":
        path.write_bytes(bytes(path.stat().st_size))
    else:
        state = torch.load(path, weights_only=True)
        torch.save([1, 2, 3] if how == "list" else {name: part for name, part in state.items() if name != how}, path)
    before = {name: tensor.detach().clone() for name, tensor in other.export_weights().items()}
    with pytest.raises(DataError, match=rf"{path} is not a readable training state .*delete it to start over"):
        LocalCheckpoint().load(other, tmp_path)
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.export_weights().items())
    assert other.num_steps == 0


def test_the_state_of_another_model_is_refused(tmp_path):
    LocalCheckpoint().save(LocalLearner(small_model(), lora_rank=2), tmp_path)
    for rank in (0, 3):
        with pytest.raises(DataError, match="another model or adapter"):
            LocalCheckpoint().load(LocalLearner(small_model(), lora_rank=rank), tmp_path)


def test_a_state_that_cannot_be_written_leaves_the_earlier_one(tmp_path):
    learner = LocalLearner(small_model())
    LocalCheckpoint().save(learner, tmp_path)
    before = (tmp_path / WEIGHTS).read_bytes()
    learner.num_steps = lambda: None  # cannot be pickled
    with pytest.raises((AttributeError, pickle.PicklingError), match="pickle"):
        LocalCheckpoint().save(learner, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [WEIGHTS]
    assert (tmp_path / WEIGHTS).read_bytes() == before


# Reference


@pytest.mark.parametrize("lora_rank", [0, 4])
@pytest.mark.parametrize("num_steps", [0, 2], ids=["the base", "trained"])
def test_in_bfloat16_a_reference_just_kept_is_the_policy_to_the_last_bit(tiny_model_dir, lora_rank, num_steps):
    # Long enough that rotary frequencies rounded to bfloat16 would turn the last positions by half a radian.
    learner = LocalLearner(load_policy(tiny_model_dir, dtype="bfloat16")[0], lora_rank=lora_rank)
    steps(learner, range(num_steps))
    ids = np.random.default_rng(0).integers(3, 60, 600)
    long = [trajectory(ids.tolist(), [0] * 500 + [1] * 100)]
    learner.keep_reference()
    before = learner.logprobs(long)
    learner.forward_backward(batch_of(5), clipped_policy_loss)
    learner.optim_step(0.05)
    np.testing.assert_array_equal(learner.reference_logprobs(long), before)
    assert np.abs(learner.logprobs(long)[0] - before[0]).max() > 0.01


@pytest.mark.parametrize("num_steps", [0, 2], ids=["the base", "trained"])
def test_the_reference_of_adapters_is_saved_with_them_and_copies_no_base_weights(tmp_path, num_steps):
    learner = LocalLearner(small_model(), lora_rank=4)
    steps(learner, range(num_steps))
    learner.keep_reference()
    expected = learner.logprobs(group(0))
    steps(learner, range(2, 4))
    now = learner.logprobs(group(0))
    LocalCheckpoint().save(learner, tmp_path)
    resumed = LocalLearner(small_model(), lora_rank=4)
    assert not resumed.has_reference
    LocalCheckpoint().load(resumed, tmp_path)
    assert resumed.has_reference
    for each in (learner, resumed):
        for kept, before in zip(each.reference_logprobs(group(0)), expected, strict=True):
            np.testing.assert_allclose(kept, before, atol=1e-6)
        np.testing.assert_array_equal(np.concatenate(each.logprobs(group(0))), np.concatenate(now))
    base = sum(parameter.numel() for parameter in small_model().parameters())
    saved = torch.load(tmp_path / WEIGHTS)["reference"]
    assert sum(value.numel() for value in saved.values()) < base / 2


def test_weights_that_train_begin_with_all_digits_though_the_forward_pass_has_fewer():
    learner, wide = LocalLearner(small_model(), dtype=torch.bfloat16), small_model()
    for name, weight in learner.export_weights().items():
        torch.testing.assert_close(weight, wide.get_parameter(name).bfloat16(), rtol=0, atol=0)
        torch.testing.assert_close(learner._masters[name].data, wide.get_parameter(name).data, rtol=0, atol=0)
    rounded = LocalLearner(small_model(dtype=torch.bfloat16))
    # A step smaller than those of bfloat16 shows in some weights at once, which begin near the edge of one.
    changed = []
    for each in (learner, rounded):
        before = {name: weight.clone() for name, weight in each.export_weights().items()}
        each.forward_backward(batch_of(0), cross_entropy)
        each.optim_step(1e-5)
        changed.append(sum(int((weight != before[name]).sum()) for name, weight in each.export_weights().items()))
    assert changed[0] > 2 * changed[1]


@pytest.mark.parametrize(
    ("row_bytes", "expected"),
    [(0.4, [1, 1, 1, 2, 2, 2, 3]), (3.0, [1, 1, 2, 2, 3, 3, 4])],
    ids=["rows below the limit add up to it", "rows above it are not released one by one"],
)
def test_free_memory_goes_back_at_first_and_whenever_it_has_grown_a_lot(monkeypatch, row_bytes, expected):
    step, resident = int(row_bytes * learner_module.KEPT_BYTES), 10 * learner_module.KEPT_BYTES
    released = []

    def release():
        nonlocal resident
        released.append(True)
        resident = learner_module.KEPT_BYTES

    monkeypatch.setattr(learner_module, "resident_bytes", lambda: resident)
    monkeypatch.setattr(learner_module, "release_free_memory", release)
    learner = LocalLearner(small_model(), row_tokens=4096)
    counts = []
    for seed in range(7):
        learner.forward_backward(batch_of(seed % 3), cross_entropy)
        counts.append(len(released))
        resident += step
    assert counts == expected
