"""Our side of `sft_step.py`: the product's learner over given episodes, in a process of its own."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from grpo_workload import Stopwatch
from sft_step import SftWork, write_result

from seekling.learn.batch import Batch
from seekling.learn.local import LocalLearner
from seekling.learn.loss import cross_entropy
from seekling.models import load_policy
from seekling.types import Trajectory


def main() -> None:
    """Run the steps and write what was measured."""
    work = SftWork.read(sys.argv[1])
    torch.set_num_threads(work.threads)
    model, _ = load_policy(work.model, dtype="float32")
    learner = LocalLearner(model, row_tokens=work.row_tokens, dtype=getattr(torch, work.dtype))
    steps = [
        [Trajectory(np.asarray(ids), np.asarray(mask), np.zeros(len(ids), np.float32)) for ids, mask in step]
        for step in work.steps
    ]
    watch, losses, norms = Stopwatch(), [], []
    for step in steps:
        watch.start()
        stats = learner.forward_backward(Batch(step, np.ones(len(step))), cross_entropy)
        norm = learner.optim_step(work.learning_rate)
        watch.stop()
        losses.append(stats.loss)
        norms.append(norm)
    write_result(Path(sys.argv[2]), loss=losses, grad_norm=norms, **asdict(watch.measured()))


if __name__ == "__main__":
    main()
