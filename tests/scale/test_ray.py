"""A recipe on a real Ray cluster of two nodes on this machine: the same run, whoever dies.

SEEKLING_KILLS=10 pytest -m long tests/scale/test_ray.py kills each of them at ten random points, in ten runs.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import shutil
import signal
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from seekling.config import recipe_to_toml
from seekling.errors import ConfigError, ServerError
from seekling.scale.ledger import Ledger, read_attempts
from tests.pipeline.killing import run_in_child
from tests.pipeline.runs import rows
from tests.scale.runs import STEPS, assert_balanced, assert_same_rl, go_on, scaled
from tests.scale.strikes import POINTS, kill_driver, killing, stopping

pytest.importorskip("ray")

import ray

from seekling.scale.cluster import environment
from seekling.scale.pool import SamplerPool, open_place

pytestmark = pytest.mark.filterwarnings("default")  # of Ray's own files and sockets

NODE = {"num_cpus": 1, "object_store_memory": 100 * 1024**2}
NUM_GROUPS = 10
"""Of a run that nobody disturbs."""


@pytest.fixture(scope="module")
def cluster():
    """A head that does no work, and two nodes with one processor each."""
    from ray.cluster_utils import Cluster

    started = Cluster(initialize_head=True, head_node_args={**NODE, "num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        started.add_node(**NODE)
    yield started
    ray.shutdown()
    started.shutdown()


def test_ray_missing_says_how_to_install_it(begun, tmp_path, monkeypatch):
    from seekling.errors import MissingExtraError
    from seekling.scale import cluster

    monkeypatch.setattr(cluster.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'seekling\[ray\]'"):
        go_on(scaled(begun[0], engine="ray"), begun[1], tmp_path / "run")


@pytest.mark.parametrize("num_samplers", [1, 2])
def test_one_or_two_samplers_learn_what_one_process_learns(begun, undisturbed, cluster, tmp_path, num_samplers):
    recipe = scaled(begun[0], engine="ray", address=cluster.address, num_samplers=num_samplers)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    go_on(recipe, begun[1], tmp_path / "run")
    assert_same_rl(tmp_path / "run", undisturbed)
    assert assert_balanced(tmp_path / "run", recipe) == []
    last = rows(tmp_path / "run" / "metrics.jsonl")[-1]
    assert {f"sampler_{number}_tokens_per_s" for number in range(num_samplers)} <= last.keys()
    assert last["staleness"] == last["num_sampler_deaths"] == 0 < last["weights_write_s"]
    assert 0 <= last["samplers_idle_share"] <= 1
    assert not (tmp_path / "run" / "weights").exists()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_sampler_that_cannot_begin_again_has_another_try_where_the_recipe_is_not_the_reason(begun, cluster, tmp_path):
    recipe, lines = scaled(begun[0], engine="ray", address=cluster.address), []
    place = replace(open_place(recipe, begun[1], Path(recipe.model.spec)), weights=tmp_path / "weights")
    pool = SamplerPool(recipe, place, Ledger(tmp_path / "ledger.jsonl"), lines.append)

    def answer(problem):
        def failing():
            raise problem

        failed = ray.remote(failing).options(num_cpus=0, runtime_env=environment(1)).remote()
        ray.wait([failed])
        member = pool.members[0]
        member.opening = failed
        pool.welcome()
        return member

    try:
        old = answer(ServerError("the search server is away"))
        assert pool.members[0] is not old
        assert "could not begin: the search server is away" in lines[-1]
        with pytest.raises(ConfigError, match="no such address"):
            answer(ConfigError("no such address"))
    finally:
        pool.close()


def test_adapters_go_to_the_samplers_alone_and_give_the_tokens_of_whole_weights(begun, cluster, tmp_path):
    model = begun[0].model.model_copy(update={"lora_rank": 4, "lora_stages": ("rl",)})
    recipe = begun[0].model_copy(update={"model": model})
    shutil.copytree(begun[1], tmp_path / "begun")
    (tmp_path / "begun" / "recipe.toml").write_text(recipe_to_toml(recipe), encoding="utf-8")
    go_on(recipe, tmp_path / "begun", tmp_path / "whole")
    on_ray = scaled(recipe, engine="ray", address=cluster.address)
    reporter = go_on(on_ray, tmp_path / "begun", tmp_path / "adapters")
    assert_same_rl(tmp_path / "adapters", tmp_path / "whole")
    (said,) = [line for line in reporter.lines if line.startswith("weights: adapters of rank 4 on 14 layers")]
    whole_mb = float(re.search(r"([\d.]+) MB, goes once", said).group(1))
    steps = [row for row in rows(tmp_path / "adapters" / "metrics.jsonl") if row["stage"] == "rl"]
    assert all(row["weights_bytes"] < 0.25e6 * whole_mb for row in steps)
    assert max(row["logprob_drift_max"] for row in steps if "loss" in row) < 1e-4, "sampled with other weights"


@pytest.fixture(scope="module")
def ahead(begun, cluster, tmp_path_factory):
    """The recipe and a run of it before RL, sampling up to two steps ahead of learning."""
    recipe = scaled(begun[0], engine="ray", address=cluster.address, num_samplers=2)
    optimizer = recipe.rl.optimizer.model_copy(update={"max_staleness": 2})
    recipe = recipe.model_copy(update={"rl": recipe.rl.model_copy(update={"optimizer": optimizer})})
    run = tmp_path_factory.mktemp("ahead") / "until rl"
    shutil.copytree(begun[1], run)
    (run / "recipe.toml").write_text(recipe_to_toml(recipe), encoding="utf-8")
    return recipe, run


def assert_within_bound(run, recipe):
    """Nothing was older than allowed when it was learned from, and a step went out only when it might."""
    limit = recipe.rl.optimizer.max_staleness
    steps = [row for row in rows(run / "metrics.jsonl") if row["stage"] == "rl"]
    assert all(row["staleness"] <= limit for row in steps)
    step_of, num_used = {}, Counter()
    for row in rows(run / "ledger.jsonl"):
        if row["event"] == "dispatched" and (step := row["step"]):
            step_of[row["attempt"]] = step
            assert step <= limit + 1 or num_used[step - limit - 1] == recipe.rl.questions_per_step
        elif row["event"] == "used":
            num_used[step_of.get(row["attempt"], 0)] += 1
    return steps


def test_sampling_runs_ahead_of_learning_no_further_than_allowed(ahead, tmp_path):
    recipe, begun = ahead
    go_on(recipe, begun, tmp_path / "run")
    assert assert_balanced(tmp_path / "run", recipe) == []
    steps = assert_within_bound(tmp_path / "run", recipe)
    weights_of = defaultdict(set)
    for row in rows(tmp_path / "run" / "ledger.jsonl"):
        if row["event"] == "dispatched":
            weights_of[row["step"]].add(row["weights"])
    (first,) = weights_of[1]
    assert all(min(weights_of[step]) < first + step - 1 for step in range(2, STEPS + 1)), "not before its own weights"
    assert {"staleness", "num_groups_early"} <= steps[-1].keys()
    assert_rates_are_of_what_was_sampled(tmp_path / "run", steps)
    assert [row["step"] for row in steps] == list(range(1, STEPS + 1))
    assert sum("loss" in row for row in steps) >= 3


def assert_rates_are_of_what_was_sampled(run, steps):
    """Where all groups of a step were there before it began, its rollout takes no time."""
    num_tokens = sum(
        turn["num_action_tokens"] + turn["num_observation_tokens"]
        for row in rows(run / "episodes" / "rl.jsonl")
        for turn in row["episode"]["turns"]
    )
    assert num_tokens
    for before, step in itertools.pairwise(steps):
        rate = sum(step[f"sampler_{number}_tokens_per_s"] for number in range(2))
        assert rate * (before["learn_s"] + step["sample_s"]) <= 10 * num_tokens  # prompts are not among those


@pytest.mark.long
@pytest.mark.parametrize("point", POINTS)
def test_what_was_sampled_ahead_is_not_lost_when_samplers_are_killed(ahead, tmp_path, point):
    (recipe, begun), dice, run = ahead, random.Random(point), tmp_path / "run"
    with killing(run, dice.sample(range(1, NUM_GROUPS - 2), 2), dice) as deaths:
        go_on(recipe, begun, run)
    assert len(deaths) == 2
    assert "the sampler died" in assert_balanced(run, recipe)
    assert sum(step["num_sampler_deaths"] for step in assert_within_bound(run, recipe)) == 2


@pytest.mark.long
@pytest.mark.parametrize("point", POINTS)
def test_what_was_sampled_ahead_is_sampled_again_when_the_driver_was_killed(ahead, tmp_path, point):
    (recipe, begun), dice, run = ahead, random.Random(point), tmp_path / "run"
    shutil.copytree(begun, run)
    code, _ = run_in_child(recipe, run, kill_at=dice.randint(45, 110))  # where it changes a file, its ledger too
    assert code == -signal.SIGKILL
    go_on(recipe, begun, run)
    assert {*assert_balanced(run, recipe)} <= {"the driver stopped", "the run went on from an earlier step"}


@pytest.mark.long
@pytest.mark.parametrize("point", POINTS)
def test_samplers_that_are_killed_are_started_again_and_nothing_is_lost(begun, undisturbed, cluster, tmp_path, point):
    recipe, run = scaled(begun[0], engine="ray", address=cluster.address, num_samplers=2), tmp_path / "run"
    dice = random.Random(point)
    with killing(run, dice.sample(range(1, NUM_GROUPS - 2), 2), dice) as deaths:
        reporter = go_on(recipe, begun[1], run)
    assert_same_rl(run, undisturbed)
    assert {*assert_balanced(run, recipe)} == {"the sampler died"}
    assert len(deaths) == 2, "it was not in the middle of a group"
    assert deaths[0].attempts | deaths[1].attempts <= lost(run)
    assert sum("is lost, and" in line for line in reporter.lines) == 2


@pytest.mark.long
def test_a_sampler_that_hangs_has_its_groups_made_by_another_and_is_given_up(begun, undisturbed, cluster, tmp_path):
    recipe, run = (
        scaled(begun[0], engine="ray", address=cluster.address, num_samplers=2, straggler_s=8),
        tmp_path / "run",
    )
    with stopping(run, 3) as stopped:
        reporter = go_on(recipe, begun[1], run)
    assert_same_rl(run, undisturbed)
    assert_balanced(run, recipe)
    assert any("makes it too" in line for line in reporter.lines)
    assert any("finished none for" in line for line in reporter.lines)
    with contextlib.suppress(ProcessLookupError):  # Ray ends a process that answers nothing in its own time
        os.kill(stopped[0], signal.SIGKILL)


@pytest.mark.long
@pytest.mark.parametrize("point", POINTS)
def test_a_driver_that_is_killed_goes_on_and_counts_no_episode_twice(begun, undisturbed, cluster, tmp_path, point):
    recipe, run = scaled(begun[0], engine="ray", address=cluster.address, num_samplers=1), tmp_path / "run"
    shutil.copytree(begun[1], run)
    dice = random.Random(point)
    kill_driver(recipe, run, dice.randint(1, NUM_GROUPS), dice)
    go_on(recipe, begun[1], run)
    assert_same_rl(run, undisturbed)
    assert {*assert_balanced(run, recipe)} <= {"the driver stopped", "the run went on from an earlier step"}


@pytest.mark.long
@pytest.mark.parametrize("point", POINTS)
def test_a_node_that_is_gone_leaves_its_work_to_the_other(begun, undisturbed, cluster, tmp_path, point):
    recipe, run = scaled(begun[0], engine="ray", address=cluster.address, num_samplers=2), tmp_path / "run"
    dice = random.Random(point)
    with removing_node(cluster, run, dice) as deaths:
        reporter = go_on(recipe, begun[1], run)
    assert len(deaths) == 1, "it was not in the middle of a group"
    assert_same_rl(run, undisturbed)
    assert {*assert_balanced(run, recipe)} == {"the sampler died"}
    assert deaths[0].attempts <= lost(run)
    assert any("is lost, and" in line for line in reporter.lines)


@contextlib.contextmanager
def removing_node(cluster, run, dice):
    """While a run goes on, a machine is gone at once, with its sampler that had groups; then there is a new one."""

    def node_of(process):
        raylet = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        return next(each for each in cluster.worker_nodes if each.all_processes["raylet"][0].process.pid == raylet)

    def may_die(process):
        return node_of(process)._raylet_socket_name != ray._private.worker.global_worker.node._raylet_socket_name

    def remove(process):
        node = node_of(process)
        os.kill(process, signal.SIGKILL)  # Ray takes a second to end what a node leaves behind
        cluster.remove_node(node, allow_graceful=False)

    try:
        with killing(run, [dice.randint(1, NUM_GROUPS - 2)], dice, kill=remove, may_die=may_die) as deaths:
            yield deaths
    finally:
        if len(cluster.worker_nodes) < 2:
            cluster.add_node(**NODE)


def lost(run) -> set[int]:
    """Attempts that died with a sampler."""
    return {each.number for each in read_attempts(run / "ledger.jsonl") if "the sampler died" in each.reasons}
