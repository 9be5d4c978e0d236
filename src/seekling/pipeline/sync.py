"""Weights from learner to sampler inside this process; where the sampler is a foreign library's, checked every time.

The engine copies weights in place and is tested; what a foreign library makes of them is not ours to know. The guard
looks at every RL step's episodes too, but only where there is something to learn, and not at evaluations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from seekling.learn.checkpoint import giving
from seekling.learn.learner import Learner, WeightSync
from seekling.pipeline.guard import check_drift
from seekling.rollout.sampler import Sample, Sampler, SampleRequest, TakesWeights, derive_seed
from seekling.types import Trajectory

PROBE = "Name a town, and say what it is known for."
"""What the sampler is given to continue."""
NUM_PROBES = 8
PROBE_TOKENS = 32
PROBE_TEMPERATURES = 1.0, 0.7
"""Of the samples in turn: a sampler may have the weights and record another temperature's log-probabilities."""

Score = Callable[[Sequence[Trajectory]], Sequence[np.ndarray]]
"""Trajectories -> their tokens' log-probabilities (T,), as `Learner.logprobs` gives them."""


class InMemorySync:
    """Copies tensors from a learner to a sampler of this process; `load` reads a model directory into memory."""

    def __init__(self, load: Callable[[Path], PreTrainedModel]) -> None:
        self._load = load

    def publish(self, learner: Learner, sampler: Sampler, version: int) -> None:
        """See `WeightSync.publish`."""
        _taking(sampler).load_weights(giving(learner).export_weights(), version)

    def publish_exported(self, folder: Path, sampler: Sampler, version: int) -> None:
        """See `WeightSync.publish_exported`."""
        _taking(sampler).load_weights(dict(self._load(folder).named_parameters()), version)


def _taking(sampler: Sampler) -> TakesWeights:
    assert isinstance(sampler, TakesWeights), f"{type(sampler).__name__} takes no tensors"
    return sampler


class CheckedSync:
    """Lets a sampler that has new weights sample a little, and scores that with the weights that were meant.

    `inner` hands the weights over; `limit` is that of `check_drift`.
    """

    def __init__(
        self, inner: WeightSync, load: Callable[[Path], PreTrainedModel], prompt_ids: Sequence[int], *, limit: float
    ) -> None:
        self._inner, self._load, self._limit = inner, load, limit
        self._prompt_ids = tuple(prompt_ids)

    def publish(self, learner: Learner, sampler: Sampler, version: int) -> None:
        """See `WeightSync.publish`.

        Raises:
            InfrastructureError: what was sampled with the new weights has another likelihood under them.
        """
        self._inner.publish(learner, sampler, version)
        if self._limit:
            self._check(learner.logprobs, sampler, version)

    def publish_exported(self, folder: Path, sampler: Sampler, version: int) -> None:
        """See `WeightSync.publish_exported`; raises as `publish` does."""
        self._inner.publish_exported(folder, sampler, version)
        if self._limit:
            self._check(_scored_by(self._load(folder)), sampler, version)

    def _check(self, score: Score, sampler: Sampler, version: int) -> None:
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

        async def sample_all() -> list[Sample]:
            samples = await asyncio.gather(*map(sampler.sample, requests))
            for request in requests:
                sampler.close_session(request.session)
            return list(samples)

        samples = asyncio.run(sample_all())
        trajectories = [_trajectory(*pair) for pair in zip(requests, samples, strict=True)]
        pairs = zip(score(trajectories), trajectories, strict=True)
        differences = [np.abs(scored_T - made.logprobs_T)[made.train_mask_T] for scored_T, made in pairs]
        drift = np.concatenate(differences)
        check_drift(f"weights of version {version}", float(drift.mean()), float(drift.max()), self._limit)
        sampler.release_caches()


def _trajectory(request: SampleRequest, sample: Sample) -> Trajectory:
    num_before = len(request.prompt_ids)
    ids_T = np.asarray([*request.prompt_ids, *sample.token_ids], np.int64)
    recorded_T = np.asarray([0.0] * num_before + list(sample.logprobs), np.float32)
    is_action_T = np.arange(len(ids_T)) >= num_before
    return Trajectory(ids_T, is_action_T, recorded_T, (sample.policy_version,), temperature=request.temperature)


def _scored_by(model: PreTrainedModel) -> Score:
    """Log-probabilities of a model that no learner has, by plain forward passes."""

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
