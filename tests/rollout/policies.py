"""Fresh copies of the tiny model, plain forward passes to compare with, and samplers that follow a script."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from seekling.errors import InfrastructureError
from seekling.models import load_policy, pick_dtype
from seekling.rollout.engine.local import LocalSampler
from seekling.rollout.sampler import Finish, Sample, Sampler, SampleRequest
from seekling.types import Trajectory
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


def changed(model: PreTrainedModel, scale: float = 0.05) -> PreTrainedModel:
    """A model whose weights are no longer those on disk."""
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter += scale * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
    return model


def sample_all(sampler: Sampler, requests: Sequence[SampleRequest]) -> list[Sample]:
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

    The n-th session to ask gets the n-th script; after the last it begins anew. Budgets are the script's business,
    unless `keeps_budgets`. `scale` is all its weights.
    """

    scripts: Sequence[Sequence[tuple[Sequence[int], Finish]]]
    policy_version: int = 0
    num_slots: int = 64
    dtype: str = "torch.float32"
    scale: float = 1.0
    keeps_budgets: bool = False
    requests: list[SampleRequest] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)
    num_running: int = 0
    _order: dict[int, int] = field(default_factory=dict)
    _turns: dict[int, int] = field(default_factory=dict)

    async def sample(self, request: SampleRequest) -> Sample:
        self.requests.append(request)
        if self.keeps_budgets and request.max_new_tokens < 1:
            return Sample((), (), "length", self.policy_version)
        place = self._order.setdefault(request.session, len(self._order))
        turn = self._turns.get(request.session, 0)
        self._turns[request.session] = turn + 1
        self.num_running += 1
        try:
            await asyncio.sleep(0)
        finally:
            self.num_running -= 1
        token_ids, finish = self.scripts[place % len(self.scripts)][turn]
        if self.keeps_budgets and len(token_ids) > request.max_new_tokens:
            token_ids, finish = token_ids[: request.max_new_tokens], "length"
        logprobs = tuple(self.scale * value for value in logprobs_of(token_ids))
        return Sample(tuple(token_ids), logprobs, finish, self.policy_version)

    def teach_drafts(self, trajectories: Iterable[Trajectory]) -> None:
        pass

    def close_session(self, session: int) -> None:
        self.closed.append(session)

    def release_caches(self) -> None:
        if self.num_running:
            raise InfrastructureError("samples are still running")

    def close(self) -> None:
        pass


def logprobs_of(token_ids: Sequence[int]) -> tuple[float, ...]:
    """The made-up log-probabilities of a scripted turn: eighths, so that float32 holds them exactly."""
    return tuple(-(1 + number) / 8 for number in range(len(token_ids)))


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[int, ...]:
    """Ids of a text in which control tokens are control tokens."""
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
