"""Sections follow wiki-search's ids and reach what wiki-search cannot."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seekling.corpus.sections import (
    Section,
    find_headings,
    list_sections,
    normalize_name,
    page_id_candidates,
    read_section,
)
from seekling.errors import ToolError
from seekling.types import Document

PAGE = Document(
    "page_7",
    "Ferry",
    "# Ferry\n\nA boat.\n\n## Early History\n\nOld.\n\n### Rope Ferries\n\nRopes.\n\n"
    "## Notes\n\nFirst.\n\n## Notes\n\nSecond.\n",
)


def _page(content: str, page_id: str = "p") -> Document:
    return Document(page_id, "Title", content)


def test_sections_of_a_page_are_listed_in_reading_order():
    assert list_sections(PAGE) == [
        Section("page_7:lead", "Lead", 2, 0, 18),
        Section("page_7:ferry", "Ferry", 1, 0, len(PAGE.content)),
        Section("page_7:early_history", "Early History", 2, 18, 68),
        Section("page_7:rope_ferries", "Rope Ferries", 3, 42, 68),
        Section("page_7:notes", "Notes", 2, 68, 86),
        Section("page_7:notes_2", "Notes", 2, 86, len(PAGE.content)),
    ]


@pytest.mark.parametrize(
    ("section_id", "text"),
    [
        ("page_7:lead", "# Ferry\n\nA boat."),
        ("page_7:early_history", "## Early History\n\nOld.\n\n### Rope Ferries\n\nRopes."),
        ("page_7:rope_ferries", "### Rope Ferries\n\nRopes."),
        ("page_7:notes", "## Notes\n\nFirst."),
        ("page_7:notes_2", "## Notes\n\nSecond."),
        ("page_7:full", PAGE.content),
        ("page_7:Early History", "## Early History\n\nOld.\n\n### Rope Ferries\n\nRopes."),
    ],
)
def test_reading_a_section_includes_its_children(section_id, text):
    assert read_section(PAGE, section_id) == text


def test_compat_lists_every_marked_line_with_repeated_ids_and_ends_a_section_at_the_next():
    assert read_section(PAGE, "page_7:early_history", compat=True) == "## Early History\n\nOld.\n"
    assert read_section(PAGE, "page_7:notes", compat=True) == "## Notes\n\nFirst.\n"
    page = _page("# A\n```\n# B\n```\n# A\n")
    assert [section.id for section in list_sections(page, compat=True)] == ["p:a", "p:b", "p:a"]


def _wiki_search_reads(content: str, name: str) -> str | None:
    """The original algorithm, written anew from its description, line by line."""
    lines = content.split("\n")
    start = next(
        (i for i, line in enumerate(lines) if line[:1] == "#" and normalize_name(line.lstrip("#")) == name), None
    )
    if start is None:
        return None
    end = next((i for i in range(start + 1, len(lines)) if lines[i][:1] == "#"), len(lines))
    return "\n".join(lines[start:end])


LINES = st.sampled_from(
    ["# A", "## A", "## B b", "### C:d", "text", "", "```", "# full", "#", " # no", "~~~~", "## A 2"]
)


@settings(max_examples=150)
@given(st.lists(LINES, max_size=12))
def test_compat_agrees_with_the_original_rule(lines):
    content = "\n".join(lines)
    for section in list_sections(_page(content), compat=True):
        name = section.id.removeprefix("p:")
        if name != "full":
            assert read_section(_page(content), section.id, compat=True) == _wiki_search_reads(content, name)


@pytest.mark.parametrize(
    ("content", "ids"),
    [
        # Headings in fenced code are not headings; a fence that nothing closes hides none; inline code is no fence.
        ("# A\n```python\n# comment\n```\n# B\n", "a b"),
        ("# A\n~~~\n# x\n```\n# y\n~~~~\n# B\n", "a b"),
        ("# A\n```\n# B\n", "a b"),
        ("# A\n````\n# B\n```\n# C", "a b c"),
        ("# A\n```\n# B\n```python\n# C", "a b c"),
        ("# A\n```x``` y\n# B\n```\n", "a b"),
        # The first heading keeps its id; repeats avoid names that exist, and that of the whole page.
        ("## Notes\n## Notes\n## Notes 2\n## notes\n", "notes notes_3 notes_2 notes_4"),
        ("# Full\nx\n", "full_2"),
        ("# Lead\nA metal.\n## Uses\nPipes.\n", "lead_2 lead uses"),
        # There is a lead where text stands before the first heading or child, and no section already is it.
        ("Intro.\n\n## A\nx", "lead a"),
        ("# T\n\n## A\nx", "t a"),
        ("# T\nonly this", "t"),
        ("## T\nfirst\n## A\nx", "t a"),
        # Lines of marks alone are not headings, and only a line feed starts a line.
        ("# A\n###\ntext\n", "a"),
        ("# A\x0c# no\u2028# no\n# B\r\n# C", "a\x0c#_no\u2028#_no b c"),
    ],
)
def test_the_ids_of_a_page(content, ids):
    assert [section.id for section in list_sections(_page(content))] == [f"p:{each}" for each in ids.split(" ")]


def test_leads_and_headings_named_as_they_are_can_be_read():
    assert read_section(_page("# Full\nx\n"), "p:full_2") == "# Full\nx"
    assert read_section(_page("# Lead\nA metal.\n## Uses\nPipes.\n"), "p:lead_2") == "# Lead\nA metal."
    assert read_section(_page("Intro.\n\n## A\nx"), "p:lead") == "Intro."
    assert list_sections(_page("plain text")) == [Section("p:full", "Full Page", 0, 0, 10)]
    assert read_section(_page("plain text"), "p:full") == "plain text"
    heading = find_headings("x\n##  Two words \nrest")[0]
    assert (heading.name, heading.level, heading.start, heading.end) == ("Two words", 2, 2, 16)


def test_colons_in_page_ids_and_names_are_told_apart_by_the_page():
    page = _page("# Part: one\nx\n# B\ny", page_id="wiki:Talk:Ferry")
    assert [section.id for section in list_sections(page)] == ["wiki:Talk:Ferry:part:_one", "wiki:Talk:Ferry:b"]
    assert read_section(page, "wiki:Talk:Ferry:part:_one") == "# Part: one\nx"
    assert list(page_id_candidates("a:b:c")) == ["a:b", "a"]
    assert list(page_id_candidates("abc")) == []


def test_a_wrong_section_name_is_answered_with_the_nearest():
    with pytest.raises(ToolError, match=r"^Section not found: 'page_7:note'\. This page has: page_7:notes, "):
        read_section(PAGE, "page_7:note")


@pytest.mark.parametrize("unit", ["# a\n", "```x\n", "~~~\n```\n", "# a\n### b\n"])
def test_long_pages_take_linear_time(unit):
    page = _page(unit * 30_000)
    start = time.process_time()
    list_sections(page)
    assert time.process_time() - start < 5  # quadratic time would be minutes
