"""Fits what goes back to the model into a budget of tokens: documents are cut evenly, their frames stay whole.

Cutting the finished text from the right would lose the closing tag and starve the last documents, as Search-R1 does.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

CUT_MARK = " ..."

_WORD_END = re.compile(r"\S(?=\s|$)")
_WORD_START = re.compile(r"(?<!\S)\S")


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of an observation; only its body may be cut."""

    head: str
    body: str
    tail: str = "\n"
    keep: Literal["start", "end"] = "start"
    """Which side of the body survives a cut: a traceback says most in its last line."""

    def text(self) -> str:
        """The piece in full."""
        return self.head + self.body + self.tail


@dataclass(frozen=True, slots=True)
class Observation:
    """Text that goes back to the model."""

    text: str
    is_truncated: bool = False


@dataclass(frozen=True, slots=True)
class Budget:
    """How many tokens one observation may have, and how they are counted."""

    tokens: int
    count_tokens: Callable[[str], int]

    def fit(self, prefix: str, blocks: Sequence[Block], suffix: str) -> Observation:
        """Put the blocks between prefix and suffix, which are never lost, cutting bodies where the budget asks for it.

        Short bodies stay whole and the long ones share what is left evenly; a cut falls between words and is marked.
        Where not even the frames fit, the last blocks go; the first one stays, with its head cut. The text is at most
        `tokens` long unless prefix, suffix and cut marks alone are longer.
        """
        text = _assemble(prefix, blocks, suffix)
        excess = self.count_tokens(text) - self.tokens
        if excess <= 0:
            return Observation(text)
        sizes = [self.count_tokens(block.body) for block in blocks]
        available = sum(sizes) - excess
        while available > 0:
            level = _even_level(sizes, available)
            pairs = zip(blocks, sizes, strict=True)
            text = _assemble(
                prefix, [each if size <= level else self._cut(each, level) for each, size in pairs], suffix
            )
            excess = self.count_tokens(text) - self.tokens
            if excess <= 0:
                return Observation(text, is_truncated=True)
            available -= excess  # marks and merges across cuts were not in the sum; give them room and try again
        if len(blocks) > 1:
            return replace(self.fit(prefix, blocks[:-1], suffix), is_truncated=True)
        frame = self.count_tokens(prefix + CUT_MARK + suffix)
        heads = [self._cut(Block("", block.head.strip(), ""), self.tokens - frame) for block in blocks]
        return Observation(_assemble(prefix, heads, suffix), is_truncated=True)

    def _cut(self, block: Block, tokens: int) -> Block:
        """The most words of the body that fit, marked; characters of it when not even one word does."""
        body, mark = block.body.strip(), CUT_MARK.strip()
        if block.keep == "start":
            ends = [match.end() for match in _WORD_END.finditer(body)]
        else:
            ends = [len(body) - match.start() for match in _WORD_START.finditer(body)][::-1]

        def kept(length: int) -> str:
            return body[:length] if block.keep == "start" else body[len(body) - length :]

        def longest(lengths: Sequence[int]) -> int:
            num_fit = bisect.bisect_right(lengths, tokens, key=lambda length: self.count_tokens(kept(length)))
            return lengths[num_fit - 1] if num_fit else 0

        length = longest(ends) or longest(range(1, ends[0] + 1) if ends else ())
        if not length:
            return replace(block, body=mark)
        return replace(block, body=kept(length) + CUT_MARK if block.keep == "start" else f"{mark} {kept(length)}")


def _assemble(prefix: str, blocks: Sequence[Block], suffix: str) -> str:
    return prefix + "".join(block.text() for block in blocks).strip() + suffix


def _even_level(sizes: Sequence[int], available: int) -> int:
    """The level L for which the sizes, each cut at L, sum to `available` or just below."""
    left = available
    for index, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - index)
        if size > share:
            return share
        left -= size
    return max(sizes, default=0)
