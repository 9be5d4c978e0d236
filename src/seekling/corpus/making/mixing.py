"""Chooses of the candidates: of each sort its share, of no answer, page and kind too many."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from seekling.config import MixConfig
from seekling.corpus.making.links import DESCRIBED
from seekling.corpus.making.write import draw
from seekling.types import UNANSWERABLE, Question

TWO_PAGES, SINGLE, GAP = "two pages", "single", "gap"
"""Sorts of candidates, beside DESCRIBED and UNANSWERABLE."""
_ALIKE_SHARE = 0.012
"""Of all questions, those of one kind that may have one and the same answer, so that guessing does not pay."""
_RARE_KINDS = {"table": 0.06, "field": 0.6}
"""Kinds of which at most this share is made: what tables hold is seldom asked for."""
_MIN_LINKED, _LINKED_SHARE = 6, 0.04
"""Pages that questions over two pages may link into one group, at most: groups are held out whole."""


def mixed(found: dict[str, list[Question]], mix: MixConfig) -> list[Question]:
    """Of each sort its share; what lacks is filled with questions about one page."""
    chosen: list[Question] = []
    pages: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    answers: Counter[tuple[str, str]] = Counter()
    num_pages = len({page for each in itertools.chain.from_iterable(found.values()) for page in each.supporting_ids})
    linked = _LinkedPages(max(_MIN_LINKED, round(_LINKED_SHARE * num_pages)))
    for sort in (TWO_PAGES, DESCRIBED, SINGLE, UNANSWERABLE, GAP):
        wanted = _wanted(sort, len(chosen), mix)
        most_alike = max(3, round(wanted * _ALIKE_SHARE))
        num_taken = 0
        for question in _in_turns(found[sort]):
            if num_taken >= wanted:
                break
            names = [(question.labels[-1], answer) for answer in question.answers[:1] if sort != UNANSWERABLE]
            kind = question.labels[0]
            if sort == SINGLE and kinds[kind] >= round(_RARE_KINDS.get(kind, 1) * mix.num_questions):
                continue
            is_full = any(pages[page] >= mix.per_page for page in question.supporting_ids)
            if is_full or any(answers[name] >= most_alike for name in names):
                continue
            if not linked.join(question.supporting_ids):
                continue
            kinds[kind] += sort == SINGLE
            pages.update(question.supporting_ids)
            answers.update(names)
            chosen.append(question)
            num_taken += 1
    return sorted(chosen, key=lambda question: draw(question.id))


def _wanted(sort: str, num_chosen: int, mix: MixConfig) -> int:
    """How many of a sort, after those that were chosen of the sorts before it."""
    if sort == TWO_PAGES:
        return round(mix.num_questions * mix.two_pages)
    if sort == DESCRIBED:
        return round(mix.num_questions * mix.described)
    if sort == SINGLE:
        return round(mix.num_questions * (1 - mix.unanswerable)) - num_chosen
    if sort == UNANSWERABLE:
        share = round(num_chosen * mix.unanswerable / (1 - mix.unanswerable))
        return min(round(mix.num_questions * mix.unanswerable), share)
    return min(round(num_chosen * mix.gaps), mix.num_questions - num_chosen)


class _LinkedPages:
    """Pages that hang together by questions (union-find), in groups that stay small."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._parents: dict[str, str] = {}
        self._sizes: Counter[str] = Counter()

    def join(self, pages: Sequence[str]) -> bool:
        """Make one group of the pages' groups, unless it would be too large; says whether it was done."""
        roots = {self._root(page) for page in pages}
        size = sum(max(1, self._sizes[root]) for root in roots)
        if len(roots) > 1 and size > self._most:
            return False
        for root in roots:
            self._parents[root] = min(roots)
        self._sizes[min(roots, default="")] = size
        return True

    def _root(self, page: str) -> str:
        while (parent := self._parents.get(page, page)) != page:
            page = parent
        return page


def _in_turns(questions: Sequence[Question]) -> Iterator[Question]:
    """One question of each label after the other, in the order of their ids' hashes."""
    by_label: dict[tuple[str, ...], list[Question]] = defaultdict(list)
    for question in sorted(questions, key=lambda question: draw(question.id)):
        by_label[question.labels if len(question.supporting_ids) > 1 else question.labels[:1]].append(question)
    for group in itertools.zip_longest(*by_label.values()):
        yield from (question for question in group if question is not None)
