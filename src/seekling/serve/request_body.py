"""What a client of our servers may send: JSON objects of known fields. A wrong one is told what is wrong with it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Annotated, Self, TypeVar

import pydantic
from pydantic import Field

from seekling.types import Json

Body = TypeVar("Body", bound=pydantic.BaseModel)


class RefusedRequestError(Exception):
    """A request that is not answered as it was asked; the text says why, for whoever wrote it.

    Args:
        status: of the reply.
        message: the text.
        code: a word for programs; only OpenAI's clients read it.
        headers: of the reply.
    """

    def __init__(
        self, status: int, message: str, code: str = "invalid_value", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.headers = status, code, headers


class RetrieveRequest(pydantic.BaseModel):
    """A request to /retrieve: Search-R1's dialect, and SkyRL's with one "query".

    Fields that are unknown are ignored, as Search-R1's server does, unless they look like a misspelt one.
    """

    model_config = pydantic.ConfigDict(strict=True, extra="allow")

    queries: list[str] | None = None
    query: str | None = None
    topk: Annotated[int, Field(ge=0)] | None = None
    """None or 0: the server's own."""
    return_scores: bool | None = None

    @pydantic.model_validator(mode="after")
    def _is_clear(self) -> Self:
        for name in self.model_extra or ():
            near = difflib.get_close_matches(name, list(type(self).model_fields), n=1, cutoff=0.75)
            if near:
                raise ValueError(f"{name!r:.80} is no field of a request; did you mean {near[0]!r}?")
        if (self.queries is None) == (self.query is None):
            raise ValueError('expected one of "queries", a list of texts, and "query", a text')
        return self

    def texts(self) -> list[str]:
        """What is asked."""
        return [self.query] if self.query is not None else self.queries or []


class DocumentsRequest(pydantic.BaseModel):
    """A request to /documents."""

    model_config = pydantic.ConfigDict(strict=True)

    ids: list[str]


def read_object(raw: bytes, *, status: int) -> dict[str, Json]:
    """Read a JSON object.

    Args:
        raw: of a request.
        status: of the reply to JSON that is no object.

    Raises:
        RefusedRequestError: it is none.
    """
    try:
        row = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise RefusedRequestError(400, f"the body is not JSON: {str(error)[:200]}", "invalid_json") from None
    if not isinstance(row, dict):
        raise RefusedRequestError(status, f"the body must be a JSON object, not {_shown(row)}", "invalid_json")
    return row


def read_fields(row: Mapping[str, Json], kind: type[Body], *, status: int) -> Body:
    """Read the fields of an object.

    Args:
        row: the object.
        kind: says which fields there are.
        status: of the reply to a wrong one.

    Raises:
        RefusedRequestError: a field is missing or of a wrong type.
    """
    try:
        return kind.model_validate(row)
    except pydantic.ValidationError as error:
        problems = []
        for each in error.errors()[:5]:
            where = "".join(f"{part}." for part in each["loc"])[:-1]
            what = each["msg"].removeprefix("Value error, ")
            problems.append(f"{where}: {what}, got {_shown(each['input'])}" if where else what)
        raise RefusedRequestError(status, "; ".join(problems)) from None


def _shown(value: Json) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
