r"""Text to search terms: the same function for passages when an index is built and for queries when it is asked.

Words are runs of letters and digits; case and accents are folded ("Åland" is found by "aland"), English stop words
dropped, the rest stemmed. Single letters and digits stay: "Apollo 8" and "vitamin C" are different from "Apollo 9" and
"vitamin D". Languages written without spaces are not segmented: a run of them is one word.
"""

from __future__ import annotations

import hashlib
import re
import threading
import unicodedata
from collections.abc import Mapping

import Stemmer  # type: ignore[import-not-found, unused-ignore]
from bm25s.stopwords import STOPWORDS_EN  # type: ignore[import-untyped]

WORD_PATTERN = r"[^\W_]+"
STEMMER = "english"
# "s" and "t" are what is left of "Bolt's" and "isn't".
STOP_WORDS = frozenset({*STOPWORDS_EN, "s", "t"})

# How often a title counts among the words of each of its passages. On four public question sets, 60 and 150 words, two
# gave 0.5 to 2.9 points more recall@3 of pages than one; three gave less than a point more than two.
TITLE_WEIGHT = 2

_find_words = re.compile(WORD_PATTERN).findall
# A model can write endless new words; the cache of a long-lived process must not grow with them.
_MAX_CACHED_WORDS = 500_000


def describe_terms() -> dict[str, str]:
    """What an index records about its terms; an index made with other terms must not be searched with these."""
    stop_words = hashlib.blake2b(" ".join(sorted(STOP_WORDS)).encode(), digest_size=8).hexdigest()
    return {
        "words": WORD_PATTERN,
        "folding": "NFKD, no marks, casefold",
        "stop_words": f"english/{len(STOP_WORDS)}/{stop_words}",
        "stemmer": f"snowball/{STEMMER}",
        "title_weight": str(TITLE_WEIGHT),
    }


def split_words(text: str) -> list[str]:
    """The words of a text, lower-cased, in order; accents are still there.

    Example:
        >>> split_words("Vitamin C, Bolt's 9.58")
        ['vitamin', 'c', 'bolt', 's', '9', '58']
    """
    if not text.isascii():
        # Composed, so that an accent written as a separate mark does not cut its word in two.
        text = unicodedata.normalize("NFC", text)
    return _find_words(text.lower())


class TermMaker:
    """Maps words to terms, each word worked on once. Safe to share between threads."""

    def __init__(self) -> None:
        self._terms: dict[str, str] = {}
        self._lock = threading.Lock()
        self._stemmer = Stemmer.Stemmer(STEMMER)

    def term(self, word: str) -> str:
        """The term of one lower-cased word; empty for a stop word."""
        term = self._terms.get(word)
        if term is None:
            term = self._make(word)
        return term

    def terms(self, text: str) -> list[str]:
        """The terms of a text, in order, repeats kept."""
        return [term for word in split_words(text) if (term := self.term(word))]

    def _make(self, word: str) -> str:
        folded = word
        if not word.isascii():
            decomposed = unicodedata.normalize("NFKD", word)
            folded = "".join(mark for mark in decomposed if not unicodedata.combining(mark)).casefold()
        # The stemmer keeps a buffer of its own, which two threads must not write at once.
        with self._lock:
            term = "" if folded in STOP_WORDS else str(self._stemmer.stemWord(folded))
            if len(self._terms) >= _MAX_CACHED_WORDS:
                self._terms.clear()
            self._terms[word] = term
        return term


class QueryTerms:
    """Maps queries to the term numbers of one index's vocabulary; unknown words are left out."""

    def __init__(self, vocabulary: Mapping[str, int]) -> None:
        self._vocabulary = vocabulary
        self._maker = TermMaker()

    def numbers(self, query: str) -> list[int]:
        """Term numbers of a query, in order, repeats kept."""
        terms = self._maker.terms(query)
        return [number for term in terms if (number := self._vocabulary.get(term)) is not None]
