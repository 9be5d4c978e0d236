"""Finds the facts that an entry states in one of the forms of its language."""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from seekling.corpus.making.entries import Entry
from seekling.corpus.making.language import MARK, Language, Pattern

_ARGUMENT = re.compile(r"(?P<what>[a-z_]\w{1,30})\s*(?::\s*[^=]+?)?=\s*(?P<answer>[^,=]+|'[^']*'|\"[^\"]*\")")
_LIST = re.compile(r"(?:[\w.-]+ ){0,3}[\w.-]+(?:\(\))?(?:,? (?:and|or|und|oder|sowie) |,)|(?:and|or|und|oder) ")
_PLAIN_VALUE = re.compile(r"""-?[\w.]+(?:\(\))?|'[^']{1,20}'|"[^"]{1,20}\"""")
_REPEATED = {"change", "error", "default", "version", "field"}
"""Kinds of which an entry may state several facts; of the others its first counts."""
_MAX_CELL_WORDS = 8
_MAX_ANSWER_CHARS = 90
_MAX_FULL_CHARS = 200
_CLAUSE_END = re.compile(r"\.(?= |$)|[;:](?= )")
_MIN_CLOZE_WORDS, _MAX_CLOZE_WORDS, _RARE = 8, 28, 3
_MIN_BEFORE_CLAUSE = 4
"""Words of an answer that ends before "that" or "which": a shorter one says too little without it."""


@dataclass(frozen=True, slots=True)
class Fact:
    """What a page says of a subject, and questions for it."""

    page: str
    subject: str
    kind: str
    relation: str
    answer: str
    questions: tuple[str, ...]
    """The first in the page's own words."""
    phrase: str = ""
    """Names the answer without saying it; empty where no further question can hang on it."""
    in_full: str = ""
    """The answer with all that the sentence goes on to say, which is right too; empty where it says no more."""


def facts_of(entry: Entry, subject: str, language: Language) -> list[Fact]:
    """The facts of an entry, which questions call `subject`; not those to whose question it has two answers."""
    found = [
        *_stated(entry, subject, language),
        *_defaults(entry, subject, language),
        *_cells(entry, subject, language),
        *_records(entry, subject, language),
    ]
    answers: dict[str, set[str]] = defaultdict(set)
    for fact in found:
        answers[fact.questions[0]].add(fact.answer)
    return [fact for fact in found if len(answers[fact.questions[0]]) == 1]


def _stated(entry: Entry, subject: str, language: Language) -> Iterator[Fact]:
    """What its sentences say in one of the forms."""
    name = re.compile(_named(subject, language), re.IGNORECASE)
    patterns = [pattern for pattern in language.pattern if _fits(pattern, entry)]
    seen = set[str]()
    for number, paragraph in enumerate(entry.paragraphs):
        for place, sentence in enumerate(language.sentences(paragraph)):
            marked = name.sub(MARK, sentence, count=1)
            for pattern in patterns:
                match = pattern.match.search(marked if MARK in pattern.match.pattern else sentence)
                if match is None or (pattern.first and (number or place)) or pattern.kind in seen:
                    continue
                if not language.is_of(paragraph):
                    continue  # pages are translated in part
                if fact := _fact(entry.page, subject, pattern, match, language):
                    seen.update({pattern.kind} - _REPEATED)
                    yield fact


def gaps_of(entry: Entry, subject: str, language: Language, common: Counter[str]) -> Iterator[Fact]:
    """Sentences of an entry with a rare name or number left out; `common`: in how many entries each word stands."""
    for sentence in itertools.chain.from_iterable(map(language.sentences, entry.paragraphs)):
        is_plain = re.match(r"[A-ZÄÖÜ].*\.$", sentence, re.DOTALL) and not language.no_gap.search(sentence)
        is_short = _MIN_CLOZE_WORDS <= len(sentence.split()) <= _MAX_CLOZE_WORDS
        if not is_plain or not is_short or language.bad_answer.search(sentence.split(" ", 2)[0]):
            continue
        for match in language.gap.finditer(sentence, 1):
            word = match[0].rstrip(".")
            is_rare = common[word.casefold()] <= _RARE and language.is_of(sentence)
            if is_rare and sentence.count(word) == 1 and word.casefold() not in subject.casefold() and len(word) > 2:
                gap = sentence.replace(word, "___")
                around = " ".join(re.findall(r"[^\W\d_]{4,}", gap)[:3])
                questions = tuple(each.format(subject=subject, gap=gap) for each in language.cloze)
                yield Fact(entry.page, subject, "cloze", around, word, questions)
                break


def clean_answer(text: str, language: Language, max_words: int, *, is_whole: bool = False) -> str:
    """The short part of a sentence that answers; empty where it is not clean, or is the first thing of a list."""
    cut = None if is_whole else language.cut.search(text, 1)
    if cut and cut[0] == ", " and _LIST.match(text, cut.end()):
        return ""
    answer = (text[: cut.start()] if cut else text).strip().rstrip(".,:").strip()
    words = answer.split()
    if cut and cut[0][:1] == " " and cut[0].strip().isalpha() and len(words) < _MIN_BEFORE_CLAUSE:
        return ""
    if not words or len(words) > max_words or len(answer) > _MAX_ANSWER_CHARS:
        return ""
    if language.bad_answer.search(answer) or language.bad_edge.search(answer):
        return ""
    pairs = (("(", ")"), ("[", "]"), ("{", "}"), ("“", "”"))
    is_open = answer.count('"') % 2 or any(answer.count(one) != answer.count(other) for one, other in pairs)
    return "" if is_open or not re.search(r"\w", answer) or MARK in answer else answer


def without_article(answer: str, language: Language) -> str:
    """An answer without the article that it begins with."""
    return language.article.sub("", answer)


def _named(subject: str, language: Language) -> str:
    """Finds the subject in a sentence, or at its beginning what stands for it."""
    word = rf"(?:\b(?:an?|the|der|die|das|ein|eine) )?[»„“\"]?(?<!\w){re.escape(subject)}(?!\w)(?:\(\))?[«“”\"]?"
    kinds = "(?: (?:module|function|method|class|package|object|command|option|library|program|tool|decorator|type)s?)?"
    return rf"{word}{kinds}|^{language.anaphors}"


def _fits(pattern: Pattern, entry: Entry) -> bool:
    return not pattern.of or entry.rank in pattern.of or ("signature" in pattern.of and entry.is_signature)


def _fact(page: str, subject: str, pattern: Pattern, match: re.Match[str], language: Language) -> Fact | None:
    groups = {name: value for name, value in match.groupdict().items() if value}
    said = groups.pop("answer")
    answer = clean_answer(said, language, pattern.max_words, is_whole=pattern.is_whole)
    if not answer or any(_is_unclear(value, language) for value in groups.values()):
        return None
    if pattern.kind in {"returns", "definition", "action"} and len(without_article(answer, language).split()) < 2:
        return None
    if "verb" in groups:
        groups["verb"] = language.verbs[groups["verb"].casefold()]
    words = {name: _inside(value) for name, value in groups.items()}
    fill = {"subject": _inside(subject) if language.article.match(subject) else subject, **words}
    return Fact(
        page,
        subject,
        pattern.kind,
        pattern.relation.format(**fill),
        answer,
        tuple(each.format(**fill) for each in pattern.questions),
        pattern.phrase.format(**fill),
        _in_full(said, answer),
    )


def _in_full(said: str, answer: str) -> str:
    """What a sentence says from an answer on, where it goes on behind it."""
    whole = _CLAUSE_END.split(said, maxsplit=1)[0].strip().rstrip(".,:")
    is_longer = whole.startswith(answer) and len(answer) < len(whole) <= _MAX_FULL_CHARS
    return whole if is_longer else ""


def _is_unclear(text: str, language: Language) -> bool:
    return MARK in text or language.bad_answer.search(text) is not None or language.no_name.fullmatch(text) is not None


def _inside(text: str) -> str:
    """A text as it stands inside of a sentence: "if x" for "If x"."""
    first, *rest = text.strip().split(" ")
    is_plain = re.fullmatch(r"[A-Z][a-z]*,?", first) and not first.endswith(("Error", "Exception"))
    return " ".join([first.lower() if is_plain else first, *rest])


def _defaults(entry: Entry, subject: str, language: Language) -> Iterator[Fact]:
    for match in _ARGUMENT.finditer(entry.arguments) if entry.is_signature else ():
        what, answer = match["what"], match["answer"].strip().rstrip("])").strip()
        if _PLAIN_VALUE.fullmatch(answer) and not answer.startswith("self.") and not language.no_name.fullmatch(what):
            questions = tuple(each.format(subject=subject, what=what) for each in language.default)
            yield Fact(entry.page, subject, "default", what, answer, questions)


def _cells(entry: Entry, subject: str, language: Language) -> Iterator[Fact]:
    """Cells of tables, by the first cell of the row and the heading of the column."""
    for head, *rows in entry.tables:
        names = Counter(row[0].casefold() for row in rows)
        for row in rows:
            is_name = 0 < len(row[0].split()) <= 4 and re.search(r"[^\W\d_]{3}", row[0])
            if names[row[0].casefold()] > 1 or not is_name:
                continue
            for column, cell in list(zip(head, row, strict=True))[1:]:
                answer = clean_answer(cell, language, _MAX_CELL_WORDS)
                if len(column) > 2 and answer == cell.strip().rstrip(".") and re.search(r"\w{2}", answer):
                    fill = {"subject": row[0], "column": column, "owner": subject}
                    questions = tuple(each.format(**fill) for each in language.table)
                    yield Fact(entry.page, subject, "table", f"{row[0]} {column}", answer, questions)


def _records(entry: Entry, subject: str, language: Language) -> Iterator[Fact]:
    """Lines such as "**Capital**: Berlin (since 1990)" whose name stands once, and whose value is no list."""
    names = Counter(name for name, _ in entry.fields)
    for name, value in entry.fields:
        text, _, brackets = value.rstrip(".").partition(" (")
        is_one = re.search(r"[,;:.!?](?: |$)", text) is None and ")" not in brackets[:-1]
        answer = clean_answer(text, language, _MAX_CELL_WORDS, is_whole=True) if is_one else ""
        if names[name] == 1 and answer:
            fact = record_fact(entry.page, subject, name, answer, language)
            # What follows in brackets may tell a river from the country of its name.
            yield fact if answer == value.rstrip(".") else replace(fact, phrase="")


def record_fact(page: str, subject: str, name: str, answer: str, language: Language) -> Fact:
    """What a record says under a name; without an answer, what it does not say."""
    group, _, rest = name.partition(", ")
    name = rest if rest.casefold().startswith(group.casefold()) else name  # "Budget, Budget 2022"
    what = _inside(name) if language.lowers_nouns else name
    questions = tuple(each.format(subject=subject, field=what) for each in language.record)
    phrase = language.record_phrase.format(subject=subject, field=what)
    return Fact(page, subject, "field", what, answer, questions, phrase)
