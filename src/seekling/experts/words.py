"""The words of the scripted expert: what it searches for, the programs it writes, and what it thinks.

Its thoughts have one form: a plan, and after each search the plan again with what the page says in its place:

    Orla Mill > built by > born in?                          two hops: the second is about the answer of the first
    [Orla Mill] built by: Tobias Wren > born in?
    [Tobias Wren] born in: Harrow Dell.

What a question takes for granted comes last, so that the answer is there when it is checked:

    Ann Lee > died in year; check pilot?
    [Ann Lee] died in year: 739; check pilot?
    [Ann Lee] pilot: here. It fits: 739.

The plan is made where only the question has been read, so that later turns copy it instead of working it out again:
whether something is left to look up is what follows in the plan. Each turn names the page that it reads before it says
whether that page suffices. Where many subjects share a page, as functions do, it names the subject instead:
"[math.atan] return: the arc tangent of x".
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from seekling.types import Hop, Question

HERE, NOT_HERE, OTHER_PAGE, FITS = "here", "not here.", "another page.", "It fits:"
_NOT_KEYWORDS = frozenset(
    re.findall(
        r"\w+",
        """what which whose where when does have that this with from into than more most their there they were will
        would many much called name named known year kind type used first last people person place give given work made
        according almanac whom about being between both other same town village country""",
    )
)


class Try(NamedTuple):
    """One way to look for a fact."""

    need: str
    """What is looked for: the relation in the words of the query, or the question where there is no relation."""
    query: str
    program: str
    """Prints the lines of the page that may say it."""


def tries(hop: Hop, question: Question, *, in_own_words: bool) -> list[Try]:
    """Ways to look for a fact: in the words of the page, by the subject alone, and in the words of the question.

    The latter come first `in_own_words`; they often miss what the page says in others.
    """
    if not hop.relation:
        asked = question.question.strip()
        return [Try(asked, text, _reading(text)) for text in (asked.rstrip("?"), " ".join(content_words(asked)))]
    if hop.claim:
        return [_try(hop, hop.claim)]
    own = " ".join(asked_words(hop, question))
    ordered = [own, hop.relation, ""] if own and in_own_words else [hop.relation, "", own]
    return [_try(hop, wording) for wording in dict.fromkeys(ordered)]


def _try(hop: Hop, wording: str) -> Try:
    words, subject = stems(content_words(wording)), hop.query_subject
    program = _filtering(words, subject=subject) if words else _reading(subject)
    return Try(wording or hop.relation, f"{subject} {wording}".strip(), program)


def plan(question: Question, hops: Sequence[Hop], need: str) -> str:
    """What is still to be looked up: "Orla Mill > built by > born in?", or "Orla Mill; Birch Mill > built in?".

    Args:
        question: what was asked.
        hops: the one to look up now and those after it.
        need: the relation of the first in the words of its query; or the whole question where it has no relation.
    """
    hop, *later = hops
    if not hop.relation:
        return need
    if question.is_side_by_side:
        return f"{'; '.join(each.query_subject for each in hops)} > {need}?"
    asked = " > ".join(each.relation for each in later if not each.claim)
    claimed = [each.claim for each in later if each.claim]
    first = f"check {need}" if hop.claim else " > ".join(filter(None, [need, asked]))
    return f"{'; check '.join([f'{hop.query_subject} > {first}', *claimed])}?"


def onward(question: Question, hops: Sequence[Hop], need: str, *, after: Hop | None) -> str:
    """What is left of the plan, as it follows the value of the hop before: " > born in?", or "; check pilot?".

    The whole plan where no value was just found (`after` is None).
    """
    text, subject = plan(question, hops, need), hops[0].query_subject
    if after is None:
        return text
    if hops[0].claim and subject == after.query_subject:
        return f"; {text.removeprefix(f'{subject} > ')}"
    if not question.is_side_by_side and subject == after.answer:
        return text.removeprefix(subject)
    return f". {text}"


def program_of_all(hops: Sequence[Hop]) -> str:
    """A program that prints the lines about every hop, which have one relation."""
    return _filtering(stems(content_words(hops[0].relation)), subjects=[hop.query_subject for hop in hops])


def program_of_pages(query: str) -> str:
    """A program that prints the beginnings of the best pages for a query."""
    return (
        f"for page in search_pages({json.dumps(query, ensure_ascii=False)})[:3]:\n"
        '    print(page["title"], read_section(page["page_id"] + ":full")[:400])'
    )


def plain_title(title: str) -> str:
    """A title as texts name it: "Ed Wood" for "Ed Wood (film)"."""
    return re.sub(r"\s*\([^()]*\)$", "", title)


def program_that_compares(question: Question, hops: Sequence[Hop]) -> str:
    """A program that computes the answer from the values of all hops; empty where nothing is to be computed."""
    sort = next(iter(question.labels), "")
    values = {hop.query_subject: hop.answer if (n := number(hop.answer)) is None else n for hop in hops}
    shown = json.dumps(values, ensure_ascii=False)
    numbers = [value for value in values.values() if isinstance(value, int)]
    are_numbers = len(numbers) == len(hops)
    if sort == "the most" and are_numbers:
        largest = values.get(question.answers[0]) == max(numbers)
        return f"found = {shown}\nprint({'max' if largest else 'min'}(found, key=found.get))"
    if sort == "difference" and are_numbers:
        return f"print(abs({' - '.join(map(str, numbers))}))"
    if sort == "how many":
        if are_numbers and (edge := re.search(r"\d[\d,]*", question.question)):
            return f"found = {shown}\nprint(sum(value < {number(edge[0])} for value in found.values()))"
        shared = next((value for value in values.values() if str(value).lower() in question.question.lower()), None)
        if shared is not None:
            wanted = json.dumps(shared, ensure_ascii=False)
            return f"found = {shown}\nprint(sum(value == {wanted} for value in found.values()))"
    if sort == "the odd one":
        alone = "[name for name in found if values.count(found[name]) == 1]"
        return f"found = {shown}\nvalues = list(found.values())\nprint({alone})"
    return ""


def number(text: str) -> int | None:
    """The number that a value begins with: 1200 of "1,200 metres"; None where it begins with none."""
    match = re.match(r"\d[\d,]*", text)
    return int(match.group().replace(",", "")) if match else None


def content_words(text: str) -> list[str]:
    """Words that say what is looked for, in order, each once."""
    words = [word.lower() for word in re.findall(r"[^\W\d_]+", text)]
    return list(dict.fromkeys(word for word in words if len(word) > 2 and word not in _NOT_KEYWORDS))


def asked_words(hop: Hop, question: Question) -> list[str]:
    """Content words of a question without those of its subjects and of what it takes for granted."""
    if not question.hops or question.is_side_by_side:
        return []
    named = [hop.query_subject, *(f"{each.query_subject} {each.answer} {each.claim}" for each in question.hops)]
    subject = {word.lower() for word in re.findall(r"\w+", " ".join(named))}
    return [word for word in content_words(question.question) if len(word) > 3 and word not in subject][:4]


def stems(words: Sequence[str]) -> list[str]:
    """What a line must hold to be worth printing: two words at most, cut so that they reach inflected forms."""
    cut = [re.sub(r"(ing|ed|es|s|er|or|ion)$", "", word) if len(word) > 5 else word for word in words]
    return list(dict.fromkeys(cut))[:2]


def _filtering(words: Sequence[str], *, subject: str = "", subjects: Sequence[str] = ()) -> str:
    asked = " or ".join(f"{json.dumps(word, ensure_ascii=False)} in line.lower()" for word in words)
    lines = [
        f"page = search_pages({'name' if subjects else json.dumps(subject, ensure_ascii=False)})[0]",
        'print(page["title"])',
        'for line in read_section(page["page_id"] + ":full").split(". "):',
        f"    if {asked}:",
        "        print(line)",
    ]
    if subjects:
        lines = [f"for name in {json.dumps(list(subjects), ensure_ascii=False)}:", *(f"    {line}" for line in lines)]
    return "\n".join(lines)


def _reading(subject: str) -> str:
    return (
        f"page = search_pages({json.dumps(subject, ensure_ascii=False)})[0]\n"
        'print(page["title"], read_section(page["page_id"] + ":full")[:600])'
    )
