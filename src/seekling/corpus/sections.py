"""The sections of a page: what `view_sections` lists and `read_section` returns.

A heading is a line whose first character is '#'; the number of '#' is its level. A section reaches from its heading to
the next heading of the same or a higher level, so that a parent holds its children. The id of a section is
`page_id:name`, the name lower-cased with '_' for each space.

Text before the first heading, and text between the opening title heading and the next one, is listed first as the
section `page_id:lead`: without it nobody could read the introduction of a page without the whole page. `page_id:full`
always is the whole page; it is listed only for a page without headings.

Source: the wiki-search environment of verifiers. We differ where it cannot reach text: its sections end at the next
heading of any level, the second of two equal headings is out of reach (here it gets "_2"), '#' lines in fenced code
count as headings (here they do not, nor do lines of '#' alone), and ids are split at their first colon (here the page's
own id decides). `compat=True`, the setting `retrieval.sections = "flat"`, does all but the last as it does. Ids that
were reachable there mean the same section here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from seekling.errors import ToolError
from seekling.types import Document

FULL = "full"
LEAD = "lead"

# Only "\n" ends a line: a form feed or a Unicode line separator inside a paragraph does not start a heading.
_HEADING_OR_FENCE = re.compile(r"^(?:(?P<marks>#+)(?P<name>[^\n]*)| {0,3}(?P<fence>`{3,}|~{3,})(?P<info>[^\n]*))", re.M)


@dataclass(frozen=True, slots=True)
class Section:
    """A named stretch of a page."""

    id: str
    name: str
    """The heading as written, without its '#' marks."""
    level: int
    """Number of '#'; 0 for the whole page."""
    start: int
    """Offset of the heading in the content."""
    end: int
    """Offset after the last character that belongs to the section or to a section nested in it."""


class Heading(NamedTuple):
    """A heading line of a page."""

    name: str
    level: int
    start: int
    """Offset of the first '#'."""
    end: int
    """Offset of the line's end, before its line break."""


def list_sections(document: Document, *, compat: bool = False) -> list[Section]:
    """The sections of a page in reading order; one without headings has only `page_id:full`, named "Full Page".

    `compat`: list as wiki-search does: every line with '#', repeated ids left as they are, no lead.
    """
    content = document.content
    if compat:
        headings = [_heading(match) for match in _HEADING_OR_FENCE.finditer(content) if match["marks"]]
        ends = [*(heading.start for heading in headings), len(content)][1:]
        names = [normalize_name(heading.name) for heading in headings]
    else:
        headings = find_headings(content)
        ends = _nested_ends(headings, len(content))
        names = _unique_names(headings)
    if not headings:
        return [Section(f"{document.id}:{FULL}", "Full Page", 0, 0, len(content))]
    sections = [] if compat else list(_lead(document, headings, names))
    for heading, name, end in zip(headings, names, ends, strict=True):
        sections.append(Section(f"{document.id}:{name}", heading.name, heading.level, heading.start, end))
    return sections


def read_section(document: Document, section_id: str, *, compat: bool = False) -> str:
    """Read a section, from its heading on, with the sections nested in it, without surrounding blank lines.

    Args:
        document: the page that the id belongs to.
        section_id: an id as `list_sections` gives it, or `page_id:full` for the content as it is. A name as a person
            would write it ("Early life") is understood too.
        compat: end the section at the next heading of any level, as wiki-search does.

    Raises:
        ToolError: the id is not of this page, or the page has no such section; the text names what there is.
    """
    prefix = f"{document.id}:"
    if not section_id.startswith(prefix):
        raise ToolError(
            f"Section id {section_id!r} does not belong to page {document.id!r}. Expected {prefix}section_name, "
            "as view_sections lists it."
        )
    name = normalize_name(section_id.removeprefix(prefix))
    if name == FULL:
        return document.content
    sections = list_sections(document, compat=compat)
    for section in sections:
        if section.id == prefix + name:
            text = document.content[section.start : section.end]
            if not compat:
                return text.strip("\r\n")
            return text if section.end == len(document.content) else text.removesuffix("\n")
    raise ToolError(f"Section not found: {section_id!r}. {_nearest(section_id, sections)}")


def normalize_name(name: str) -> str:
    """Turn a heading into the section part of an id: stripped, lower case, '_' for each space and nothing else."""
    return name.strip().lower().replace(" ", "_")


def page_id_candidates(section_id: str) -> Iterator[str]:
    """The page ids that a section id may begin with, longest first: both parts may hold colons themselves."""
    end = section_id.rfind(":")
    while end >= 0:
        yield section_id[:end]
        end = section_id.rfind(":", 0, end)


def find_headings(content: str) -> list[Heading]:
    """The headings of a page outside fenced code, in order. Linear in the length of the content."""
    matches = list(_HEADING_OR_FENCE.finditer(content))
    # How long the longest bare fence of each kind is after each match.
    longest, longest_after = {"`": 0, "~": 0}, []
    for match in reversed(matches):
        longest_after.append(longest)
        marker = match["fence"]
        if marker and not match["info"].strip() and len(marker) > longest[marker[0]]:
            longest = {**longest, marker[0]: len(marker)}
    headings: list[Heading] = []
    fence = ""
    for match in matches:
        marker, longest = match["fence"], longest_after.pop()
        if fence:
            if marker and marker.startswith(fence) and not match["info"].strip():
                fence = ""
        elif marker is None:
            if (heading := _heading(match)).name:
                headings.append(heading)
        # A fence that nothing closes is taken for text: better a heading too many than half a page out of reach.
        elif not (marker[0] == "`" and "`" in match["info"]) and longest[marker[0]] >= len(marker):
            fence = marker
    return headings


def _heading(match: re.Match[str]) -> Heading:
    return Heading(match["name"].strip(), len(match["marks"]), match.start(), match.end())


def _nested_ends(headings: list[Heading], content_end: int) -> list[int]:
    ends = [content_end] * len(headings)
    open_positions: list[int] = []
    for position, heading in enumerate(headings):
        while open_positions and headings[open_positions[-1]].level >= heading.level:
            ends[open_positions.pop()] = heading.start
        open_positions.append(position)
    return ends


def _unique_names(headings: list[Heading]) -> list[str]:
    """Section parts of ids. The first of equal headings keeps the plain name, whatever later ones are called."""
    plain = [normalize_name(heading.name) for heading in headings]
    taken = {*plain, FULL}
    seen = {FULL}
    next_number: dict[str, int] = {}
    names = []
    for name in plain:
        if name in seen:
            number = next_number.get(name, 2)
            while f"{name}_{number}" in taken:
                number += 1
            next_number[name] = number + 1
            name = f"{name}_{number}"
            taken.add(name)
        else:
            seen.add(name)
        names.append(name)
    return names


def _lead(document: Document, headings: list[Heading], names: list[str]) -> Iterator[Section]:
    """The introduction, if there is one: up to the first heading, or from an opening title heading to the next one."""
    first, content = headings[0], document.content
    start, text_start, end, level = 0, 0, first.start, 1
    if not content[: first.start].strip():
        if len(headings) == 1 or headings[1].level <= first.level:
            return  # the opening section has no children: reading it already gives this very text
        start, text_start, end, level = first.start, first.end, headings[1].start, first.level + 1
    if content[text_start:end].strip():
        candidates = (LEAD, *(f"{LEAD}_{number}" for number in range(2, len(names) + 3)))
        name = next(each for each in candidates if each not in names)
        yield Section(f"{document.id}:{name}", "Lead", level, start, end)


def _nearest(section_id: str, sections: list[Section]) -> str:
    ids = [section.id for section in sections]
    near = difflib.get_close_matches(section_id, ids, n=3, cutoff=0.5) or ids[:3]
    return "This page has: " + ", ".join(near) + (", ..." if len(ids) > len(near) else "") + "."
