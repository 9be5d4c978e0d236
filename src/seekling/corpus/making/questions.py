"""Facts become questions: about one page, over two pages, and such as no page answers."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from seekling.config import MixConfig
from seekling.corpus.making.entries import Entry, common_words, entries_of, unique_names
from seekling.corpus.making.facts import Fact, facts_of, gaps_of, record_fact
from seekling.corpus.making.language import Language, Pattern, load_language
from seekling.corpus.making.links import DESCRIBED, described, over_two_pages
from seekling.corpus.making.mixing import GAP, SINGLE, TWO_PAGES, mixed
from seekling.corpus.making.write import draw, spellings, write_question
from seekling.text import holds_words
from seekling.types import UNANSWERABLE, UNKNOWN_ANSWERS, Document, Hop, Question

OTHER_WORDS = "other words"
"""Label of a question that is not in the words of its page."""
OWN_WORDS_MISS = "own words miss"
"""Label of a question whose own words, searched for, do not bring the passage that answers it."""
_MIN_FIELDS = 3
"""A page with so many is a record."""
_USUAL = 0.2
"""Of the records, so many have a field that others lack."""


def candidates(documents: Iterable[Document], language_name: str, mix: MixConfig) -> list[Question]:
    """Questions that the rules find in a corpus, unchecked; of no answer, page and kind too many.

    Their order is a function of their ids. `language_name` is one of `LANGUAGES`.
    """
    language = load_language(language_name)
    documents = list(documents)
    pages = [entries_of(document) for document in documents]
    _keep_recurring_fields(pages, language)
    entries = list(itertools.chain.from_iterable(pages))
    names = unique_names(entries)
    _lend(pages, names)
    named = [(entry, names[id(entry)]) for entry in entries if id(entry) in names]
    facts = [fact for entry, name in named for fact in facts_of(entry, name, language)]
    single = [_single(fact, language, mix) for fact in facts]
    texts = {document.id: document.content for document in documents}
    unknown = [*_unanswerable(named, language, facts), *_empty_fields(named, texts, language)]
    common = common_words(entries)
    gaps = [_single(fact, language, mix) for entry, name in named for fact in gaps_of(entry, name, language, common)]
    sorts = {
        SINGLE: single,
        TWO_PAGES: over_two_pages(facts, named, texts, language),
        DESCRIBED: list(described(facts, named, texts, language)),
        UNANSWERABLE: unknown,
        GAP: gaps,
    }
    return mixed(sorts, mix)


def _keep_recurring_fields(pages: Sequence[Sequence[Entry]], language: Language) -> None:
    """Of the lines that look like a record's, keep those whose name other pages have too: they are no prose."""
    on_pages = Counter(name for entries in pages for name in {name for entry in entries for name, _ in entry.fields})
    for entry in itertools.chain.from_iterable(pages):
        entry.fields = [
            (name, value) for name, value in entry.fields if on_pages[name] > 1 and not language.no_name.fullmatch(name)
        ]


def _lend(pages: Sequence[Sequence[Entry]], names: dict[int, str]) -> None:
    """Give the text under headings that many pages have ("Properties") to the page's title."""
    for title, *others in pages:
        for entry in others:
            if entry.rank == "heading" and id(entry) not in names:
                title.paragraphs += entry.paragraphs
                title.tables += entry.tables
                title.fields += entry.fields


def _single(fact: Fact, language: Language, mix: MixConfig) -> Question:
    number = draw(fact.subject, fact.relation, fact.answer)
    others = fact.questions[1:]
    in_others = bool(others) and number < mix.other_words
    text = others[int(number / mix.other_words * len(others))] if in_others else fact.questions[0]
    hop = Hop(fact.subject, fact.relation, fact.answer, fact.page)
    labels = (fact.kind, OTHER_WORDS) if in_others else (fact.kind,)
    answers = spellings(fact.answer, language)
    if fact.in_full and not holds_words(text, fact.answer):
        answers += spellings(fact.in_full, language)
    return write_question(text, answers, (hop,), "single", labels)


def _unanswerable(named: Sequence[tuple[Entry, str]], language: Language, facts: Sequence[Fact]) -> Iterator[Question]:
    """What pages say of others, asked of those of which they say nothing of the kind."""
    told = {(fact.subject, fact.kind) for fact in facts}
    texts: dict[object, str] = {name: entry.text for entry, name in named}
    texts |= {(entry.page, entry.rank): entry.text for entry, _ in named if entry.rank == "title"}
    for entry, name in named:
        around = "\n".join([entry.text, texts.get(entry.owner, ""), texts.get((entry.page, "title"), "")])
        for pattern in language.pattern:
            is_fit = entry.is_plain_call if "signature" in pattern.of else _is_fit_to_lack(pattern, entry)
            if not pattern.absent or not is_fit or "{" in pattern.relation or not entry.paragraphs:
                continue
            if (name, pattern.kind) in told or re.search(pattern.absent, around):
                continue
            number = draw(name, pattern.relation, "")
            text = pattern.questions[int(number * len(pattern.questions))].format(subject=name)
            hop = Hop(name, pattern.relation, "", entry.page)
            yield write_question(text, UNKNOWN_ANSWERS, (hop,), UNANSWERABLE, (pattern.kind,))


def _empty_fields(named: Sequence[tuple[Entry, str]], texts: dict[str, str], language: Language) -> Iterator[Question]:
    """Fields that many records have, asked of those on whose page not all of their words stand."""
    records = [(entry, name) for entry, name in named if len(entry.fields) >= _MIN_FIELDS]
    counts = Counter(field for entry, _ in records for field in {field for field, _ in entry.fields})
    usual = [field for field, count in counts.items() if count >= max(_MIN_FIELDS, len(records) * _USUAL)]
    for entry, name in records:
        words = _word_stems(texts[entry.page])
        for field in usual:
            if not _word_stems(field) <= words:
                fact = record_fact(entry.page, name, field, "", language)
                text = fact.questions[int(draw(name, field) * len(fact.questions))]
                hop = Hop(name, fact.relation, "", entry.page)
                yield write_question(text, UNKNOWN_ANSWERS, (hop,), UNANSWERABLE, ("field",))


def _word_stems(text: str) -> set[str]:
    return {word[:5] for word in re.findall(r"\w{4,}", text.casefold())}


def _is_fit_to_lack(pattern: Pattern, entry: Entry) -> bool:
    """Whether people might ask it: of a title, or of a term that looks like a name in code."""
    if pattern.of and entry.rank not in pattern.of:
        return False
    if entry.rank == "title":
        return "term" not in pattern.of
    return entry.rank == "term" and re.search(r"^\S+[._A-Z]\S*$", entry.name) is not None
