"""What a sampler is: prompt ids in, sampled ids and logprobs out. The seam that a cluster or vLLM can stand behind.

Where a sampled turn ends is decided here too, token by token and in the same way by every sampler (`TurnEnd`).
"""

from __future__ import annotations

import hashlib
import importlib.util
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from seekling.config import Recipe
from seekling.env.protocol.stopping import NO_STOPS, Stopper, StopRule
from seekling.models import pick_device
from seekling.types import Episode, Trajectory

if typing.TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Finish = Literal["stop", "eos", "length"]

DRAFTED, ACCEPTED = "drafted_tokens", "accepted_tokens"
"""Names in the usage of an episode: tokens that were guessed ahead, and those that were right."""


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """Continue `prompt_ids`. Requests of one session share a cache, so each must extend what the last one returned."""

    session: int
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    stops: StopRule = NO_STOPS
    """Where the turn ends; what stands in the prompt plays no part."""
    stop_ids: frozenset[int] | None = None
    """Tokens with which it ends as "eos"; None: those with which the model ends its own turns."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    min_p: float = 0.0
    """Tokens less likely than this share of the most likely one are not drawn."""
    seed: int = 0
    thought_tokens: int = 0
    """Tokens after which a thought is open, at most: with the last of them the turn ends as "length". 0 is no limit."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What the policy said, token by token."""

    token_ids: tuple[int, ...]
    """Sampled ids, the end-of-sequence token included when it was sampled."""
    logprobs: tuple[float, ...]
    """Of each id under the policy at the request's temperature; at temperature 1 where that is 0."""
    finish: Finish
    """stop: a stop string came out; eos: the model ended its turn; length: a budget ran out first."""
    policy_version: int
    num_drafted: int = field(default=0, compare=False)
    """Tokens that were guessed ahead on the way. How a sample was found is no part of what it is."""
    num_accepted: int = field(default=0, compare=False)
    """Those of them that were right."""


class Sampler(Protocol):
    """Turns requests into samples; many may be awaited at once. It may be in this process or behind a network."""

    @property
    def policy_version(self) -> int:
        """Version of the weights in use, as the last `WeightSync.publish` named it."""

    @property
    def num_slots(self) -> int:
        """Requests that are worth awaiting at once; more wait for each other."""

    @property
    def dtype(self) -> str:
        """Arithmetic of the policy, as torch names it, such as torch.bfloat16."""

    async def sample(self, request: SampleRequest) -> Sample:
        """Continue a prompt. A prompt without room for a token gets an empty sample that ends as "length".

        Raises:
            InfrastructureError: the engine failed.
        """

    def teach_drafts(self, trajectories: Iterable[Trajectory]) -> None:
        """Texts that the policy is likely to resemble, for a sampler that guesses ahead; others do nothing."""

    def close_session(self, session: int) -> None:
        """Give the session's cache back. Unknown sessions are ignored."""

    def release_caches(self) -> None:
        """Give the caches' memory back while something else, such as learning, needs it. No sample may be running."""

    def close(self) -> None:
        """Give everything back; nothing can be sampled afterwards."""


@typing.runtime_checkable
class TakesWeights(Sampler, Protocol):
    """A sampler that tensors can be handed to: it is in the process that has them."""

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Copy these weights in and use them from now on; every cache made with older ones is dropped.

        Raises:
            InfrastructureError: samples are still running, or the weights are another model's. Nothing has changed.
        """


_WINDOW = 8
"""Tokens that are decoded together before the older ones are let go."""
_HALF = "\ufffd"
"""What a tokenizer gives for part of a character."""


class TurnEnd:
    """Follows the tokens of one request, which has at most `budget_tokens` new ones.

    `eos_ids` end a turn where the request names none.
    """

    def __init__(
        self, request: SampleRequest, tokenizer: PreTrainedTokenizerBase, eos_ids: Collection[int], budget_tokens: int
    ) -> None:
        self._tokenizer, self._eos_ids = tokenizer, eos_ids if request.stop_ids is None else request.stop_ids
        self._left, self._thought_left = budget_tokens, request.thought_tokens
        self._stopper = Stopper(request.stops) if request.stops.strings else None
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
        text = decode(self._tokenizer, self._window)
        whole = text.rstrip(_HALF)
        new = whole[self._num_fed :]
        self._num_fed = max(self._num_fed, len(whole))
        if len(self._window) > _WINDOW and (whole == text or len(self._window) > 2 * _WINDOW):
            # One token of context, because some tokenizers drop the space before a first word.
            del self._window[:-1]
            self._num_fed = len(decode(self._tokenizer, self._window).rstrip(_HALF))
        return new


def end_of_turn_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The tokens with which a model ends its turn: the tokenizer's, and those of its generation settings."""
    ids = {tokenizer.eos_token_id}
    if model.generation_config is not None:
        configured = model.generation_config.eos_token_id
        ids |= set(configured) if isinstance(configured, list) else {configured}
    return frozenset(token_id for token_id in ids if isinstance(token_id, int))


def decode(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> str:
    """Text of sampled ids, special tokens left out: what the grammar does not see counts for no turn's end either."""
    text = tokenizer.decode(list(token_ids), skip_special_tokens=True)
    assert isinstance(text, str)
    return text


def draft_rates(episodes: Sequence[Episode]) -> dict[str, float]:
    """Rates of guessing ahead over all tokens of some episodes; nothing where nothing was guessed.

    `draft_acceptance` is right by guessed tokens, `drafted_per_token` guessed by sampled ones.
    """
    drafted, accepted = (sum(each.usage.get(name, 0.0) for each in episodes) for name in (DRAFTED, ACCEPTED))
    if not drafted:
        return {}
    sampled = sum(turn.num_action_tokens for each in episodes for turn in each.turns)
    return {"draft_acceptance": accepted / drafted, "drafted_per_token": drafted / sampled}


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed from a run's seed, a stage, a step, a question and an episode number; the same everywhere."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int(np.frombuffer(digest, dtype="<u8")[0] >> np.uint64(1))


def takes_vllm(recipe: Recipe) -> bool:
    """Whether vLLM samples: where a recipe says so, or leaves the choice and there are a GPU and vLLM."""
    if recipe.rollout.sampler != "auto":
        return recipe.rollout.sampler == "vllm"
    has_both = pick_device(recipe.model.device) == "cuda" and importlib.util.find_spec("vllm") is not None
    return has_both and not recipe.vllm_problem
