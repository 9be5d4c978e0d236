"""The scores of other systems with their quirks, for reading old figures. Nothing else in seekling uses them.

Search-R1 (and slime, which copied its scorer) looks for answers in the whole decoded text, prompt included. Its prompt
holds two pairs of answer tags, " and " and " Beijing ", so "no answer" never happens: a response without one is scored
as "Beijing", and after its message about an invalid action, which holds the pair " and " again, as "and". Golds that
normalise to nothing equal an empty answer, and as a substring they are in everything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from seekling.errors import ConfigError
from seekling.reward.match import f1, normalize_answer
from seekling.reward.rouge import rouge_l

PROMPT_PAIRS = "<answer> and </answer> <answer> Beijing </answer>"
"""What Search-R1's prompt adds to every text that it scores."""

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_INFORMATION = re.compile(r"<information>(.*?)</information>", re.DOTALL)
_TAG = re.compile(r"(</?(?:think|search|information|answer)>)")
_ASSISTANT = re.compile(r"<\|im_start\|>assistant\s*")
_TAGS = ("think", "search", "information", "answer")


@dataclass(frozen=True, slots=True)
class FormatWeights:
    """Weights of the format score; all 0 is plain exact match, as slime ends up with."""

    structure: float = 0.0
    """For a valid sequence of tags, and taken off a right answer in an invalid one."""
    final: float = 0.0
    """For any answer in an invalid sequence; the prompt's own counts, so it is always paid."""
    retrieval: float = 0.0
    """On top of `structure` when a gold stands in an observation."""


def search_r1_answer(text: str) -> str | None:
    """The answer that Search-R1 finds in prompt and response: the last pair of tags, if there are at least two."""
    found = _ANSWER.findall(text)
    return found[-1].strip() if len(found) > 1 else None


def search_r1_exact_match(text: str, answers: Iterable[str]) -> float:
    """Search-R1's reward of a decoded text, prompt included: 1.0 for a match, else 0.0."""
    answer = search_r1_answer(text)
    return 0.0 if answer is None else float(any(normalize_answer(answer) == normalize_answer(gold) for gold in answers))


def search_r1_substring(text: str, answers: Iterable[str]) -> float:
    """Search-R1's sub-EM of a decoded text: 1.0 when a gold, even an emptied one, is in the answer."""
    answer = search_r1_answer(text)
    return 0.0 if answer is None else float(any(normalize_answer(gold) in normalize_answer(answer) for gold in answers))


def search_r1_format_score(text: str, answers: Iterable[str], weights: FormatWeights) -> float:
    """Search-R1's reward with format terms (its v0.3) of a decoded text, prompt and chat template included.

    Args:
        text: prompt and response as decoded; without `<|im_start|>assistant` no text is ever valid.
        answers: the golds.
        weights: of structure, final answer and retrieval; the paper's scripts have 0.2, 0.1 and 0.
    """
    golds = tuple(answers)
    is_valid = search_r1_is_well_formed(text)
    bonus = weights.retrieval if is_valid and _is_retrieved(text, golds) else 0.0
    answer = search_r1_answer(text)
    if answer is not None and search_r1_exact_match(text, golds):
        return 1.0 if is_valid else 1.0 - weights.structure
    if is_valid:
        return weights.structure + bonus
    return 0.0 if answer is None else weights.final


def search_r1_is_well_formed(text: str) -> bool:
    """Whether the response is think, any number of (search, information, think), answer, and nothing in between."""
    start = _ASSISTANT.search(text)
    if start is None:
        return False
    response = text[start.end() :]
    if any(response.count(f"<{tag}>") != response.count(f"</{tag}>") for tag in _TAGS):
        return False
    state = "start"
    for part in _TAG.split(response):
        if not part.strip():
            continue
        if _TAG.fullmatch(part):
            state = _NEXT.get((state, part), "")
            if not state:
                return False
        elif not state.startswith("in "):
            return False
    return state == "end"


_NEXT = {
    ("start", "<think>"): "in think",
    ("after information", "<think>"): "in think",
    ("in think", "</think>"): "after think",
    ("after think", "<search>"): "in search",
    ("in search", "</search>"): "after search",
    ("after search", "<information>"): "in information",
    ("in information", "</information>"): "after information",
    ("after think", "<answer>"): "in answer",
    ("in answer", "</answer>"): "end",
}


def tinker_answer(message: str) -> str | None:
    """The answer that tinker-cookbook finds in the last message: all that follows "Answer:", if that stands once."""
    _, mark, after = message.partition("Answer:")
    return after.strip() if mark and "Answer:" not in after else None


@dataclass(frozen=True, slots=True)
class CompatibleScorer:
    """Another system's way from a response to scores."""

    name: str
    mark: str
    """What a response must hold to have an answer at all."""
    answer: Callable[[str], str | None]
    """The answer it finds in a response."""

    def score(self, response: str | None, answers: Iterable[str]) -> dict[str, float]:
        """Score one response.

        Args:
            response: with its tags; None is an empty one.
            answers: the golds.

        Returns:
            em and substring by the system's rules; f1 and rouge_l, which it does not have, of the answer it found.
        """
        golds = tuple(answers)
        answer = self.answer(response or "")
        said, normal = normalize_answer(answer or ""), [normalize_answer(gold) for gold in golds]
        return {
            "em": float(answer is not None and said in normal),
            "f1": f1(answer, golds),
            "substring": float(answer is not None and any(gold in said for gold in normal)),
            "rouge_l": rouge_l(answer, golds),
        }


def compatible_scorer(name: str) -> CompatibleScorer:
    """The scorer of another system.

    Args:
        name: "search-r1" and "slime" (the same) read a response with its tags; "tinker" the last message.

    Raises:
        ConfigError: no such system.
    """
    if name in ("search-r1", "slime"):
        return CompatibleScorer(name, "</answer>", lambda response: search_r1_answer(f"{PROMPT_PAIRS}\n{response}"))
    if name == "tinker":
        return CompatibleScorer(name, "Answer:", tinker_answer)
    raise ConfigError(f"no scorer is called {name!r}; choose one of search-r1, slime, tinker")


def _is_retrieved(text: str, golds: Iterable[str]) -> bool:
    observations = [normalize_answer(each) for each in _INFORMATION.findall(text)]
    return any(normalize_answer(gold) in observation for gold in golds for observation in observations)
