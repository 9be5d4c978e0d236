"""What a client of the search server may ask, read strictly: a wrong request is told what is wrong with it."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass

from seekling.types import Json

_FIELDS = ("queries", "query", "topk", "return_scores")


class BadRequestError(Exception):
    """The request is wrong; the text says how, for whoever wrote it."""

    def __init__(self, message: str, status: int = 422) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class RetrieveRequest:
    """A request to /retrieve."""

    queries: tuple[str, ...]
    top_k: int
    with_scores: bool


def read_retrieve(body: bytes, *, default_top_k: int) -> RetrieveRequest:
    """Read the body of a request to /retrieve: Search-R1's dialect, and SkyRL's with one "query".

    Fields that are unknown are ignored, as Search-R1's server does, unless they look like a misspelt one.

    Args:
        body: JSON.
        default_top_k: for a "topk" that is missing, null or 0.

    Raises:
        BadRequestError: the body is no JSON object, or a field is missing or of a wrong type.
    """
    row = _read_object(body)
    for name in row:
        near = difflib.get_close_matches(name, _FIELDS, n=1, cutoff=0.75)
        if name not in _FIELDS and near:
            raise BadRequestError(f"{name!r:.80} is no field of a request; did you mean {near[0]!r}?")
    top_k = row.get("topk")
    if top_k is not None and (isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 0):
        raise BadRequestError(f"topk must be a whole number of at least 1, or null, not {_shown(top_k)}")
    with_scores = row.get("return_scores")
    if with_scores is not None and not isinstance(with_scores, bool):
        raise BadRequestError(f"return_scores must be true or false, not {_shown(with_scores)}")
    return RetrieveRequest(_queries_of(row), top_k or default_top_k, bool(with_scores))


def read_ids(body: bytes) -> tuple[str, ...]:
    """Read the body of a request to /documents.

    Raises:
        BadRequestError: it does not hold a list of ids.
    """
    ids = _texts(_read_object(body).get("ids"))
    if ids is None:
        raise BadRequestError('ids must be a list of texts, such as {"ids": ["page-1"]}')
    return ids


def _read_object(body: bytes) -> dict[str, Json]:
    try:
        row: Json = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"the body is not JSON: {str(error)[:200]}", status=400) from None
    if not isinstance(row, dict):
        raise BadRequestError(f"the body must be a JSON object, not {_shown(row)}")
    return row


def _queries_of(row: dict[str, Json]) -> tuple[str, ...]:
    queries, query = row.get("queries"), row.get("query")
    if queries is not None and query is not None:
        raise BadRequestError("the request has both queries and query; send one of them")
    if query is not None:
        if not isinstance(query, str):
            raise BadRequestError(f"query must be one text, not {_shown(query)}; queries takes a list")
        return (query,)
    texts = _texts(queries)
    if texts is None:
        raise BadRequestError(f'queries must be a list of texts, such as {{"queries": ["a"]}}, not {_shown(queries)}')
    return texts


def _texts(value: Json) -> tuple[str, ...] | None:
    if not isinstance(value, list):
        return None
    texts = [each for each in value if isinstance(each, str)]
    return tuple(texts) if len(texts) == len(value) else None


def _shown(value: Json) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
