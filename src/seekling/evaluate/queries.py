"""How an episode searches: what its queries are made of, and how they change."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from seekling.evaluate.evidence import Need, executed_queries, fold, needs_of
from seekling.reward.match import longest_common_subsequence
from seekling.types import Episode, Question

PARROT_SHARE = 0.8
"""A query that holds this share of the question's words, in their order, is the question again."""
PARROT_SHARE_ASKED = 0.5
"""The same for a query that begins with a question word: keywords do not."""
SUBJECT_SHARE = 0.5
"""A query is about a subject when it holds at least this share of its words."""

_ASKING = frozenset(["what", "which", "who", "whom", "whose", "where", "when", "why", "how"])
_FUNCTION_WORDS = frozenset(
    ["in", "to", "for", "from", "by", "on", "as", "at", "of", "did", "does", "do", "is", "was", "were"]
)
_JOINING = frozenset(["and", "or"])
_CAPITALISED = re.compile(r"\b[^\W\d_a-z]\w+")


def query_habits(question: Question, episode: Episode) -> Iterator[str]:
    """Names of the behaviours that an episode's queries show, perhaps more than once."""
    needs = needs_of(question)
    queries = [query for _, query in executed_queries(episode)]
    for query in queries:
        if is_parroted(query, question):
            yield "parroted_query"
        elif _is_keyword_query(query, question, needs):
            yield "keyword_query"
    ran = [query for _, query in executed_queries(episode, with_failed=False)]
    if len({fold(query) for query in ran}) > 1 or _num_pages_read(episode) > 1:
        yield "iteration"
    if any(_is_reformulation(first, second, needs) for first, second in itertools.combinations(ran, 2)):
        yield "reformulation"


def is_parroted(query: str, question: Question) -> bool:
    """Whether a query is the question again."""
    asked, words = fold(question.question).split(), fold(query).split()
    if len(words) < 2:
        return False
    share = longest_common_subsequence(asked, words) / max(1, len(asked))
    return share >= PARROT_SHARE or (share >= PARROT_SHARE_ASKED and bool(_ASKING & set(words[:2])))


def need_named_in(query: str, needs: Sequence[Need]) -> Need | None:
    """The need whose subject a query names most of; None when it names none."""
    words = set(fold(query).split())

    def common(need: Need) -> int:
        subject = set(fold(need.subject).split())
        held = len(subject & words)
        return held if subject and held >= SUBJECT_SHARE * len(subject) else 0

    best = max(needs, key=common)
    return best if common(best) else None


def _is_keyword_query(query: str, question: Question, needs: Sequence[Need]) -> bool:
    words = set(fold(query).split())
    subjects = [set(fold(need.subject).split()) for need in needs if need.subject]
    if subjects:
        asked_for = words - _JOINING - set().union(*subjects)  # two subjects side by side ask for nothing
        return any(subject <= words for subject in subjects) and bool(asked_for)
    # Where the subject is unknown: words of the question, no word that only a question has, and not only names.
    names = {fold(name) for name in _CAPITALISED.findall(question.question.partition(" ")[2])}
    asked = set(fold(question.question).split()) - _ASKING - _FUNCTION_WORDS
    return bool(asked & words) and bool(words - names - _FUNCTION_WORDS) and len(words) > 1 and not _ASKING & words


def _is_reformulation(first: str, second: str, needs: Sequence[Need]) -> bool:
    """Whether two queries look for the same subject in other words."""
    before, after = fold(first).split(), fold(second).split()
    if before == after:
        return False
    subjects = need_named_in(first, needs), need_named_in(second, needs)
    if all(subjects):
        return subjects[0] is subjects[1]
    has_new_names = all(
        set(_CAPITALISED.findall(a)) - set(_CAPITALISED.findall(b)) for a, b in ((first, second), (second, first))
    )
    common = len(set(before) & set(after))
    return not has_new_names and common >= SUBJECT_SHARE * min(len(set(before)), len(set(after)))


def _num_pages_read(episode: Episode) -> int:
    """Different pages and sections whose text a program read."""
    calls = (call for turn in episode.turns for call in turn.calls if call.name == "read_section" and not call.error)
    return len({str(call.arguments.get("section_id")) for call in calls})
