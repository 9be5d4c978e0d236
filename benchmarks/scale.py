"""Seconds of a rollout with one and with more samplers on Ray, and a simulation, calibrated with them, of many more.

    python benchmarks/scale.py RUN [--samplers 1 2] [--questions 16] [--group-size 8] [--repeats 3] [--cpus 1]
    python benchmarks/scale.py RUN --simulate service.json       # without measuring again

RUN is a finished run folder: its policy, index and training questions are used. Every setting samples the same
questions with the same seeds; the first rollout of a setting is not counted, and samplers are waited for. Ray starts on
this machine; more samplers than cores share them, and their efficiency says nothing.

The simulation (`scale_model.py`) takes from one sampler: the turns of the groups it made, its speed with all slots
taken and with one group, the time of a search, of writing and reading weights and of handing out a group; from the
run's log the time of learning from a token. Two rollouts that it was not fitted to say how good it is: half of the
questions with one sampler, and all of them with two. `--network-gb-s` and `--disk-gb-s` are assumptions.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path

from machine import describe
from scale_model import Cluster, Service, Simulation, Turns, efficiency

from seekling.config import ScaleConfig
from seekling.corpus.questions import read_questions
from seekling.pipeline.implementations import new_sync, open_sampling
from seekling.pipeline.run_folder import RunFolder
from seekling.retrieval.library import open_library
from seekling.serve.agent import training_decoding
from seekling.serve.local_model import recipe_of_run, trained_policy
from seekling.types import EpisodeGroup


@dataclass(frozen=True, slots=True)
class Measured:
    """What one number of samplers took."""

    walls: dict[int, float]
    """Median wall seconds of a rollout, by its number of questions."""
    groups: tuple[tuple[Turns, ...], ...]
    last: dict[str, float]
    dispatch_s: float
    slots: int
    search_s: float
    weights_bytes: int


def turns_of(group: EpisodeGroup) -> tuple[Turns, ...]:
    """Tokens that were sampled in each turn of each episode."""
    masks = [each.train_mask_T.tolist() for each in group.trajectories]
    return tuple(tuple(sum(1 for _ in run) for sampled, run in groupby(mask) if sampled) for mask in masks)


def measure(run: Path, num_samplers: int, arguments: argparse.Namespace, sizes: Sequence[int]) -> Measured:
    """Median wall seconds of rollouts of some sizes, the largest first; prints a line."""
    recipe = recipe_of_run(run)
    questions = read_questions(recipe.data.train or run / "corpus" / "train.jsonl")[-arguments.questions :]
    index = recipe.retrieval.folder(run).resolve()
    scale = ScaleConfig(engine="ray", num_samplers=num_samplers, sampler_cpus=arguments.cpus)
    retrieval = recipe.retrieval.model_copy(update={"index_dir": str(index)})
    recipe = recipe.model_copy(update={"scale": scale, "retrieval": retrieval})
    library, (policy, _) = open_library(index, retrieval), trained_policy(run, "")
    searched = time.perf_counter()
    for question in questions:
        library.search(question.question, recipe.retrieval.top_k)
    search_s = (time.perf_counter() - searched) / len(questions)
    walls: dict[int, list[float]] = {size: [] for size in sizes}
    made: dict[int, tuple[tuple[Turns, ...], ...]] = {}
    shares, lasts = [], []
    with (
        tempfile.TemporaryDirectory() as folder,
        open_sampling(recipe, RunFolder(Path(folder), recipe), library, policy, print) as agent,
    ):
        roller = agent.roller.over(agent.env)  # no step of a training run
        for repeat in range(arguments.repeats + 1):
            for size in sizes:
                new_sync(recipe, agent).publish_exported(policy, agent.sampler, version=repeat)
                started, worked = time.perf_counter(), time.process_time()
                groups = roller.rollout(
                    questions[:size], training_decoding(recipe), group_size=arguments.group_size, seed=7
                )
                walls[size].append(time.perf_counter() - started)
                made[size] = tuple(map(turns_of, groups))
                if size == sizes[0]:
                    shares.append((time.process_time() - worked) / size)
                    lasts.append(dict(roller.statistics))
                agent.sampler.release_caches()
        slots = agent.sampler.num_slots // num_samplers
    last, mine = lasts[-1], walls[sizes[0]][1:]
    print(
        f"{num_samplers} samplers: {statistics.median(mine):6.1f} s wall ({min(mine):.1f} to {max(mine):.1f}), "
        + ", ".join(f"{last[f'sampler_{number}_tokens_per_s']:.0f}" for number in range(num_samplers))
        + f" tokens/s, idle {last['samplers_idle_share']:.0%}, weights written in {last['weights_write_s']:.2f} s and "
        f"read in {last['weights_read_s']:.2f} s"
    )
    medians = {size: statistics.median(each[1:]) for size, each in walls.items()}
    num_bytes = sum(path.stat().st_size for path in policy.glob("*.safetensors"))
    return Measured(medians, made[sizes[0]], last, statistics.median(shares), slots, search_s, num_bytes)


def learn_token_s(run: Path, group_size: int) -> float:
    """Seconds of learning for a sampled token, from the log of the run."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    found = [
        row["learn_s"] / (row["action_tokens_mean"] * row["num_groups"] * group_size)
        for row in rows
        if row.get("stage") == "rl" and row.get("action_tokens_mean") and row.get("num_groups")
    ]
    return statistics.median(found)


def calibrate(run: Path, one: Measured, arguments: argparse.Namespace) -> Service:
    """Service times of which the simulation gives the measured seconds of the largest and the smallest rollout."""
    read_s = max(one.last["weights_read_s"], 1e-3)
    service = Service(
        groups=one.groups,
        rate=1.0,
        half=0.0,
        slots=one.slots,
        search_s=one.search_s,
        dispatch_s=one.dispatch_s,
        write_s=one.last["weights_write_s"],
        read_s=read_s,
        disk_readers=max(arguments.disk_gb_s * 1e9 * read_s / one.weights_bytes, 1.0),
        learn_token_s=learn_token_s(run, recipe_of_run(run).rl.group_size),
        exchange_s=3 * one.weights_bytes / (arguments.network_gb_s * 1e9),
    )
    largest, smallest = max(one.walls), min(one.walls)
    low, high = 0.0, 16.0 * one.slots
    for _ in range(40):  # with more `half`, one group is slower in comparison to many
        half = (low + high) / 2
        service = fitted(replace(service, half=half), largest, one.walls[largest], read_s)
        if predicted(service, 1, smallest) + read_s < one.walls[smallest]:
            low = half
        else:
            high = half
    return service


def fitted(service: Service, size: int, wall_s: float, read_s: float) -> Service:
    """The rate with which a rollout of so many groups takes so long."""
    low, high = 1.0, 1e6
    for _ in range(50):
        rate = (low * high) ** 0.5
        is_slow = predicted(replace(service, rate=rate), 1, size) + read_s > wall_s
        low, high = (rate, high) if is_slow else (low, rate)
    return replace(service, rate=low)


def predicted(service: Service, num_samplers: int, size: int) -> float:
    """Seconds of a rollout of the first groups, without its weights."""
    alone = replace(service, groups=service.groups[:size], learn_token_s=0.0, write_s=0.0, read_s=0.0)
    return Simulation(Cluster(num_samplers, groups_per_step=size), alone, steps=1, seed=None).run().step_s


def simulate(service: Service, arguments: argparse.Namespace) -> None:
    """Print what many samplers, ranks and search servers would do."""
    print(
        f"\nsimulated: {arguments.per_sampler} groups of a step for each sampler\n"
        + "samplers  ranks  search servers  staleness  step s  groups/s  efficiency  idle  "
        + "learning  search waits s  driver"
    )
    for samplers in arguments.simulated:
        for ranks in (each for each in (1, 8, 64) if each <= max(samplers, 1)):
            for servers in sorted({0, max(samplers // 8, 1)}):
                for staleness in (0, 1):
                    cluster = Cluster(samplers, ranks, servers, staleness, samplers * arguments.per_sampler)
                    outcome, share = efficiency(cluster, service)
                    print(
                        f"{samplers:8} {ranks:6} {servers or 'own':>15} {staleness:10} {outcome.step_s:7.1f} "
                        f"{cluster.groups_per_step / outcome.step_s:9.2f} {share:11.2f} {outcome.idle_share:5.0%} "
                        f"{outcome.learn_share:9.0%} {outcome.search_wait_s:15.3f} {outcome.driver_share:7.0%}"
                    )


def main() -> None:
    """Measure every number of samplers, calibrate, check, simulate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--samplers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--questions", type=int, default=16)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cpus", type=float, default=1.0)
    parser.add_argument("--network-gb-s", type=float, default=1.25, help="between learner ranks; 10 Gbit/s")
    parser.add_argument("--disk-gb-s", type=float, default=2.0, help="of the disk that has the weights")
    parser.add_argument("--simulate", type=Path, help="service times of an earlier call, instead of measuring")
    parser.add_argument("--simulated", type=int, nargs="+", default=[1, 8, 64, 512], help="samplers")
    parser.add_argument("--per-sampler", type=int, default=8, help="groups of a step for each simulated sampler")
    parser.add_argument("--out", type=Path, default=Path("service.json"), help="where the service times go")
    arguments = parser.parse_args()
    if arguments.simulate is not None:
        raw = json.loads(arguments.simulate.read_text(encoding="utf-8"))
        raw["groups"] = tuple(tuple(tuple(turns) for turns in group) for group in raw["groups"])
        simulate(Service(**raw), arguments)
        return
    print(describe(int(arguments.cpus), "ray"))
    sizes = sorted({arguments.questions, max(arguments.questions // 2, 2), 1}, reverse=True)
    measured = {number: measure(arguments.run, number, arguments, sizes) for number in arguments.samplers}
    first = arguments.samplers[0]
    alone = measured[first].walls[sizes[0]]
    for number in arguments.samplers[1:]:
        wall = measured[number].walls[sizes[0]]
        print(f"efficiency at {number}: {alone * first / (wall * number):.2f} ({alone / wall:.2f} times as fast)")
    if 1 not in measured:
        return
    service = calibrate(arguments.run, measured[1], arguments)
    arguments.out.write_text(json.dumps(asdict(service)), encoding="utf-8")
    print(", ".join(f"{name} {value:.3g}" for name, value in asdict(service).items() if name != "groups"))
    for number, size in ((1, sizes[1]), *((each, sizes[0]) for each in arguments.samplers if each > 1)):
        wall, guess = measured[number].walls[size], predicted(service, number, size) + service.read_s
        error = f"{guess / wall - 1:+.0%}"
        print(f"check, {number} samplers, {size} groups: {guess:.1f} s simulated, {wall:.1f} s measured ({error})")
    simulate(service, arguments)


if __name__ == "__main__":
    main()
