"""Losses, advantages and GAE against the values that TRL computes on the same tensors.

`trl_values.json` was made once, in float64, by TRL's own lines: `GRPOTrainer._compute_loss` up to its metrics and the
correction and advantage lines of `_generate_and_score_completions` (also `RLOOTrainer`'s) of TRL 1.16.0, and
`compute_advantages` and the value loss of `PPOTrainer` of TRL 0.11.4, the last with one that took tensors. They were
called with plain tensors in the place of a model's output. Gradients are with respect to the log-probabilities.

The values at two temperatures are of TRL 1.16.0's `add_fused_lm_head`, `GRPOTrainer._get_per_token_logps_and_entropies`
and `_compute_loss` (loss "bnpo", clipped at 0.2 and 0.28) over `wavy_model` in float32.

TRL's deviation has 1/(G-1) and 1e-4 added; its whitening has 1/(N-1) and 1e-8; its CISPO bounds the ratio itself. TRL
has no importance-sampled REINFORCE, sum, k1 or k2 in the loss, or constant of our kind to compare with.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from seekling.config import LossConfig
from seekling.learn.advantage import generalized_advantages, group_advantages, leave_one_out_advantages, whiten
from seekling.learn.batch import Batch
from seekling.learn.local import LocalLearner
from seekling.learn.loss import KL_ESTIMATORS, TokenData, denominator, make_policy_loss, token_weights, value_loss
from seekling.types import Trajectory

VALUES = json.loads((Path(__file__).parent / "trl_values.json").read_text(encoding="utf-8"))
INPUTS, ADVANTAGES, GAE = VALUES["inputs"], VALUES["advantages"], VALUES["gae"]

LOSSES = {
    "ppo token_mean": {},
    "ppo sequence_mean": {"aggregation": "sequence_mean"},
    "ppo constant 5": {"aggregation": "constant", "aggregation_tokens": 5},
    "ppo token_mean k3 0.04": {"kl_coefficient": 0.04},
    "cispo token_mean": {"kind": "cispo", "clip_low": 1.0, "clip_high": 0.2},
    "gspo sequence_mean": {"kind": "gspo", "aggregation": "sequence_mean", "clip_low": 0.05, "clip_high": 0.08},
    "ppo token_mean tis 1.3": {"old_logprobs": "recomputed", "correction": "tis", "correction_cap": 1.3},
    "ppo token_mean mask 1.3": {"old_logprobs": "recomputed", "correction": "mask", "correction_cap": 1.3},
}


def test_every_loss_of_the_file_is_compared():
    assert VALUES["losses"].keys() == LOSSES.keys()


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_gradients_are_trls(name):
    config = LossConfig(**({"correction": "none"} | LOSSES[name]))
    mask_BT = np.asarray(INPUTS["mask"], bool)
    logprobs_A, old_A, sampling_A, reference_A = (
        torch.tensor(np.asarray(INPUTS[key])[mask_BT]) for key in ("logprobs", "old", "sampling", "reference")
    )
    logprobs_A.requires_grad_()
    sequence_A = np.nonzero(mask_BT)[0]
    data = TokenData(
        behaviour_logprobs_A=sampling_A,
        advantages_A=torch.tensor(np.asarray(INPUTS["advantages"])[sequence_A]),
        reference_logprobs_A=reference_A,
        old_logprobs_A=old_A,
        sequence_A=torch.from_numpy(sequence_A),
    )
    num_trained_B = mask_BT.sum(1)
    weights_A = torch.from_numpy(token_weights(num_trained_B, config.aggregation)[sequence_A])
    divisor = denominator(num_trained_B, config.aggregation, constant=config.aggregation_tokens)
    loss = (make_policy_loss(config)(logprobs_A, data) * weights_A).sum() / divisor
    loss.backward()
    expected = VALUES["losses"][name]
    assert loss.item() == pytest.approx(expected["loss"], rel=1e-7)
    np.testing.assert_allclose(logprobs_A.grad, np.asarray(expected["gradient"])[mask_BT], rtol=1e-6, atol=1e-9)
    # The values differ from one to another, so none of them is compared with itself.
    assert len({each["loss"] for each in VALUES["losses"].values()}) == len(LOSSES)


def wavy_model():
    """Weights that need no random numbers."""
    config = LlamaConfig(
        vocab_size=13, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=False, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            angles = torch.arange(parameter.numel(), dtype=torch.float64) * (number + 1.7)
            waves = torch.sin(angles).view(parameter.shape)
            parameter.copy_(1 + 0.2 * waves if parameter.ndim == 1 else 0.6 * waves)
    return model


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_logprobs_entropy_loss_and_weight_gradients_are_trls_at_this_temperature(temperature):
    given = VALUES["temperatures"]
    expected, ids_BT = given["values"][str(temperature)], np.asarray(given["ids"], np.int64)
    masks_BT = np.pad(np.asarray(given["mask"], bool), ((0, 0), (given["prompt"], 0)))
    old_BT = np.pad(np.asarray(expected["old"], np.float32), ((0, 0), (given["prompt"], 0)))
    trajectories = [Trajectory(*each, temperature=temperature) for each in zip(ids_BT, masks_BT, old_BT, strict=True)]
    model = wavy_model()
    learner = LocalLearner(model)
    for scored_T, mask_T, row in zip(learner.logprobs(trajectories), masks_BT, expected["logprobs"], strict=True):
        np.testing.assert_allclose(scored_T[mask_T], np.asarray(row)[mask_T[given["prompt"] :]], atol=2e-6)
    batch = Batch(trajectories, np.asarray(given["advantages"]), {"old_logprobs_A": list(old_BT)})
    stats = learner.forward_backward(batch, make_policy_loss(LossConfig(clip_low=0.2, clip_high=0.28)))
    assert stats.loss == pytest.approx(expected["loss"], rel=1e-5)
    assert stats.entropy == pytest.approx(expected["entropy"], rel=1e-5)
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    norms = {name: pytest.approx(norm, rel=1e-4) for name, norm in expected["norms"].items()}
    assert {name: float(gradient.norm()) for name, gradient in found.items()} == norms
    np.testing.assert_allclose(found["lm_head.weight"], expected["lm_head"], atol=2e-6)


def by_group(function):
    return np.concatenate([function(np.asarray(ADVANTAGES["rewards"][start : start + 4])) for start in (0, 4)])


def test_group_advantages_are_trls():
    centred = by_group(lambda rewards: group_advantages(rewards, scale="none"))
    np.testing.assert_allclose(centred, ADVANTAGES["group_mean none"], atol=1e-8)
    scaled = by_group(lambda rewards: group_advantages(rewards, scale="sample_std"))
    # 1e-4 beside a deviation of about a half.
    np.testing.assert_allclose(scaled, ADVANTAGES["group_mean sample_std"], rtol=3e-4)


def test_leave_one_out_advantages_are_trls_with_and_without_a_kl_in_the_reward():
    np.testing.assert_allclose(by_group(leave_one_out_advantages), ADVANTAGES["leave_one_out"], atol=1e-8)
    given = ADVANTAGES["leave_one_out k1"]
    old, reference = torch.tensor(given["old"]), torch.tensor(given["reference"])
    kl = given["coefficient"] * KL_ESTIMATORS["k1"](old, reference).sum(1).numpy()
    totals = np.asarray(ADVANTAGES["rewards"]) - kl
    found = np.concatenate([leave_one_out_advantages(totals[start : start + 4]) for start in (0, 4)])
    np.testing.assert_allclose(found, given["advantages"], atol=1e-7)


def rows(name):
    """Rows without the padding behind them."""
    return [np.asarray(row, float)[np.asarray(mask, bool)] for row, mask in zip(GAE[name], GAE["mask"], strict=True)]


def test_gae_whitening_and_value_loss_are_trls():
    found = [
        generalized_advantages(rewards, values, gamma=GAE["gamma"], gae_lambda=GAE["gae_lambda"])
        for rewards, values in zip(rows("rewards"), rows("values"), strict=True)
    ]
    for (_, returns), expected in zip(found, rows("returns"), strict=True):
        np.testing.assert_allclose(returns, expected, atol=1e-8)
    white = np.concatenate(whiten([advantages for advantages, _ in found]))
    count = len(white)
    np.testing.assert_allclose(white * ((count - 1) / count) ** 0.5, np.concatenate(rows("whitened")), atol=1e-6)
    values, returns, predictions = (
        torch.tensor(np.concatenate(rows(name))) for name in ("values", "returns", "predictions")
    )
    predictions.requires_grad_()
    nothing = torch.zeros(count)
    data = TokenData(nothing, nothing, returns_A=returns, old_values_A=values)
    loss = value_loss(predictions, data, value_clip=GAE["value_clip"]).mean()
    loss.backward()
    assert loss.item() == pytest.approx(GAE["value_loss"], rel=1e-7)
    np.testing.assert_allclose(predictions.grad, np.concatenate(rows("value_gradient")), atol=1e-8)
