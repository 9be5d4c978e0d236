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
