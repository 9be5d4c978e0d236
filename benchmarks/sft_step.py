"""Supervised fine-tuning of a small model, ours against TRL's SFTTrainer: tokens per CPU-second, memory, loss.

    python benchmarks/sft_step.py [--episodes-per-step 8] [--threads 1] [--repeats 3] [--row-tokens 2048]
        [--trl auto | padded-1 | padding-free-4 | ...] [--model DIR]

The rows are expert episodes of the almanac, as `seekling train demo env.protocol=tags` would train on
them: prompt, searches, passages, answer; the actions are trained. Both sides get the same episodes in the same steps,
full fine-tuning, the same AdamW, no gradient checkpointing, in one environment: install TRL beside seekling
(`pip install trl datasets`). Each side runs in a process of its own, which does one step for warming up and then
`--repeats` more.

- "unshared" gives every episode a first token of its own, so no two have a common prefix and both sides compute the
  same tokens. The ratios on the last lines are of this one.
- "natural" are the episodes as they are. Ours computes what the episodes of a row have in common (the instructions)
  once; tokens are still counted as TRL has them.

First both compute the losses and gradient norms of two steps in float32, and the comparison stops when they differ.
TRL's layout is "padded-N" (N episodes side by side, sorted by length so that hardly any padding is left) or
"padding-free-N" (N episodes in one row, TRL's packing), the rest of a step is gradient accumulation; "auto" tries
several and takes the fastest. TRL gets autocast to bfloat16 over float32 weights; `--trl-pure` gives it bfloat16
weights, whose optimizer loses small updates.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

HERE = Path(__file__).parent
LAYOUTS = ("padded-1", "padded-2", "padded-4", "padding-free-2", "padding-free-4")


@dataclass(frozen=True)
class SftWork:
    """What one process does: some steps of so many episodes, the first step not counted."""

    model: str
    side: str
    dtype: str
    threads: int
    steps: tuple[tuple[tuple[tuple[int, ...], tuple[bool, ...]], ...], ...]
    """Steps of episodes: their token ids, and which of those are trained."""
    row_tokens: int
    layout: str
    pure: bool
    learning_rate: float = 1e-5

    @staticmethod
    def read(path: str) -> SftWork:
        """Read what `write` wrote."""
        return SftWork(**json.loads(Path(path).read_text(encoding="utf-8")))

    def write(self, path: Path) -> None:
        """Write as JSON."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @property
    def tokens_per_step(self) -> list[int]:
        """Tokens of each step's episodes, each counted in full."""
        return [sum(len(ids) for ids, _ in step) for step in self.steps]


def write_result(out: Path, **result: object) -> None:
    """Leave what a side measured for the parent."""
    (out / "result.json").write_text(json.dumps(result), encoding="utf-8")


def expert_rows(folder: Path, model_dir: Path, count: int) -> list[tuple[list[int], list[bool]]]:
    """So many expert episodes of the almanac as token ids and train masks, by the product's own path."""
    from seekling.config import load_recipe
    from seekling.experts.select import collect
    from seekling.pipeline.reporter import Reporter
    from seekling.pipeline.world import open_world
    from seekling.rollout.render import expert_trajectory
    from seekling.serve.agent import open_agent

    recipe = load_recipe("demo", ["env.protocol=tags", "rollout.in_flight=1"])
    world = open_world(recipe, folder, Reporter())
    with open_agent(recipe, world.library, model_dir) as agent:
        expert = recipe.experts.model_copy(update={"max_episodes": count})
        records = collect(agent.env, world.train, config=expert, title_of=world.library.title_of).kept
        trajectories = [expert_trajectory(each.episode, agent.env.protocol, agent.renderer) for each in records]
    if len(trajectories) < count:
        sys.exit(f"only {len(trajectories)} expert episodes; lower --repeats or --episodes-per-step")
    return [(each.token_ids_T.tolist(), each.train_mask_T.tolist()) for each in trajectories]


def run(work: SftWork, out: Path) -> dict:
    """Run one side in its own process; what it measured."""
    file = out / "work.json"
    work.write(file)
    environment = {**os.environ, "OMP_NUM_THREADS": str(work.threads), "TOKENIZERS_PARALLELISM": "false"}
    script = HERE / f"sft_{work.side}.py"
    command = [sys.executable, "-W", "ignore", str(script), str(file), str(out)]
    subprocess.run(command, check=True, env=environment, cwd=HERE)
    return json.loads((out / "result.json").read_text(encoding="utf-8"))


def check(work: SftWork, out: Path) -> None:
    """Stop unless both sides have the same losses and gradient norms, in float32, of two steps."""
    small = replace(work, dtype="float32", steps=work.steps[:2], pure=False)
    ours, trl = (run(replace(small, side=side), out) for side in ("ours", "trl"))
    for name in ("loss", "grad_norm"):
        print(f"  {name}: ours {ours[name]}, TRL {trl[name]}", flush=True)
        if any(abs(a / b - 1) > 1e-4 for a, b in zip(ours[name], trl[name], strict=True)):
            sys.exit(f"the two sides differ in {name}, so nothing is compared")


def pick_layout(work: SftWork, out: Path) -> str:
    """The layout with which TRL is fastest, tried on one counted step each."""
    cpu = {}
    for layout in LAYOUTS:
        if len(work.steps[0]) % int(layout.rsplit("-", 1)[1]) == 0:
            measured = run(replace(work, side="trl", layout=layout, steps=work.steps[:2]), out)
            cpu[layout] = measured["cpu_s"][0]
            print(f"  TRL {layout}: {cpu[layout]:.1f} CPU-s, peak {measured['peak_gb']:.2f} GB", flush=True)
    return min(cpu, key=lambda layout: cpu[layout])


def show(name: str, work: SftWork, measured: dict) -> tuple[float, float]:
    """Print a side's figures; its median tokens per CPU-second, and its peak memory."""
    pairs = list(zip(work.tokens_per_step[1:], measured["cpu_s"], measured["wall_s"], strict=True))
    rate = statistics.median(tokens / cpu for tokens, cpu, _ in pairs)
    each = ", ".join(f"{tokens / cpu:.0f}" for tokens, cpu, _ in pairs)
    wall = statistics.median(tokens / wall for tokens, _, wall in pairs)
    losses = ", ".join(f"{loss:.4f}" for loss in measured["loss"])
    print(
        f"{name:14} {rate:6.0f} tokens per CPU-s ({each}), {wall:6.0f} tokens per s, peak {measured['peak_gb']:5.2f} "
        f"GB, losses {losses}",
        flush=True,
    )
    return rate, measured["peak_gb"]


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes-per-step", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--row-tokens", type=int, default=2048)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--model", default="default")
    parser.add_argument("--trl", default="auto", help="layout, such as padded-2 or padding-free-4")
    parser.add_argument("--trl-pure", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Check that both sides agree, measure them, print the ratios."""
    from machine import describe

    from seekling.models import resolve_model

    given = options()
    print(describe(given.threads, "trl"), flush=True)
    per_step, num_steps = given.episodes_per_step, 1 + given.repeats
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        model = resolve_model(given.model, log=print)
        rows = expert_rows(out / "world", model, per_step * num_steps)
        # Ids that episodes do not begin with; 1,000 is behind the special tokens.
        changed = [([1000 + n, *ids[1:]], mask) for n, (ids, mask) in enumerate(rows)]
        natural, unshared = (
            SftWork(
                model=str(model), side="ours", dtype=given.dtype, threads=given.threads,
                steps=tuple(tuple(each[n : n + per_step]) for n in range(0, len(each), per_step)),
                row_tokens=given.row_tokens, layout="padded-1" if given.trl == "auto" else given.trl,
                pure=given.trl_pure,
            )
            for each in (rows, changed)
        )  # fmt: skip
        tokens, trained = sum(natural.tokens_per_step), sum(sum(mask) for _, mask in rows)
        print(f"{per_step} episodes per step, {tokens / len(rows):.0f} tokens each, {trained / tokens:.0%} trained")
        for name, work in (("unshared", unshared), ("natural", natural)):
            print(f"float32, {name}:", flush=True)
            check(work, out)
        if given.trl == "auto":
            unshared = replace(unshared, layout=pick_layout(unshared, out))
        print(f"{given.dtype}, TRL {unshared.layout}{', bfloat16 weights' * given.trl_pure}:", flush=True)
        rate, memory = show("ours, unshared", unshared, run(unshared, out))
        natural_rate, _ = show("ours, natural", natural, run(natural, out))
        # TRL computes the same tokens in both, so it is measured once.
        trl_rate, trl_memory = show("TRL", unshared, run(replace(unshared, side="trl"), out))
    print(f"ratio natural, shared prefixes once {natural_rate / trl_rate:.3f}")
    print(f"ratio tokens per cpu-second {rate / trl_rate:.3f}\nratio memory {memory / trl_memory:.3f}")


if __name__ == "__main__":
    main()
