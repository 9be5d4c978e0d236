"""Which back end computes: the fastest that is there, or the one that a recipe names."""

from __future__ import annotations

import asyncio

import pytest
import torch

from seekling.config import build_recipe
from seekling.errors import ConfigError
from seekling.kernels import backend, linear
from seekling.kernels.backend import available_kernels, chosen_kernels, takes_loops, takes_tiles, use_kernels
from seekling.kernels.linear import can_pack
from seekling.models import load_policy
from seekling.rollout.sampler import SampleRequest
from seekling.serve.agent import _open_sampler
from tests.rollout.policies import open_sampler, plain_logprobs

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def chosen_afresh():
    yield
    use_kernels("auto")


def test_the_fastest_is_taken_unless_another_is_named():
    assert use_kernels("auto") == chosen_kernels() == available_kernels()[-1]
    for name in available_kernels():
        assert use_kernels(name) == chosen_kernels() == name


def test_a_torch_without_the_private_operator_has_the_reference_and_says_so(monkeypatch):
    monkeypatch.setattr(backend, "FUSED_ATTENTION", "aten::_an_operator_that_is_gone")
    assert use_kernels("auto") == "reference"
    assert not can_pack(torch.float32, CPU)
    with pytest.raises(ConfigError, match=r'"vector" needs a torch that has .*; here there is reference: give'):
        use_kernels("vector")


def test_a_torch_without_packing_leaves_layers_as_they_are(monkeypatch, tiny_model_dir):
    monkeypatch.setattr(linear, "PACKING", ("mkldnn::_an_operator_that_is_gone",))
    assert not can_pack(torch.float32, CPU)
    assert open_sampler(tiny_model_dir)._packed == []


def test_amx_is_refused_where_there_are_no_tiles(monkeypatch):
    monkeypatch.setattr(backend, "has_tiles", lambda: False)
    with pytest.raises(ConfigError, match='kernels = "amx" needs a CPU with AMX'):
        use_kernels("amx")


def test_what_a_back_end_does_not_take_is_left_to_the_reference():
    use_kernels("vector")
    assert takes_loops(torch.ones(1), torch.ones(1))
    assert not takes_loops(torch.ones(1), torch.ones(1).bfloat16())
    assert not takes_loops(torch.ones(1).double())
    assert not takes_loops(torch.ones(1, device="meta"))
    assert not takes_tiles(torch.bfloat16, CPU)
    use_kernels("reference")
    assert not takes_loops(torch.ones(1))


@pytest.mark.skipif("amx" not in available_kernels(), reason="this CPU has no tiles")
def test_tiles_take_bfloat16_and_heads_that_fill_them():
    use_kernels("amx")
    assert takes_tiles(torch.bfloat16, CPU, 128)
    assert not takes_tiles(torch.float32, CPU)
    assert not takes_tiles(torch.bfloat16, CPU, 96)


def test_a_recipe_names_it_and_it_samples_what_the_fastest_samples(tiny_model_dir):
    samples = []
    for name in ("reference", "auto"):
        recipe = build_recipe({"model": {"kernels": name, "dtype": "float32", "device": "cpu"}, "rl": {"steps": 0}})
        sampler, _ = _open_sampler(recipe, tiny_model_dir)
        assert chosen_kernels() == (name if name == "reference" else available_kernels()[-1])
        assert sampler._cache.layout == ("rows" if name == "reference" else "blocks")
        prompt = tuple(range(3, 120))
        samples.append(asyncio.run(sampler.sample(SampleRequest(1, prompt, 30, seed=3))))
    assert samples[0].token_ids == samples[1].token_ids
    assert samples[0].logprobs == pytest.approx(samples[1].logprobs, abs=1e-5)


def test_the_reference_takes_types_that_no_loop_takes(tiny_model_dir):
    sampler = open_sampler(tiny_model_dir)
    assert sampler._cache.layout == "blocks"
    from seekling.rollout.engine.local import LocalSampler

    model, tokenizer = load_policy(tiny_model_dir, dtype="float32")
    plain = load_policy(tiny_model_dir, dtype="float32")[0].double()
    sampler = LocalSampler(model.double(), tokenizer, in_flight=2, episode_tokens=200)
    assert sampler._cache.layout == "rows"
    prompt = tuple(range(3, 100))
    found = asyncio.run(sampler.sample(SampleRequest(1, prompt, 20, seed=3)))
    wanted = plain_logprobs(plain, [*prompt, *found.token_ids])
    for place, (token, logprob) in enumerate(zip(found.token_ids, found.logprobs, strict=True)):
        assert logprob == pytest.approx(float(wanted[len(prompt) - 1 + place, token]), abs=1e-5)
