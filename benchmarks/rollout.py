"""Seconds and CPU-seconds of rolling out episodes with a trained policy, for several lengths of draft, side by side.

    python benchmarks/rollout.py RUN [--questions 8] [--group-size 8] [--repeats 3] [--draft-tokens 0 4]

RUN is a finished run folder: its policy, index and training questions are used. Every setting samples the same
questions with the same seeds after `load_weights`, so drafts start with nothing remembered. The first pass of a setting
is not counted. Printed last: the ratio of every setting's median wall time to that of the first.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from safetensors.torch import load_file

from seekling.corpus.questions import read_questions
from seekling.rollout.engine.draft import Drafter
from seekling.serve.agent import Agent, load_agent, training_decoding


def measure(agent: Agent, arguments: argparse.Namespace, draft_tokens: int) -> float:
    """Median wall seconds of a rollout; prints a line."""
    sampler, recipe = agent.sampler, agent.recipe
    path = recipe.data.train or Path(arguments.run) / "corpus" / "train.jsonl"
    questions = read_questions(path)[-arguments.questions :]
    checkpoints = Path(arguments.run) / "checkpoints"
    policy = next(path for path in (checkpoints / "rl", checkpoints / "sft") if path.is_dir())
    weights = load_file(policy / "model.safetensors")
    walls, cpus = [], []
    for repeat in range(arguments.repeats + 1):
        sampler._drafter = Drafter(draft_tokens)
        sampler.load_weights(weights, version=repeat)
        before = (sampler.stats.steps, sampler.stats.decoded_tokens, sampler.stats.prefilled_tokens)
        drafted, accepted = sampler.stats.drafted_tokens, sampler.stats.accepted_tokens
        wall, cpu = time.perf_counter(), time.process_time()
        groups = agent.roller.rollout(
            questions, training_decoding(recipe), group_size=arguments.group_size, seed=recipe.seed
        )
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    stats = sampler.stats
    share = (stats.accepted_tokens - accepted) / max(stats.drafted_tokens - drafted, 1)
    print(
        f"draft {draft_tokens}: {statistics.median(walls[1:]):6.1f} s wall, {statistics.median(cpus[1:]):6.1f} CPU-s, "
        f"{stats.steps - before[0]} passes, {stats.decoded_tokens - before[1]} sampled and "
        f"{stats.prefilled_tokens - before[2]} prefilled tokens, {share:.0%} of drafts accepted, "
        f"{sum(len(group.episodes) for group in groups)} episodes"
    )
    return statistics.median(walls[1:])


def main() -> None:
    """Measure every setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--draft-tokens", type=int, nargs="+", default=[0, 4])
    arguments = parser.parse_args()
    with load_agent(arguments.run) as agent:
        walls = [measure(agent, arguments, draft_tokens) for draft_tokens in arguments.draft_tokens]
    print("ratio wall", " ".join(f"{wall / walls[0]:.2f}" for wall in walls))


if __name__ == "__main__":
    main()
