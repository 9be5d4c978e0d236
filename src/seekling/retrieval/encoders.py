"""What a dense encoder needs to be told about itself: pooling, prefixes, length. Read from its files, never from torch.

Half of all disappointing dense retrieval is a good model with the wrong pooling or a missing prefix. Both are decided
here once, when an index is built, and recorded in it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Literal, NamedTuple

from seekling.errors import ModelError
from seekling.retrieval.record import EncoderRecord, fingerprint_files

_DEFAULT_MAX_TOKENS = 512
_FILES = ("*.json", "1_Pooling/*.json", "*.txt", "*.model", "*.safetensors", "*.bin")


class _Habits(NamedTuple):
    """How the authors of an encoder say it must be used."""

    pooling: Literal["mean", "cls"]
    query_prefix: str
    passage_prefix: str


# By name, first match counts; from the model cards of intfloat, BAAI, thenlper and Alibaba-NLP.
_KNOWN = (
    (
        r"\be5-.*instruct",
        _Habits(
            "mean",
            "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: ",
            "",
        ),
    ),
    (r"\be5\b", _Habits("mean", "query: ", "passage: ")),
    (r"\bbge-m3", _Habits("cls", "", "")),
    (r"\bbge-.*\bzh\b", _Habits("cls", "为这个句子生成表示以用于检索相关文章：", "")),  # noqa: RUF001
    (r"\bbge\b", _Habits("cls", "Represent this sentence for searching relevant passages: ", "")),
    (r"\bgte-(modernbert|.*v1\.5)", _Habits("cls", "", "")),
    (r"\bgte\b", _Habits("mean", "", "")),
)
_OTHERS = _Habits("mean", "", "")


def describe_encoder(spec: str) -> EncoderRecord:
    """Find an encoder and everything that decides its vectors.

    Prefixes and pooling come from the files of sentence-transformers where the model has them, else from its name (e5,
    bge and gte are known), else it is mean pooling without prefixes.

    Args:
        spec: what `resolve_model` understands.

    Raises:
        ModelError: the spec cannot be resolved, or the model needs what we do not do (another pooling, extra layers).
    """
    from seekling.models import resolve_model

    path = resolve_model(spec)
    config = _read_json(path / "config.json")
    habits = _habits_of(spec, str(config.get("_name_or_path", "")))
    _refuse_extra_layers(path, spec)
    prompts = _read_json(path / "config_sentence_transformers.json").get("prompts")
    prompts = prompts if isinstance(prompts, dict) else {}
    dimension = config.get("hidden_size", config.get("dim"))
    if not isinstance(dimension, int):
        raise ModelError(f"{spec}: config.json names no hidden_size, so it is not a text encoder that we know")
    return EncoderRecord(
        spec=spec,
        fingerprint=fingerprint_files(file for pattern in _FILES for file in path.glob(pattern)),
        pooling=_declared_pooling(path, spec) or habits.pooling,
        query_prefix=str(prompts.get("query") or habits.query_prefix),
        passage_prefix=str(prompts.get("document") or prompts.get("passage") or habits.passage_prefix),
        dimension=dimension,
        max_tokens=_max_tokens(path, config),
    )


def _habits_of(*names: str) -> _Habits:
    for name in names:
        # "\b" does not see an underscore as the end of a word.
        last_part = name.rstrip("/").rpartition("/")[2].lower().replace("_", "-")
        for pattern, habits in _KNOWN:
            if re.search(pattern, last_part):
                return habits
    return _OTHERS


def _declared_pooling(path: Path, spec: str) -> Literal["mean", "cls"] | None:
    declared = _read_json(path / "1_Pooling" / "config.json")
    if isinstance(declared.get("pooling_mode"), str):
        declared = {f"pooling_mode_{declared['pooling_mode']}_tokens".replace("cls_tokens", "cls_token"): True}
    modes = sorted(key for key, value in declared.items() if key.startswith("pooling_mode_") and value is True)
    if not modes:
        return None
    if modes == ["pooling_mode_mean_tokens"]:
        return "mean"
    if modes == ["pooling_mode_cls_token"]:
        return "cls"
    raise ModelError(f"{spec} pools by {', '.join(modes)}; only mean and cls pooling are built in: use another encoder")


def _refuse_extra_layers(path: Path, spec: str) -> None:
    if not (path / "modules.json").is_file():
        return
    modules = json.loads((path / "modules.json").read_text(encoding="utf-8"))
    kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
    extra = [kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")]
    if extra:
        raise ModelError(f"{spec} has layers on top ({', '.join(extra)}) that are not built in: use another encoder")


def _max_tokens(path: Path, config: dict[str, object]) -> int:
    for limit in (
        _read_json(path / "sentence_bert_config.json").get("max_seq_length"),
        config.get("max_position_embeddings"),
    ):
        if isinstance(limit, int):
            return min(limit, _DEFAULT_MAX_TOKENS)
    return _DEFAULT_MAX_TOKENS


def _read_json(path: Path) -> dict[str, object]:
    """The object in a JSON file; empty when there is no such file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON ({error}); fetch the model again") from None
    return content if isinstance(content, dict) else {}
