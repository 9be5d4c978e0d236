"""Passages are short, say where they stand, and lose nothing."""

from __future__ import annotations

import hashlib
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seekling.corpus.hashing import corpus_hash
from seekling.corpus.passages import cut_passages
from seekling.errors import ConfigError
from seekling.types import Document, Passage


def _texts(content: str, words: int, overlap_words: int = 0, title: str = "Title") -> list[str]:
    document = Document("d", title, content)
    return [passage.text for passage in cut_passages(document, words=words, overlap_words=overlap_words)]


def test_a_short_page_stays_one_passage():
    document = Document("7", "Ferry", "A ferry is a boat.\n\nIt crosses water.")
    assert cut_passages(document, words=8) == [Passage("7#0", "7", "Ferry", document.content)]


LONG = " ".join(f"w{number}" for number in range(20))
PATHS = "# Title\n\nIntro here now.\n\n## Past\n\nOld times long.\n\n### Rome\n\nRoman times long gone.\n"


@pytest.mark.parametrize(
    ("content", "words", "texts"),
    [
        # Cuts fall between paragraphs, else between sentences into pieces of like length, else between lines or words.
        ("a b c\n\nd e\n\nf g h i", 5, ["a b c\n\nd e", "f g h i"]),
        ("One two three. Four five six. Seven eight. Ten.", 7, ["One two three. Four five six.", "Seven eight. Ten."]),
        ("- a b\n- c d\n- e f", 6, ["- a b\n- c d", "- e f"]),
        ("a b c d e f g", 4, ["a b c d", "e f g"]),
        # Passages begin with the path of their section; a stub is filled up with the next one.
        (PATHS, 5, ["Intro here now.", "Past: Old times long.", "Past > Rome: Roman times long gone."]),
        ("# Other\n\nText.", 5, ["Other: Text."]),
        ("## A\none\n## B\ntwo\n## C\nthree four five", 6, ["A: one\nB: two", "C: three four five"]),
        # Empty sections and pages without text are still found, and a heading as long as a paragraph is kept whole.
        ("# Title\n\nText.\n\n## See also\n", 50, ["Text.\nSee also:"]),
        ("", 50, ["Title"]),
        # Of a script without spaces every character is a word; the cut falls behind a sentence.
        (
            "\u57ce\u306f\u53e4\u3044\u3002\u5854\u306f\u9ad8\u3044\u3002",
            7,
            ["\u57ce\u306f\u53e4\u3044\u3002", "\u5854\u306f\u9ad8\u3044\u3002"],
        ),
        ("# Title\n", 50, ["Title"]),
        (f"# {LONG}\nbody", 30, [f"{' '.join(LONG.split()[:12])}...: {LONG}\nbody"]),
    ],
)
def test_where_a_page_is_cut(content, words, texts):
    assert _texts(content, words) == texts


def test_the_next_passage_repeats_the_overlap_within_a_section_only():
    texts = _texts("a b c d e f g h\n\n## S\n\ni j k l", 4, overlap_words=1)
    assert texts == ["a b c", "c d e f", "f g h", "S: i j k l"]


WORDS = st.sampled_from(["ox", "cart.", "mill", "Ends!", "`x`", "3.5", "(so.)", "#x", "- y"])
PARAGRAPHS = st.lists(st.lists(WORDS, min_size=1, max_size=25).map(" ".join), max_size=6).map("\n\n".join)


@settings(max_examples=100)
@given(PARAGRAPHS.map(lambda text: text.replace("#", "+")), st.integers(1, 12))
def test_without_headings_the_passages_are_the_page_word_for_word(content, words):
    texts = _texts(content, words)
    if content:
        assert " ".join(texts).split() == content.split()
        assert all(len(text.split()) <= words for text in texts)


HEADED = st.lists(
    st.one_of(PARAGRAPHS, st.sampled_from(["# Title", "## Past", "### Deep well", "## Past", "```"])), max_size=8
)


@settings(max_examples=150)
@given(HEADED.map("\n\n".join), st.integers(1, 12), st.integers(0, 5))
def test_with_headings_every_word_comes_in_order_or_stands_in_a_path(content, words, overlap_words):
    texts = _texts(content, words, min(overlap_words, words - 1))
    remaining = iter(" ".join(texts).replace(":", " ").split())
    body = [line for line in content.split("\n") if not line.startswith("#")]
    for word in " ".join(body).split():
        assert word in remaining, f"{word} is missing or out of order"
    if any(body):
        for line in content.split("\n"):
            if line.startswith("##"):
                assert line.lstrip("# ") in " ".join(texts)


@pytest.mark.parametrize(
    ("words", "overlap_words", "message"),
    [
        (0, 0, "passages of 0 words cannot be cut; expected at least 1; set retrieval.index.passage_words"),
        (5, 5, "an overlap of 5 words does not fit passages of 5; expected 0-4; set retrieval.index.overlap_words"),
        (5, -1, "an overlap of -1 words does not fit passages of 5; expected 0-4; set retrieval.index.overlap_words"),
    ],
)
def test_impossible_sizes_are_refused(words, overlap_words, message):
    with pytest.raises(ConfigError) as caught:
        cut_passages(Document("d", "T", "x"), words=words, overlap_words=overlap_words)
    assert str(caught.value) == message


@pytest.mark.parametrize("unit", ["word ", "# a\n", "```x\n", "x\n\n", "# a\nb c d\n", " \n \n"])
def test_long_pages_take_linear_time(unit):
    start = time.process_time()
    cut_passages(Document("d", "T", unit * 50_000), words=60, overlap_words=5)
    assert time.process_time() - start < 8  # quadratic time would be minutes


def test_the_corpus_hash_is_that_of_its_fields_with_their_lengths_in_order():
    fields = b"".join(len(data).to_bytes(8, "little") + data for data in (b"1", b"T", "ä".encode()))
    assert corpus_hash([Document("1", "T", "ä")]) == hashlib.sha256(fields).hexdigest()
    first, second = Document("1", "T", "x"), Document("2", "T", "x")
    assert corpus_hash([first, second]) != corpus_hash([second, first])
