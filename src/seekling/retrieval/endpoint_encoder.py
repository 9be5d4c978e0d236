"""Vectors from an OpenAI-compatible embeddings endpoint or Gemini's own.

An endpoint is written as its base address with the model as the fragment: `http://localhost:8000/v1#my-model`, or
`https://generativelanguage.googleapis.com/v1beta?api=gemini&key_env=GEMINI_API_KEY&dimensions=768#gemini-embedding-001`.

Options, percent-encoded after the question mark: `key_env` names the variable that holds the key, `dimensions` asks for
shorter vectors, `query_prefix` and `passage_prefix` stand before the texts (without them the prefixes go by the model's
name), and `api=gemini` speaks `batchEmbedContents`, whose task types are RETRIEVAL_QUERY and RETRIEVAL_DOCUMENT:
Google's OpenAI-compatible address takes no task type.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Literal
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pydantic
from pydantic import Field

from seekling.client import BadReplyError, Client, Patience, RefusedError, key_from
from seekling.errors import ConfigError, DataError
from seekling.retrieval.encoders import habits_of
from seekling.retrieval.index_record import EncoderRecord
from seekling.types import Json

_BATCH = 64
"""Texts per request; Gemini takes at most 100."""
_AT_ONCE = 4
_QUERY_TASK, _PASSAGE_TASK = "RETRIEVAL_QUERY", "RETRIEVAL_DOCUMENT"
_PROBE_TEXT = "The harbour town of Bergen was founded in 1070."
_PROBE_VALUES = 16
_PROBE_DIGITS = 4


class Endpoint(pydantic.BaseModel):
    """Where vectors come from, as a spec says; the module's docstring explains the options."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    url: Annotated[str, Field(pattern="^https?://[^/]")]
    model: Annotated[str, Field(min_length=1)]
    key_env: str = ""
    dimensions: Annotated[int, Field(ge=0)] = 0
    """To ask for; 0: as many as the model gives."""
    api: Literal["openai", "gemini"] = "openai"
    query_prefix: str
    passage_prefix: str

    @property
    def is_gemini(self) -> bool:
        """Speaks Gemini's own API, not OpenAI's."""
        return self.api == "gemini"


class EndpointEncoder:
    """Texts to unit vectors through a server, of a record that `describe_endpoint` made. Safe to share between threads.

    Raises:
        ConfigError: the spec is wrong, or the key's variable is not set.
        ServerError: from its methods, when the server gives no vectors.
    """

    def __init__(self, record: EncoderRecord, patience: Patience | None = None) -> None:
        self._record = record
        self._endpoint = parse_endpoint(record.spec)
        self._client = _client(self._endpoint, patience)

    def queries(self, texts: Sequence[str]) -> np.ndarray:
        """(B, D) float32 unit vectors of queries."""
        return self._encode([self._record.query_prefix + text for text in texts], _QUERY_TASK)

    def passages(self, texts: Sequence[str]) -> np.ndarray:
        """(B, D) float32 unit vectors of passages."""
        return self._encode([self._record.passage_prefix + text for text in texts], _PASSAGE_TASK)

    def _encode(self, texts: Sequence[str], task: str) -> np.ndarray:
        # Servers refuse half a surrogate pair, which a model can write.
        texts = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        new = list(dict.fromkeys(texts))
        batches = [new[start : start + _BATCH] for start in range(0, len(new), _BATCH)]
        found: dict[str, np.ndarray] = {}
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            asked = pool.map(lambda batch: self._ask(batch, task), batches)
            for batch, vectors_BD in zip(batches, asked, strict=True):
                found |= dict(zip(batch, vectors_BD, strict=True))
        return np.stack([found[text] for text in texts]) if texts else np.empty((0, self._record.dimension), np.float32)

    def _ask(self, texts: Sequence[str], task: str) -> np.ndarray:
        vectors_BD = _embed(self._client, self._endpoint, texts, task)
        if vectors_BD.shape[1] != self._record.dimension:
            raise DataError(
                f"{self._record.spec} gave vectors of {vectors_BD.shape[1]} dimensions, it gave "
                f"{self._record.dimension} when the index was made: it serves another model now; rebuild the index"
            )
        return vectors_BD


def describe_endpoint(spec: str, patience: Patience | None = None) -> EncoderRecord:
    """Ask an endpoint for one vector, and record what makes its vectors what they are.

    Raises:
        ConfigError: the spec is wrong, or the endpoint refuses the model or the key.
        ServerError: nobody answers.
    """
    endpoint = parse_endpoint(spec)
    try:
        probe_D = _embed(_client(endpoint, patience), endpoint, [_PROBE_TEXT], _PASSAGE_TASK)[0]
    except RefusedError as error:
        raise ConfigError(f"{error}; check the address, the model {endpoint.model!r} and the key") from None
    # The task of passages made the vectors of an index.
    task = "\n" + json.dumps({"taskType": _PASSAGE_TASK}) if endpoint.is_gemini else ""
    identity = f"{endpoint.url}\n{endpoint.model}\n{len(probe_D)}{task}"
    return EncoderRecord(
        spec=spec,
        fingerprint=hashlib.blake2b(identity.encode(), digest_size=16).hexdigest(),
        pooling="endpoint",
        query_prefix=endpoint.query_prefix,
        passage_prefix=endpoint.passage_prefix,
        dimension=len(probe_D),
        max_tokens=0,
        probe=tuple(round(float(value), _PROBE_DIGITS) for value in probe_D[:_PROBE_VALUES]),
    )


def parse_endpoint(spec: str) -> Endpoint:
    """Read `https://host/v1?key_env=NAME&dimensions=N#model`; the module's docstring lists the options.

    Raises:
        ConfigError: it names no model, or something unknown after the question mark.
    """
    parts = urlsplit(spec)
    habits = habits_of(parts.fragment)
    given = {"query_prefix": habits.query_prefix, "passage_prefix": habits.passage_prefix}
    given |= dict(parse_qsl(parts.query, keep_blank_values=True))
    given["url"] = parts._replace(query="", fragment="").geturl().rstrip("/").removesuffix("/embeddings")
    try:
        return Endpoint.model_validate({**given, "model": parts.fragment})
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(
            f"{spec!r} is not an embeddings endpoint ({'.'.join(map(str, first['loc']))}: {first['msg']}); expected "
            "https://host/v1#model, with ?key_env=NAME of the variable that holds the key, dimensions=N, query_prefix, "
            "passage_prefix and api=gemini where they are needed"
        ) from None


def _client(endpoint: Endpoint, patience: Patience | None) -> Client:
    headers: dict[str, str] = {}
    if endpoint.key_env:
        key = key_from(endpoint.key_env)
        headers |= {"x-goog-api-key": key} if endpoint.is_gemini else {"Authorization": f"Bearer {key}"}
    return Client(endpoint.url, patience or Patience(timeout_s=60.0), headers)


def _embed(client: Client, endpoint: Endpoint, texts: Sequence[str], task: str) -> np.ndarray:
    """(B, D) float32 unit vectors, as the server gives them for one request."""
    size: dict[str, Json] = {}
    if endpoint.dimensions:
        size["outputDimensionality" if endpoint.is_gemini else "dimensions"] = endpoint.dimensions
    if not endpoint.is_gemini:
        body: dict[str, Json] = {"model": endpoint.model, "input": list(texts), **size}
        return client.call("/embeddings", lambda reply: _vectors_of(reply, len(texts)), body)
    model = f"models/{endpoint.model.removeprefix('models/')}"
    requests: list[Json] = [
        {"model": model, "content": {"parts": [{"text": text}]}, "taskType": task, **size} for text in texts
    ]
    return client.call(
        f"/{model}:batchEmbedContents",
        lambda reply: _vectors_of(_as_openai(reply), len(texts)),
        {"requests": requests},
    )


def _as_openai(reply: Json) -> Json:
    """A reply of Gemini's in the form of OpenAI's."""
    rows = reply.get("embeddings") if isinstance(reply, dict) else None
    if not isinstance(rows, list):
        return reply
    return {"data": [{"embedding": row.get("values")} if isinstance(row, dict) else row for row in rows]}


def _vectors_of(reply: Json, num_texts: int) -> np.ndarray:
    rows = reply.get("data") if isinstance(reply, dict) else None
    if not isinstance(rows, list) or len(rows) != num_texts:
        raise BadReplyError(f'the reply has no list "data" of {num_texts} embeddings: {reply!s:.200}')
    # Some servers number all rows 0, or not at all; the order is then all that there is.
    numbers = [row.get("index") if isinstance(row, dict) else None for row in rows]
    places = [number for number in numbers if isinstance(number, int)]
    if sorted(places) != list(range(num_texts)):
        places = list(range(num_texts))
    vectors = [row.get("embedding") if isinstance(row, dict) else None for row in rows]
    try:
        vectors_BD = np.array(vectors, dtype=np.float32)
    except (TypeError, ValueError):
        raise BadReplyError(f"the embeddings are not lists of numbers of one length: {reply!s:.200}") from None
    lengths_B = np.linalg.norm(vectors_BD, axis=1) if vectors_BD.ndim == 2 else np.zeros(1)
    if not (np.isfinite(lengths_B) & (lengths_B > 0)).all():
        raise BadReplyError(f"an embedding is empty, zero or not finite: {reply!s:.200}")
    ordered_BD = np.empty_like(vectors_BD)
    ordered_BD[places] = vectors_BD / lengths_B[:, None]
    return ordered_BD
