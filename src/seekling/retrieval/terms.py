r"""Text to search terms: the same function for passages when an index is built and for queries when it is asked.

Words are runs of letters and digits; case and accents are folded ("Åland" is found by "aland"), stop words dropped, the
rest stemmed, by the rules of one language. Single letters and digits stay: "Apollo 8" and "vitamin C" are different
from "Apollo 9" and "vitamin D". Languages written without spaces are not segmented: a run of them is one word.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import runpy
import threading
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import Stemmer  # type: ignore[import-not-found, unused-ignore]

from seekling.errors import ConfigError

WORD_PATTERN = r"[^\W_]+"
TITLE_WEIGHT = 2
"""How often a title counts among the words of each of its passages. On four public question sets, 60 and 150 words, two
gave 0.5 to 2.9 points more recall@3 of pages than one; three gave less than a point more than two."""

_find_words = re.compile(WORD_PATTERN).findall
# A model can write endless new words; the cache of a long-lived process must not grow with them.
_MAX_CACHED_WORDS = 500_000


def _stop_words_of_bm25s() -> dict[str, tuple[str, ...]]:
    """Its module of them alone: the package imports scipy and numba, which take longer than a search."""
    package = importlib.util.find_spec("bm25s")
    assert package is not None
    assert package.submodule_search_locations is not None
    module: dict[str, Any] = runpy.run_path(str(Path(package.submodule_search_locations[0]) / "stopwords.py"))
    # "s" and "t" are what is left of "Bolt's" and "isn't".
    by_name = module | {"STOPWORDS_ENGLISH": (*module["STOPWORDS_EN"], "s", "t")}
    languages = [name for name in Stemmer.algorithms() if f"STOPWORDS_{name.upper()}" in by_name]
    return {language: by_name[f"STOPWORDS_{language.upper()}"] for language in languages}


_STOP_WORDS = _stop_words_of_bm25s()


@dataclass(frozen=True, slots=True)
class TermRules:
    """What turns words into terms."""

    language: str = "english"
    stem: bool = True
    stop_words: bool = True

    def __post_init__(self) -> None:
        if self.language not in Stemmer.algorithms():
            raise ConfigError(
                f"there is no stemmer for {self.language!r}; expected one of {', '.join(Stemmer.algorithms())}; "
                "set retrieval.index.language (--language)"
            )
        if self.stop_words and self.language not in _STOP_WORDS:
            raise ConfigError(
                f"there are no stop words for {self.language!r}, only for {', '.join(sorted(_STOP_WORDS))}; "
                "set retrieval.index.stop_words = false (--no-stop-words)"
            )

    def left_out(self) -> frozenset[str]:
        """The stop words, folded as words are."""
        return frozenset(map(fold, _STOP_WORDS[self.language])) if self.stop_words else frozenset()

    def describe(self) -> dict[str, str]:
        """What an index records about its terms; an index made with other terms must not be searched with these."""
        left_out = sorted(self.left_out())
        digest = hashlib.blake2b(" ".join(left_out).encode(), digest_size=8).hexdigest()
        return {
            "words": WORD_PATTERN,
            "folding": "NFKD, no marks, casefold",
            "stop_words": f"{self.language}/{len(left_out)}/{digest}" if self.stop_words else "none",
            "stemmer": f"snowball/{self.language}" if self.stem else "none",
            "title_weight": str(TITLE_WEIGHT),
        }


ENGLISH = TermRules()


def fold(word: str) -> str:
    """A lower-cased word without accents and compatibility forms."""
    if word.isascii():
        return word
    decomposed = unicodedata.normalize("NFKD", word)
    return "".join(mark for mark in decomposed if not unicodedata.combining(mark)).casefold()


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

    def __init__(self, rules: TermRules = ENGLISH) -> None:
        self._terms: dict[str, str] = {}
        self._lock = threading.Lock()
        self._stemmer = Stemmer.Stemmer(rules.language)
        self._rules = rules
        self._left_out = rules.left_out()

    def terms(self, text: str) -> list[str]:
        """The terms of a text, in order, repeats kept."""
        return [term for word in split_words(text) if (term := self._term(word))]

    def _term(self, word: str) -> str:
        term = self._terms.get(word)
        return self._make(word) if term is None else term

    def _make(self, word: str) -> str:
        """The term of a word that is new; empty for a stop word."""
        folded = fold(word)
        # The stemmer keeps a buffer of its own, which two threads must not write at once.
        with self._lock:
            term = "" if folded in self._left_out else self._stemmed(word, folded)
            if len(self._terms) >= _MAX_CACHED_WORDS:
                self._terms.clear()
            self._terms[word] = term
        return term

    def _stemmed(self, word: str, folded: str) -> str:
        if not self._rules.stem:
            return folded
        if self._rules.language == "english":
            return str(self._stemmer.stemWord(folded))
        # Endings of other languages have accents: their stemmers must see them.
        return fold(str(self._stemmer.stemWord(word)))
