"""Products of a few tokens by tiles, and decode passes made of them."""

from __future__ import annotations

import asyncio
import copy

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from seekling.kernels.amx.products import FEW_TOKENS, product, words_of
from seekling.kernels.backend import available_kernels
from seekling.kernels.linear import PackedLinear
from seekling.kernels.slots import AttentionPlan, DecodeRows, Segment
from seekling.kernels.vector.pointwise import bits_of
from seekling.rollout.engine.local import LocalSampler
from seekling.rollout.sampler import SampleRequest

needs_tiles = pytest.mark.skipif("amx" not in available_kernels(), reason="this CPU has no tiles")


def test_words_are_pairs_of_inputs_of_32_outputs_after_32():
    weight = torch.randn(70, 64).bfloat16()
    words = words_of(weight).reshape(3, 32, 32)  # outputs in 32s, pairs of inputs, outputs
    for output, pair in ((0, 0), (31, 5), (32, 31), (69, 7)):
        both = bits_of(weight)[output, 2 * pair : 2 * pair + 2].astype(np.uint32)
        assert words[output // 32, pair, output % 32] == both[0] | both[1] << 16
    assert not words[2, :, 6:].any()
    assert words_of(torch.randn(64, 48).bfloat16()) is None
    assert words_of(torch.randn(64, 64)) is None


@needs_tiles
@pytest.mark.parametrize("shape", [(64, 64), (100, 96), (33, 32), (32, 160), (576, 1536)])
@pytest.mark.parametrize("num_tokens", [1, 8, 16, 17, 32, 33, 48, FEW_TOKENS])
def test_a_few_tokens_products_are_those_of_exact_sums_rounded_once(shape, num_tokens):
    torch.manual_seed(0)
    input, weight = torch.randn(num_tokens, shape[1]).bfloat16(), torch.randn(shape).bfloat16()
    bias, other = torch.randn(shape[0]).bfloat16(), torch.randn(num_tokens, shape[0]).bfloat16()
    words = words_of(weight)
    exact = input.double() @ weight.double().T
    for biases, addend, adds in ((bias, 0, False), (None, 0, False), (bias, other, True), (None, other, True)):
        expected = exact + addend + (0 if biases is None else biases.double())
        output = other.clone() if adds else torch.full_like(other, torch.nan)
        none = np.empty(0, np.uint16)
        product(input, words, none if biases is None else bits_of(biases), output, adds=adds)
        # Half a step of bfloat16, and what fp32 sums of large addends lose.
        torch.testing.assert_close(output.double(), expected, atol=2e-4, rtol=2**-8)


@needs_tiles
def test_a_tokens_product_does_not_depend_on_how_many_there_are():
    torch.manual_seed(0)
    layer = PackedLinear({"weight": torch.randn(160, 96)}, {"bias": torch.randn(160)})
    input = torch.randn(FEW_TOKENS, 96).bfloat16()
    together = layer(input)
    for size in (1, 5, 16, 20, 40):
        assert torch.equal(layer(input[:size]), together[:size])


@needs_tiles
def test_new_weights_take_the_place_of_the_old_ones_words():
    torch.manual_seed(0)
    layer, input = PackedLinear({"weight": torch.randn(64, 64)}, {}), torch.randn(3, 64).bfloat16()
    for weight in (torch.ones(64, 64), torch.randn(64, 64)):
        layer.load({"weight": weight})
        torch.testing.assert_close(layer(input), input @ weight.bfloat16().T, atol=0.1, rtol=0.02)
    assert layer(input[:0]).shape == (0, 64)


KINDS = {
    "llama": (LlamaConfig, 6, 2, 64, {"attention_bias": True, "mlp_bias": True}),
    "mistral": (MistralConfig, 6, 2, 64, {"sliding_window": None}),
    "qwen2": (Qwen2Config, 14, 2, 64, {}),
    "qwen3": (Qwen3Config, 8, 2, 128, {}),
}
"""Configuration, query heads, key/value heads, head dimension, other settings."""


def make_sampler(kind, tokenizer, slots=70, **more_settings):
    make, num_heads, num_kv_heads, head_dim, more = KINDS[kind]
    hidden_size = 7 * 96 if num_heads == 14 else 96
    config = make(
        vocab_size=300, hidden_size=hidden_size, intermediate_size=160, num_hidden_layers=2,
        num_attention_heads=num_heads, num_key_value_heads=num_kv_heads, head_dim=head_dim,
        initializer_range=2 * hidden_size**-0.5, **more,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.normal_(1 if "norm" in name else 0, 0.3)
    plain = copy.deepcopy(model).float()
    return LocalSampler(model, tokenizer, in_flight=slots, episode_tokens=200, **more_settings), plain


def fill(sampler, lengths, shared):
    """Random tokens in the first slots, the first of them the same in four neighbours; as prefill leaves them."""
    tokens = torch.randint(3, 300, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(1))
    tokens.unflatten(0, (-1, 4))[:, :, :shared] = tokens[::4, None, :shared]
    for slot, length in enumerate(lengths):
        plan, ids = AttentionPlan(sampler._cache, None, (Segment(slot, 0, 0, length),)), tokens[slot][None, :length]
        sampler._decoder(ids, position_ids=torch.arange(length)[None], use_cache=False, plan=plan)
    return tokens


def run(sampler, slots, lengths, tokens, widths, shared):
    """Hidden states of decode rows whose next tokens are those at the end of what `fill` made, and a few more."""
    news = [tokens[slot, :width].flip(0) for slot, width in zip(slots, widths, strict=True)]
    rows = DecodeRows(
        list(slots), [lengths[slot] for slot in slots], widths,
        leaders=[(min(each for each in slots if each // 4 == slot // 4), shared) for slot in slots],
    )  # fmt: skip
    position_P = torch.cat(
        [torch.arange(lengths[slot], lengths[slot] + width) for slot, width in zip(slots, widths, strict=True)]
    )
    return torch.cat(news), rows, sampler._loops.run(torch.cat(news), position_P, rows)


@needs_tiles
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_decode_passes_compute_what_transformers_does(kind, tokenizer):
    sampler, plain = make_sampler(kind, tokenizer)
    lengths = [70, 130, 64, 65, 100, 128, 191, 66]
    tokens = fill(sampler, lengths, 64)
    widths = [1, 3, 1, 1, 2, 1, 4, 1]
    news, rows, hidden_PM = run(sampler, range(8), lengths, tokens, widths, 64)
    logits_PV, rounding = sampler._head(hidden_PM).float(), copy.deepcopy(plain).bfloat16()
    for slot, (start, width) in enumerate(zip(rows.starts_R, widths, strict=True)):
        whole = torch.cat([tokens[slot, : lengths[slot]], news[start : start + width]])
        expected, rough = (each(whole[None], use_cache=False).logits[0, -width:].float() for each in (plain, rounding))
        error = (logits_PV[start : start + width] - expected).abs().mean()
        assert error < 1.5 * (rough - expected).abs().mean() < 0.2 * expected.std()


@needs_tiles
@pytest.mark.parametrize("threads", [1, 2])
@torch.inference_mode()
def test_a_row_computes_the_very_same_alone_and_in_any_company(threads, tokenizer):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        sampler, _ = make_sampler("llama", tokenizer)
        lengths = [70 + 3 * n % 100 for n in range(52)]
        tokens = fill(sampler, lengths, 64)
        everyone = run(sampler, range(52), lengths, tokens, [1] * 52, 64)[2]
        for slots in ([5], [4, 5], [5, 7, 20], range(12), range(20, 40)):
            some = run(sampler, slots, lengths, tokens, [1] * len(slots), 64)[2]
            assert torch.equal(some, everyone[list(slots)])
        alone = run(sampler, [9], lengths, tokens, [1], 0)[2]
        assert torch.equal(alone, everyone[9:10])
    finally:
        torch.set_num_threads(before)


@needs_tiles
def test_decode_passes_read_the_newest_weights(tokenizer):
    sampler, plain = make_sampler("qwen3", tokenizer, slots=4)
    lengths = [70, 70, 70, 70]
    for version in range(2):
        with torch.inference_mode():
            tokens = fill(sampler, lengths, 0)
            news, _, hidden_PM = run(sampler, range(4), lengths, tokens, [1] * 4, 0)
            expected = plain(torch.cat([tokens[2, :70], news[2:3]])[None], use_cache=False).logits[0, -1]
            assert (sampler._head(hidden_PM).float()[2] - expected).abs().mean() / expected.std() < 0.1
        with torch.no_grad():
            for parameter in plain.parameters():
                parameter.normal_(float(parameter.ndim == 1), 0.2)
                parameter.copy_(parameter.bfloat16())
        sampler.load_weights(dict(plain.named_parameters()), version=version + 1)


@needs_tiles
@pytest.mark.parametrize("draft_tokens", [0, 4])
def test_the_sampler_decodes_by_the_loops_what_it_decodes_without(tokenizer, draft_tokens, monkeypatch):
    sampler, _ = make_sampler("llama", tokenizer, slots=9, draft_tokens=draft_tokens)
    sampler._eos_ids = frozenset()
    runs = []
    inner = sampler._loops.run
    monkeypatch.setattr(sampler._loops, "run", lambda *given: runs.append(len(given[0])) or inner(*given))
    text = torch.randint(3, 300, (160,), generator=torch.Generator().manual_seed(2)).tolist()
    # Siblings of one prompt, those of another, and one that is alone.
    prompts = [*[tuple(text[:130])] * 5, *[tuple(text[20:120])] * 3, tuple(text[7:47])]

    async def sample_all():
        requests = [SampleRequest(n, prompt, 20, seed=n, temperature=0.0) for n, prompt in enumerate(prompts)]
        return await asyncio.gather(*map(sampler.sample, requests))

    found = asyncio.run(sample_all())
    assert len(runs) >= 5
    assert (max(runs) > 9) == (draft_tokens > 0)
    for session in range(len(prompts)):
        sampler.close_session(session)
    sampler.release_caches()
    sampler._loops = None
    plain = asyncio.run(sample_all())
    # Up to 32 tokens oneDNN adds up in the same order; where it does not, a draw may differ.
    same = [a.token_ids == b.token_ids for a, b in zip(found, plain, strict=True)]
    assert sum(same) >= (6 if draft_tokens else 9)
    for a, b in zip(found, plain, strict=True):
        if a.token_ids == b.token_ids:
            np.testing.assert_allclose(a.logprobs, b.logprobs, atol=0.05)


@needs_tiles
def test_models_that_the_loops_do_not_know_go_without_them(tokenizer):
    assert make_sampler("llama", tokenizer, slots=1)[0]._loops is not None
    config = LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=2, head_dim=64,
        hidden_act="gelu",
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    assert LocalSampler(model, tokenizer, in_flight=1, episode_tokens=64)._loops is None
