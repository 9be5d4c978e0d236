"""A sampler that is asked after every sync whether it has the weights.

The engine copies weights in place and is tested; what a foreign library makes of them is not ours to know. The guard
looks at every RL step's episodes too, but only where there is something to learn, and not at evaluations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from seekling.pipeline.guard import check_drift
from seekling.rollout.sampler import Sample, Sampler, SampleRequest, derive_seed
from seekling.types import Trajectory

PROBE = "Name a town, and say what it is known for."
"""What the sampler is given to continue."""
NUM_PROBES = 8
PROBE_TOKENS = 32
PROBE_TEMPERATURES = 1.0, 0.7
"""Of the samples in turn: a sampler may have the weights and record another temperature's log-probabilities."""

Score = Callable[[Sequence[Trajectory]], Sequence[np.ndarray]]
"""Trajectories -> their tokens' log-probabilities (T,), as `Learner.logprobs` gives them."""


class CheckedSampler:
    """Hands everything on to another sampler; after new weights it lets it sample a little and scores that.

    Args:
        inner: the sampler.
        score: log-probabilities under the weights that are handed over.
        prompt_ids: what is continued.
        limit: mean difference in nats per token; see `check_drift`.
    """

    def __init__(self, inner: Sampler, score: Score, prompt_ids: Sequence[int], *, limit: float) -> None:
        self._inner, self._score, self._limit = inner, score, limit
        self._prompt_ids = tuple(prompt_ids)

    @property
    def policy_version(self) -> int:
        """Version of the weights in use."""
        return self._inner.policy_version

    async def sample(self, request: SampleRequest) -> Sample:
        """Continue a prompt; see `Sampler.sample`."""
        return await self._inner.sample(request)

    def close_session(self, session: int) -> None:
        """See `Sampler.close_session`."""
        self._inner.close_session(session)

    def release_caches(self) -> None:
        """See `Sampler.release_caches`."""
        self._inner.release_caches()

    def load_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """See `Sampler.load_weights`.

        Raises:
            InfrastructureError: what was sampled with the new weights has another likelihood under them.
        """
        self._inner.load_weights(weights, version)
        if self._limit:
            mean, largest = self._drift(version)
            check_drift(f"weights of version {version}", mean, largest, self._limit)
            self._inner.release_caches()

    def _drift(self, version: int) -> tuple[float, float]:
        requests = [
            SampleRequest(
                -1 - number,
                self._prompt_ids,
                PROBE_TOKENS,
                temperature=PROBE_TEMPERATURES[number % len(PROBE_TEMPERATURES)],
                seed=derive_seed("probe", version, number),
            )
            for number in range(NUM_PROBES)
        ]
        samples = asyncio.run(self._sample_all(requests))
        trajectories = [_trajectory(*pair) for pair in zip(requests, samples, strict=True)]
        pairs = zip(self._score(trajectories), trajectories, strict=True)
        differences = [np.abs(scored_T - made.logprobs_T)[made.train_mask_T] for scored_T, made in pairs]
        drift = np.concatenate(differences)
        return float(drift.mean()), float(drift.max())

    async def _sample_all(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        samples = await asyncio.gather(*map(self._inner.sample, requests))
        for request in requests:
            self._inner.close_session(request.session)
        return list(samples)


def _trajectory(request: SampleRequest, sample: Sample) -> Trajectory:
    prompt_ids = request.prompt_ids
    is_action = np.arange(len(prompt_ids) + len(sample.token_ids)) >= len(prompt_ids)
    logprobs = [0.0] * len(prompt_ids) + list(sample.logprobs)
    ids = np.asarray([*prompt_ids, *sample.token_ids], np.int64)
    recorded_T = np.asarray(logprobs, np.float32)
    return Trajectory(ids, is_action, recorded_T, (sample.policy_version,), temperature=request.temperature)


def scored_by(model: PreTrainedModel) -> Score:
    """Log-probabilities of a model that no learner has yet, by plain forward passes.

    Args:
        model: with the attention of transformers.
    """

    @torch.no_grad()
    def score(trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
        scored = []
        for each in trajectories:
            ids_1T = torch.from_numpy(each.token_ids_T)[None].to(model.device)
            logits_TV = model(input_ids=ids_1T, use_cache=False).logits[0].float()
            logprobs_TV = (logits_TV / each.temperature).log_softmax(-1)
            found = logprobs_TV[:-1].gather(-1, ids_1T[0, 1:, None])[:, 0]
            scored.append(np.concatenate([np.zeros(1, np.float32), found.cpu().numpy()]))
        return scored

    return score
