"""Facts become questions: about one page, over two pages, and such as no page answers."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from seekling.corpus.making.entries import Entry, common_words, entries_of, unique_names
from seekling.corpus.making.facts import Fact, facts_of, gaps_of, record_fact, without_article
from seekling.corpus.making.language import Language, Pattern, load_language
from seekling.types import UNANSWERABLE, UNKNOWN_ANSWERS, Document, Hop, Question

SOURCE = "made"
"""Data set name of made questions."""
OTHER_WORDS = "other words"
"""Label of a question that is not in the words of its page."""
OWN_WORDS_MISS = "own words miss"
"""Label of a question whose own words, searched for, do not bring the passage that answers it."""
_ALIKE_SHARE = 0.012
"""Of all questions, those of one kind that may have one and the same answer, so that guessing does not pay."""
_RARE_KINDS = {"table": 0.06, "field": 0.6}
"""Kinds of which at most this share is made: what tables hold is seldom asked for."""
_MIN_FIELDS = 3
"""A page with so many is a record."""
_USUAL = 0.2
"""Of the records, so many have a field that others lack."""
_FURTHER = {"version", "change", "definition", "action", "availability", "error", "base", "date", "field"}
"""Kinds of facts that can be asked of what a phrase stands for."""


@dataclass(frozen=True, slots=True)
class Mix:
    """How many questions of which sort are made."""

    total: int = 2000
    per_page: int = 24
    other_words: float = 0.4
    """Share of questions in other words than the page's."""
    two_pages: float = 0.1
    unanswerable: float = 0.12
    own_words_miss: float = 0.3
    """At least this share is not found by a search for the question's own words, as far as there are such."""
    gaps: float = 0.05
    """At most this share asks for what is missing in a sentence, and none where there are enough others."""


def candidates(documents: Iterable[Document], language_name: str, mix: Mix) -> list[Question]:
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
    over_two = list(_over_two(facts, named, language))
    unknown = [
        *_unanswerable(named, language, facts),
        *_empty_fields(named, {document.id: document.content for document in documents}, language),
    ]
    common = common_words(entries)
    gaps = [_single(fact, language, mix) for entry, name in named for fact in gaps_of(entry, name, language, common)]
    return _mixed({"single": single, "bridge": over_two, UNANSWERABLE: unknown, "gap": gaps}, mix)


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


def _single(fact: Fact, language: Language, mix: Mix) -> Question:
    number = _draw(fact.subject, fact.relation, fact.answer)
    others = fact.questions[1:]
    in_others = bool(others) and number < mix.other_words
    text = others[int(number / mix.other_words * len(others))] if in_others else fact.questions[0]
    hop = Hop(fact.subject, fact.relation, fact.answer, fact.page)
    labels = (fact.kind, OTHER_WORDS) if in_others else (fact.kind,)
    return _question(text, _answers(fact.answer, language), (hop,), "single", labels)


def _over_two(facts: Sequence[Fact], named: Sequence[tuple[Entry, str]], language: Language) -> Iterator[Question]:
    """A fact whose answer names another page's subject, and what that page says of it."""
    by_subject: dict[str, list[Fact]] = defaultdict(list)
    for fact in facts:
        by_subject[fact.subject].append(fact)
    for tail, subjects in _by_tail(by_subject).items():
        if tail not in by_subject and len(subjects) == 1:
            by_subject[tail] = by_subject[subjects[0]]
    for fact in facts:
        name = _name_in(fact.answer, by_subject, language)
        for further in by_subject.get(name, ()) if fact.phrase and name else ():
            asked = further.questions[0]
            text = asked.replace(further.subject, fact.phrase)
            is_apart = further.page != fact.page and further.kind in _FURTHER
            if is_apart and further.subject in asked and further.answer.casefold() not in text.casefold():
                first = Hop(fact.subject, fact.relation, name, fact.page)
                last = Hop(name, further.relation, further.answer, further.page)
                answers = _answers(further.answer, language)
                yield _question(text, answers, (first, last), "bridge", (fact.kind, further.kind))


def _by_tail(subjects: Iterable[str]) -> dict[str, list[str]]:
    """Names by their last part, which pages often use alone: "Fraction" for "fractions.Fraction"."""
    found: dict[str, list[str]] = defaultdict(list)
    for subject in subjects:
        tail = subject.rpartition(".")[2]
        if (tail != subject and re.search(r"[A-Z_]", tail[1:])) or tail[:1].isupper():
            found[tail].append(subject)
    return found


def _name_in(answer: str, subjects: dict[str, list[Fact]], language: Language) -> str:
    text = without_article(answer, language)
    if text in subjects:
        return text
    parts = [word for word in re.findall(r"[\w.]+\w", text) if word in subjects and re.search(r"[A-Z_.]", word[1:])]
    return parts[0] if len(parts) == 1 else ""


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
            number = _draw(name, pattern.relation, "")
            text = pattern.questions[int(number * len(pattern.questions))].format(subject=name)
            hop = Hop(name, pattern.relation, "", entry.page)
            yield _question(text, UNKNOWN_ANSWERS, (hop,), UNANSWERABLE, (pattern.kind,))


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
                text = fact.questions[int(_draw(name, field) * len(fact.questions))]
                hop = Hop(name, fact.relation, "", entry.page)
                yield _question(text, UNKNOWN_ANSWERS, (hop,), UNANSWERABLE, ("field",))


def _word_stems(text: str) -> set[str]:
    return {word[:5] for word in re.findall(r"\w{4,}", text.casefold())}


def _is_fit_to_lack(pattern: Pattern, entry: Entry) -> bool:
    """Whether people might ask it: of a title, or of a term that looks like a name in code."""
    if pattern.of and entry.rank not in pattern.of:
        return False
    if entry.rank == "title":
        return "term" not in pattern.of
    return entry.rank == "term" and re.search(r"^\S+[._A-Z]\S*$", entry.name) is not None


def _question(text: str, answers: Sequence[str], hops: tuple[Hop, ...], kind: str, labels: tuple[str, ...]) -> Question:
    pages = tuple(dict.fromkeys(hop.document_id for hop in hops))
    digest = hashlib.sha256(repr((text, answers, pages)).encode("utf-8", "replace")).hexdigest()[:10]
    return Question(f"{kind[:2]}-{digest}", text, tuple(answers), pages, kind, SOURCE, hops, labels)


def _answers(answer: str, language: Language) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, (answer, without_article(answer, language)))))


def _mixed(found: dict[str, list[Question]], mix: Mix) -> list[Question]:
    """Of each sort its share, of each page, kind and answer not too many; what lacks is filled with the others."""
    chosen: list[Question] = []
    pages: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    answers: Counter[tuple[str, str]] = Counter()
    for sort in ("bridge", "single", UNANSWERABLE, "gap"):
        if sort == "bridge":
            wanted = round(mix.total * mix.two_pages)
        elif sort == "single":
            wanted = round(mix.total * (1 - mix.unanswerable)) - len(chosen)
        elif sort == UNANSWERABLE:
            share = round(len(chosen) * mix.unanswerable / (1 - mix.unanswerable))
            wanted = min(round(mix.total * mix.unanswerable), share)
        else:
            wanted = min(round(len(chosen) * mix.gaps), mix.total - len(chosen))
        most_alike = max(3, round(wanted * _ALIKE_SHARE))
        num_taken = 0
        for question in _in_turns(found[sort]):
            if num_taken >= wanted:
                break
            names = [(question.labels[-1], answer) for answer in question.answers[:1] if sort != UNANSWERABLE]
            is_full = any(pages[page] >= mix.per_page for page in question.supporting_ids)
            kind = question.labels[0]
            if sort == "single" and kinds[kind] >= round(_RARE_KINDS.get(kind, 1) * mix.total):
                continue
            if is_full or any(answers[name] >= most_alike for name in names):
                continue
            kinds[kind] += sort == "single"
            pages.update(question.supporting_ids)
            answers.update(names)
            chosen.append(question)
            num_taken += 1
    return sorted(chosen, key=lambda question: _draw(question.id))


def _in_turns(questions: Sequence[Question]) -> Iterator[Question]:
    """One question of each label after the other, in the order of their ids' hashes."""
    by_label: dict[tuple[str, ...], list[Question]] = defaultdict(list)
    for question in sorted(questions, key=lambda question: _draw(question.id)):
        by_label[question.labels[:1]].append(question)
    for group in itertools.zip_longest(*by_label.values()):
        yield from (question for question in group if question is not None)


def _draw(*names: str) -> float:
    """A number in [0, 1) that is a function of names alone."""
    digest = hashlib.sha256(repr(names).encode("utf-8", "replace")).digest()
    return float(int.from_bytes(digest[:8], "big") / 2**64)
