"""A `Learner` and a `Sampler` over a Tinker service: adapters train on somebody else's machines.

The service has the weights; here are paths of what is saved there (`tinker://...`), and the loss of a recipe where the
service has none like it. What a service cannot do `Recipe` refuses. Shape letters: N targets of a datum.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import urllib.parse
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tinker
import torch
from tinker import types
from tinker.lib.retry_handler import RetryConfig
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from seekling.config import Recipe, RlConfig
from seekling.errors import ConfigError, InfrastructureError, NothingToLearnError
from seekling.learn.batch import Batch, LearnStats
from seekling.learn.loss import Aggregation, TokenLoss, TokenMeasure
from seekling.rollout.sampler import Sample, SampleRequest, TurnEnd, derive_seed
from seekling.scale.tinker_batch import SentBatch, name_of, stats_of, sum_datum
from seekling.types import Trajectory

FILE = "tinker.json"
"""Says in a folder of this machine which weights of the service belong to it."""
MAX_SKIPPED = 3
"""So many optimizer steps in a row whose gradient is not finite end the run."""
_RETRY = RetryConfig(progress_timeout=600.0)
"""A sampling request that hears nothing of the service for so many seconds has failed."""


@contextlib.contextmanager
def failures_told(what: str) -> Iterator[None]:
    """Raise failures of the service as InfrastructureErrors, in words that say what to do."""
    try:
        yield
    except (tinker.TinkerError, RuntimeError, ValueError, OSError, TimeoutError) as error:
        raise InfrastructureError(
            f"the Tinker service failed to {what}: {error}; see that it runs and that scale.address and the key are "
            "right, then give the same command again: it goes on from the last saved state"
        ) from error


@dataclass(frozen=True, slots=True)
class Service:
    """Where the service is, and which of its models a recipe trains."""

    address: str | None
    key: str = field(repr=False)
    base_model: str

    @classmethod
    def of(cls, recipe: Recipe, model_dir: Path) -> Service:
        """The service of a recipe.

        Raises:
            ConfigError: its key is missing or would be sent in the clear, or it has not the model so long.
            InfrastructureError: it does not answer.
        """
        address = recipe.scale.address or os.environ.get("TINKER_BASE_URL")
        parts = urllib.parse.urlsplit(address or "")
        is_here = parts.hostname in ("127.0.0.1", "localhost", "::1")
        if parts.scheme == "http" and not is_here and not recipe.scale.plain_http:
            raise ConfigError(
                f"the Tinker service at {parts.hostname} would be sent the key over plain http, where anybody on the "
                "way can read it; give an https address, or set scale.plain_http = true on a network that you trust"
            )
        key = os.environ.get(recipe.scale.key_env) or ("tml-local" if is_here else "")
        if not key:
            raise ConfigError(
                f"the environment has no {recipe.scale.key_env}, the key of the Tinker service at "
                f"{address or 'its own address'}; set it, or scale.key_env to the name that holds it"
            )
        with failures_told("say which models it has"):
            about = tinker.RestClient(base_url=address, api_key=key).get_server_capabilities().result()
        lengths = {each.model_name: each.max_context_length or math.inf for each in about.supported_models}
        found = next((each for each in (recipe.model.spec, str(model_dir)) if each in lengths), None)
        if found is None:
            has = ", ".join(sorted(filter(None, lengths)))
            raise ConfigError(f"the Tinker service has no model {recipe.model.spec!r}; set model.spec to one of: {has}")
        if lengths[found] < (tokens := recipe.cache_tokens):
            raise ConfigError(
                f"the Tinker service takes {lengths[found]} tokens of {found}, an episode has up to {tokens}; lower "
                "rollout.episode_tokens and eval.rollout.episode_tokens, or give our own server more --context-tokens"
            )
        return cls(address, key, found)

    def connect(self) -> tinker.ServiceClient:
        """A session of its own; what it has on the service is given back when it is closed."""
        return tinker.ServiceClient(base_url=self.address, api_key=self.key)

    def sampling(self, session: tinker.ServiceClient, path: str | None) -> tinker.SamplingClient:
        """What samples with saved weights; with None for a path with the base model."""
        with failures_told(f"sample from {path or self.base_model}"):
            base = None if path else self.base_model
            return session.create_sampling_client(model_path=path, base_model=base, retry_config=_RETRY).result()


class TinkerSampler:
    """A `Sampler` over the service.

    The service knows stop strings and nothing of thoughts: a turn that it ends inside a thought is gone on with.
    """

    dtype = "the service's"

    def __init__(
        self, service: Service, tokenizer: PreTrainedTokenizerBase, folder: Path, *, num_slots: int, episode_tokens: int
    ) -> None:
        self._tokenizer, self._eos_ids = tokenizer, _end_ids(folder, tokenizer)
        self.num_slots, self._episode_tokens = num_slots, episode_tokens
        self._service, self._session = service, service.connect()
        self._client: tinker.SamplingClient | None = None
        self.policy_version = 0

    def take(self, client: tinker.SamplingClient, version: int) -> None:
        """Sample with these weights from now on."""
        self._client, self.policy_version = client, version

    def take_saved(self, path: str | None, version: int) -> None:
        """The same with saved weights; None: the base model."""
        self.take(self._service.sampling(self._session, path), version)

    async def sample(self, request: SampleRequest) -> Sample:
        """Continue a prompt; see `Sampler.sample`."""
        assert self._client is not None, "weights are published first"
        token_ids: list[int] = []
        logprobs: list[float] = []
        budget = min(request.max_new_tokens, self._episode_tokens - len(request.prompt_ids))
        end = TurnEnd(request, self._tokenizer, self._eos_ids, budget)
        while len(token_ids) < budget:
            params = types.SamplingParams(
                max_tokens=budget - len(token_ids),
                seed=derive_seed(request.seed, len(token_ids)) if token_ids else request.seed,
                stop=list(request.stops.strings) or sorted(request.stop_ids or self._eos_ids),
                temperature=request.temperature,
                top_p=request.top_p,
            )
            with failures_told("sample"):
                prompt = types.ModelInput.from_ints([*request.prompt_ids, *token_ids])
                said = (await self._client.sample(prompt, 1, params)).sequences[0]
            for token_id, logprob in zip(said.tokens, said.logprobs or [], strict=True):
                token_ids.append(token_id)
                logprobs.append(logprob)
                finish = end.add(token_id)
                if finish is not None:
                    return Sample(tuple(token_ids), tuple(logprobs), finish, self.policy_version)
            if not said.tokens:
                raise InfrastructureError("the Tinker service ended an answer without a token; ask its operator")
        return Sample(tuple(token_ids), tuple(logprobs), "length", self.policy_version)

    def teach_drafts(self, trajectories: Iterable[Trajectory]) -> None:
        """Nothing: drafts and caches are the service's affair."""

    def close_session(self, session: int) -> None:
        """Nothing, too."""

    def release_caches(self) -> None:
        """Nothing, too."""

    def close(self) -> None:
        """End the session."""
        _close(self._session)


class TinkerLearner:
    """A `Learner` whose adapters, of this rank and begun with this seed, train on the service."""

    critic = None

    def __init__(self, service: Service, *, rank: int, seed: int) -> None:
        self.service, self.rank, self._seed = service, rank, seed
        self._session = service.connect()
        self._client: tinker.TrainingClient | None = None
        self._adam = types.AdamParams(beta1=0.9, beta2=0.999, eps=1e-8)  # as those of this machine's learner
        self._reference: str | None = None
        """Path of the anchor of a KL term; empty: the base model."""
        self._anchor: tinker.SamplingClient | None = None
        self.num_steps = self._num_skipped = 0
        self._has_gradients = False

    @property
    def client(self) -> tinker.TrainingClient:
        """The model that trains; made when it is first needed, since a run that goes on loads another at once."""
        if self._client is None:
            with failures_told("begin a model"):
                self._client = self._session.create_lora_training_client(
                    self.service.base_model, rank=self.rank, seed=self._seed, train_unembed=False
                ).result()
        return self._client

    def forward_backward(
        self,
        batch: Batch,
        loss: TokenLoss,
        *,
        aggregation: Aggregation = "token_mean",
        divide_by: float | None = None,
        measure: TokenMeasure | None = None,
    ) -> LearnStats:
        """Add the gradients of a batch; see `Trained.forward_backward`.

        The service's losses are sums over tokens, so what weighs a token is in what its loss is multiplied with; a loss
        that it has not is differentiated here, by its log-probabilities.
        """
        sent = SentBatch.of(batch, aggregation, divide_by)
        name, bounds = name_of(loss, sent.tokens)
        seen: list[Tensor] = []

        def total(data: list[types.Datum], logprobs: list[Tensor]) -> tuple[Tensor, dict[str, float]]:
            seen.append(sent.trained(logprobs))
            return (loss(seen[-1], sent.tokens) * sent.weights_A).sum(), {}

        with failures_told("learn from a batch"):
            if name is None:
                self.client.forward_backward_custom(sent.data("cross_entropy"), total).result()
            else:
                found = self.client.forward_backward(sent.data(name), name, bounds).result().loss_fn_outputs
                seen.append(sent.trained([torch.tensor(each["logprobs"].data) for each in found]))
        self._has_gradients = True
        return stats_of(seen[0].detach(), sent, loss, measure)

    def optim_step(self, learning_rate: float, *, divide_by: float = 1.0) -> float:
        """Apply the waiting gradients; see `Trained.optim_step`. A norm that the service does not say counts as 0."""
        assert divide_by == 1, "the service cannot divide gradients; recipes that need it are refused"
        if not self._has_gradients:
            raise NothingToLearnError("optim_step without gradients; call forward_backward first")
        with failures_told("take an optimizer step"):
            step = self.client.optim_step(self._adam.model_copy(update={"learning_rate": learning_rate})).result()
        self.num_steps, self._has_gradients = self.num_steps + 1, False
        norm = float((step.metrics or {}).get("grad_norm:mean", 0.0))
        self._num_skipped = 0 if math.isfinite(norm) else self._num_skipped + 1
        if self._num_skipped >= MAX_SKIPPED:
            raise NothingToLearnError(f"gradient norm is {norm}, {MAX_SKIPPED} steps in a row; lower the learning rate")
        return norm

    def logprobs(self, trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
        """See `Learner.logprobs`."""
        with failures_told("score episodes"):
            data = [sum_datum(each, weights=each.train_mask_T[1:]) for each in trajectories]
            found = self.client.forward(data, "cross_entropy").result().loss_fn_outputs
        return _where_trained(trajectories, [each["logprobs"].data for each in found])

    @property
    def has_reference(self) -> bool:
        """See `Learner.has_reference`."""
        return self._reference is not None

    def keep_reference(self, folder: Path | None = None) -> None:
        """Freeze the anchor of a KL term, on the service; see `Learner.keep_reference`."""
        self._reference = self.save_for_sampler() if folder is None else saved_path(folder) or ""
        self._anchor = None

    def reference_logprobs(self, trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
        """See `Learner.reference_logprobs`."""
        assert self._reference is not None, "keep_reference comes first"
        anchor = self._anchor = self._anchor or self.service.sampling(self._session, self._reference or None)
        with failures_told("score episodes with the reference"):
            prompts = [types.ModelInput.from_ints(each.token_ids_T.tolist()) for each in trajectories]
            found = [future.result() for future in [anchor.compute_logprobs(prompt) for prompt in prompts]]
        return _where_trained(trajectories, [[each or 0.0 for each in values[1:]] for values in found])

    def add_critic(self, config: RlConfig, *, lora_rank: int, begins_at: Path | None = None) -> None:
        """Never asked for: recipes with a critic are refused."""
        raise NotImplementedError

    def start_stage(
        self,
        *,
        row_tokens: int,
        max_grad_norm: float,
        betas: tuple[float, float] | None = None,
        weight_decay: float | None = None,
        keep_moments: bool = False,
    ) -> None:
        """Begin a new stage; see `Learner.start_stage`. How tokens are packed is the service's affair."""
        assert not keep_moments, "recipes that ask for it are refused"
        beta1, beta2 = betas or (self._adam.beta1, self._adam.beta2)
        decay = self._adam.weight_decay if weight_decay is None else weight_decay
        changes = {"beta1": beta1, "beta2": beta2, "weight_decay": decay, "grad_clip_norm": max_grad_norm}
        self._adam = self._adam.model_copy(update=changes)
        if self.num_steps:
            self._go_on(self._save_state(), with_optimizer=False)
        self.num_steps = self._num_skipped = 0

    def state(self) -> dict[str, object]:
        """All that training goes on from: the path says where the rest is on the service."""
        counts = {"num_steps": self.num_steps, "num_skipped": self._num_skipped, "rank": self.rank}
        return {"path": self._save_state(), **counts, "adam": self._adam.model_dump(), "reference": self._reference}

    def take_state(self, state: Mapping[str, object]) -> None:
        """Go on from what `state` gave."""
        self._go_on(str(state["path"]), with_optimizer=True)
        self._adam = types.AdamParams.model_validate(state["adam"])
        self.num_steps, self._num_skipped = (int(str(state[name])) for name in ("num_steps", "num_skipped"))
        self._reference = None if state["reference"] is None else str(state["reference"])

    def _go_on(self, path: str, *, with_optimizer: bool) -> None:
        """A model that begins at a saved state takes the place of the one there is, which is given back."""
        with failures_told(f"go on from {path}"):
            _close(self._session)
            session = self._session = self.service.connect()
            if with_optimizer:
                self._client = session.create_training_client_from_state_with_optimizer(path).result()
            else:
                self._client = session.create_training_client_from_state(path).result()
            self._anchor, self._has_gradients = None, False

    def _save_state(self) -> str:
        with failures_told("save its state"):
            return str(self.client.save_state(uuid.uuid4().hex).result().path)

    def save_for_sampler(self) -> str:
        """Save the adapters as they are now, for samplers; the path on the service."""
        with failures_told("save weights"):
            return str(self.client.save_weights_for_sampler(uuid.uuid4().hex).result().path)

    def sampling_client(self) -> tinker.SamplingClient:
        """What samples with the adapters as they are now."""
        with failures_told("sample from the newest weights"):
            return self.client.save_weights_and_get_sampling_client(retry_config=_RETRY).result()

    def close(self) -> None:
        """Give the model on the service back; what was saved stays."""
        _close(self._session)


def saved_path(folder: Path) -> str | None:
    """Path on the service of the policy that a folder of this machine was exported from; None where there is none."""
    file = folder / FILE
    return str(json.loads(file.read_text(encoding="utf-8"))["path"]) if file.is_file() else None


def _where_trained(trajectories: Sequence[Trajectory], logprobs: Sequence[Sequence[float]]) -> list[np.ndarray]:
    """B arrays (T,) float32 of (N,) log-probabilities of targets, 0 where nothing is trained."""
    padded = [np.concatenate([np.zeros(1), np.asarray(each)]) for each in logprobs]
    pairs = zip(trajectories, padded, strict=True)
    return [np.where(each.train_mask_T, values_T, 0.0).astype(np.float32) for each, values_T in pairs]


def _end_ids(folder: Path, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The tokens with which a model ends its turn: the tokenizer's, and those of its generation settings."""
    files = [folder / name for name in ("generation_config.json", "config.json")]
    rows = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]
    named = next((row["eos_token_id"] for row in rows if row.get("eos_token_id") is not None), None)
    ids = [*(named if isinstance(named, list) else [named]), tokenizer.eos_token_id]
    return frozenset(each for each in ids if isinstance(each, int))


def _close(session: tinker.ServiceClient) -> None:
    """End a session; one that is no longer there has ended."""
    with contextlib.suppress(tinker.TinkerError, RuntimeError, OSError, TimeoutError):
        session.close("success").result(timeout=30)
