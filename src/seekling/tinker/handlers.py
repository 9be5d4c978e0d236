"""What each request of the Tinker API means: sessions, models, samplers, and whose they are. No HTTP here.

What is asked with one key is invisible to the others. A handler that returns `Work` has only checked its request.
"""

from __future__ import annotations

import functools
import secrets
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tinker import types

from seekling.env.protocol.stopping import StopRule
from seekling.errors import DataError
from seekling.rollout.sampler import SampleRequest
from seekling.serve.requests import RefusedRequestError
from seekling.tinker.engine import Engine, Model, Weights
from seekling.tinker.wire import Reply, SavedPath, check_tokens, json_reply, loss_reply, read_loss_request, sample_reply
from seekling.types import Json

_FORGOTTEN_S = 600.0
"""A session that has not been heard of for so long is over; the SDK is heard of every 10 seconds."""
_MAX_SAMPLES = 1024
_MAX_RANK = 512
_METADATA_CHARS = 10_000


@dataclass(slots=True)
class Session:
    """A program that is connected."""

    owner: str
    heard_of: float


@dataclass(frozen=True, slots=True)
class SamplerSession:
    """Weights that somebody samples with."""

    owner: str
    weights: Weights | None
    """None: unnamed ones, which their maker keeps for a while."""
    path: str | None = None
    maker: Model | None = None


_Owned = TypeVar("_Owned", Model, SamplerSession, Session)


@dataclass(frozen=True, slots=True)
class Work:
    """What a request begins; its answer is fetched under the id."""

    request_id: str
    run: Callable[[], Awaitable[Reply]]
    """Runs in the engine's loop."""
    model_id: str | None = None
    sequence_ids: tuple[str, ...] | None = None
    numbered: tuple[Model, int] | None = None
    """The model whose request of this number it is."""

    def promise(self) -> dict[str, Json]:
        """What the client is told: where the answer will be."""
        row: dict[str, Json] = {"request_id": self.request_id, "model_id": self.model_id}
        return row if self.sequence_ids is None else {**row, "sample_sequence_ids": list(self.sequence_ids)}


class Handlers:
    """Sessions, models and samplers of one engine; `names` are of its base model, see `make_tinker_app`."""

    def __init__(self, engine: Engine, names: tuple[str, ...]) -> None:
        self._engine, self._names = engine, names
        self.sessions: dict[str, Session] = {}
        self.samplers: dict[str, SamplerSession] = {}

    def config(self, body: types.ClientConfigRequest, owner: str) -> dict[str, Json]:
        """Flags of a client."""
        # In order, one chunk after the other: so a batch is always added up in the same order.
        return {"parallel_fwdbwd_chunks": False}

    def create_session(self, body: types.CreateSessionRequest, owner: str) -> dict[str, Json]:
        """Begin a program's session."""
        session_id = str(uuid.uuid4())
        self.sessions[session_id] = Session(owner, time.monotonic())
        return {"type": "create_session", "session_id": session_id}

    def heartbeat(self, body: types.SessionHeartbeatRequest, owner: str) -> dict[str, Json]:
        """A program is still there."""
        self.session(body.session_id, owner).heard_of = time.monotonic()
        return {"type": "session_heartbeat"}

    def create_sampling_session(self, body: types.CreateSamplingSessionRequest, owner: str) -> dict[str, Json]:
        """Name weights to sample with: the base model's or saved ones."""
        self.session(body.session_id, owner)
        if body.model_path is None:
            self._check_base(body.base_model or "")
            weights = Weights("base")
        else:
            weights = self._engine.saved(SavedPath.read(body.model_path), owner)
        sampler_id = f"{body.session_id}:sample:{body.sampling_session_seq_id}"
        self.samplers.setdefault(sampler_id, SamplerSession(owner, weights, body.model_path))
        return {"type": "create_sampling_session", "sampling_session_id": sampler_id}

    def get_info(self, body: types.GetInfoRequest, owner: str) -> dict[str, Json]:
        """What a model is made of."""
        model = self._model(body.model_id, owner)
        name = self._names[0]
        data: dict[str, Json] = {"model_name": name, "tokenizer_id": name}
        about: dict[str, Json] = {"is_lora": True, "lora_rank": model.rank, "model_name": name}
        return {"type": "get_info", "model_data": data, "model_id": body.model_id, **about}

    def sampler(self, sampler_id: str, owner: str) -> dict[str, Json]:
        """What a sampling session samples with."""
        path = self._sampler(sampler_id, owner).path
        return {"sampler_id": sampler_id, "base_model": self._names[0], "model_path": path}

    def capabilities(self) -> dict[str, Json]:
        """The base model, by its names."""
        about: dict[str, Json] = {"max_context_length": self._engine.context_tokens}
        about |= {"trainable": True, "sampleable": True}
        return {"supported_models": [{"model_name": name, **about} for name in self._names]}

    def create_model(self, body: types.CreateModelRequest, owner: str) -> Work:
        """Begin a model with new adapters."""
        self.session(body.session_id, owner)
        self._check_base(body.base_model)
        lora = body.lora_config
        if lora is None or not 1 <= lora.rank <= _MAX_RANK:
            raise DataError(f"only LoRA is trained here; give lora_config with a rank of 1 to {_MAX_RANK}")
        if not (lora.train_mlp and lora.train_attn):
            raise DataError("adapters go on all linear layers of the decoder; leave train_mlp and train_attn True")
        _check_adam(body.optimizer_config.type)
        model_id = f"{body.session_id}:train:{body.model_seq_id}"
        metadata = _words(body.user_metadata)

        async def run() -> Reply:
            await self.drop_forgotten()
            await self._engine.create(model_id, owner, rank=lora.rank, seed=lora.seed, metadata=metadata)
            return json_reply({"model_id": model_id, "type": "create_model"})

        return Work(f"{model_id}:0", run, model_id)

    def optim_step(self, body: types.OptimStepRequest, owner: str) -> Work:
        """Apply the gradients of a model."""
        params = body.optim_params
        if not isinstance(params, types.AdamParams):
            _check_adam(params.type)
            raise DataError("adam_params is missing")

        async def run(model: Model) -> Reply:
            return json_reply({"metrics": {"grad_norm:mean": await self._engine.step(model, params)}})

        return self._in_turn(body.model_id, body.seq_id, owner, run)

    def save_weights(self, body: types.SaveWeightsRequest, owner: str) -> Work:
        """Keep a model's state."""
        name = body.path or uuid.uuid4().hex
        return self._save("save_weights", body.model_id, body.seq_id, owner, f"weights/{name}", body.overwrite)

    def save_weights_external(self, body: types.SaveWeightsExternalRequest, owner: str) -> Work:
        """Keep a model's adapters to be fetched."""
        if body.age_encryption_recipients:
            raise DataError("files are not encrypted here; leave out age_encryption_recipients")
        place = f"external_weights/{body.path}"
        return self._save("save_weights_external", body.model_id, body.seq_id, owner, place)

    def save_weights_for_sampler(self, body: types.SaveWeightsForSamplerRequest, owner: str) -> Work:
        """Keep a model's adapters to sample with: under a name on disk, or without one in memory."""
        if body.path is not None:
            place = f"sampler_weights/{body.path}"
            return self._save("save_weights_for_sampler", body.model_id, body.seq_id, owner, place)
        session_id = body.model_id.partition(":")[0]
        sampler_id = f"{session_id}:sample:{body.sampling_session_seq_id}"

        async def run_unnamed(model: Model) -> Reply:
            await self._engine.save_unnamed(model, sampler_id)
            self.samplers[sampler_id] = SamplerSession(owner, None, maker=model)
            return json_reply({"sampling_session_id": sampler_id, "type": "save_weights_for_sampler"})

        return self._in_turn(body.model_id, body.seq_id, owner, run_unnamed)

    def _save(
        self, kind: str, model_id: str, seq_id: int | None, owner: str, place: str, may_replace: bool = False
    ) -> Work:
        path = SavedPath.read(f"tinker://{model_id}/{place}")

        async def run(model: Model) -> Reply:
            await self._engine.save(model, path, may_replace=may_replace)
            return json_reply({"path": str(path), "type": kind})

        return self._in_turn(model_id, seq_id, owner, run)

    def external_files(self, model_id: str, name: str, owner: str) -> dict[str, Path]:
        """The files of saved adapters that may be fetched."""
        folder = self._engine.saved(SavedPath.read(f"tinker://{model_id}/external_weights/{name}"), owner).folder
        assert folder is not None
        return {file.name: file for file in sorted(folder.glob("adapter_*"))}

    def load_weights(self, body: types.LoadWeightsRequest, owner: str) -> Work:
        """Go on from a saved state, with a new model or one that is there."""
        path = SavedPath.read(body.path)
        if path.kind != "weights":
            raise DataError(f"{path} is for samplers; load one that save_state wrote: tinker://MODEL/weights/NAME")
        weights = self._engine.saved(path, owner)
        _check_adam(body.optimizer_config.type if body.optimizer_config else "adamw")
        is_new = body.session_id is not None
        model_id = f"{body.session_id}:train:{body.model_seq_id}" if is_new else body.model_id or ""
        metadata = _words(body.user_metadata)

        async def run(model: Model) -> Reply:
            await self._engine.load(model, weights, with_optimizer=body.optimizer)
            return json_reply({"path": str(path), "model_id": model_id, "type": "load_weights"})

        async def run_new() -> Reply:
            await self.drop_forgotten()
            await self._engine.create(model_id, owner, rank=weights.rank, seed=0, metadata=metadata)
            return await run(self._engine.models[model_id])

        if not is_new:
            return self._in_turn(model_id, body.seq_id, owner, run)
        self.session(body.session_id or "", owner)
        if body.base_model is not None:
            self._check_base(body.base_model)
        return Work(f"{model_id}:0", run_new, model_id)

    def forward_backward(self, raw: bytes, owner: str) -> Work:
        """A forward pass with or without gradients; the body is a protobuf message."""
        request = read_loss_request(raw, vocabulary=self._engine.vocabulary, max_tokens=self._engine.context_tokens)

        async def run(model: Model) -> Reply:
            return loss_reply(*await self._engine.forward(model, request))

        return self._in_turn(request.model_id, request.seq_id, owner, run)

    def sample(self, body: types.SampleRequest, owner: str) -> Work:
        """Continue a prompt, once or several times."""
        sampler_id = body.sampling_session_id or ""
        sampler = self._sampler(sampler_id, owner)
        weights = sampler.weights if sampler.maker is None else sampler.maker.unnamed.get(sampler_id)
        if weights is None:
            what = "its unnamed weights are too old and were dropped; make a new sampling client, or save under a name"
            raise RefusedRequestError(404, f"sampling session {sampler_id}: {what}")
        request, request_id = self._read_sample(body), f"{sampler_id}:{body.seq_id}"
        num_scored = (body.prompt_logprobs_last_n or len(request.prompt_ids)) if body.prompt_logprobs else 0

        async def run() -> Reply:
            found = await self._engine.sample(weights, request, num_samples=body.num_samples, num_scored=num_scored)
            return sample_reply(*found)

        names = tuple(f"{request_id}:{index}" for index in range(body.num_samples))
        return Work(request_id, run, sequence_ids=names)

    def _read_sample(self, body: types.SampleRequest) -> SampleRequest:
        params, engine = body.sampling_params, self._engine
        asked = {
            "top_k": params.top_k > 0,
            "topk_prompt_logprobs": body.topk_prompt_logprobs > 0,
            "topk_sample_logprobs": body.topk_sample_logprobs > 0,
            "target_prompt_logprobs": body.target_prompt_logprobs is not None,
            "prompt_alt_tokens_k": body.prompt_alt_tokens_k > 0,
            "record_stability_info, which the loss stable_reinforce needs,": bool(body.record_stability_info),
        }
        if any(asked.values()):
            raise DataError(f"{', '.join(name for name in asked if asked[name])} is not supported; leave it out")
        if not all(isinstance(chunk, types.EncodedTextChunk) for chunk in body.prompt.chunks):
            raise DataError("the prompt holds an image or audio; only tokens are supported")
        if not 1 <= body.num_samples <= _MAX_SAMPLES or not params.temperature >= 0 or not 0 < params.top_p <= 1:
            raise DataError(
                f"num_samples is 1 to {_MAX_SAMPLES}, temperature 0 or more, top_p above 0 and at most 1; got "
                f"{body.num_samples}, {params.temperature:g} and {params.top_p:g}"
            )
        prompt = tuple(body.prompt.to_ints())
        check_tokens(prompt, vocabulary=engine.vocabulary, max_tokens=engine.context_tokens)
        stop = [params.stop] if isinstance(params.stop, str) else params.stop
        words = tuple(each for each in stop or () if isinstance(each, str) and each)
        ids = frozenset(each for each in stop or () if isinstance(each, int))
        return SampleRequest(
            session=0,
            prompt_ids=prompt,
            max_new_tokens=engine.context_tokens if params.max_tokens is None else params.max_tokens,
            stops=StopRule(words),
            # An empty list means: nothing ends the answer but its length.
            stop_ids=None if stop is None else ids | (engine.eos_ids if stop else frozenset()),
            temperature=params.temperature,
            top_p=params.top_p,
            seed=secrets.randbits(62) if params.seed is None else params.seed % 2**63,
        )

    def _in_turn(self, model_id: str, seq_id: int | None, owner: str, run: Callable[[Model], Awaitable[Reply]]) -> Work:
        """Work on a model, under its sequence number."""
        model = self._model(model_id, owner)
        if seq_id is None or seq_id < 1:
            raise DataError(f"seq_id is {seq_id}; number the requests of a model from 1")
        return Work(f"{model_id}:{seq_id}", functools.partial(run, model), model_id, numbered=(model, seq_id))

    def _model(self, model_id: str, owner: str) -> Model:
        what = "a server forgets its models when it or their program ends; begin anew from a saved state"
        return _own(self._engine.models.get(model_id), owner, f"model {model_id!r:.200} of yours here; {what}")

    def _sampler(self, sampler_id: str, owner: str) -> SamplerSession:
        what = f"sampling session {sampler_id!r:.200} of yours; make a new one"
        return _own(self.samplers.get(sampler_id), owner, what)

    def session(self, session_id: str, owner: str) -> Session:
        """A session of a key; a RefusedRequestError where there is none."""
        what = f"session {session_id!r:.200} of yours; make a new ServiceClient"
        return _own(self.sessions.get(session_id), owner, what)

    def _check_base(self, name: str) -> None:
        if name not in self._names:
            raise RefusedRequestError(404, f"this server has no model {name!r:.200}; it has {' or '.join(self._names)}")

    async def drop_forgotten(self) -> None:
        """Forget sessions that have not been heard of for long, with all that is theirs."""
        late = time.monotonic() - _FORGOTTEN_S
        for session_id in [each for each, session in list(self.sessions.items()) if session.heard_of < late]:
            await self.end(session_id)

    async def end(self, session_id: str) -> None:
        """Forget a session with its models and samplers."""
        self.sessions.pop(session_id, None)
        for sampler_id in [each for each in list(self.samplers) if each.startswith(f"{session_id}:")]:
            del self.samplers[sampler_id]
        await self._engine.drop([each for each in list(self._engine.models) if each.startswith(f"{session_id}:")])


def _words(metadata: Mapping[str, object] | None) -> dict[str, str]:
    """What a program says of its model, as it is kept."""
    words = {name: str(value) for name, value in (metadata or {}).items()}
    if sum(len(name) + len(value) for name, value in words.items()) > _METADATA_CHARS:
        raise DataError(f"user_metadata has more than {_METADATA_CHARS} characters; say less")
    return words


def _check_adam(kind: str) -> None:
    if kind != "adamw":
        raise DataError(f"the optimizer {kind!r} is not supported; take AdamParams")


def _own(found: _Owned | None, owner: str, what: str) -> _Owned:
    if found is None or found.owner != owner:
        raise RefusedRequestError(404, f"there is no {what}")
    return found
