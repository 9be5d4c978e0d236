"""A ledger that balances, and one that does not; versions of weights that are damaged or half written."""

from __future__ import annotations

import pytest
import torch

from seekling.errors import InfrastructureError
from seekling.scale import weight_store
from seekling.scale.ledger import Ledger, problems, read_attempts
from seekling.scale.weight_store import WeightStore


def use(ledger, step, group):
    attempt = ledger.dispatch(step, group, sampler=0, weights=step)
    ledger.take_back(attempt, episodes=4)
    ledger.use(attempt, step)


def test_what_is_lost_left_open_or_counted_twice_is_told(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.drop(ledger.dispatch(1, 1, sampler=1, weights=1), "the sampler died")
    use(ledger, 1, 0)
    use(ledger, 1, 1)
    assert problems(path, {1: 8}) == []
    assert problems(path, {1: 7}) == ["step 1 used 8 episodes, and 7 were kept"]
    use(ledger, 2, 0)
    ledger.dispatch(2, 1, sampler=0, weights=2)
    assert problems(path, {1: 8, 2: 4}) == ["attempt 5 has no end", "step 2 used groups [0] of [0, 1]"]
    with path.open("a") as file:
        file.write('{"event": "retur')  # the driver is killed
    ledger = Ledger(path)
    ledger.rewind(2)
    assert [(each.number, each.reasons) for each in read_attempts(path) if each.reasons] == [
        (1, ["the sampler died"]),
        (4, ["the run went on from an earlier step"]),
        (5, ["the driver stopped"]),
    ]
    for group in (0, 1):
        use(ledger, 2, group)
    assert problems(path, {1: 8, 2: 8}) == []
    use(ledger, 2, 1)
    assert problems(path, {1: 8, 2: 8}) == [
        "step 2 used groups [0, 1, 1] of [0, 1]",
        "step 2 used 12 episodes, and 8 were kept",
    ]


def test_weights_are_read_whole_or_refused_and_numbers_only_rise(tmp_path, monkeypatch):
    monkeypatch.setattr(weight_store, "PAUSE_S", 0.0)
    store = WeightStore(tmp_path / "weights")
    weights = {"a": torch.arange(6.0).reshape(2, 3).T, "b": torch.ones(2)}
    assert [store.write(weights), store.write(weights, torch.bfloat16)] == [1, 2]
    assert all(torch.equal(tensor, weights[name]) for name, tensor in store.read(1).items())
    assert store.read(2)["a"].dtype == torch.bfloat16
    half = tmp_path / "weights" / ".00000003.4194305.tmp"
    half.mkdir()
    store.prune(keep=1)
    assert store.write(weights) == 3
    assert not half.exists()
    with pytest.raises(InfrastructureError, match="does not hold the weights"):
        store.read(1)
    damaged = tmp_path / "weights" / "00000003" / "weights.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\x01")
    with pytest.raises(InfrastructureError, match=r"another checksum.*scale\.weights_dir must be one folder"):
        store.read(3)
