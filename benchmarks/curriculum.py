"""How many groups teach nothing, with and without the curriculum, at the success rates that a run's questions have.

    python benchmarks/curriculum.py RUN [--steps 60] [--seeds 20]

Takes each question's share of right episodes from `episodes/rl.jsonl`, holds the policy still, and draws groups from
these shares: the same questions, steps and draws with the curriculum off and on. What learning changes is not in it.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np

from seekling.config import GroupConfig
from seekling.evaluate.result_files import read_records
from seekling.learn.curriculum import Curriculum
from seekling.reward.match import exact_match
from seekling.types import Episode, EpisodeRecord, Question, Reward, StopReason

GROUP_SIZE, PER_STEP = 8, 8


def shares(run: Path) -> dict[Question, float]:
    """The share of right episodes of each question of a run's RL stage."""
    right: dict[Question, list[float]] = defaultdict(list)
    for record in read_records(run / "episodes" / "rl.jsonl"):
        if record.reward is not None:
            right[record.question].append(exact_match(record.episode.answer, record.question.answers))
    return {question: float(np.mean(values)) for question, values in right.items()}


def equal_groups(known: dict[Question, float], config: GroupConfig, *, steps: int, seed: int) -> np.ndarray:
    """(steps,) share of a step's groups whose rewards are all equal."""
    dice = np.random.default_rng(seed)
    curriculum = Curriculum(list(known), config, seed=seed, per_step=PER_STEP)
    found = []
    for step in range(steps):
        records, num_equal = [], 0
        for question in curriculum.choose(step):
            rewards = (dice.random(GROUP_SIZE) < known[question]).astype(float)
            num_equal += len(set(rewards)) == 1
            episode = Episode(question.id, question.source, "tags", (), (), None, StopReason.ANSWERED)
            records += [EpisodeRecord("rl", question, episode, reward=Reward(reward)) for reward in rewards]
        curriculum.take_in(records)
        found.append(num_equal / PER_STEP)
    return np.asarray(found)


def main() -> None:
    """Print the shares, the mean over seeds with its deviation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    known = shares(options.run)
    certain = np.mean([share in (0.0, 1.0) for share in known.values()])
    print(f"{len(known)} questions, {100 * certain:.0f} % always or never solved in {options.run}")
    for share in (0.0, 0.25, 0.5, 0.75):
        config = GroupConfig(ask_again=share)
        means = [
            float(equal_groups(known, config, steps=options.steps, seed=seed).mean()) for seed in range(options.seeds)
        ]
        mean, deviation = 100 * np.mean(means), 100 * np.std(means)
        print(f"ask_again = {share}: {mean:.1f} % of groups of equal rewards (deviation {deviation:.1f})")


if __name__ == "__main__":
    main()
