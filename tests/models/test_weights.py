"""Weights that are made when they are looked up."""

from __future__ import annotations

import pytest
import torch

from seekling.errors import InfrastructureError
from seekling.learn.local import LocalLearner
from seekling.models.lazy_weights import ExpectedWeights, LazyWeights
from tests.learn.models import small_model


def never() -> torch.Tensor:
    raise AssertionError("made too early")


def test_shapes_are_known_before_anything_is_made():
    weights = LazyWeights({"a": never}, {"a": torch.Size([2, 3])})
    assert (list(weights), len(weights)) == (["a"], 1)
    expected = ExpectedWeights({"a": torch.Size([3, 3])}, frozenset({"a"}))
    with pytest.raises(InfrastructureError, match=r"\(2, 3\) instead of \(3, 3\)"):
        expected.check(weights)
    ExpectedWeights(weights.shapes, frozenset({"a"})).check(weights)


def test_merged_adapters_are_made_one_at_a_time_and_of_the_newest():
    model = small_model()
    names = dict(model.named_parameters()).keys()
    learner = LocalLearner(model, lora_rank=2)
    weights = learner.export_weights()
    assert isinstance(weights, LazyWeights)
    assert set(weights) == set(names)
    assert {name: tensor.shape for name, tensor in weights.items()} == weights.shapes
    name = "model.layers.0.mlp.up_proj.weight"
    before = weights[name]
    assert weights[name] is not before  # nothing is kept
    assert torch.equal(weights[name], before)
    with torch.no_grad():
        for each in learner._trained.values():
            each.fill_(0.1)
    assert torch.allclose(weights[name], before + 2 * 0.1 * 0.1 * 16, atol=1e-6)
