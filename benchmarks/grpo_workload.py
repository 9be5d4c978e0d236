"""The work of one GRPO step that `grpo_step.py` gives to both sides: prompts, lengths, observations, rewards.

Every episode's length is fixed beforehand, so both sides sample, read and learn the same number of tokens: an episode
is a list of turns, a turn a number of sampled tokens, and after every turn but the last comes one observation.
"""

from __future__ import annotations

import json
import resource
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Workload:
    """One step: P questions, G episodes each."""

    model: str
    """Directory with weights, and a tokenizer whose chat template both sides use."""
    corpus: str
    """A text file that prompts and observations are cut from."""
    questions: int
    group: int
    prompt_tokens: int
    """Of the user's message; the template and the tool's description come on top."""
    observation_tokens: int
    """Of the tool's result; the template comes on top."""
    turns: tuple[tuple[int, ...], ...]
    """P * G episodes: sampled tokens of each turn."""
    search_s: float
    """A search sleeps this long."""
    dtype: str
    threads: int
    steps: int
    """The first is not counted."""
    device: str = "cpu"
    """Or cuda, on both sides."""
    learning_rate: float = 1e-6

    @staticmethod
    def read(path: str) -> Workload:
        """Read what `write` wrote."""
        raw = json.loads(Path(path).read_text(encoding="utf-8"))
        return Workload(**{**raw, "turns": tuple(tuple(turn) for turn in raw["turns"])})

    def write(self, path: Path) -> None:
        """Write as JSON."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @property
    def most_tokens(self) -> int:
        """No episode is longer behind its prompt: sampled tokens, observations and what the template adds to them."""
        return max(sum(turns) + (len(turns) - 1) * (self.observation_tokens + 40) for turns in self.turns)


def make_turns(questions: int, group: int, natural: bool, seed: int) -> tuple[tuple[int, ...], ...]:
    """Lengths of all episodes: 3 turns of 48 tokens, or those of a trained policy.

    Natural lengths: one, two or three turns (20, 60, 20 %); a search of 14 to 40 tokens, an answer of 8 to 24, as the
    policies of `nq-mini` write them, and one turn in twenty that rambles to 96 tokens.
    """
    if not natural:
        return ((48, 48, 48),) * (questions * group)
    random = np.random.default_rng(seed)
    episodes = []
    for _ in range(questions * group):
        searches = random.integers(14, 41, size=random.choice([0, 1, 2], p=[0.2, 0.6, 0.2])).tolist()
        turns = [*searches, int(random.integers(8, 25))]
        episodes.append(tuple(96 if random.random() < 0.05 else length for length in turns))
    return tuple(episodes)


class Texts:
    """Real sentences, cut to so many tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, corpus: str) -> None:
        self._tokenizer = tokenizer
        text = Path(corpus).read_text(encoding="utf-8")
        self._ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]

    def text(self, number: int, num_tokens: int) -> str:
        """The text of a place in the corpus; another number is another place."""
        start = number * 997 % (len(self._ids) - num_tokens)
        text = self._tokenizer.decode(self._ids[start : start + num_tokens])
        assert isinstance(text, str)
        return text


@dataclass
class Measured:
    """CPU and wall seconds of each counted step, and peak memory in GB: the process's, or what it took of a GPU's."""

    cpu_s: list[float]
    wall_s: list[float]
    peak_gb: float


class Stopwatch:
    """Times steps; the first is not counted.

    Args:
        device: cuda waits for the GPU to end what it was given.
    """

    def __init__(self, device: str = "cpu") -> None:
        self._on_gpu = device == "cuda"
        self._cpu, self._wall = time.process_time(), time.perf_counter()
        self._steps: list[tuple[float, float]] = []

    def start(self) -> None:
        """A step begins."""
        self._wait()
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def stop(self) -> None:
        """A step ends."""
        self._wait()
        self._steps.append((time.process_time() - self._cpu, time.perf_counter() - self._wall))

    def _wait(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize()

    def measured(self) -> Measured:
        """What was counted."""
        counted = self._steps[1:] or self._steps
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6 * 1.024
        if self._on_gpu:
            peak = torch.cuda.max_memory_reserved() / 1e9
        return Measured([cpu for cpu, _ in counted], [wall for _, wall in counted], peak)
