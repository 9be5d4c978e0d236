"""Quotes of hand-made episodes: the sentence of the right page and of what was asked, and none where none was shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seekling.config import IndexConfig
from seekling.evaluate.confidence import Calibration
from seekling.retrieval.index import build_index
from seekling.retrieval.library import open_library
from seekling.serve.asking import answer_of
from seekling.serve.quotes import Quote, find_quotes
from seekling.types import Document, Episode, StopReason, ToolCall, Turn

PAGES = {
    "mill": Document(
        "mill",
        "Orla Mill",
        "# Orla Mill\n\nOrla Mill is a mill that Tobias Wren sold twice.\n\n## Past\n\nThe mill was built in 1612 by"
        " [Tobias Wren](wren), a millwright who kept bees all his life and never once rode a horse.\n",
        {"url": "https://example.org/orla"},
    ),
    "wren": Document(
        "wren", "Tobias Wren", "# Tobias Wren\n\nTobias Wren was born in Dell.\n\n## End\n\nHe left Dell."
    ),
    "dell": Document("dell", "Dell", "# Dell\n\nTobias Wren was born in Dell, some say. It has 73 people."),
}


def turn(thought: str, query: str, shown: Sequence[tuple[str, str]]) -> Turn:
    """A search, and the (page, text) pairs that it brought."""
    texts = [f'Doc {n}(Title: "{PAGES[page].title}") {text}' for n, (page, text) in enumerate(shown, start=1)]
    result = "\n".join(f"{PAGES[page].title}: {text}" for page, text in shown)
    pages = tuple(dict.fromkeys(page for page, _ in shown))
    call = ToolCall("search", {"query": query}, result, document_ids=pages, is_retrieval=True)
    action = f"<think> {thought} </think>\n<search> {query} </search>"
    return Turn(action, "search", query, "\n".join(texts), (call,))


def episode(turns: Sequence[Turn], thought: str, answer: str | None) -> Episode:
    last = Turn(f"<think> {thought} </think>\n<answer> {answer} </answer>", "answer", answer or "")
    return Episode("q", "", "tags", (), (*turns, last), answer, StopReason.ANSWERED)


def quotes(ended: Episode, question: str, pages: dict[str, Document] = PAGES) -> tuple[Quote, ...]:
    return find_quotes(
        ended,
        question,
        pages.get,
        lambda page: PAGES[page].title,
        lambda document: document.metadata.get("url", ""),
    )


# The second passage is cut within its sentence, as a short one is.
SOLD = ("mill", "Orla Mill is a mill that Tobias Wren sold twice.")
BUILT = ("mill", "Past: The mill was built in 1612 by Tobias Wren, a millwright who")
BORN = ("wren", "Tobias Wren was born in Dell.")
TWO_STEPS = [
    turn("Orla Mill > built by > born in?", "Orla Mill built by", [SOLD, BUILT]),
    turn(
        "[Orla Mil] built by: Tobias Wren > born in?",
        "Tobias Wren born in",
        [("dell", "Tobias Wren was born in Dell, some say."), ("wren", "End: He left."), BORN],
    ),
]
BUILT_QUOTE = (
    "The mill was built in 1612 by Tobias Wren, a millwright who kept bees all his life and never once rode a horse."
)


def test_each_step_is_quoted_from_the_page_that_its_thought_names():
    found = quotes(episode(TWO_STEPS, "[Tobias Wren] born in: Dell.", "Dell"), "Where was the builder born?")
    assert [(each.document_id, each.section, each.text, each.link) for each in found] == [
        ("mill", "Past", BUILT_QUOTE, "https://example.org/orla"),
        ("wren", "", "Tobias Wren was born in Dell.", ""),
    ]
    span = found[1].span
    assert span is not None
    assert PAGES["wren"].content[slice(*span)] == "Tobias Wren was born in Dell."


def test_a_policy_that_thinks_in_other_words_is_quoted_by_the_question_and_its_search():
    first = turn("Let me look.", "who built Orla Mill", [SOLD, BUILT])
    (found,) = quotes(episode([first], "It says who.", "Tobias Wren"), "Who built Orla Mill?")
    assert found.text == BUILT_QUOTE


def test_what_was_checked_and_what_an_answer_was_made_of_are_quoted():
    checked = turn("Orla Mill > built in year; check Tobias Wren?", "Orla Mill built in year", [SOLD, BUILT])
    thought = "[Orla Mill] Tobias Wren: here. It fits: 1612."
    one = turn("[Orla Mill] built in year: 1612; check Tobias Wren?", "Orla Mill Tobias Wren", [SOLD])
    found = quotes(episode([checked, one], thought, "1612"), "When did Tobias Wren build Orla Mill?")
    assert found[-1].text == BUILT_QUOTE
    counted = turn("[Orla Mill] built by: Tobias Wren. Dell > people?", "Dell people", [("dell", "It has 73 people.")])
    found = quotes(episode([checked, counted], "[Dell] people: 73.", "two"), "How many of these are known?")
    assert [each.text for each in found] == [BUILT_QUOTE, "It has 73 people."]


def test_an_answer_from_a_folder_links_to_the_file_and_below_the_threshold_it_is_not_found(tmp_path: Path):
    folder = tmp_path / "pages"
    folder.mkdir()
    for page in PAGES.values():
        (folder / f"{page.id}.md").write_text(page.content, encoding="utf-8")
    build_index(folder, tmp_path / "index", IndexConfig(passage_words=12))
    ended = episode(TWO_STEPS, "[Tobias Wren] born in: Dell.", "Dell")
    unsure = Calibration((0.0,) * 4, (1.0,) * 4, (0.0,) * 4, 0.0, 0.9, 0.8, 40)
    library = open_library(tmp_path / "index")
    answer = answer_of(ended, "Where was the builder born?", library, unsure, str(folder))
    assert [(each.section, Path(each.link)) for each in answer.quotes] == [
        ("Past", folder / "mill.md"),
        ("", folder / "wren.md"),
    ]
    assert (answer.text, answer.confidence, answer.is_found) == ("Dell", 0.5, False)
    assert answer.searches == ("Orla Mill built by", "Tobias Wren born in")
    assert [source.document_id for source in answer.sources if source.states_answer] == ["mill", "wren"]
    assert answer_of(ended, "Where was the builder born?", library, None).is_found


def test_nothing_is_quoted_that_was_not_shown_or_not_said():
    shown = [turn("Dell > people?", "Dell", [("dell", "Tobias Wren was born in Dell, some say.")])]
    assert quotes(episode(shown, "[Dell] people: 73.", "73"), "How many people has Dell?") == ()
    assert quotes(episode(TWO_STEPS, "The pages do not say.", "unknown"), "Who built Orla Mill?") == ()
    assert quotes(episode(TWO_STEPS, "", None), "Who built Orla Mill?") == ()


def test_where_there_are_passages_and_no_pages_these_are_quoted():
    found = quotes(episode(TWO_STEPS, "[Tobias Wren] born in: Dell.", "Dell"), "Where was the builder born?", {})
    assert [(each.document_id, each.text, each.span) for each in found] == [
        ("mill", "Past: The mill was built in 1612 by Tobias Wren, a millwright who", None),
        ("wren", "Tobias Wren was born in Dell.", None),
    ]
