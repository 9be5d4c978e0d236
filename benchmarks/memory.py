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

PARTS = ("process", "optimizer", "activations", "peak")


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
    import numpy as np

    from seekling.config import build_recipe
    from seekling.doctor.memory import MemoryPlan, longest_row_tokens, opened_memory
    from seekling.doctor.shape import read_model_shape
    from seekling.kernels.memory import release_free_memory, resident_bytes
    from seekling.learn.batch import Batch
    from seekling.learn.loss import cross_entropy
    from seekling.models import load_policy, resolve_model
    from seekling.pipeline.implementations import new_learner
    from seekling.pipeline.tune import RandomEpisodes
    from seekling.serve.agent import make_sampler

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
    episodes = RandomEpisodes(recipe, shape.vocabulary)
    prompt = next(episodes.prompts(siblings=1))
    observed = max(0, longest_row_tokens(recipe, "sft") - len(prompt) - 2 * episodes.turn_tokens)
    row = episodes.first_row("sft")[0] if is_packed else [episodes.trajectory(prompt, observed)]
    short = Batch([episodes.first_row("sft")[0][0]], np.ones(1))
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
