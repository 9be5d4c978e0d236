"""Where a sampled turn ends, decided token by token and in the same way by every sampler."""

from __future__ import annotations

import typing

from seekling.rollout.sampler import Finish, SampleRequest

if typing.TYPE_CHECKING:
    from collections.abc import Collection

    from transformers import PreTrainedTokenizerBase

_WINDOW = 8
"""Tokens that are decoded together before the older ones are let go."""
_HALF = "\ufffd"
"""What a tokenizer gives for part of a character."""


class TurnEnd:
    """Follows the tokens of one request.

    Args:
        request: what ends its turn.
        tokenizer: the policy's.
        eos_ids: tokens that end a turn, where the request names none.
        budget_tokens: new tokens, at most.
    """

    def __init__(
        self, request: SampleRequest, tokenizer: PreTrainedTokenizerBase, eos_ids: Collection[int], budget_tokens: int
    ) -> None:
        self._tokenizer, self._eos_ids = tokenizer, eos_ids if request.stop_ids is None else request.stop_ids
        self._left, self._thought_left = budget_tokens, request.thought_tokens
        self._stopper = request.stops.stopper() if request.stops.strings else None
        self._window: list[int] = []
        self._num_fed = 0

    def add(self, token_id: int) -> Finish | None:
        """Take the next token; how the turn ends with it, or None while it goes on."""
        self._left -= 1
        if token_id in self._eos_ids:
            return "eos"
        if self._stopper is not None:
            if self._stopper.feed(self._text_of(token_id)):
                return "stop"
            if self._stopper.is_thinking and self._thought_left:
                self._thought_left -= 1
                if not self._thought_left:
                    return "length"
        return "length" if self._left <= 0 else None

    def _text_of(self, token_id: int) -> str:
        """What a token adds to the text; of a character in several tokens, the last one adds it."""
        self._window.append(token_id)
        text = self._decode(self._window)
        whole = text.rstrip(_HALF)
        new = whole[self._num_fed :]
        self._num_fed = max(self._num_fed, len(whole))
        if len(self._window) > _WINDOW and (whole == text or len(self._window) > 2 * _WINDOW):
            # One token of context, because some tokenizers drop the space before a first word.
            del self._window[:-1]
            self._num_fed = len(self._decode(self._window).rstrip(_HALF))
        return new

    def _decode(self, token_ids: list[int]) -> str:
        # As `Renderer.decode` has it: what the grammar does not see must not count here either.
        text = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        assert isinstance(text, str)
        return text
