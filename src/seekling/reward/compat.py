"""The scores of other systems with their quirks, for `rl.reward.compatible`.

Search-R1 (and slime, which copied its scorer) looks for answers in the whole decoded text, prompt included. Its prompt
holds two pairs of answer tags, " and " and " Beijing ", so "no answer" never happens: a response without one is scored
as "Beijing", and after its message about an invalid action, which holds the pair " and " again, as "and". Golds that
normalise to nothing equal an empty answer, and as a substring they are in everything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from seekling.config import RewardConfig
from seekling.reward.match import normalize_answer

PROMPT_PAIRS = "<answer> and </answer> <answer> Beijing </answer>"
"""What Search-R1's prompt adds to every text that it scores."""

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_INFORMATION = re.compile(r"<information>(.*?)</information>", re.DOTALL)
_ASSISTANT = re.compile(r"<\|im_start\|>assistant\s*")
_ELEMENT = r"\s*<{0}>(?:(?!</?(?:think|search|information|answer)>).)*</{0}>"
_THINK, _SEARCH, _INFORMED, _ANSWERED = map(_ELEMENT.format, ("think", "search", "information", "answer"))
_WELL_FORMED = re.compile(rf"(?:{_THINK}{_SEARCH}{_INFORMED})*{_THINK}{_ANSWERED}\s*", re.DOTALL)


def search_r1_answer(text: str) -> str | None:
    """The answer that Search-R1 finds in prompt and response: the last pair of tags, if there are at least two."""
    found = _ANSWER.findall(text)
    return found[-1].strip() if len(found) > 1 else None


def search_r1_exact_match(text: str, answers: Iterable[str]) -> float:
    """Search-R1's reward of a decoded text, prompt included: 1.0 for a match, else 0.0."""
    answer = search_r1_answer(text)
    return 0.0 if answer is None else float(any(normalize_answer(answer) == normalize_answer(gold) for gold in answers))


def search_r1_format_score(text: str, answers: Iterable[str], weights: RewardConfig) -> float:
    """Search-R1's reward with format terms (its v0.3) of a decoded text, prompt and chat template included.

    Args:
        text: prompt and response as decoded; without `<|im_start|>assistant` no text is ever valid.
        answers: the golds.
        weights: structure, final and retrieval; the paper's scripts have 0.2, 0.1 and 0. All 0 is plain exact match, as
            slime ends up with. `final` is for any answer in an invalid text; the prompt's own counts, so it is always
            paid.
    """
    golds = tuple(answers)
    start = _ASSISTANT.search(text)
    is_valid = start is not None and _WELL_FORMED.fullmatch(text, start.end()) is not None
    if search_r1_exact_match(text, golds):
        return 1.0 if is_valid else 1.0 - weights.structure
    if is_valid:
        return weights.structure + (weights.retrieval if _is_retrieved(text, golds) else 0.0)
    return 0.0 if search_r1_answer(text) is None else weights.final


def tinker_answer(message: str) -> str | None:
    """The answer that tinker-cookbook finds in the last message: all that follows "Answer:", if that stands once."""
    _, mark, after = message.partition("Answer:")
    return after.strip() if mark and "Answer:" not in after else None


def _is_retrieved(text: str, golds: Iterable[str]) -> bool:
    observations = [normalize_answer(each) for each in _INFORMATION.findall(text)]
    return any(normalize_answer(gold) in observation for gold in golds for observation in observations)
