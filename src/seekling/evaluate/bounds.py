"""What bounds a result: the same questions without searching (from below), and with their gold passages (from above).

Both are one generation under a plain protocol that takes the answer in whatever form it comes: they measure knowledge
and reading, not a format.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from seekling.config import Recipe
from seekling.corpus.passages import cut_passages
from seekling.env.protocol.grammar import Action, Block, Budget, Observation, Protocol
from seekling.env.protocol.stopping import THOUGHT, StopRule, drop_opened_thought
from seekling.env.tools import Outcome
from seekling.errors import DataError, ToolError
from seekling.evaluate.settings import Mode
from seekling.retrieval.library import Library
from seekling.reward.match import normalize_answer
from seekling.types import Document, Message, Passage, Question

_ANSWER_TAG = re.compile(r"<answer>(.*?)(?:</answer>|$)", re.DOTALL)
_ANSWER_LABEL = re.compile(r"^.*\banswer\s*(?:is)?\s*:\s*", re.IGNORECASE)
_BRIEFLY = "answer the question in a few words. Write only the answer, no sentence around it.\n"


class PlainProtocol(Protocol):
    """One question, one reply, no tools; `budget` is of the tokens of gold passages."""

    stops = StopRule(("</answer>",), ("<answer>",))

    def __init__(self, name: Mode, library: Library, recipe: Recipe, budget: Budget) -> None:
        super().__init__(recipe.env, {}, offered=(), instructions="", describe=str)
        self.name = name
        self.may_wait = name == "gold-passage" and library.may_wait
        self._library, self._recipe, self._budget = library, recipe, budget

    def prompt(self, question: Question) -> list[Message]:
        """One user message."""
        asked = f"Question: {question.question.strip().removesuffix('?')}?\n"
        if self.name == "closed-book":
            return [Message("user", f"{_BRIEFLY.capitalize()}{asked}")]
        passages = gold_passages(self._library, question, self._recipe)
        blocks = [Block(f"Passage {n} ({each.title}): ", each.text) for n, each in enumerate(passages, start=1)]
        shown = self._budget.fit("", blocks, "").text
        return [Message("user", f"Read the passages and {_BRIEFLY}{shown}\n\n{asked}")]

    def parse(self, text: str) -> Action:
        """The answer: what stands in the last answer tags, else after "Answer:", else the first line; thoughts not."""
        visible = re.sub(THOUGHT, "", drop_opened_thought(text), flags=re.DOTALL)
        tagged = _ANSWER_TAG.findall(visible)
        line = next((line for line in visible.split("\n") if line.strip()), "")
        answer = tagged[-1].strip() if tagged else _ANSWER_LABEL.sub("", line).strip()
        return Action("answer", answer) if answer else Action("invalid", error="it is empty")

    def observation(self, outcomes: Sequence[Outcome], budget: Budget) -> Observation:
        """Never asked for: there is one turn."""
        return budget.fit("", [Block("", outcome.text) for outcome in outcomes], "")

    def complaint(self, error: str) -> str:
        """Never asked for: there is one turn."""
        return f"That was not an answer: {error}.\n"

    def search_action(self, *queries: str) -> Action:
        """There are no searches: always a DataError."""
        raise DataError(f"{self.name} has no searches; got {queries!r}")

    def _write(self, action: Action) -> str:
        return action.payload


def gold_passages(library: Library, question: Question, recipe: Recipe) -> list[Passage]:
    """The passages of a question's gold pages that say most about it, cut as for the recipe's index.

    Each page gives its best passage before any gives its second: first what states the answer (of a hop, where hops
    are known), then what shares most words with the question. `retrieval.top_k`, or one a page where there are more
    pages; none where no page is known.
    """
    index = recipe.retrieval.index
    ranked = []
    for page_id in question.supporting_ids:
        try:
            page = Document(page_id, library.title_of(page_id), library.read_section(f"{page_id}:full"))
        except ToolError:
            continue
        cut = cut_passages(page, words=index.passage_words, overlap_words=index.overlap_words)
        ranked.append(sorted(cut, key=lambda passage: _closeness(passage, question), reverse=True))
    by_round = [passage for row in itertools.zip_longest(*ranked) for passage in row if passage is not None]
    return by_round[: max(recipe.retrieval.top_k, len(ranked))]


def _closeness(passage: Passage, question: Question) -> tuple[bool, int]:
    text = f" {normalize_answer(passage.title)} {normalize_answer(passage.text)} "
    hops = [hop.answer for hop in question.hops if hop.document_id == passage.document_id]
    golds = [normalize_answer(gold) for gold in (hops or question.answers)]
    states = any(gold and f" {gold} " in text for gold in golds)
    return states, len(set(normalize_answer(question.question).split()) & set(text.split()))
