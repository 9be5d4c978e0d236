"""Memory of learning on a CPU, measured beside what `seekling doctor` predicts, part by part.

    OMP_NUM_THREADS=1 python benchmarks/memory.py [--model default] [--dtype bfloat16] [--ranks 0,16]
        [--rows 768,2048,4096,8192] [--kinds one,many] [--checkpointed no,yes]

Every case is a process of its own: it loads sampler and learner, takes an optimizer step, and then learns from a row of
so many tokens, of one episode or of many that share instructions. Columns are gigabytes measured, predicted, and their
ratio:

- process: before the learner is made, without the sampler's model, and after another one has learned once, since loops
  are compiled at their first use. A run's corpus and index come on top.
- optimizer: what the learner adds beside its model: masters, moments, gradients.
- activations: by how much memory grows while the row is learned from, logits included.
- peak: of the process. What freed blocks may add in a long run is left out of the prediction: one row leaves none.

Linux only: the peak of one row is what the kernel counts after it was told to count anew (/proc/self/clear_refs).
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np

from seekling.config import Recipe, build_recipe
from seekling.doctor.cost import CostModel, episode_size
from seekling.doctor.memory import MemoryPlan, longest_row_tokens, opened_memory
from seekling.doctor.shape import read_model_shape
from seekling.kernels.memory import release_free_memory, resident_bytes
from seekling.learn.batch import Batch
from seekling.learn.loss import cross_entropy
from seekling.learn.pack import pack_rows
from seekling.models import load_policy, resolve_model
from seekling.pipeline.implementations import new_learner
from seekling.serve.agent import make_sampler
from seekling.types import Trajectory

SHARED_INSTRUCTIONS = 0.7
"""Part of a prompt that is the same for every question."""
PARTS = ("process", "optimizer", "activations", "peak")


def made_up_rows(recipe: Recipe, vocabulary: int) -> tuple[list[Trajectory], list[Trajectory]]:
    """Episodes of random tokens of the size that SFT's have: those of one packed row, and one as long as the row."""
    size, rng = episode_size(recipe, CostModel(), is_trained=True), np.random.default_rng(0)
    instructions = rng.integers(0, vocabulary, round(size.prompt_tokens * SHARED_INSTRUCTIONS))
    action = max(1, size.action_tokens // 2)

    def episode(observed: int) -> Trajectory:
        lengths = [size.prompt_tokens, action, observed, action]
        ids_T = rng.integers(0, vocabulary, sum(lengths))
        ids_T[: len(instructions)] = instructions
        is_action_T = np.repeat([False, True, False, True], lengths)
        return Trajectory(ids_T, is_action_T, np.zeros(len(ids_T), np.float32))

    own = size.total_tokens - size.prompt_tokens
    made = [episode(size.observation_tokens) for _ in range(recipe.sft.row_tokens // max(1, own) + 2)]
    row = pack_rows(made, row_tokens=recipe.sft.row_tokens)[0]
    longest = episode(max(0, longest_row_tokens(recipe, "sft") - size.prompt_tokens - 2 * action))
    return [made[index] for index in np.unique(row.sequence_A)], [longest]


def main() -> None:
    """Run the cases and print a table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", default="default")
    options.add_argument("--dtype", default="bfloat16")
    options.add_argument("--ranks", default="0,16")
    options.add_argument("--rows", default="768,2048,4096,8192")
    options.add_argument("--kinds", default="one,many")
    options.add_argument("--checkpointed", default="no,yes")
    options.add_argument("--case", help=argparse.SUPPRESS)
    said = options.parse_args()
    if said.case:
        print(json.dumps(measure(**json.loads(said.case))))
        return
    lists = [text.split(",") for text in (said.ranks, said.checkpointed, said.kinds, said.rows)]
    print("| LoRA rank | layers twice | row of | tokens | " + " | ".join(PARTS) + " |")
    print("|---|---|---|---|" + "---|" * len(PARTS))
    for rank, twice, kind, rows in product(*lists):
        case = {"model": said.model, "dtype": said.dtype, "rank": int(rank), "rows": int(rows)}
        case |= {"is_checkpointed": twice == "yes", "is_packed": kind == "many"}
        words = [sys.executable, __file__, "--case", json.dumps(case)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{case}: {done.stderr.strip().splitlines()[-1:] or done.returncode}")
        found = json.loads(done.stdout.splitlines()[-1])
        figures = [
            f"{measured:.2f} {predicted:.2f} {predicted / measured:.2f}"
            for measured, predicted in (found[part] for part in PARTS)
        ]
        print(f"| {rank} | {twice} | {kind} | {found['tokens']} | " + " | ".join(figures) + " |", flush=True)


def measure(
    *, model: str, dtype: str, rank: int, rows: int, is_checkpointed: bool, is_packed: bool
) -> dict[str, tuple[float, float] | int]:
    """One case: gigabytes measured and predicted, by part.

    Args:
        model: its spec.
        dtype: of the arithmetic.
        rank: of LoRA; 0 trains everything.
        rows: tokens of the row.
        is_checkpointed: layers are computed twice.
        is_packed: the row is of many episodes.
    """
    recipe = build_recipe(
        {
            # No memory at all has layers computed twice, endless memory has not.
            "model": {"spec": model, "dtype": dtype, "lora_rank": rank, "memory_gb": 1e-3 if is_checkpointed else 1e6},
            "rollout": {"episode_tokens": 1024 if is_packed else rows},
            "sft": {"row_tokens": rows, "episodes_per_step": 1000},
        }
    )
    model_dir = resolve_model(model)
    shape = read_model_shape(model_dir)
    plan = MemoryPlan(recipe, shape, dtype=dtype)
    policy, tokenizer = load_policy(model_dir, dtype=dtype)
    sampler = make_sampler(recipe, policy, tokenizer)
    packed, longest = made_up_rows(recipe, shape.vocabulary)
    row = packed if is_packed else longest
    short = Batch(packed[:1], np.ones(1))
    new_learner(recipe, model_dir).forward_backward(short, cross_entropy)
    gc.collect()
    release_free_memory()
    opened = resident_bytes()
    learner = new_learner(recipe, model_dir)
    # The optimizer's moments, then gradients, which wait beside the activations of every row but the first.
    learner.forward_backward(short, cross_entropy)
    learner.optim_step(1e-9)
    learner.forward_backward(short, cross_entropy)
    release_free_memory()
    ready = resident_bytes()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    stats = learner.forward_backward(Batch(row, np.ones(len(row))), cross_entropy)
    peak = _highest_resident()
    memory = plan.sft()
    assert sampler.num_slots
    share = stats.num_packed_tokens / rows
    activations = memory.activations_bytes * share + memory.logits_bytes
    own = memory.weights_bytes - opened_memory(shape, dtype=dtype).weights_bytes
    gigabyte = 1e9
    return {
        "tokens": stats.num_packed_tokens,
        "process": (
            (opened - opened_memory(shape, dtype=dtype).weights_bytes) / gigabyte,
            memory.process_bytes / gigabyte,
        ),
        "optimizer": ((ready - opened - own) / gigabyte, memory.optimizer_bytes / gigabyte),
        "activations": ((peak - ready) / gigabyte, activations / gigabyte),
        "peak": (
            peak / gigabyte,
            (memory.process_bytes + memory.weights_bytes + memory.optimizer_bytes + activations) / gigabyte,
        ),
    }


def _highest_resident() -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    main()
