"""The models that Tinker programs train, and the sampler that they share. No HTTP here.

The base weights are in memory twice, once for all learners together, which add low-rank adapters of their own, and once
for the sampler, which has the weights of one policy at a time: requests for another wait until those before them are
answered. Everything runs in one event loop, in the order in which it was asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import json
import pickle
import secrets
import shutil
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from tinker import types
from torch import Tensor

from seekling.errors import ConfigError, DataError
from seekling.files import replacing
from seekling.learn.checkpoint import WEIGHTS, LocalCheckpoint
from seekling.learn.local import LocalLearner
from seekling.learn.loss import TokenData
from seekling.models import load_policy
from seekling.models.load import Dtype
from seekling.rollout.engine.local import LocalSampler
from seekling.rollout.sampler import Sample, SampleRequest, derive_seed, end_of_turn_ids
from seekling.tinker.wire import LossRequest, SavedPath, all_trained

KEPT_UNNAMED = 4
"""Unnamed sampler weights of a model that are kept; those of an asynchronous program are not much older."""
_KEPT_HOLDERS = 2
"""Ranks of which adapters are kept in memory to sample with."""
_ABOUT = "about.json"
_ROW_TOKENS = 4096
"""That go through a learner at once."""
_SCORED_TOKENS = 16_384
"""Of prompts that are scored together, while nothing else is done."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A policy to sample with: the base model with adapters, whose values are in `masters` or in `folder`, if any."""

    key: str
    """The same key means the same weights."""
    rank: int = 1
    masters: Mapping[str, Tensor] | None = None
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """Weights that were saved, and what their program said of the model."""

    path: SavedPath
    rank: int
    metadata: dict[str, str]
    num_bytes: int
    time: float
    """Seconds since 1970."""


@dataclass(slots=True)
class Model:
    """A model that trains."""

    owner: str
    """Name of the key that made it."""
    rank: int
    learner: LocalLearner
    metadata: dict[str, str] = field(default_factory=dict)
    """What its program says of it."""
    unnamed: dict[str, Weights] = field(default_factory=dict)
    last_seq_id: int = 0


@dataclass(slots=True)
class _Prompt:
    """What waits to be scored."""

    token_ids_T: np.ndarray
    scored_T: np.ndarray | None = None


class Engine:
    """Trains and samples; coroutines run in one loop, the rest is for any thread.

    Args:
        folder: of the base model.
        saves: where saved weights are kept.
        dtype: of the forward pass.
        in_flight: samples drawn at once.
        context_tokens: prompt and answer together, and a datum; the model may allow less.
        cache_bytes: for the samples' caches.
        max_models: that train at once.
    """

    def __init__(
        self,
        folder: Path,
        saves: Path,
        *,
        dtype: Dtype = "auto",
        in_flight: int = 16,
        context_tokens: int = 4096,
        cache_bytes: int = 1024**3,
        max_models: int = 8,
    ) -> None:
        self._max_models = max_models
        self._base, tokenizer = load_policy(folder, dtype=dtype, device="auto")
        config = self._base.config
        self.folder, self._saves = folder, saves
        self.vocabulary = int(config.vocab_size)
        self.context_tokens = min(context_tokens, int(config.max_position_embeddings or 2**31))
        self.eos_ids = end_of_turn_ids(self._base, tokenizer)
        self.models: dict[str, Model] = {}
        sampled, tokens = copy.deepcopy(self._base), self.context_tokens
        self._sampler = LocalSampler(
            sampled, tokenizer, in_flight=in_flight, episode_tokens=tokens, cache_bytes=cache_bytes
        )
        self._sampled_key, self._num_sampling = "", 0
        self._turn, self._has_ended = asyncio.Lock(), asyncio.Event()
        self._sessions = itertools.count(1)
        self._unscored: dict[str, list[_Prompt]] = {}
        self._holders: dict[int, LocalLearner] = {}
        self._held: dict[int, str] = {}

    async def create(self, model_id: str, owner: str, *, rank: int, seed: int | None, metadata: dict[str, str]) -> None:
        """Begin a model with new adapters, which change nothing yet; a ConfigError where there are enough models."""
        if len(self.models) >= self._max_models:
            raise ConfigError(
                f"{len(self.models)} models are training on this server, as many as --max-models allows; end a "
                "program, or wait until the server has forgotten one that was ended"
            )
        learner = self._new_learner(rank, secrets.randbits(31) if seed is None else seed)
        self.models[model_id] = Model(owner, rank, learner, metadata)

    def _new_learner(self, rank: int, seed: int) -> LocalLearner:
        shared = {id(parameter): parameter for parameter in self._base.parameters()}
        return LocalLearner(copy.deepcopy(self._base, shared), lora_rank=rank, seed=seed, row_tokens=_ROW_TOKENS)

    async def drop(self, model_ids: list[str]) -> None:
        """Forget models and their unnamed weights; what was saved stays."""
        for model_id in model_ids:
            if model_id in self.models:
                self.models.pop(model_id).learner.close()

    async def forward(self, model: Model, request: LossRequest) -> tuple[float, list[np.ndarray]]:
        """Loss of a batch, (N,) log-probabilities of each datum's targets, and gradients where they are asked for."""
        trajectories, factors = request.batch.trajectories, request.batch.per_token["advantages_A"]
        if request.is_forward_only:
            scored = [values[1:] for values in model.learner.logprobs(trajectories)]
            behaviour_A, factors_A = (
                torch.from_numpy(np.concatenate([each[1:] for each in arrays]))
                for arrays in ([each.logprobs_T for each in trajectories], factors)
            )
            loss_A = request.loss(torch.from_numpy(np.concatenate(scored)), TokenData(behaviour_A, factors_A))
            return float(loss_A.sum()), scored
        found = [np.zeros(len(each.token_ids_T) - 1, np.float32) for each in trajectories]

        def noting_loss(logprobs_A: Tensor, data: TokenData) -> Tensor:
            # A row has all trained tokens of its trajectories, in their order.
            assert data.sequence_A is not None
            values_A, sequence_A = logprobs_A.detach().float().cpu().numpy(), data.sequence_A.cpu().numpy()
            for index in np.unique(sequence_A):
                found[index] = values_A[sequence_A == index]
            return request.loss(logprobs_A, data)

        stats = model.learner.forward_backward(request.batch, noting_loss, aggregation="sum")
        return stats.loss, found

    async def step(self, model: Model, adam: types.AdamParams) -> float:
        """Apply the gradients; their norm before clipping."""
        model.learner.set_adam(
            betas=(adam.beta1, adam.beta2),
            epsilon=adam.eps,
            weight_decay=adam.weight_decay,
            max_grad_norm=adam.grad_clip_norm,
        )
        return model.learner.optim_step(adam.learning_rate)

    async def save(self, model: Model, path: SavedPath, *, may_replace: bool) -> None:
        """Write adapters under a new name; with the optimizer's state, or for samplers, in PEFT's layout too."""
        folder = self._folder_of(path)
        if folder.exists() and not may_replace:
            raise DataError(f"{path} exists already; choose another name, or give overwrite=True where it is a state")
        with replacing(folder) as building:
            building.mkdir()
            if path.kind == "weights":
                LocalCheckpoint().save(model.learner, building)
            else:
                torch.save({"masters": model.learner.state()["masters"]}, building / WEIGHTS)
                model.learner.save_adapter(building, base_model=str(self.folder))
            about = {"rank": model.rank, "owner": model.owner, "metadata": model.metadata}
            (building / _ABOUT).write_text(json.dumps(about), encoding="utf-8")

    async def save_unnamed(self, model: Model, key: str) -> None:
        """Keep a model's adapters as they are now in memory, for a sampler."""
        masters = {name: value.clone() for name, value in model.learner.state()["masters"].items()}
        model.unnamed[key] = Weights(key, model.rank, masters)
        for oldest in list(model.unnamed)[:-KEPT_UNNAMED]:
            del model.unnamed[oldest]

    def saved(self, path: SavedPath, owner: str) -> Weights:
        """Weights that were saved under a path with this key, else a DataError."""
        found = self.about(path, owner)
        if found is None:
            raise DataError(f"there are no weights of yours at {path}; see RestClient.list_user_checkpoints")
        # Weights that replaced others under a name are other weights.
        return Weights(f"{path}@{found.time}", found.rank, folder=self._folder_of(path))

    def about(self, path: SavedPath, owner: str) -> Saved | None:
        """What was saved under a path, where this key may see it."""
        folder = self._folder_of(path)
        try:
            row = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
            files = [file.stat() for file in folder.iterdir()]
            found = Saved(
                path,
                int(row["rank"]),
                {str(name): str(value) for name, value in row.get("metadata", {}).items()},
                sum(each.st_size for each in files),
                max(each.st_mtime for each in files),
            )
            return found if str(row["owner"]) in ("", owner) else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def all_saved(self, owner: str) -> list[Saved]:
        """What this key may see of all that was saved, the newest first."""
        folders = (file.parts[-4:-1] for file in self._saves.glob(f"*-train-*/*/*/{_ABOUT}"))
        paths = (SavedPath(":train:".join(model.rsplit("-train-", 1)), kind, name) for model, kind, name in folders)
        found = (saved for path in paths if (saved := self.about(path, owner)) is not None)
        return sorted(found, key=lambda saved: saved.time, reverse=True)

    def delete(self, path: SavedPath, owner: str) -> None:
        """Remove what was saved under a path with this key, else a DataError."""
        self.saved(path, owner)
        shutil.rmtree(self._folder_of(path))

    async def load(self, model: Model, weights: Weights, *, with_optimizer: bool) -> None:
        """Go on from saved weights, or raise a DataError and change nothing; `with_optimizer`: from its state too."""
        assert weights.folder is not None
        if weights.rank != model.rank:
            raise DataError(f"the saved adapters have the rank {weights.rank}, the model {model.rank}; make them equal")
        LocalCheckpoint().load(model.learner, weights.folder)
        if not with_optimizer:
            model.learner.start_stage(row_tokens=_ROW_TOKENS, max_grad_norm=0.0)

    async def sample(
        self, weights: Weights, request: SampleRequest, *, num_samples: int, num_scored: int
    ) -> tuple[list[Sample], np.ndarray | None]:
        """Continue a prompt `num_samples` times, each with a seed of its own, and score its last `num_scored` tokens.

        Returns:
            The samples, and (T,) float32 log-probabilities of the prompt, NaN where there is none; None without any.
        """
        scored_T = None
        if num_scored:
            scored_T = await self._score(weights, np.asarray(request.prompt_ids, np.int64))
            scored_T[: max(1, len(scored_T) - num_scored)] = np.nan
        async with self._sampling(weights):
            return list(await asyncio.gather(*(self._draw(request, index) for index in range(num_samples)))), scored_T

    async def _score(self, weights: Weights, prompt_T: np.ndarray) -> np.ndarray:
        """(T,) log-probabilities of a prompt; with those that wait for the same weights, what they share once."""
        waiting, own = self._unscored.setdefault(weights.key, []), _Prompt(prompt_T)
        waiting.append(own)
        await asyncio.sleep(0)  # those that came at the same time join
        if own.scored_T is None:
            # Who came before has been answered, so the first is this one; it is gone also where scoring fails.
            ends = np.cumsum([len(each.token_ids_T) for each in waiting])
            together = [waiting.pop(0), *waiting[: int(np.sum(ends[1:] <= _SCORED_TOKENS))]]
            found = self._holding(weights).logprobs([all_trained(each.token_ids_T) for each in together])
            for each, scored_T in zip(together, found, strict=True):
                each.scored_T = scored_T
            del waiting[: len(together) - 1]
        if not waiting:
            self._unscored.pop(weights.key, None)
        assert own.scored_T is not None
        return own.scored_T

    async def _draw(self, request: SampleRequest, index: int) -> Sample:
        session = next(self._sessions)
        try:
            seed = derive_seed(request.seed, index) if index else request.seed
            return await self._sampler.sample(replace(request, session=session, seed=seed))
        finally:
            self._sampler.close_session(session)

    @contextlib.asynccontextmanager
    async def _sampling(self, weights: Weights) -> AsyncIterator[None]:
        """Have the sampler sample with these weights until the block ends; others wait, in the order they came."""
        async with self._turn:
            while self._num_sampling and self._sampled_key != weights.key:
                self._has_ended.clear()
                await self._has_ended.wait()
            if self._sampled_key != weights.key:
                exported = self._holding(weights).export_weights()
                self._sampler.load_weights(exported, self._sampler.policy_version + 1)
                self._sampled_key = weights.key
            self._num_sampling += 1
        try:
            yield
        finally:
            self._num_sampling -= 1
            self._has_ended.set()

    def _holding(self, weights: Weights) -> LocalLearner:
        """A learner that nobody trains, with these weights in it; one of each rank is enough."""
        holder = self._holders.get(weights.rank)
        if holder is None:
            for rank in list(self._holders)[: 1 - _KEPT_HOLDERS]:
                self._holders.pop(rank).close()
                self._held.pop(rank, None)
            holder = self._holders[weights.rank] = self._new_learner(weights.rank, seed=0)
        if self._held.get(weights.rank) != weights.key:
            state = holder.state()
            zeros = {name: torch.zeros_like(value) for name, value in state["masters"].items()}
            state["masters"] = _read_masters(weights.folder) if weights.folder else dict(weights.masters or zeros)
            if not holder.fits(state):
                raise DataError(f"{weights.key} holds the weights of another base model; serve that one")
            holder.take_state(state)
            self._held[weights.rank] = weights.key
        return holder

    def _folder_of(self, path: SavedPath) -> Path:
        return self._saves / path.model_id.replace(":", "-") / path.kind / path.name


def _read_masters(folder: Path) -> dict[str, Tensor]:
    try:
        state = torch.load(folder / WEIGHTS, map_location="cpu", weights_only=True)
        return dict(state["masters"])
    except (OSError, RuntimeError, KeyError, EOFError, ValueError, TypeError, pickle.UnpicklingError) as error:
        raise DataError(f"{folder / WEIGHTS} is not readable ({error}); save the weights again") from None
