"""What a dense encoder is, and what it needs to be told: pooling, prefixes, length. Read from its files, not by torch.

Half of all disappointing dense retrieval is a good model with the wrong pooling or a missing prefix. Both are decided
here once, when an index is built, and recorded in it.
"""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from seekling.errors import ModelError
from seekling.models import resolve_model
from seekling.retrieval.index_record import EncoderRecord, fingerprint_files

_MAX_TOKENS = 512
# Two servers of one model differ by rounding, another model by about 1 / sqrt(D).
_PROBE_TOLERANCE = 0.005
_FILES = ("*.json", "*_*/*.json", "*.txt", "*.model", "*.safetensors", "*.bin")

Pooling = Literal["mean", "cls", "max", "lasttoken"]
_POOLINGS: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
}


class Encoder(typing.Protocol):
    """Texts to unit vectors, (B, D) float32. Safe to share between threads."""

    def queries(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of queries."""
        ...

    def passages(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of passages."""
        ...


class _Habits(NamedTuple):
    """How the authors of an encoder say it must be used."""

    pooling: Pooling
    query_prefix: str
    passage_prefix: str


_INSTRUCTION = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "
# By name, first match counts; from the model cards of intfloat, BAAI, thenlper and Alibaba-NLP.
_KNOWN = (
    (r"\be5-.*instruct", _Habits("mean", _INSTRUCTION, "")),
    (r"\be5\b", _Habits("mean", "query: ", "passage: ")),
    (r"\bbge-m3", _Habits("cls", "", "")),
    (r"\bbge-.*\bzh\b", _Habits("cls", "为这个句子生成表示以用于检索相关文章：", "")),  # noqa: RUF001
    (r"\bbge\b", _Habits("cls", "Represent this sentence for searching relevant passages: ", "")),
    (r"\b(qwen3-embedding|gte-qwen2)", _Habits("lasttoken", _INSTRUCTION, "")),
    (r"\bgte-(modernbert|.*v1\.5)", _Habits("cls", "", "")),
    (r"\bgte\b", _Habits("mean", "", "")),
)


def describe_encoder(spec: str) -> EncoderRecord:
    """Find an encoder and everything that decides its vectors.

    Prefixes and pooling come from the files of sentence-transformers where the model has them, else from its name (e5,
    bge and gte are known), else it is mean pooling without prefixes. `spec` is what `resolve_model` understands, or the
    address of an endpoint (`endpoint_encoder.py`).

    Raises:
        ModelError: the spec cannot be resolved, or the model needs what we do not do (another pooling, other layers).
        ServerError: the endpoint does not answer.
    """
    if is_endpoint(spec):
        from seekling.retrieval.endpoint_encoder import describe_endpoint

        return describe_endpoint(spec)
    path = resolve_model(spec)
    config = _read_json(path / "config.json")
    habits = habits_of(spec, str(config.get("_name_or_path", "")))
    prompts = _read_json(path / "config_sentence_transformers.json").get("prompts")
    prompts = prompts if isinstance(prompts, dict) else {}
    dimension = config.get("hidden_size", config.get("dim"))
    if not isinstance(dimension, int):
        raise ModelError(f"{spec}: config.json names no hidden_size, so it is not a text encoder that we know")
    limits = _read_json(path / "sentence_bert_config.json").get("max_seq_length"), config.get("max_position_embeddings")
    return EncoderRecord(
        spec=spec,
        fingerprint=fingerprint_files(file for pattern in _FILES for file in path.glob(pattern)),
        pooling=_declared_pooling(path, spec) or habits.pooling,
        query_prefix=str(prompts.get("query") or habits.query_prefix),
        passage_prefix=str(prompts.get("document") or prompts.get("passage") or habits.passage_prefix),
        dimension=dimension,
        max_tokens=min(next((limit for limit in limits if isinstance(limit, int)), _MAX_TOKENS), _MAX_TOKENS),
    )


def load_encoder(record: EncoderRecord) -> Encoder:
    """What turns texts into vectors, as a record says.

    Raises:
        ModelError: its files cannot be loaded.
        MissingExtraError: a package that it needs is not installed.
    """
    if is_endpoint(record.spec):
        from seekling.retrieval.endpoint_encoder import EndpointEncoder

        return EndpointEncoder(record)
    from seekling.retrieval.local_models import LocalEncoder

    return LocalEncoder(record)


def encoder_changes(record: EncoderRecord, spec: str) -> list[str]:
    """How the encoder at `spec` differs from what made some vectors, a phrase per field; empty when it is the same."""
    now = describe_encoder(spec).model_copy(update={"spec": record.spec})
    if len(now.probe) == len(record.probe) and np.allclose(now.probe, record.probe, rtol=0, atol=_PROBE_TOLERANCE):
        now = now.model_copy(update={"probe": record.probe})
    return [
        f"{name}: the index has {value!r}, the encoder now {new!r}"
        for (name, value), (_, new) in zip(record, now, strict=True)
        if value != new
    ]


def is_endpoint(spec: str) -> bool:
    """Whether a server makes the vectors."""
    return spec.startswith(("http://", "https://"))


def habits_of(*names: str) -> _Habits:
    """How an encoder of this name must be used; the first name that is known counts."""
    for name in names:
        # "\b" does not see an underscore as the end of a word.
        last_part = name.rstrip("/").rpartition("/")[2].lower().replace("_", "-")
        for pattern, habits in _KNOWN:
            if re.search(pattern, last_part):
                return habits
    return _Habits("mean", "", "")


def _declared_pooling(path: Path, spec: str) -> Pooling | None:
    """As the files of sentence-transformers have it; layers that are not built in are refused, not ignored."""
    folder = "1_Pooling"
    if (path / "modules.json").is_file():
        listed = json.loads((path / "modules.json").read_text(encoding="utf-8"))
        modules = [(str(each["type"]).rpartition(".")[2], str(each.get("path", ""))) for each in listed]
        other = [kind for kind, _ in modules if kind not in ("Transformer", "Pooling", "Normalize")]
        if other:
            raise ModelError(
                f"{spec} has layers on top ({', '.join(other)}) that are not built in: use another encoder"
            )
        folder = next((place for kind, place in modules if kind == "Pooling"), folder)
    declared = _read_json(path / folder / "config.json")
    if isinstance(declared.get("pooling_mode"), str):
        name = f"pooling_mode_{declared['pooling_mode']}_tokens"
        declared = {name.replace("cls_tokens", "cls_token").replace("lasttoken_tokens", "lasttoken"): True}
    modes = sorted(key for key, value in declared.items() if key.startswith("pooling_mode_") and value is True)
    if not modes:
        return None
    has_prompt = declared.get("include_prompt", True) is True
    if len(modes) == 1 and modes[0] in _POOLINGS and has_prompt:
        return _POOLINGS[modes[0]]
    raise ModelError(
        f"{spec} pools by {', '.join(modes)}{'' if has_prompt else ' without the prompt tokens'}; only "
        f"{', '.join(_POOLINGS.values())} pooling over all tokens are built in: use another encoder"
    )


def _read_json(path: Path) -> dict[str, object]:
    """The object in a JSON file; empty when there is no such file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON ({error}); fetch the model again") from None
    return content if isinstance(content, dict) else {}
