"""String measures between a predicted answer and the gold answers: exact match, token F1, substring.

All of them use SQuAD's normalisation and take the best value over the golds. They see the answer that the policy wrote
and nothing else: finding it (never in the prompt, never in an observation) is the environment's work.

A gold that SQuAD's rule normalises to nothing ("A", "The The", "!!!") is compared under a milder rule instead, the
first that leaves something of it. Under SQuAD's rule alone "A" would equal "the", "an" and an empty answer, and as a
substring it would be contained in everything.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable

_DELETE_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize_answer(text: str) -> str:
    """Lower-case, delete ASCII punctuation, blank out English articles, collapse white space.

    Source: the evaluation script of SQuAD 1.1 (arXiv:1606.05250), unchanged: punctuation is deleted, not replaced
    ("1,000" becomes "1000", "Spider-Man" becomes "spiderman"), and typographic quotes stay.

    Example:
        >>> normalize_answer("The  U.S.A.")
        'usa'
    """
    return " ".join(_ARTICLES.sub(" ", _without_punctuation(text)).split())


def is_vacuous(answer: str) -> bool:
    """Whether SQuAD's rule leaves nothing of a gold answer; evaluations count and report such golds."""
    return not normalize_answer(answer)


def exact_match(prediction: str | None, answers: Iterable[str]) -> float:
    """1.0 when the prediction equals any gold after normalisation, else 0.0.

    Args:
        prediction: the final answer as the policy wrote it; None when it gave none.
        answers: the golds; an empty or all-blank gold never matches.
    """
    return _best(prediction, answers, lambda predicted, gold, _: float(predicted == gold))


def f1(prediction: str | None, answers: Iterable[str]) -> float:
    """Harmonic mean of token precision and recall against the best gold, after normalisation, in [0, 1].

    Source: SQuAD 1.1's evaluation script (arXiv:1606.05250). Tokens are counted as a multiset.
    """
    return _best(prediction, answers, lambda predicted, gold, _: _token_f1(predicted.split(), gold.split()))


def substring(prediction: str | None, answers: Iterable[str]) -> float:
    """1.0 when any normalised gold is contained in the normalised prediction, else 0.0.

    Character-wise, so gold "art" is contained in "party"; golds that SQuAD's rule empties are looked for as whole
    words, since "a" is contained in almost everything.

    Source: the sub-EM measure of Search-R1 (arXiv:2503.09516), except for golds that normalise to nothing.
    """
    return _best(prediction, answers, _contains)


_Measure = Callable[[str, str, bool], float]
"""Normalised prediction, normalised gold, whether the gold survived SQuAD's own rule -> value."""


def _best(prediction: str | None, answers: Iterable[str], measure: _Measure) -> float:
    if isinstance(answers, str):
        raise TypeError(f"answers must be a collection of golds, got the string {answers!r}; write [{answers!r}]")
    if prediction is None:
        return 0.0
    return max((_against(prediction, gold, measure) for gold in answers), default=0.0)


def _against(prediction: str, gold: str, measure: _Measure) -> float:
    for rule in (normalize_answer, _without_punctuation, _collapsed):
        normal_gold = rule(gold)
        if normal_gold:
            return measure(rule(prediction), normal_gold, rule is normalize_answer)
    return 0.0


def _without_punctuation(text: str) -> str:
    return " ".join(text.lower().translate(_DELETE_PUNCTUATION).split())


def _collapsed(text: str) -> str:
    return " ".join(text.lower().split())


def _token_f1(predicted: list[str], gold: list[str]) -> float:
    overlap = sum((Counter(predicted) & Counter(gold)).values())
    if overlap == 0:
        return 0.0
    precision, recall = overlap / len(predicted), overlap / len(gold)
    return 2 * precision * recall / (precision + recall)


def _contains(predicted: str, gold: str, is_ordinary: bool) -> float:
    if is_ordinary:
        return float(gold in predicted)
    return float(f" {gold} " in f" {predicted} ")
