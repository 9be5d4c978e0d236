"""Seconds of a rollout with one and with more samplers on Ray, and the efficiency: what N are worth of N times one.

    python benchmarks/scale.py RUN [--samplers 1 2] [--questions 16] [--group-size 8] [--repeats 3] [--cpus 1]

RUN is a finished run folder: its policy, index and training questions are used. Every setting samples the same
questions with the same seeds; the first rollout of a setting is not counted, and samplers are waited for. Ray starts on
this machine; more samplers than cores share them, and their efficiency says nothing.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from machine import describe

from seekling.config import ScaleConfig
from seekling.corpus.questions import read_questions
from seekling.pipeline.implementations import new_sync, open_sampling
from seekling.pipeline.run_folder import RunFolder
from seekling.retrieval.library import open_library
from seekling.serve.agent import training_decoding
from seekling.serve.local_model import recipe_of_run, trained_policy


def measure(run: Path, num_samplers: int, arguments: argparse.Namespace) -> float:
    """Median wall seconds of a rollout; prints a line."""
    recipe = recipe_of_run(run)
    path = recipe.data.train or run / "corpus" / "train.jsonl"
    questions = read_questions(path)[-arguments.questions :]
    index = recipe.retrieval.folder(run).resolve()
    scale = ScaleConfig(engine="ray", num_samplers=num_samplers, sampler_cpus=arguments.cpus)
    retrieval = recipe.retrieval.model_copy(update={"index_dir": str(index)})
    recipe = recipe.model_copy(update={"scale": scale, "retrieval": retrieval})
    library, (policy, _) = open_library(index, retrieval), trained_policy(run, "")
    walls, rates = [], []
    with (
        tempfile.TemporaryDirectory() as folder,
        open_sampling(recipe, RunFolder(Path(folder), recipe), library, policy, print) as agent,
    ):
        roller = agent.roller.over(agent.env)  # no step of a training run
        for repeat in range(arguments.repeats + 1):
            new_sync(recipe, agent).publish_exported(policy, agent.sampler, version=repeat)
            started = time.perf_counter()
            roller.rollout(questions, training_decoding(recipe), group_size=arguments.group_size, seed=7)
            walls.append(time.perf_counter() - started)
            rates.append(roller.statistics)
            agent.sampler.release_caches()
    wall, last = statistics.median(walls[1:]), rates[-1]
    print(
        f"{num_samplers} samplers: {wall:6.1f} s wall ({min(walls[1:]):.1f} to {max(walls[1:]):.1f}), "
        + ", ".join(f"{last[f'sampler_{number}_tokens_per_s']:.0f}" for number in range(num_samplers))
        + f" tokens/s, idle {last['samplers_idle_share']:.0%}, weights written in {last['weights_write_s']:.2f} s and "
        f"read in {last['weights_read_s']:.2f} s"
    )
    return wall


def main() -> None:
    """Measure every number of samplers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--samplers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--questions", type=int, default=16)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cpus", type=float, default=1.0)
    arguments = parser.parse_args()
    print(describe(int(arguments.cpus), "ray"))
    walls = [measure(arguments.run, number, arguments) for number in arguments.samplers]
    for number, wall in zip(arguments.samplers[1:], walls[1:], strict=True):
        efficiency = walls[0] * arguments.samplers[0] / (wall * number)
        print(f"efficiency at {number}: {efficiency:.2f} ({walls[0] / wall:.2f} times as fast)")


if __name__ == "__main__":
    main()
