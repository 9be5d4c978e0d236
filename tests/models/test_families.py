"""Every family that is let in: sampler and learner score tokens as transformers' own forward pass does.

Small random models with the scalings that families have behind their decoder, sampled in several turns from a prompt of
more than two blocks of the cache that is prefilled in parts, with drafts and siblings at different temperatures; then
learned from in one packed row. What cannot be so is refused by name.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from seekling.errors import ConfigError, ModelError
from seekling.learn.batch import Batch
from seekling.learn.local import LocalLearner
from seekling.learn.loss import clipped_policy_loss, cross_entropy
from seekling.models.families import FAMILIES, longest_exact
from seekling.rollout.engine.local import LocalSampler
from seekling.rollout.render import Recorder
from seekling.rollout.sampler import SampleRequest
from tests.learn.models import assert_close_gradients, gradients, trajectory
from tests.rollout.policies import plain_logprobs, sample_all

SIZES = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 1024, "initializer_range": 0.1,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
WINDOW = {"sliding_window": 300, "layer_types": ["sliding_attention", "full_attention"]}
"""Longer than the episodes here."""
ROPE = {"rope_theta": 10000.0, "rope_type": "default"}
LONGROPE = ROPE | {
    "rope_type": "longrope", "short_factor": [1.5] * 8, "long_factor": [3.0] * 8,
}  # fmt: skip
CASES = {
    "apertus": {"rope_parameters": ROPE},
    "arcee": {},
    "cohere": {"logit_scale": 0.25},
    "cohere2": {"logit_scale": 0.25, **WINDOW},
    "ernie4_5": {},
    "exaone4": WINDOW,
    "gemma": {},
    "gemma2": {"final_logit_softcapping": 5.0, "attn_logit_softcapping": None, "query_pre_attn_scalar": 10, **WINDOW},
    "gemma3_text": {"final_logit_softcapping": 5.0, "query_pre_attn_scalar": 10, **WINDOW},
    "glm": {},
    "glm4": {},
    "granite": {
        "logits_scaling": 3.0, "residual_multiplier": 0.5, "embedding_multiplier": 2.0, "attention_multiplier": 0.2,
    },
    "helium": {},
    "hunyuan_v1_dense": {},
    "hyperclovax": {"logits_scaling": 3.0},
    "llama": {},
    "ministral3": {},
    "mistral": {"sliding_window": 300},
    "nanochat": {"final_logit_softcapping": 5.0},
    "olmo": {},
    "olmo2": {},
    "olmo3": WINDOW,
    "phi": {"resid_pdrop": 0.1, "embd_pdrop": 0.1},
    "phi3": {"rope_parameters": LONGROPE, "original_max_position_embeddings": 300, "resid_pdrop": 0.1},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "seed_oss": {"residual_dropout": 0.1, "attention_dropout": 0.1},
    "smollm3": {"no_rope_layers": [1, 0]},
    "starcoder2": {},
}  # fmt: skip
SCALED = ["cohere", "cohere2", "gemma2", "gemma3_text", "granite", "hyperclovax", "nanochat"]
REFUSED = {
    "lfm2": ({"layer_types": ["conv", "full_attention"]}, "layers of the kind conv"),
    "falcon_h1": ({"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16}, "layers of the kind hybrid"),
    "qwen3_5_text": ({"layer_types": ["linear_attention", "full_attention"]}, "layers of the kind linear_attention"),
    "gemma2": ({"attn_logit_softcapping": 50.0, **WINDOW}, r"caps attention scores \(attn_logit_softcapping = 50\)"),
    "gemma3_text": ({"use_bidirectional_attention": True, **WINDOW}, "attend to later ones"),
    "stablelm": ({}, "nobody has shown"),
}


def make_model(family, *, tied=False, **settings):
    given = SIZES | settings | {"tie_word_embeddings": tied}
    config = AutoConfig.for_model(family, **given)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:  # norms and biases, which begin at one and zero
                    parameter += 0.2 * torch.randn(parameter.shape)
    return model


TEMPERATURES = 0.7, 1.0, 1.15, 0.7


PROMPT = np.random.default_rng(0).integers(5, 97, 140).tolist()


def play(sampler):
    """Trajectories of four siblings with two turns each."""
    recorders = [Recorder.start(PROMPT) for _ in TEMPERATURES]
    for turn in range(2):
        requests = [
            SampleRequest(n, tuple(recorder.token_ids), 10, temperature=temperature, seed=10 * n + turn)
            for n, (recorder, temperature) in enumerate(zip(recorders, TEMPERATURES, strict=True))
        ]
        for recorder, sample in zip(recorders, sample_all(sampler, requests), strict=True):
            recorder.append_action(sample.token_ids, sample.logprobs, policy_version=sample.policy_version)
            recorder.append_observation([11, 12, 13] * 4)
    return [
        recorder.finish(temperature=temperature) for recorder, temperature in zip(recorders, TEMPERATURES, strict=True)
    ]


def expected_logprobs(model, each):
    ids_T = torch.from_numpy(each.token_ids_T)
    logits_TV = model(input_ids=ids_T[None], use_cache=False).logits[0].float()
    logprobs_TV = torch.log_softmax(logits_TV / each.temperature, -1)
    trained = torch.from_numpy(np.flatnonzero(each.train_mask_T))
    return logprobs_TV[trained - 1, ids_T[trained]]


def test_every_family_of_the_table_has_a_case():
    assert CASES.keys() == FAMILIES.keys()


@pytest.mark.parametrize(
    ("family", "tied"),
    [(name, bool(n % 2)) for n, name in enumerate(CASES)]
    + [(name, not n % 2) for n, name in enumerate(CASES) if name in SCALED],
)
def test_sampler_and_learner_score_as_transformers_does(family, tied, tokenizer):
    plain = make_model(family, tied=tied, **CASES[family])
    sampler = LocalSampler(copy.deepcopy(plain), tokenizer, in_flight=4, episode_tokens=256, prefill_tokens=48)
    batch = play(sampler)
    assert sampler.stats.reused_tokens > 64
    # Greedily the same again: guessed from the first time.
    first, again = (sample_all(sampler, [SampleRequest(n, tuple(PROMPT), 12, temperature=0.0)])[0] for n in (0, 1))
    assert again.token_ids == first.token_ids
    assert again.num_accepted > 0
    greedy_TV = plain_logprobs(plain, [*PROMPT, *again.token_ids])[len(PROMPT) - 1 : -1]
    np.testing.assert_allclose(again.logprobs, greedy_TV[range(len(again.token_ids)), again.token_ids], atol=1e-4)
    learned = copy.deepcopy(plain)
    learner = LocalLearner(learned, row_tokens=4096)
    scored = learner.logprobs(batch)
    total = torch.zeros(())
    for each, scored_T in zip(batch, scored, strict=True):
        expected = expected_logprobs(plain, each)
        np.testing.assert_allclose(each.logprobs_T[each.train_mask_T], expected.detach(), atol=1e-4)
        np.testing.assert_allclose(scored_T[each.train_mask_T], expected.detach(), atol=1e-4)
        total = total - expected.sum()
    total.backward()
    stats = learner.forward_backward(Batch(batch, np.ones(4)), cross_entropy, aggregation="sum")
    assert stats.drift_max < 1e-4
    assert stats.num_packed_tokens < 0.6 * stats.num_plain_tokens
    wanted = {name: gradient for name, gradient in gradients(plain).items() if gradient.any()}
    found = {name: gradient for name, gradient in gradients(learned).items() if name in wanted}
    assert_close_gradients(found, wanted, relative=2e-3)
    # The first update's ratios are 1: the loss is minus the advantage, the gradient that of the policy that acted.
    ratios = learner.forward_backward(Batch(batch, np.ones(4)), clipped_policy_loss)
    assert ratios.loss == pytest.approx(-1, abs=1e-4)


@pytest.mark.parametrize("family", CASES)
def test_in_bfloat16_the_sampler_stays_near_transformers(family, tokenizer):
    plain = make_model(family, **CASES[family]).to(torch.bfloat16)
    sampler = LocalSampler(copy.deepcopy(plain), tokenizer, in_flight=4, episode_tokens=256, prefill_tokens=48)
    drift = [
        np.abs(each.logprobs_T[each.train_mask_T] - expected_logprobs(plain.float(), each).detach().numpy())
        for each in play(sampler)
    ]
    assert np.concatenate(drift).mean() < 0.1


@pytest.mark.parametrize("family", REFUSED)
def test_what_is_computed_otherwise_is_refused_by_name_and_by_both(family, tokenizer):
    settings, reason = REFUSED[family]
    model = make_model(family, **settings)
    for use in (lambda: LocalSampler(model, tokenizer, in_flight=1, episode_tokens=64), lambda: LocalLearner(model)):
        with pytest.raises(ModelError, match=f"family '{family}' are not supported: .*{reason}"):
            use()


@pytest.mark.parametrize(
    ("family", "settings", "length", "reason"),
    [
        ("mistral", {"sliding_window": 40}, 40, "the last 40 tokens only"),
        ("gemma3_text", WINDOW | {"sliding_window": 40}, 40, "the last 40 tokens only"),
        ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 40}, 40, "more than 40 tokens"),
    ],
)
def test_episodes_longer_than_what_agrees_are_refused_by_both(family, settings, length, reason, tokenizer):
    model = make_model(family, **settings)
    with pytest.raises(ConfigError, match=f"{reason}.*lower rollout.episode_tokens = {length + 1}"):
        LocalSampler(model, tokenizer, in_flight=1, episode_tokens=length + 1)
    learner = LocalLearner(make_model(family, **settings))
    fits, too_long = (trajectory([5] * size, [0] + [1] * (size - 1)) for size in (length, length + 1))
    (scored,) = learner.logprobs([fits])
    expected_TV = plain_logprobs(model, fits.token_ids_T.tolist())
    np.testing.assert_allclose(scored[1:], expected_TV[:-1, 5], atol=1e-4)
    with pytest.raises(ModelError, match=f"{reason}.*lower rollout.episode_tokens to {length}"):
        learner.logprobs([too_long])


def test_a_window_that_no_layer_has_limits_nothing():
    config = make_model("olmo3", **WINDOW | {"layer_types": ["full_attention"] * 2}).config
    assert longest_exact(config) is None


def test_the_table_of_the_documentation_has_these_families():
    text = (Path(__file__).parents[2] / "docs" / "ENGINE.md").read_text(encoding="utf-8")
    _, _, section = text.partition("## Model families")
    section = section.partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (verified|refused)", section, flags=re.MULTILINE)
    assert {name for name, state in rows if state == "verified"} == FAMILIES.keys()
    assert {name for name, state in rows if state == "refused"} == REFUSED.keys() - FAMILIES.keys()
