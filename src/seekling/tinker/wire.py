"""What goes over the wire between a Tinker client and the server, and what it means here.

The messages are the SDK's own (its protobuf module and request types), so that the pinned SDK and this server cannot
differ in them. Shape letters: N input tokens of a datum; its targets are one further.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from google.protobuf.message import DecodeError
from tinker.proto import tinker_public_pb2 as pb
from torch import Tensor

from seekling.errors import DataError
from seekling.learn.batch import Batch
from seekling.learn.loss import TokenData, TokenLoss, cispo, clipped_policy_loss, importance_sampling
from seekling.rollout.sampler import Sample
from seekling.types import Json, Trajectory

_DTYPES: dict[int, type[np.float32 | np.int64]] = {pb.DTYPE_FLOAT32: np.float32, pb.DTYPE_INT64: np.int64}
_CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
"""Tinker's defaults."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as it is sent."""

    body: bytes
    is_proto: bool = False


@dataclass(frozen=True, slots=True)
class LossRequest:
    """A forward pass, with or without gradients. All targets are trained; the loss multiplies `advantages_A`."""

    model_id: str
    seq_id: int
    batch: Batch
    loss: TokenLoss
    is_forward_only: bool


def json_reply(row: Mapping[str, Json]) -> Reply:
    """An answer in JSON."""
    return Reply(json.dumps(row).encode())


def failure(message: str, *, is_users: bool) -> Reply:
    """The answer to a request that was taken and failed."""
    return json_reply({"error": message, "category": "user" if is_users else "server"})


def _weighted_nll(logprobs_A: Tensor, data: TokenData) -> Tensor:
    return -logprobs_A * data.advantages_A


_LOSSES: dict[str, Callable[[float, float], TokenLoss]] = {
    "cross_entropy": lambda low, high: _weighted_nll,
    "importance_sampling": lambda low, high: importance_sampling,
    "ppo": lambda low, high: partial(clipped_policy_loss, clip_low=1 - low, clip_high=high - 1),
    "cispo": lambda low, high: partial(cispo, clip_low=1 - low, clip_high=high - 1),
}
"""Bounds of the ratio -> the loss of a token."""


def read_loss_request(raw: bytes, *, vocabulary: int, max_tokens: int) -> LossRequest:
    """Read the protobuf body of /forward_backward; token ids are below `vocabulary`, a datum has `max_tokens` at most.

    Raises:
        DataError: it asks for what the server cannot do, or is no such message; says what and where.
    """
    message = pb.ForwardBackwardRequest()
    try:
        message.ParseFromString(raw)
    except DecodeError as error:
        raise DataError(f"the body is no ForwardBackwardRequest ({error}); send it with the tinker SDK") from None
    if message.loss_fn not in _LOSSES:
        raise DataError(
            f"the loss {message.loss_fn!r} is not supported; take {', '.join(_LOSSES)}, or forward_backward_custom "
            "with a function of your own"
        )
    config = {name: value.number for name, value in message.loss_fn_config_v2.items()}
    allowed = set(_CLIP) if message.loss_fn in ("ppo", "cispo") else set()
    if not config.keys() <= allowed:
        may = ", ".join(sorted(allowed)) or "nothing"
        raise DataError(f"loss_fn_config of {message.loss_fn} holds {', '.join(sorted(config))}; it may hold {may}")
    if not message.data:
        raise DataError("there is no data; send at least one Datum")
    needed = ("weights",) if message.loss_fn == "cross_entropy" else ("logprobs", "advantages")
    read = []
    for index, datum in enumerate(message.data):
        try:
            read.append(_read_datum(datum, needed, vocabulary=vocabulary, max_tokens=max_tokens))
        except DataError as error:
            raise DataError(f"data[{index}]: {error}") from None
    trajectories = [trajectory for trajectory, _ in read]
    batch = Batch(trajectories, np.ones(len(read)), {"advantages_A": [factors for _, factors in read]})
    loss = _LOSSES[message.loss_fn](*({**_CLIP, **config}[name] for name in _CLIP))
    return LossRequest(message.model_id, message.seq_id, batch, loss, message.forward_only)


def _read_datum(
    datum: pb.Datum, needed: Sequence[str], *, vocabulary: int, max_tokens: int
) -> tuple[Trajectory, np.ndarray]:
    """The tokens of a datum with its last target, and (T,) float32 what the loss multiplies each with."""
    if any(chunk.WhichOneof("chunk") != "encoded_text" for chunk in datum.model_input):
        raise DataError("model_input holds an image or audio; only tokens are supported")
    chunks = [np.frombuffer(chunk.encoded_text.tokens, np.int32) for chunk in datum.model_input]
    input_N = np.concatenate(chunks).astype(np.int64) if chunks else np.zeros(0, np.int64)
    given = {name: _read_tensor(name, tensor) for name, tensor in datum.loss_fn_inputs.items()}
    unknown = sorted(given.keys() - {"target_tokens", *needed})
    if unknown:
        takes = ", ".join(needed)
        raise DataError(f"loss_fn_inputs holds {', '.join(unknown)}; this loss takes target_tokens, {takes}")
    if needed == ("weights",):
        given.setdefault("weights", np.ones(len(input_N), np.float32))
    for name in ("target_tokens", *needed):
        if name not in given:
            raise DataError(f"loss_fn_inputs lacks {name}")
        if given[name].shape != input_N.shape:
            raise DataError(f"{name} has the shape {given[name].shape}, model_input {len(input_N)} tokens; equal them")
    target_N = given["target_tokens"].astype(np.int64)
    if not len(input_N) or not np.array_equal(target_N[:-1], input_N[1:]):
        raise DataError("target_tokens must be model_input shifted by one, with one token more at the end")
    token_ids_T = np.concatenate([input_N[:1], target_N])
    check_tokens(token_ids_T, vocabulary=vocabulary, max_tokens=max_tokens + 1)
    behaviour_N = given["logprobs"] if "logprobs" in given else np.zeros(len(input_N))
    factors_N = given[needed[-1]]
    if not (np.isfinite(behaviour_N).all() and np.isfinite(factors_N).all()):
        raise DataError(f"{' or '.join(needed)} holds a number that is not finite")
    return all_trained(token_ids_T, behaviour_N), np.concatenate([np.zeros(1), factors_N]).astype(np.float32)


def check_tokens(token_ids: Sequence[int] | np.ndarray, *, vocabulary: int, max_tokens: int) -> None:
    """See that a model can read the tokens; a DataError where there are none or too many, or one is not the model's."""
    if not 0 < len(token_ids) <= max_tokens:
        raise DataError(f"there are {len(token_ids)} tokens; this server takes 1 to {max_tokens}: see --context-tokens")
    lowest, highest = int(np.min(token_ids)), int(np.max(token_ids))
    if lowest < 0 or highest >= vocabulary:
        raise DataError(
            f"token {lowest if lowest < 0 else highest} is not in the model's vocabulary of {vocabulary}; encode with "
            "the model's own tokenizer"
        )


def all_trained(token_ids_T: np.ndarray, behaviour_N: np.ndarray | None = None) -> Trajectory:
    """Tokens of which each but the first is scored; `behaviour_N` are their log-probabilities when sampled."""
    mask_T = np.ones(len(token_ids_T), bool)
    logprobs_T = np.zeros(len(token_ids_T), np.float32)
    mask_T[0] = False
    if behaviour_N is not None:
        logprobs_T[1:] = behaviour_N
    return Trajectory(token_ids_T, mask_T, logprobs_T)


def _read_tensor(name: str, tensor: pb.Tensor) -> np.ndarray:
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None or tensor.HasField("sparse_csr"):
        raise DataError(f"{name} is sparse or of another type than float32 and int64, which is not supported")
    try:
        values: np.ndarray = np.frombuffer(tensor.dense, dtype)
        return values.reshape([int(size) for size in tensor.shape]) if tensor.shape else values
    except ValueError as error:
        raise DataError(f"{name} is not what its shape says: {error}") from None


def loss_reply(loss: float, logprobs: Sequence[np.ndarray]) -> Reply:
    """The answer to a forward pass: its loss, and (N,) log-probabilities of each datum's targets."""
    values = [each.astype(np.float32) for each in logprobs]
    ends = np.cumsum([0, *(each.nbytes for each in values)]).astype(np.int64)
    field = pb.BatchedTensor(
        data=b"".join(each.tobytes() for each in values), offsets=ends.tobytes(), dtype=pb.DTYPE_FLOAT32
    )
    record = pb.ArrayRecord(type_tag="TorchLossReturn", fields={"logprobs": field}, num_datums=len(values))
    message = pb.ForwardBackwardOutput(
        loss_fn_output_type="TorchLossReturn", loss_fn_outputs=[record], metrics={"loss:sum": loss}
    )
    return Reply(message.SerializeToString(), is_proto=True)


def sample_reply(samples: Sequence[Sample], prompt_logprobs_T: np.ndarray | None) -> Reply:
    """The answer to a sampling request; `prompt_logprobs_T` has NaN where none was asked for."""
    sequences = [
        pb.SampledSequence(
            stop_reason=pb.STOP_REASON_LENGTH if each.finish == "length" else pb.STOP_REASON_STOP,
            tokens=np.asarray(each.token_ids, np.int32).tobytes(),
            logprobs=np.asarray(each.logprobs, np.float32).tobytes(),
        )
        for each in samples
    ]
    scored = None if prompt_logprobs_T is None else prompt_logprobs_T.astype(np.float32).tobytes()
    return Reply(pb.SampleResponse(sequences=sequences, prompt_logprobs=scored).SerializeToString(), is_proto=True)


_PATH = re.compile(r"tinker://([\w-]+:train:\d+)/(weights|sampler_weights|external_weights)/([A-Za-z0-9][\w.-]{0,199})")


@dataclass(frozen=True, slots=True)
class SavedPath:
    """Where weights are kept: tinker://MODEL/KIND/NAME."""

    model_id: str
    kind: str
    """weights, with the optimizer's state; sampler_weights; or external_weights, to be fetched."""
    name: str

    @classmethod
    def read(cls, path: str) -> SavedPath:
        """Read one; a DataError where it is none, or its name is no plain file name."""
        match = _PATH.fullmatch(path)
        if match is None:
            raise DataError(
                f"{path!r:.200} is no path of saved weights; it looks like tinker://MODEL/weights/NAME, and a name has "
                "letters, digits, dots, dashes and underscores"
            )
        return cls(*match.groups())

    def __str__(self) -> str:
        return f"tinker://{self.model_id}/{self.kind}/{self.name}"
