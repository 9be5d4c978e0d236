"""A ledger that balances, and one that does not; versions of weights that are damaged or half written."""

from __future__ import annotations

import shutil

import pytest
import torch

from seekling.errors import InfrastructureError
from seekling.models.lazy_weights import Adapters
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


def test_adapters_are_written_without_their_base_which_is_read_once_and_stays_while_it_is_needed(tmp_path):
    generator = torch.Generator().manual_seed(0)
    base = {"a.weight": torch.randn(4, 6, generator=generator), "b.weight": torch.randn(3, generator=generator)}
    store, reader = WeightStore(tmp_path / "weights"), WeightStore(tmp_path / "weights")
    first = store.write(base)

    def add(seed: int, base: int) -> tuple[int, torch.Tensor]:
        down, up = (torch.randn(size, generator=torch.Generator().manual_seed(seed)) for size in ((2, 6), (4, 2)))
        factors = Adapters(2, 8, {"a.weight.lora_A": down, "a.weight.lora_B": up})
        return store.write_adapters(factors, base=base), 4 * up @ down

    for seed in range(4):
        number, delta = add(seed, first)
        store.prune(keep=2)
        read = reader.read(number)
        torch.testing.assert_close(read["a.weight"], base["a.weight"] + delta, rtol=0, atol=1e-6)
        assert torch.equal(read["b.weight"], base["b.weight"])
        assert {path.name for path in (tmp_path / "weights").iterdir()} == {
            f"{each:08d}" for each in {first, *range(max(2, number - 1), number + 1)}
        }
    shutil.rmtree(tmp_path / "weights" / f"{first:08d}")
    assert reader.read(number)["a.weight"].shape == (4, 6), "the base was read a second time"
    second = store.write({name: each + 1 for name, each in base.items()})
    number, delta = add(9, second)
    torch.testing.assert_close(reader.read(number)["a.weight"], base["a.weight"] + 1 + delta, rtol=0, atol=1e-6)
    store.prune(keep=1)
    assert {path.name for path in (tmp_path / "weights").iterdir()} == {f"{second:08d}", f"{number:08d}"}
