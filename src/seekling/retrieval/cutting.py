"""Passages as a configuration wants them: cut by words, or by the tokens of a model."""

from __future__ import annotations

import functools
from collections.abc import Callable

from seekling.config import IndexConfig
from seekling.corpus.passages import Spans, SpansOf, cut_passages, word_spans
from seekling.errors import MissingExtraError, ModelError
from seekling.models import resolve_model
from seekling.types import Document, Passage


def passage_cutter(config: IndexConfig) -> Callable[[Document], list[Passage]]:
    """The function that cuts a page as the passages of an index are cut.

    Raises:
        ModelError: `passage_tokenizer` cannot be resolved or has no tokenizer.json.
    """
    spans_of = token_spans(config.passage_tokenizer) if config.passage_tokenizer else word_spans
    return functools.partial(
        cut_passages, words=config.passage_words, overlap_words=config.overlap_words, spans_of=spans_of
    )


@functools.cache
def token_spans(spec: str) -> SpansOf:
    """The function that finds the tokens of a text.

    Special tokens are not counted, nor is white space a part of a token. A character that the tokenizer splits into
    bytes counts once: half of it could not be shown.

    Args:
        spec: what `resolve_model` understands.

    Raises:
        ModelError: the spec cannot be resolved, or has no tokenizer.json.
        MissingExtraError: tokenizers is not installed.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtraError("counting tokens needs tokenizers: pip install 'seekling[train]'") from None
    path = resolve_model(spec) / "tokenizer.json"
    if not path.is_file():
        raise ModelError(f"{spec} has no tokenizer.json, so its tokens cannot be counted; choose another model")
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def spans(text: str) -> Spans:
        found: Spans = []
        for start, end in tokenizer.encode(text, add_special_tokens=False).offsets:
            while start < end and text[start].isspace():
                start += 1
            if start < end and (not found or start >= found[-1][1]):
                found.append((start, end))
        return found

    return spans
