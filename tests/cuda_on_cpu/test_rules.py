"""The stand-in for a GPU holds code to a GPU's rules; run by `tests/test_cuda_on_cpu.py`, with the plugin."""

from __future__ import annotations

import sys

import pytest
import torch

pytestmark = pytest.mark.skipif("tests.cuda_on_cpu.plugin" not in sys.modules, reason="runs with the plugin alone")


def test_tensors_say_where_they_are_and_come_back():
    moved = torch.arange(4).to("cuda")
    assert (moved.device.type, moved.tolist(), moved.cpu().device.type) == ("cuda", [0, 1, 2, 3], "cpu")
    assert torch.nn.Linear(2, 3).to("cuda").weight.device.type == "cuda"


def test_gradients_are_the_processors():
    weight, data = torch.randn(3, 4), torch.randn(5, 4)
    found = []
    for device in ("cpu", "cuda"):
        own = weight.to(device).clone().requires_grad_()
        torch.nn.functional.linear(data.to(device), own).square().sum().backward()
        found.append(own.grad.cpu())
    assert torch.equal(*found)


def test_devices_do_not_mix():
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device="cuda") + torch.ones(3)
    assert (torch.ones(3, device="cuda") + torch.tensor(1.0)).tolist() == [2, 2, 2]  # but for single numbers


def test_numpy_does_not_see_a_gpu():
    with pytest.raises(TypeError, match="cpu"):
        torch.ones(3, device="cuda").numpy()


@pytest.mark.parametrize(
    "forbidden",
    [
        lambda each: each.sum().item(),
        lambda each: each[each > 0],
        lambda each: each.copy_(torch.ones(3)),
        lambda each: each.cpu(),
        lambda each: each[torch.tensor([0, 1])],
    ],
)
def test_what_waits_or_copies_cannot_be_recorded(forbidden):
    values = torch.ones(3, device="cuda")
    forbidden(values)
    with pytest.raises(AssertionError, match="recording"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        forbidden(values)


def test_a_recording_does_the_same_to_the_same_memory():
    given, weight, seen = torch.zeros(3, device="cuda"), torch.ones(3, device="cuda"), torch.zeros(3, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = (given + 1) * weight
        seen[:2] += result[:2]
    given.copy_(torch.tensor([1.0, 2.0, 3.0]))
    weight.fill_(10)
    for times in (2, 3):  # what is recorded runs meanwhile too here, unlike on a GPU
        graph.replay()
        assert result.tolist() == [20, 30, 40]
        assert seen.tolist() == [1 + 20 * (times - 1), 1 + 30 * (times - 1), 0]
