"""What a stage of training made worse: the same questions before and after it, and what became of each episode.

A score can rise while a habit goes bad. A change is told where it is no chance: an exact one-sided sign test over the
questions whose episodes differ, at 5 % for all checks together.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction

from seekling.evaluate.behaviours import detect_behaviours
from seekling.reward.match import exact_match
from seekling.types import EpisodeRecord, StopReason

ALPHA = 0.05
"""So many comparisons of a stage that changes nothing are warned about, at most."""
STAGES = ("base", "sft", "rl")
"""In the order of training; each is compared with the one before it that was evaluated."""
_NAMES = {"base": "the base model", "sft": "SFT", "rl": "RL"}
_ENDLESS = re.compile(r"(.{1,60}?)\1{4,}\Z", re.DOTALL)
"""One piece of text, five times or more in a row, to the very end; a last one that is cut off only moves the piece."""
_TAIL = 400
"""Characters at the end of a turn that are looked at."""


@dataclass(frozen=True, slots=True)
class Worsening:
    """A check that more episodes fail after a stage than before."""

    text: str
    """What the counted episodes do."""
    before: int
    after: int
    """Episodes that do it, of `num_questions`; of a failing more than before, of a success fewer."""
    num_questions: int
    """That both evaluations asked, infrastructure failures left out."""
    p: float
    """Of the sign test, corrected for the number of checks."""

    def __str__(self) -> str:
        return f"{self.after} of {self.num_questions} {self.text}, {self.before} before"


def repeats_to_the_end(record: EpisodeRecord) -> bool:
    """Whether an episode ended because its last turn wrote one word or phrase over and over until the turn was full."""
    episode = record.episode
    is_cut = episode.stop_reason is StopReason.MAX_TOKENS and bool(episode.turns)
    return is_cut and _ENDLESS.search(episode.turns[-1].action[-_TAIL:]) is not None


def find_worsening(before: Iterable[EpisodeRecord], after: Iterable[EpisodeRecord]) -> list[Worsening]:
    """What episodes do worse than others of the same questions did; questions of only one side are left out."""
    firsts, seconds = _scored(before), _scored(after)
    pairs = [(first, seconds[key]) for key, first in firsts.items() if key in seconds]
    answered = [pair for pair in pairs if all(record.episode.answer is not None for record in pair)]
    found = []
    for text, is_good, check in _CHECKS:
        # Who answers nothing makes nothing up: that is compared where both answer.
        asked = answered if check is _is_made_up else pairs
        results = [(check(first), check(second)) for first, second in asked]
        num_worse = sum(first == is_good and second != is_good for first, second in results)
        num_better = sum(first != is_good and second == is_good for first, second in results)
        p = min(1.0, len(_CHECKS) * _sign_test(num_worse, num_better))
        if p <= ALPHA:
            num_before, num_after = (sum(column) for column in zip(*results, strict=True))
            found.append(Worsening(text, num_before, num_after, len(asked), p))
    return found


def describe_worsening(records: Iterable[EpisodeRecord]) -> list[str]:
    """A warning for every stage of a run that made something worse than the evaluation of the stage before it shows."""
    by_stage: dict[str, list[EpisodeRecord]] = {}
    for record in records:
        by_stage.setdefault(record.stage, []).append(record)
    evaluated = [name for name in STAGES if f"eval-{name}" in by_stage]
    sentences = []
    for first, second in itertools.pairwise(evaluated):
        found = find_worsening(by_stage[f"eval-{first}"], by_stage[f"eval-{second}"])
        if found:
            texts = "; ".join(str(each) for each in found)
            sentences.append(f"{_NAMES[second]} made it worse than {_NAMES[first]}: {texts}.")
    return sentences


def _scored(records: Iterable[EpisodeRecord]) -> dict[tuple[str, str], EpisodeRecord]:
    return {each.question.key: each for each in records if each.episode.stop_reason is not StopReason.INFRA_FAILURE}


def _sign_test(num_worse: int, num_better: int) -> float:
    """Chance of so many worse ones or more, if either is as likely: the exact one-sided test."""
    num = num_worse + num_better
    return float(Fraction(sum(math.comb(num, count) for count in range(num_better + 1)), 1 << num))


def _is_right(record: EpisodeRecord) -> bool:
    return exact_match(record.episode.answer, record.question.answers) >= 1


def _is_unreadable(record: EpisodeRecord) -> bool:
    """Not one that only the token budget made so."""
    turns, is_cut = record.episode.turns, record.episode.stop_reason is StopReason.MAX_TOKENS
    return any(turn.kind == "invalid" for turn in turns[: len(turns) - is_cut])


def _is_made_up(record: EpisodeRecord) -> bool:
    return "hallucination" in detect_behaviours(record.question, record.episode)


_CHECKS: tuple[tuple[str, bool, Callable[[EpisodeRecord], bool]], ...] = (
    ("are right", True, _is_right),
    ("answered", True, lambda record: record.episode.answer is not None),
    ("ran out of tokens", False, lambda record: record.episode.stop_reason is StopReason.MAX_TOKENS),
    ("repeat a word or phrase until the turn is full", False, repeats_to_the_end),
    ("wrote an action that cannot be read", False, _is_unreadable),
    ("never searched", False, lambda record: record.episode.num_searches == 0),
    ("gave an answer that nothing they found shows", False, _is_made_up),
)
"""What the counted episodes do, whether it is good, and the rule."""
