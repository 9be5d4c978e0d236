"""Fresh copies of the tiny model, plain forward passes to compare with, and samplers that follow a script."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from seekling.models import load_policy, pick_dtype
from seekling.rollout.engine.local import LocalSampler
from seekling.rollout.sampler import Finish, Sample, SampleRequest
from tests.patience import FAILS_AFTER_S

_Result = TypeVar("_Result")

needs_bfloat16 = pytest.mark.skipif(
    pick_dtype("auto", "cpu") != "bfloat16",
    reason="bfloat16 is emulated here: the real model would take minutes, and nobody trains in it",
)


def open_sampler(folder: Path, **settings: int) -> LocalSampler:
    """A sampler over a fresh copy of the tiny model, in float32."""
    model, tokenizer = load_policy(folder, dtype="float32")
    return LocalSampler(model, tokenizer, **({"in_flight": 8, "episode_tokens": 256} | settings))


def sample_all(sampler: LocalSampler, requests: Sequence[SampleRequest]) -> list[Sample]:
    """Await all requests at once."""

    async def gathered() -> list[Sample]:
        return list(await asyncio.gather(*(sampler.sample(request) for request in requests)))

    return run(gathered())


def run(awaitable: Awaitable[_Result]) -> _Result:
    """Run to the end; minutes without a result are a failure, not a hanging test."""

    async def limited() -> _Result:
        return await asyncio.wait_for(awaitable, timeout=FAILS_AFTER_S)

    return asyncio.run(limited())


@torch.no_grad()
def plain_logprobs(model: PreTrainedModel, token_ids: Sequence[int], temperature: float = 1.0) -> Tensor:
    """(T, V) log-probabilities after each token, by transformers' own forward pass over the whole sequence."""
    logits: Tensor = model(input_ids=torch.tensor([list(token_ids)]), use_cache=False).logits[0]
    return torch.log_softmax(logits.float() / temperature, -1)


@dataclass
class ScriptedSampler:
    """Gives the turns that were written for a session, token by token as they were written.

    The n-th session to ask gets the n-th script; after the last it begins anew.
    """

    scripts: Sequence[Sequence[tuple[Sequence[int], Finish]]]
    policy_version: int = 0
    requests: list[SampleRequest] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)
    _order: dict[int, int] = field(default_factory=dict)
    _turns: dict[int, int] = field(default_factory=dict)

    async def sample(self, request: SampleRequest) -> Sample:
        self.requests.append(request)
        place = self._order.setdefault(request.session, len(self._order))
        turn = self._turns.get(request.session, 0)
        self._turns[request.session] = turn + 1
        await asyncio.sleep(0)
        token_ids, finish = self.scripts[place % len(self.scripts)][turn]
        return Sample(tuple(token_ids), logprobs_of(token_ids), finish, self.policy_version)

    def release_caches(self) -> None:
        pass

    def close_session(self, session: int) -> None:
        self.closed.append(session)

    def load_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        self.policy_version = version


def logprobs_of(token_ids: Sequence[int]) -> tuple[float, ...]:
    """The made-up log-probabilities of a scripted turn: eighths, so that float32 holds them exactly."""
    return tuple(-(1 + number) / 8 for number in range(len(token_ids)))


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[int, ...]:
    """Ids of a text in which control tokens are control tokens."""
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
