"""What bounds a result: the same questions without searching, with the gold passage given, and with perfect retrieval.

closed-book: the question alone, one generation. From below: what the model knew already.
gold-passage: the question with passages of its gold pages, one generation. From above: what it can read.
oracle-search: the recipe's own game, but every search returns passages of the question's gold pages, whatever was asked
for. From above for a policy trained to search, to which the plain prompt of gold-passage is foreign.

The first two share a plain protocol, which takes whatever form the answer comes in: they are to measure knowledge and
reading, not a format.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Literal

from seekling.config import Recipe
from seekling.corpus.passages import cut_passages
from seekling.env.budget import Block, Budget, Observation
from seekling.env.environment import SearchEnv, Session
from seekling.env.protocol import Action, Protocol
from seekling.env.protocol.stopping import StopRule, visible_text
from seekling.env.tools import Outcome, all_tools
from seekling.errors import DataError, ToolError
from seekling.retrieval.library import Library
from seekling.reward.match import normalize_answer
from seekling.types import Document, Hit, Json, Message, Passage, Question

NO_GOLD_PAGE = "no_gold_page"
"""Cause of exclusion: the question names no page that is in the corpus."""

_ANSWER_TAG = re.compile(r"<answer>(.*?)(?:</answer>|$)", re.DOTALL)
_ANSWER_LABEL = re.compile(r"^.*\banswer\s*(?:is)?\s*:\s*", re.IGNORECASE)

_CLOSED_BOOK = "Answer the question in a few words. Write only the answer, no sentence around it.\n"
_WITH_PASSAGES = (
    "Read the passages and answer the question in a few words. Write only the answer, no sentence around it.\n"
)


class PlainProtocol(Protocol):
    """One question, one reply, no tools: the grammar of closed-book and gold-passage; episodes carry the mode's name.

    The recipe's retrieval section says how gold passages are cut and how many there are; `budget` is of their tokens.
    """

    stops = StopRule(("</answer>",), ("<answer>",))

    def __init__(
        self, name: Literal["closed-book", "gold-passage"], library: Library, recipe: Recipe, budget: Budget
    ) -> None:
        super().__init__(recipe.env, {}, offered=(), instructions="", describe=str)
        self.name = name
        self.may_wait = name == "gold-passage" and library.may_wait
        self._library, self._recipe, self._budget = library, recipe, budget

    def prompt(self, question: Question) -> list[Message]:
        """One user message."""
        text = question.question.strip()
        text = text if text.endswith("?") else text + "?"
        if self.name == "closed-book":
            return [Message("user", f"{_CLOSED_BOOK}Question: {text}\n")]
        passages = gold_passages(self._library, question, self._recipe)
        blocks = [Block(f"Passage {n} ({each.title}): ", each.text) for n, each in enumerate(passages, start=1)]
        shown = self._budget.fit("", blocks, "").text
        return [Message("user", f"{_WITH_PASSAGES}{shown}\n\nQuestion: {text}\n")]

    def parse(self, text: str) -> Action:
        """The answer: what stands in the last answer tags, else after "Answer:", else the first line; thoughts not."""
        visible = visible_text(text)
        tagged = _ANSWER_TAG.findall(visible)
        said = tagged[-1] if tagged else next((line for line in visible.split("\n") if line.strip()), "")
        answer = said.strip() if tagged else _ANSWER_LABEL.sub("", said).strip()
        return Action("answer", answer) if answer else Action("invalid", error="it is empty")

    def observation(self, outcomes: Sequence[Outcome], budget: Budget) -> Observation:
        """Never asked for: there is one turn."""
        return budget.fit("", [Block("", outcome.text) for outcome in outcomes], "")

    def complaint(self, error: str) -> str:
        """Never asked for: there is one turn."""
        return f"That was not an answer: {error}.\n"

    def search_action(self, *queries: str) -> Action:
        """There are no searches: always a DataError."""
        raise DataError(f"{self.name} has no searches; got {queries!r}; use another mode")

    def call_action(self, name: str, arguments: Mapping[str, Json]) -> Action:
        """There are no tools: always a DataError."""
        raise DataError(f"{self.name} has no tool {name!r}; use another mode")

    def _write(self, action: Action) -> str:
        return action.payload


class GoldLibrary(Library):
    """A library whose searches find the given passages, best first; pages and sections are those of the real one."""

    def __init__(self, library: Library, passages: Sequence[Passage]) -> None:
        self._library, self._passages = library, tuple(passages)
        self.may_wait = library.may_wait

    def search(self, query: str, top_k: int) -> list[Hit]:
        """The gold passages, whatever the query."""
        return [Hit(each, 1.0 / (rank + 1), rank) for rank, each in enumerate(self._passages[:top_k])]

    def search_pages(self, query: str, top_k: int = 10) -> list[dict[str, str]]:
        """The gold pages, whatever the query."""
        titles = {each.document_id: each.title for each in self._passages}
        return [{"page_id": page, "title": title} for page, title in list(titles.items())[:top_k]]

    def title_of(self, page_id: str) -> str:
        """A page's title."""
        return self._library.title_of(page_id)

    def view_sections(self, page_id: str) -> list[dict[str, str]]:
        """The sections of a page."""
        return self._library.view_sections(page_id)

    def read_section(self, section_id: str) -> str:
        """The text of a section."""
        return self._library.read_section(section_id)


class OracleEnv(SearchEnv):
    """An environment, made of a real one and its library, in which every search finds the question's gold passages."""

    def __init__(self, env: SearchEnv, library: Library, recipe: Recipe) -> None:
        super().__init__(env.protocol, env.tools, env.config, sandbox=env.sandbox, count_tokens=env.budget.count_tokens)
        self._library, self._recipe = library, recipe

    def start(self, question: Question) -> Session:
        """Begin an episode over the question's own gold passages."""
        gold = GoldLibrary(self._library, gold_passages(self._library, question, self._recipe))
        tools = all_tools(gold, self._recipe.retrieval.top_k, self._recipe.env.tools)
        count_tokens = self.budget.count_tokens
        return SearchEnv(self.protocol, tools, self.config, sandbox=self.sandbox, count_tokens=count_tokens).start(
            question
        )


def gold_passages(library: Library, question: Question, recipe: Recipe) -> list[Passage]:
    """The passages of a question's gold pages that say most about it, as many as a search returns.

    Each page gives its best passage before any gives its second: one that states the answer (of a hop, where hops are
    known) comes first, then what shares most words with the question. At most `retrieval.top_k`, or one per page where
    there are more pages; none when no page is known. Passages are cut as for the recipe's index.
    """
    index = recipe.retrieval.index
    pages = [page for page in (_page(library, each) for each in question.supporting_ids) if page is not None]
    cut = [cut_passages(page, words=index.passage_words, overlap_words=index.overlap_words) for page in pages]
    ranked = [sorted(each, key=lambda passage: _closeness(passage, question), reverse=True) for each in cut]
    by_round = [passage for row in itertools.zip_longest(*ranked) for passage in row if passage is not None]
    return by_round[: max(recipe.retrieval.top_k, len(ranked))]


def has_gold_page(library: Library, question: Question) -> bool:
    """Whether the corpus holds a page that the question's answer is known to stand on."""
    return any(_page(library, page) is not None for page in question.supporting_ids)


def _page(library: Library, page: str) -> Document | None:
    try:
        return Document(page, library.title_of(page), library.read_section(f"{page}:full"))
    except ToolError:
        return None


def _closeness(passage: Passage, question: Question) -> tuple[bool, int]:
    text = f" {normalize_answer(passage.title)} {normalize_answer(passage.text)} "
    hops = [hop.answer for hop in question.hops if hop.document_id == passage.document_id]
    golds = [normalize_answer(gold) for gold in (hops or question.answers)]
    states = any(gold and f" {gold} " in text for gold in golds)
    return states, len(set(normalize_answer(question.question).split()) & set(text.split()))
