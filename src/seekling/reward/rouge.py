"""ROUGE-L between a predicted answer and the gold answers.

Equal to Google's `rouge-score` package without stemming, which the tests compare it with. Its tokens are runs of ASCII
letters and digits: other scripts have none, so their ROUGE-L is 0 and other measures must be read instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_TOKEN = re.compile(r"[a-z0-9]+")


def rouge_l(prediction: str | None, answers: Iterable[str]) -> float:
    """F-measure of the longest common subsequence against the best gold, in [0, 1]; None, no answer, has 0.

    Source: Lin, ROUGE (ACL workshop 2004), section 3, with beta = 1: P = LCS / |prediction|, R = LCS / |gold|,
    F = 2 P R / (P + R).
    """
    if isinstance(answers, str):
        raise TypeError(f"answers must be a collection of golds, got the string {answers!r}; write [{answers!r}]")
    predicted = rouge_tokens(prediction or "")
    return max((_f_measure(predicted, rouge_tokens(gold)) for gold in answers), default=0.0)


def rouge_tokens(text: str) -> list[str]:
    """Lower-case and keep runs of ASCII letters and digits, as `rouge-score` does."""
    return _TOKEN.findall(text.lower())


def longest_common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the longest sequence of tokens that both hold in this order, gaps allowed."""
    row = [0] * (len(second) + 1)
    for token in first:
        diagonal = 0
        for place, other in enumerate(second, start=1):
            diagonal, row[place] = row[place], diagonal + 1 if token == other else max(row[place], row[place - 1])
    return row[-1]


def _f_measure(predicted: Sequence[str], gold: Sequence[str]) -> float:
    common = longest_common_subsequence(predicted, gold)
    return 2 * common / (len(predicted) + len(gold)) if common else 0.0
