"""ROUGE-L between a predicted answer and the gold answers.

Equal to Google's `rouge-score` package without stemming, which the tests compare it with. Its tokens are runs of ASCII
letters and digits: other scripts have none, so their ROUGE-L is 0 and other measures must be read instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_TOKEN = re.compile(r"[a-z0-9]+")


def rouge_l(prediction: str | None, answers: Iterable[str], *, beta: float = 1.0) -> float:
    """F-measure of the longest common subsequence against the best gold, in [0, 1].

    Args:
        prediction: the final answer as the policy wrote it; None when it gave none.
        answers: the golds.
        beta: weight of recall over precision; 1 is what `rouge-score` computes.

    Source: Lin, ROUGE (ACL workshop 2004), section 3: P = LCS / |prediction|, R = LCS / |gold|,
    F = (1 + beta^2) P R / (R + beta^2 P).
    """
    if isinstance(answers, str):
        raise TypeError(f"answers must be a collection of golds, got the string {answers!r}; write [{answers!r}]")
    if prediction is None:
        return 0.0
    predicted = rouge_tokens(prediction)
    return max((_f_measure(predicted, rouge_tokens(gold), beta) for gold in answers), default=0.0)


def rouge_tokens(text: str) -> list[str]:
    """Lower-case and keep runs of ASCII letters and digits, as `rouge-score` does."""
    return _TOKEN.findall(text.lower())


def longest_common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the longest sequence of tokens that both hold in this order, gaps allowed."""
    row = [0] * (len(second) + 1)
    for token in first:
        diagonal = 0
        for column, other in enumerate(second, start=1):
            above = row[column]
            row[column] = diagonal + 1 if token == other else max(above, row[column - 1])
            diagonal = above
    return row[-1]


def _f_measure(predicted: Sequence[str], gold: Sequence[str], beta: float) -> float:
    common = longest_common_subsequence(predicted, gold)
    if common == 0:
        return 0.0
    precision, recall = common / len(predicted), common / len(gold)
    return (1 + beta * beta) * precision * recall / (recall + beta * beta * precision)
