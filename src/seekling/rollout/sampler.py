"""What a sampler is: prompt ids in, sampled ids and logprobs out. The seam that a cluster or vLLM can stand behind."""

from __future__ import annotations

import importlib.util
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from seekling.config import Recipe
from seekling.env.protocol.stopping import NO_STOPS, StopRule
from seekling.models import pick_device
from seekling.types import Trajectory

if typing.TYPE_CHECKING:
    import torch

Finish = Literal["stop", "eos", "length"]


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
    """Turns requests into samples; many may be awaited at once.

    It may be in this process or behind a network: nobody asks it for its weights, only for their version.
    """

    @property
    def policy_version(self) -> int:
        """Version of the weights in use, as the last `WeightSync.publish` named it."""
        ...

    @property
    def num_slots(self) -> int:
        """Requests that are worth awaiting at once; more wait for each other."""
        ...

    @property
    def dtype(self) -> str:
        """Arithmetic of the policy, as torch names it, such as torch.bfloat16."""
        ...

    async def sample(self, request: SampleRequest) -> Sample:
        """Continue a prompt. A prompt without room for a token gets an empty sample that ends as "length".

        Raises:
            InfrastructureError: the engine failed.
        """
        ...

    def teach_drafts(self, trajectories: Iterable[Trajectory]) -> None:
        """Texts that the policy is likely to resemble, for a sampler that guesses ahead; others do nothing."""
        ...

    def close_session(self, session: int) -> None:
        """Give the session's cache back. Unknown sessions are ignored."""
        ...

    def release_caches(self) -> None:
        """Give the caches' memory back while something else, such as learning, needs it. No sample may be running."""
        ...

    def close(self) -> None:
        """Give everything back; nothing can be sampled afterwards."""
        ...


@typing.runtime_checkable
class TakesWeights(Sampler, Protocol):
    """A sampler that tensors can be handed to: it is in the process that has them."""

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Copy these weights in and use them from now on; every cache made with older ones is dropped.

        Raises:
            InfrastructureError: samples are still running, or the weights are another model's. Nothing has changed.
        """
        ...


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed from a run's seed, a stage, a step, a question and an episode number; the same everywhere."""
    import hashlib

    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int(np.frombuffer(digest, dtype="<u8")[0] >> np.uint64(1))


def takes_vllm(recipe: Recipe) -> bool:
    """Whether vLLM samples: where a recipe says so, or leaves the choice and there are a GPU and vLLM."""
    if recipe.rollout.sampler != "auto":
        return recipe.rollout.sampler == "vllm"
    has_both = pick_device(recipe.model.device) == "cuda" and importlib.util.find_spec("vllm") is not None
    return has_both and not recipe.vllm_problem
