"""What a text says, compared by its words."""

from __future__ import annotations

import re


def holds_words(text: str, part: str) -> bool:
    r"""Whether a text holds another as whole words, whatever the case and the white space between them.

    Nothing holds a text without words.

    Example:
        >>> holds_words("Built by Ann\n Lee.", "ann lee"), holds_words("Annals", "Ann")
        (True, False)
    """
    words = r"\s+".join(map(re.escape, part.split()))
    return bool(words) and re.search(rf"(?<!\w){words}(?!\w)", text, re.IGNORECASE) is not None


_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    r"""The text with U+FFFD for control characters, by which a document could steer the terminal that shows it.

    Example:
        >>> printable("red \x1b[31m page\n")
        'red \ufffd[31m page\n'
    """
    return _CONTROLS.sub("\ufffd", text)


def counted(number: int, noun: str) -> str:
    """A number of things.

    Example:
        >>> counted(1, "question"), counted(1200, "question")
        ('1 question', '1,200 questions')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
