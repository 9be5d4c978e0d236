"""A recipe small enough to run whole in seconds, a reporter that can interrupt, and what of a run must repeat."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Collection, Iterator
from dataclasses import asdict, replace
from pathlib import Path

from seekling.config import Recipe
from seekling.pipeline.reporter import Advance, Reporter
from seekling.types import Hop
from tests.experts.village import SINGLE, write_village
from tests.settings import recipe_of

BIRCH = replace(
    SINGLE,
    id="birch",
    question="When was Birch Mill built?",
    answers=("1655",),
    supporting_ids=("birch_mill",),
    hops=(Hop("Birch Mill", "built in", "1655", "birch_mill"),),
)

DRAFTS = ("draft_acceptance", "drafted_per_token", "drafted_tokens", "accepted_tokens")
"""Of evaluations: what was sampled before an interruption is no longer there to guess from."""
STAGES = ("expert", "sft", "rl", "eval-base", "eval-sft", "eval-rl")
OTHER_WORDS = {
    "held-out": "When was it, {} built?",
    "another": "When was one {} built?",
    "dev": "When was it and {} built?",
}
"""Questions about the same pages, in words that the tiny model takes for those that it was trained on."""


def village_recipe(folder: Path, model_dir: Path, **changes: dict[str, object]) -> Recipe:
    """Two training questions, four test questions; enough SFT steps for RL to have something to tell apart.

    The two development questions in dev.jsonl are asked when a change of the section data names the file.
    """
    corpus = write_village(folder)
    train = [SINGLE, BIRCH]
    others = {
        name: [
            replace(each, id=f"{name} {each.id}", question=text.format(each.hops[0].query_subject)) for each in train
        ]
        for name, text in OTHER_WORDS.items()
    }
    tests = others["held-out"] + others["another"]
    for name, questions in (("train", train), ("test", tests), ("dev", others["dev"])):
        lines = [json.dumps(asdict(question)) + "\n" for question in questions]
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    raw: dict[str, dict[str, object]] = {
        "model": {"spec": str(model_dir), "dtype": "float32"},
        "data": {"corpus": str(corpus), "train": str(folder / "train.jsonl"), "test": str(folder / "test.jsonl")},
        "retrieval": {"top_k": 1, "passage_words": 30},
        "env": {"observation_tokens": 80},
        "experts": {"own_words_share": 0.0},
        "rollout": {"turn_tokens": 100, "temperature": 0.6, "episode_tokens": 700, "in_flight": 8},
        "sft": {"learning_rate": 8e-3, "epochs": 60, "episodes_per_step": 2, "max_grad_norm": 0.5, "row_tokens": 700},
        "rl": {
            "steps": 3,
            "questions_per_step": 2,
            "group_size": 4,
            "learning_rate": 1e-3,
            "reward": "f1",
            "kl_coefficient": 0.01,
            "max_grad_norm": 0.02,
        },
    }
    for section, values in changes.items():
        raw[section] = raw.get(section, {}) | values
    return recipe_of({"name": "village", "seed": 5, **raw})


class QuietReporter(Reporter):
    """Keeps what it is told, and interrupts after the n-th advance of a stage.

    Args:
        stage: as `track` is told; empty never interrupts.
        after: how many advances in this process.
        by_signal: send the signal that Ctrl-C sends, instead of raising at once.
    """

    def __init__(self, stage: str = "", after: int = 0, *, by_signal: bool = False) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.tracked: list[tuple[str, int, int]] = []
        self.num_advances: dict[str, int] = {}
        self._stage, self._after, self._by_signal = stage, after, by_signal

    def line(self, text: str) -> None:
        self.lines.append(text)

    @contextlib.contextmanager
    def track(self, title: str, total: int, *, done: int = 0) -> Iterator[Advance]:
        self.tracked.append((title, total, done))

        def advance(note: str) -> None:
            self.num_advances[title] = self.num_advances.get(title, 0) + 1
            if title == self._stage and self.num_advances[title] == self._after:
                if not self._by_signal:
                    raise KeyboardInterrupt
                signal.raise_signal(signal.SIGINT)

        yield advance


def rows(path: Path) -> list[dict[str, object]]:
    """Rows of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def what_must_repeat(run: Path) -> dict[str, object]:
    """Everything in a run folder that does not depend on the clock."""
    found: dict[str, object] = {"recipe": (run / "recipe.toml").read_text(encoding="utf-8")}
    for path in sorted(run.glob("eval/*.json")):
        found[path.name] = _timeless(json.loads(path.read_text(encoding="utf-8")), DRAFTS)
    for path in sorted(run.glob("episodes/*.jsonl")):
        found[path.name] = [
            _timeless(row, DRAFTS if path.stem.startswith(("eval-", "dev-")) else ()) for row in rows(path)
        ]
    found["metrics"] = [_timeless(row) for row in rows(run / "metrics.jsonl")]
    for path in sorted(run.glob("checkpoints/*/model.safetensors")):
        found[f"{path.parent.name} weights"] = path.read_bytes()
    found["other files"] = sorted(
        str(path.relative_to(run)) for path in run.rglob("*") if path.is_file() and "index" not in path.parts
    )
    return found


def _timeless(value: object, without: Collection[str] = ()) -> object:
    if isinstance(value, dict):
        return {
            key: _timeless(each, without)
            for key, each in value.items()
            if not (key.endswith("_s") or key in ("seconds_per_question", "wall_seconds_per_question", "time_s"))
            and key not in without
        }
    return [_timeless(each, without) for each in value] if isinstance(value, list) else value
