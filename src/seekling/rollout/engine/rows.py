"""What the sampler keeps of the requests that run, and where a turn ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from seekling.rollout.sampler import Finish, Sample, SampleRequest
from seekling.rollout.turn_end import TurnEnd


@dataclass(slots=True)
class Row:
    """A request that has a slot, and what was sampled for it so far."""

    request: SampleRequest
    future: asyncio.Future[Sample]
    slot: int
    budget_tokens: int
    end: TurnEnd
    new_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    num_drafted: int = 0
    num_accepted: int = 0

    @property
    def is_prefilled(self) -> bool:
        """Whether its prompt is in the cache."""
        return bool(self.new_ids)

    def sample(self, finish: Finish, policy_version: int) -> Sample:
        """What the request gets."""
        ids, logprobs = tuple(self.new_ids), tuple(self.logprobs)
        return Sample(ids, logprobs, finish, policy_version, self.num_drafted, self.num_accepted)


@dataclass(slots=True)
class EngineStats:
    """What the engine did since it was made; tokens and seconds."""

    decoded_tokens: int = 0
    prefilled_tokens: int = 0
    reused_tokens: int = 0
    """Prompt tokens that were copied from, or already lay in, a slot."""
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    """Drafted tokens that sampling would have drawn anyway."""
    steps: int = 0
    busy_s: float = 0.0


def end_of_turn_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The tokens with which a model ends its turn: the tokenizer's, and those of its generation settings."""
    ids = {tokenizer.eos_token_id}
    if model.generation_config is not None:
        configured = model.generation_config.eos_token_id
        ids |= set(configured) if isinstance(configured, list) else {configured}
    return frozenset(token_id for token_id in ids if isinstance(token_id, int))
