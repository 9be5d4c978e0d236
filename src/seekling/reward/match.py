"""String measures between a predicted answer and the gold answers: exact match, token F1, substring, ROUGE-L.

All take the best value over the golds, and see only the answer that the policy wrote. The first three use SQuAD's
normalisation. A gold that it empties ("A", "The The", "!!!") is compared under the first milder rule that leaves
something of it: under SQuAD's rule "A" would equal "the" and be contained in everything.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

_DELETE_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_ROUGE_TOKEN = re.compile(r"[a-z0-9]+")


def normalize_answer(text: str) -> str:
    """Lower-case, delete ASCII punctuation, blank out English articles, collapse white space.

    Source: the evaluation script of SQuAD 1.1 (arXiv:1606.05250): punctuation is deleted, not replaced ("1,000" becomes
    "1000"), and typographic quotes stay.

    Example:
        >>> normalize_answer("The  U.S.A.")
        'usa'
    """
    return " ".join(_ARTICLES.sub(" ", _without_punctuation(text)).split())


def is_vacuous(answer: str) -> bool:
    """Whether SQuAD's rule leaves nothing of a gold answer; evaluations report such golds."""
    return not normalize_answer(answer)


def exact_match(prediction: str | None, answers: Iterable[str]) -> float:
    """1.0 when the prediction equals any gold after normalisation, else 0.0; None is no answer, a blank gold none."""
    return _best(prediction, answers, lambda predicted, gold, _: float(predicted == gold))


def f1(prediction: str | None, answers: Iterable[str]) -> float:
    """Harmonic mean of token precision and recall against the best gold, in [0, 1].

    Source: SQuAD 1.1's evaluation script (arXiv:1606.05250). Tokens are counted as a multiset.
    """
    return _best(prediction, answers, lambda predicted, gold, _: _token_f1(predicted.split(), gold.split()))


def substring(prediction: str | None, answers: Iterable[str]) -> float:
    """1.0 when any normalised gold is contained in the normalised prediction, else 0.0.

    By characters ("art" is in "party"); golds that SQuAD's rule empties are looked for as whole words.

    Source: the sub-EM measure of Search-R1 (arXiv:2503.09516), except for golds that normalise to nothing.
    """
    return _best(prediction, answers, _contains)


def rouge_l(prediction: str | None, answers: Iterable[str]) -> float:
    """F-measure of the longest common subsequence against the best gold, in [0, 1]; no answer has 0.

    Equal to Google's `rouge-score` without stemming: tokens are runs of ASCII letters and digits, so other scripts
    have 0.

    Source: Lin, ROUGE (ACL workshop 2004), section 3, with beta = 1.
    """
    predicted = rouge_tokens(prediction or "")
    return max((_lcs_f1(predicted, rouge_tokens(gold)) for gold in _golds(answers)), default=0.0)


def rouge_tokens(text: str) -> list[str]:
    """Lower-case and keep runs of ASCII letters and digits, as `rouge-score` does."""
    return _ROUGE_TOKEN.findall(text.lower())


def longest_common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the longest sequence of tokens that both hold in this order, gaps allowed."""
    row = [0] * (len(second) + 1)
    for token in first:
        diagonal = 0
        for place, other in enumerate(second, start=1):
            diagonal, row[place] = row[place], diagonal + 1 if token == other else max(row[place], row[place - 1])
    return row[-1]


_Measure = Callable[[str, str, bool], float]
"""Normalised prediction, normalised gold, whether the gold survived SQuAD's own rule -> value."""


def _golds(answers: Iterable[str]) -> Iterable[str]:
    if isinstance(answers, str):
        raise TypeError(f"answers must be a collection of golds, got the string {answers!r}; write [{answers!r}]")
    return answers


def _best(prediction: str | None, answers: Iterable[str], measure: _Measure) -> float:
    golds = _golds(answers)
    return 0.0 if prediction is None else max((_against(prediction, gold, measure) for gold in golds), default=0.0)


def _against(prediction: str, gold: str, measure: _Measure) -> float:
    for rule in (normalize_answer, _without_punctuation, _collapsed):
        normal_gold = rule(gold)
        if normal_gold:
            return measure(rule(prediction), normal_gold, rule is normalize_answer)
    return 0.0


def _without_punctuation(text: str) -> str:
    return _collapsed(text.lower().translate(_DELETE_PUNCTUATION))


def _collapsed(text: str) -> str:
    return " ".join(text.lower().split())


def _token_f1(predicted: list[str], gold: list[str]) -> float:
    overlap = sum((Counter(predicted) & Counter(gold)).values())
    if overlap == 0:
        return 0.0
    precision, recall = overlap / len(predicted), overlap / len(gold)
    return 2 * precision * recall / (precision + recall)


def _lcs_f1(predicted: Sequence[str], gold: Sequence[str]) -> float:
    common = longest_common_subsequence(predicted, gold)
    return 2 * common / (len(predicted) + len(gold)) if common else 0.0


def _contains(predicted: str, gold: str, is_ordinary: bool) -> float:
    return float(gold in predicted) if is_ordinary else float(f" {gold} " in f" {predicted} ")
