"""A handful of pages with everything the questions of the tests need, and a real index of them."""

from __future__ import annotations

import json
from pathlib import Path

from seekling.experts import scripted
from seekling.types import Hop, Question

PAGES = {
    "alder_mill": (
        "Alder Mill",
        "Alder Mill is a water mill on the river Sorrel. It was built in 1612 by Tobias Wren.\n\n"
        "The wheel was replaced in 1744 and turns on oak bearings.",
    ),
    "tobias_wren": (
        "Tobias Wren",
        "Tobias Wren was a millwright. He was born in Harrow Dell and kept bees all his life.",
    ),
    "birch_mill": ("Birch Mill", "Birch Mill is a water mill on the river Tansy. It was built in 1655 by Maud Ferris."),
    "harrow_dell": ("Harrow Dell", "Harrow Dell is a hamlet known for its cider."),
    "river_sorrel": ("River Sorrel", "The Sorrel rises near Harrow Dell and is 41 miles long."),
    "maud_ferris": ("Maud Ferris", "Maud Ferris was a builder of mills. She never married."),
}
TITLES = {page: title for page, (title, _) in PAGES.items()}
SINGLE = Question(
    "single", "When was Alder Mill built?", ("1612",), ("alder_mill",), "single", "village",
    (Hop("Alder Mill", "built in", "1612", "alder_mill"),),
)  # fmt: skip
BRIDGE = Question(
    "bridge", "Where was the builder of Alder Mill born?", ("Harrow Dell",), ("alder_mill", "tobias_wren"), "bridge",
    "village",
    (Hop("Alder Mill", "built by", "Tobias Wren", "alder_mill"),
     Hop("Tobias Wren", "born in", "Harrow Dell", "tobias_wren")),
)  # fmt: skip
COMPARISON = Question(
    "comparison", "Which was built first, Alder Mill or Birch Mill?", ("Alder Mill",), ("alder_mill", "birch_mill"),
    "comparison", "village",
    (Hop("Alder Mill", "built in", "1612", "alder_mill"),
     Hop("Birch Mill", "built in", "1655", "birch_mill")),
)  # fmt: skip
UNANSWERABLE = Question(
    "unanswerable", "What was the name of the dog of Maud Ferris?", ("unknown", "not known"), (), "unanswerable",
    "village", (Hop("Maud Ferris", "name of the dog", "unknown", "maud_ferris"),),
)  # fmt: skip
QUESTIONS = [SINGLE, BRIDGE, COMPARISON, UNANSWERABLE]


def play(env, question, config=None, *, titles=(), after=None):
    """The scripted expert's episode, or why there is none; `titles` are those of pages that have others than theirs."""
    return scripted.play(env, question, config, title_of={**TITLES, **dict(titles)}.__getitem__, after=after)


def write_village(folder: Path) -> Path:
    """The corpus file."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"id": page, "title": title, "content": text} for page, (title, text) in PAGES.items()]
    path = folder / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
