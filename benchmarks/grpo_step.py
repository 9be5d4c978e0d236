"""One full GRPO step of a small model, ours against TRL's GRPOTrainer with tools: CPU seconds, wall, memory.

    python benchmarks/grpo_step.py [--questions 2] [--group 4] [--natural] [--search-s 0.05] [--threads 1]
        [--repeats 3] [--trl-batch 8] [--trl-pure] [--row-tokens 2048] [--model DIR] [--device cuda]

Both sides sample, search and learn the same number of tokens (`grpo_workload.py`) from the same weights with the same
chat template, full fine-tuning, in one environment: install TRL beside seekling (`pip install trl datasets`). Each side
runs in a process of its own, which does one step for warming up and then `--repeats` more (0: the first is counted).
First both compute the log-probabilities and the gradient norm of the same two episodes in float32 and in the measured
dtype, and the comparison stops when they differ. The last two lines are the ratios, ours over TRL's, of the medians.

`--trl-batch` is TRL's per-device batch; the rest is gradient accumulation. `--trl-pure` gives TRL bfloat16 weights
instead of autocast over float32 ones: faster and smaller, but its optimizer then loses small updates, which ours keeps.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from grpo_workload import Workload, make_turns

from seekling.corpus.almanac import generate
from seekling.models import resolve_model

HERE = Path(__file__).parent


def make_model(spec: str, out: Path) -> Path:
    """A model directory with a chat template that TRL can find tool calls in; TRL refuses the small model's own."""
    import trl
    from transformers import AutoTokenizer

    source = resolve_model(spec, log=print)
    directory = out / "model"
    shutil.copytree(source, directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    template = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
    tokenizer.chat_template = template.read_text(encoding="utf-8")
    tokenizer.pad_token = "<|endoftext|>"
    tokenizer.save_pretrained(directory)
    return directory


def run(script: str, work: Workload, out: Path, *arguments: str) -> None:
    """Run one side in its own process."""
    file = out / "work.json"
    work.write(file)
    environment = {**os.environ, "OMP_NUM_THREADS": str(work.threads), "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-W", "ignore", str(HERE / script), str(file), str(out), *arguments]
    subprocess.run(command, check=True, env=environment, cwd=HERE)


def show(name: str, measured: dict, episodes: int, sampled: int) -> tuple[float, float, float]:
    """Print a side's medians and return them."""
    cpu, wall = statistics.median(measured["cpu_s"]), statistics.median(measured["wall_s"])
    each = ", ".join(f"{value:.1f}" for value in measured["cpu_s"])
    print(
        f"{name:5} {cpu:7.1f} CPU-s ({each}), {wall:6.1f} s wall, {wall / episodes:5.2f} s per episode, "
        f"{sampled / wall:5.0f} sampled tokens per s, peak {measured['peak_gb']:5.2f} GB",
        flush=True,
    )
    return cpu, wall, measured["peak_gb"]


def main() -> None:
    """Check that both sides agree, measure them, print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=2)
    parser.add_argument("--group", type=int, default=4)
    parser.add_argument("--natural", action="store_true", help="lengths as trained policies write them")
    parser.add_argument("--search-s", type=float, default=0.0)
    parser.add_argument(
        "--prompt-tokens", type=int, default=354, help="of the question; about 180 come from the template"
    )
    parser.add_argument("--observation-tokens", type=int, default=240, help="about 16 come from the template")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--model", default="default")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--row-tokens", type=int, default=2048)
    parser.add_argument("--trl-batch", type=int, default=8)
    parser.add_argument("--trl-pure", action="store_true")
    parser.add_argument("--only", choices=["ours", "trl"], help="one side only, for tuning it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        generate(150, 0, out / "almanac")
        episodes = options.questions * options.group
        work = Workload(
            model=str(make_model(options.model, out)), corpus=str(out / "almanac" / "corpus.jsonl"),
            questions=options.questions, group=options.group, prompt_tokens=options.prompt_tokens,
            observation_tokens=options.observation_tokens,
            turns=make_turns(options.questions, options.group, options.natural, seed=0),
            search_s=options.search_s, dtype=options.dtype, threads=options.threads,
            steps=1 + options.repeats, device=options.device,
        )  # fmt: skip
        ours = [str(options.row_tokens)]
        theirs = [str(min(options.trl_batch, episodes)), "pure" if options.trl_pure else "autocast"]
        if options.only is None:
            same = replace(work, dtype="float32", steps=0)
            run("grpo_ours.py", same, out, *ours)
            run("grpo_trl.py", same, out, theirs[0], "autocast")
        if options.only != "trl":
            run("grpo_ours.py", work, out, *ours)
        if options.only != "ours":
            if options.only == "trl":
                run("grpo_ours.py", replace(work, steps=0), out, *ours)
            run("grpo_trl.py", work, out, *theirs)
        sides = {
            name: json.loads((out / f"{name}.json").read_text())
            for name in ("ours", "trl")
            if (out / f"{name}.json").exists()
        }
    sampled = sum(map(sum, work.turns))
    print(f"{episodes} episodes, {sampled} sampled tokens, {work.dtype}, {work.threads} threads")
    shown = {name: show(name, measured, episodes, sampled) for name, measured in sides.items()}
    if len(shown) == 2:
        cpu, wall, memory = (mine / theirs for mine, theirs in zip(shown["ours"], shown["trl"], strict=True))
        print(f"ratio wall {wall:.3f}\nratio cpu {cpu:.3f}\nratio memory {memory:.3f}")


if __name__ == "__main__":
    main()
