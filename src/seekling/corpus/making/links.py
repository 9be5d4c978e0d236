"""Questions that take two searches: over two pages, or about a subject that another of its facts stands for.

A bridge asks for a fact of a page that only another page names. `several` asks for the same of two subjects whose pages
or names are related. A described subject is called by a value that no other page has.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from seekling.corpus.making.entries import Entry
from seekling.corpus.making.facts import Fact, without_article
from seekling.corpus.making.language import Language
from seekling.corpus.making.write import draw, spellings, write_question
from seekling.text import holds_words
from seekling.types import Hop, Question

DESCRIBED = "described"
"""Label of a question that calls its subject by another of its facts."""
SEVERAL = "several"
"""Kind and label of a question that asks for the same of two subjects."""
_FURTHER = {"version", "change", "action", "availability", "error", "base", "date", "field"}
"""Kinds of facts that can be asked of what a phrase stands for."""
_SHARED, _PARALLEL = {"default", "change", "error"}, {"version", "returns", "base", "equal", "availability"}
"""Kinds asked of two subjects that share their last part or a word before it, and of those that share the last part."""
_WORD_OF_NAME = re.compile(r"[A-Z]?[a-z]{3,}")
_MAX_MENTION_WORDS = 10
"""Of a value that names another page: a longer one names more."""
_MAX_WORDS = 4
"""Of each answer, where a question has two."""
_PARTNERS, _PER_PAIR = 3, 8
_NOTHING = ("none", "na", "n/a", "nil", "keine", "keiner", "keins")
"""Answers that two pages are not worth."""
_MIN_NAME = 4
"""Characters of a title by which another page's text can name it."""


def over_two_pages(
    facts: Sequence[Fact], named: Sequence[tuple[Entry, str]], texts: dict[str, str], language: Language
) -> list[Question]:
    """Bridges, and questions for the same of two subjects; `texts` are those of all pages, by their ids."""
    links = _links_of(named, texts)
    return [
        *_bridges(facts, language),
        *_record_bridges(named, facts, links, language),
        *_side_by_side(facts, _titles(named), links, language),
    ]


def _bridges(facts: Sequence[Fact], language: Language) -> Iterator[Question]:
    """A fact whose answer names another page's subject, and what that page says of it."""
    by_subject = _by_subject(facts)
    for tail, subjects in _by_tail(by_subject).items():
        if tail not in by_subject and len(subjects) == 1:
            by_subject[tail] = by_subject[subjects[0]]
    for fact in facts:
        name = _name_in(fact.answer, by_subject, language)
        for further in by_subject.get(name, ()) if fact.phrase and name else ():
            first = Hop(fact.subject, fact.relation, name, fact.page)
            yield from _bridge(first, fact.phrase, further, fact.kind, language)


def _record_bridges(
    named: Sequence[tuple[Entry, str]], facts: Sequence[Fact], links: dict[str, list[str]], language: Language
) -> Iterator[Question]:
    """A line of a record that names the title of one other page, which names this one too, and a fact of that page."""
    by_subject = _by_subject(facts)
    titles = _titles(named)
    for entry, name in named:
        around = [titles[page] for page in links.get(entry.page, ()) if entry.page in links.get(page, ())]
        for field, value in entry.fields:
            found = [each for each in around if _is_named(each, value, language)]
            is_short = len(value.split()) <= _MAX_MENTION_WORDS and re.search(r"[,;:] ", value) is None
            if len(found) != 1 or name in value or not is_short:
                continue
            phrase = language.record_mention.format(subject=name, field=field)
            for further in by_subject.get(found[0], ()):
                yield from _bridge(Hop(name, field, found[0], entry.page), phrase, further, "mention", language)


def _side_by_side(
    facts: Sequence[Fact], titles: dict[str, str], links: dict[str, list[str]], language: Language
) -> Iterator[Question]:
    """The same asked of two subjects: of one name in different modules, or the titles of pages that name each other."""
    alike: dict[tuple[str, str], list[Fact]] = defaultdict(list)
    by_page: dict[str, dict[str, Fact]] = defaultdict(dict)
    for fact in facts:
        asked, tail = fact.questions[0].replace(fact.subject, "\0"), fact.subject.rpartition(".")[2]
        is_guessed = tail.casefold() in fact.answer.casefold()
        if '"\0"' in asked or "\0" not in asked or is_guessed or len(fact.answer.split()) > _MAX_WORDS:
            continue
        if fact.kind == "field" and titles.get(fact.page) == fact.subject:
            by_page[fact.page][asked] = fact
        elif fact.kind in _SHARED:
            for word in {tail, *_WORD_OF_NAME.findall(fact.subject.removesuffix(tail))}:
                alike[word.casefold(), asked].append(fact)
        elif tail != fact.subject and fact.kind in _PARALLEL and titles.get(fact.page) != fact.subject:
            alike[tail, asked].append(fact)
    groups = (sorted(group, key=lambda fact: draw(*fact.questions)) for group in alike.values())
    pairs = list(dict.fromkeys(pair for group in groups for pair in _near_pairs(group)))
    for page, partners in links.items():
        for other in partners[:_PARTNERS]:
            shared = sorted(by_page[page].keys() & by_page[other].keys(), key=lambda asked: draw(page, other, asked))
            pairs += [(by_page[page][asked], by_page[other][asked]) for asked in shared[:_PER_PAIR]]
    for first, second in pairs:
        text = language.several.format(asked=first.questions[0].rstrip("?"), other=second.subject)
        if first.page != second.page and not _is_idle(text, first.answer, second.answer, language):
            both = language.both.format(first=first.answer, second=second.answer)
            answers = (both, f"{first.answer}, {second.answer}", f"{first.answer}; {second.answer}")
            hops = tuple(Hop(each.subject, each.relation, each.answer, each.page) for each in (first, second))
            yield write_question(text, answers, hops, SEVERAL, (SEVERAL, first.kind))


def described(
    facts: Sequence[Fact], named: Sequence[tuple[Entry, str]], texts: dict[str, str], language: Language
) -> Iterator[Question]:
    """A fact of a record's subject, which is called by a value that holds a word of no other page."""
    titles = _titles(named)
    on_pages = Counter(word for text in texts.values() for word in set(re.findall(r"\w+", text)))
    by_page: dict[str, list[Fact]] = defaultdict(list)
    for fact in facts:
        if fact.kind == "field" and titles.get(fact.page) == fact.subject:
            by_page[fact.page].append(fact)
    for page, records in by_page.items():
        for told in records:
            words = re.findall(r"\w+", told.answer)
            is_name = told.answer[:1].isupper() and not re.search(r"\d|\.\w", told.answer) and len(words) <= _MAX_WORDS
            is_apart = told.subject.casefold() not in told.answer.casefold() and texts[page].count(told.answer) <= 2
            if not is_name or not is_apart or min(on_pages[word] for word in words) > 1:
                continue
            others = [each for each in records if each is not told]
            others.sort(key=lambda each: draw(told.relation, *each.questions))
            phrase = language.record_described.format(field=told.relation, value=told.answer)
            for further in others[:_PER_PAIR]:
                first = Hop(told.answer, told.relation, told.subject, page)
                yield from _bridge(first, phrase, further, DESCRIBED, language, is_same_page=True)


def _links_of(named: Sequence[tuple[Entry, str]], texts: dict[str, str]) -> dict[str, list[str]]:
    """Of each page those whose titles its text names, in an order that depends on their names alone."""
    titles = [(page, name) for page, name in _titles(named).items() if len(name) >= _MIN_NAME]
    found = {}
    for page, text in texts.items():
        words = set(re.findall(r"\w+", text))
        near = [
            other
            for other, name in titles
            if other != page
            and set(re.findall(r"\w+", name)) <= words
            and re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", text)
        ]
        found[page] = sorted(near, key=lambda other: draw(page, other))
    return found


def _bridge(
    first: Hop, phrase: str, further: Fact, label: str, language: Language, *, is_same_page: bool = False
) -> Iterator[Question]:
    asked = further.questions[0]
    text = asked.replace(further.subject, phrase)
    is_fit = (further.page == first.document_id) == is_same_page and further.kind in _FURTHER
    is_word = f'"{further.subject}"' in asked  # asked for what it means
    answer = further.answer.casefold()
    is_told = answer in text.casefold() or first.answer.casefold() in answer or answer in _NOTHING
    if is_fit and not is_word and further.subject in asked and not is_told:
        last = Hop(first.answer, further.relation, further.answer, further.page)
        yield write_question(text, spellings(further.answer, language), (first, last), "bridge", (label, further.kind))


def _titles(named: Sequence[tuple[Entry, str]]) -> dict[str, str]:
    """The name of each page's title, where it can be asked about by it."""
    return {entry.page: name for entry, name in named if entry.rank == "title"}


def _near_pairs(group: Sequence[Fact]) -> Iterator[tuple[Fact, Fact]]:
    for number, fact in enumerate(group):
        yield from ((fact, other) for other in group[number + 1 : number + 1 + _PARTNERS])


def _is_idle(text: str, first: str, second: str, language: Language) -> bool:
    """Whether two answers are not worth two pages: told by the question, equal but for spelling, or no answers."""
    ends = {without_article(answer, language).casefold().rpartition(".")[2] for answer in (first, second)}
    is_same = first == second or (len(ends) == 1 and re.fullmatch(r"[\d.]+", first) is None)
    return is_same or any(
        holds_words(text, answer) or answer.casefold() in _NOTHING or re.search(r"[,;] ", answer)
        for answer in (first, second)
    )


def _by_subject(facts: Iterable[Fact]) -> dict[str, list[Fact]]:
    found: dict[str, list[Fact]] = defaultdict(list)
    for fact in facts:
        found[fact.subject].append(fact)
    return found


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


def _is_named(title: str, value: str, language: Language) -> bool:
    """Whether a value names a title by itself: "territory of France", "Ireland 499 km"; not "Niger River"."""
    return re.search(rf"{language.before_name}{re.escape(title)}(?= \d|[);,.]|$)", value) is not None
