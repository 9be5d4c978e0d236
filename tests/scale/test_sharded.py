"""A learner divided among two processes: the same losses and weights as one, states for any number, real deaths."""

from __future__ import annotations

import os
import random
import signal
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("ray")

from seekling.config import LossConfig, build_recipe
from seekling.errors import ConfigError, ModelError
from seekling.learn.batch import Batch
from seekling.learn.local import LocalLearner
from seekling.learn.loss import clipped_policy_loss, make_policy_loss, make_policy_measure
from seekling.models import load_model
from seekling.scale.rank import LearnerSpec, divide_rows
from seekling.scale.sharded import ShardedLearner
from seekling.scale.state import AnyCheckpoint, load_state, save_state
from tests.learn.models import group, small_model, trajectory
from tests.scale.runs import assert_balanced, assert_same_rl, go_on, scaled, two_ranks
from tests.scale.strikes import POINTS, kill_rank_within_a_call

pytestmark = pytest.mark.filterwarnings("default")  # of Ray's own files and sockets

SETTINGS = {"row_tokens": 60, "weight_decay": 0.1, "max_grad_norm": 0.5}
RATE = 0.01


@pytest.fixture(scope="module")
def ranks():
    with two_ranks() as started:
        yield started


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    small_model().save_pretrained(folder)
    return folder


@pytest.fixture
def sharded(ranks, model_dir, tmp_path):
    numbers = count()

    def make(*, log=lambda line: None, **settings):
        spec = LearnerSpec(model_dir, **{**SETTINGS, **settings})
        return ShardedLearner(ranks, spec, scratch=tmp_path / f"scratch-{next(numbers)}", max_restarts=2, log=log)

    return make


def local(model_dir, **settings):
    return LocalLearner(load_model(model_dir, dtype="float32"), **{**SETTINGS, **settings})


def batch(step: int) -> Batch:
    """Many rows, then few of uneven length, then a single one, which leaves a rank without."""
    made = [each for seed in range(4) for each in group(10 * step + seed, num=3)]
    if step % 3 == 1:
        made = [*made[:3], trajectory(list(range(3, 53)), [0] * 20 + [1] * 30)]
    if step % 3 == 2:
        made = made[:1]
    return Batch(made, np.linspace(-1.5, 2.0, len(made)))


def learn(learner, steps, loss=clipped_policy_loss):
    for step in steps:
        learner.forward_backward(batch(step), loss)
        learner.optim_step(RATE)


def weights(learner) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in learner.export_weights().items()}


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("settings", [{}, {"lora_rank": 4, "checkpoint_layers": True}], ids=["whole", "adapters"])
def test_two_processes_learn_what_one_learns(sharded, model_dir, tmp_path, settings):
    two, one = sharded(**settings), local(model_dir, **settings)
    config = LossConfig(kl_coefficient=0.1)
    loss, measure = make_policy_loss(config), make_policy_measure(config)
    for each in (two, one):
        each.keep_reference()
    for step in range(5):
        found = []
        for each in (two, one):
            part = batch(step)
            references = each.reference_logprobs(part.trajectories)
            part = Batch(part.trajectories, part.advantages_B, {"reference_logprobs_A": references})
            stats = each.forward_backward(part, loss, aggregation="sequence_mean", measure=measure)
            found.append((stats.loss, stats.entropy, stats.drift_max, stats.ratio_mean, each.optim_step(RATE)))
            assert stats.num_trained_tokens == part.num_trained_B.sum()
        np.testing.assert_allclose(*found, rtol=0, atol=1e-5)
    expected = weights(one)
    for name, value in weights(two).items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-5, err_msg=name)
    if settings:
        for each, name in ((two, "two"), (one, "one")):
            each.save_adapter(tmp_path / name, base_model=str(model_dir))
        mine, theirs = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("two", "one"))
        assert mine.keys() == theirs.keys()
        assert all(np.allclose(mine[name], theirs[name], rtol=0, atol=1e-5) for name in theirs)
        adapters = two.adapters()
        assert (adapters.rank, adapters.alpha, len(adapters.tensors)) == (4, 32, len(theirs))
        assert_same(weights(two), dict(adapters.merged(two.base_weights())))
    else:
        assert two.adapters() is None
    two.close()


def test_a_state_of_two_processes_is_read_by_one_and_again_by_two_bit_for_bit(sharded, model_dir, tmp_path):
    checkpoint = AnyCheckpoint()
    straight, first, second, third = sharded(), sharded(), sharded(), sharded()
    learn(straight, range(4))
    learn(first, range(3))
    for name in ("two", "one", "again", "file"):
        (tmp_path / name).mkdir()
    checkpoint.save(first, tmp_path / "two")
    alone = local(model_dir)
    learn(alone, [7])  # whatever it was before is gone
    checkpoint.load(alone, tmp_path / "two")
    assert alone.num_steps == 3
    assert_same(weights(alone), weights(first))
    save_state(alone, tmp_path / "one")
    second.load(tmp_path / "one")
    checkpoint.save(second, tmp_path / "again")
    other = local(model_dir)
    load_state(other, tmp_path / "again")
    mine, theirs = (each.state()["optimizer"]["state"] for each in (other, alone))
    assert mine.keys() == theirs.keys() == set(range(len(weights(alone))))
    for number, moments in theirs.items():
        assert_same(mine[number], moments)
        assert moments["exp_avg_sq"].any()
    checkpoint.save(alone, tmp_path / "file")  # a single one, as a run in one process keeps it
    checkpoint.load(third, tmp_path / "file")
    for each in (second, third):
        learn(each, [3])
        assert_same(weights(each), weights(straight))


def deadly(logprobs_A, data, *, folder: Path, how: int) -> torch.Tensor:
    """A loss that strikes down the second process, once, between its forward and its backward pass."""
    mark = folder / "struck"
    if torch.distributed.get_rank() == 1 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), how)
    return clipped_policy_loss(logprobs_A, data)


def test_a_process_that_is_killed_or_hangs_is_replaced_and_nothing_is_lost(sharded, ranks, tmp_path, monkeypatch):
    lines: list[str] = []
    calm, struck = sharded(), sharded(log=lines.append)
    learn(calm, range(5))
    learn(struck, [0])
    (tmp_path / "state").mkdir()
    struck.save(tmp_path / "state")
    (tmp_path / "state").rename(tmp_path / "moved")
    learn(struck, [1])
    before = ranks.processes
    learn(struck, [2], partial(deadly, folder=tmp_path, how=signal.SIGKILL))
    assert not set(ranks.processes) & set(before)
    assert "rank 1 died in forward_backward" in lines[0]
    assert "did 1 steps again" in lines[1]
    monkeypatch.setattr(ranks, "timeout_s", 8.0)
    (tmp_path / "struck").unlink()
    learn(struck, [3], partial(deadly, folder=tmp_path, how=signal.SIGSTOP))
    assert "gave no answer for 8 s in forward_backward" in lines[2]
    learn(struck, [4])
    assert (struck.num_steps, len(lines)) == (5, 4)
    assert_same(weights(struck), weights(calm))


def test_rows_are_shared_out_evenly_and_none_is_left_or_counted_twice():
    rng = np.random.default_rng(0)
    for num_ranks in (1, 2, 3, 8):
        for num_rows in (1, 2, 5, 16, 61):
            sizes = rng.integers(1, 2048, num_rows).tolist()
            turns = divide_rows(sizes, num_ranks)
            assert sorted(index for turn in turns for index, counts in turn if counts) == list(range(num_rows))
            assert all(len(turn) == num_ranks for turn in turns)
            waited = sum(max(sizes[index] for index, _ in turn) for turn in turns)
            assert waited <= sum(sizes) / num_ranks + max(sizes)


def test_what_ranks_cannot_do_is_said_before_anything_starts(sharded, tmp_path):
    raw = {"scale": {"engine": "ray", "learner_ranks": 2}, "rl": {"advantage": {"baseline": "gae"}}}
    with pytest.raises(ConfigError, match="learner_ranks = 1"):
        build_recipe(raw)
    with pytest.raises(ModelError, match="cannot load a model"):
        sharded().keep_reference(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("point", POINTS)
def test_a_run_begun_by_one_process_goes_on_with_two_of_which_one_is_killed(
    begun, undisturbed, ranks, tmp_path, monkeypatch, point
):
    dice = random.Random(point)
    struck = kill_rank_within_a_call(monkeypatch, dice.randint(1, 6), dice)
    reporter = go_on(scaled(begun[0], engine="ray", learner_ranks=2), begun[1], tmp_path / "run")
    deaths = [line for line in reporter.lines if "ranks are started again" in line]
    assert len(deaths) == len(struck) == 1
    assert f"died in {struck[0]};" in deaths[0]
    assert_same_rl(tmp_path / "run", undisturbed)
    assert assert_balanced(tmp_path / "run", begun[0]) == []
