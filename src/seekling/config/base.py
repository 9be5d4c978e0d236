"""What every section of a recipe is, the number types they share, and the section of a server that a run asks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, TypeVar

import pydantic
from pydantic import Field

Positive = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
PositiveFloat = Annotated[float, Field(gt=0)]


class Section(pydantic.BaseModel):
    """Base of all recipe sections: unknown keys are refused, values are frozen."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)
    former: ClassVar[Mapping[str, object]] = {}
    """Settings that earlier versions had, with their defaults: run folders and indexes that left them there open."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _leave_out_former(cls, raw: Any) -> Any:
        if not isinstance(raw, dict) or not cls.former:
            return raw
        return {key: value for key, value in raw.items() if key not in cls.former or cls.former[key] != value}


AnySection = TypeVar("AnySection", bound=Section)


def raise_for(problems: Iterable[str], section: AnySection) -> AnySection:
    """The section; all problems at once, if it has any."""
    found = list(problems)
    if found:
        raise ValueError("; ".join(found))
    return section


class EndpointConfig(Section, use_attribute_docstrings=True):
    """Where a served model is, and how it is asked."""

    url: str = ""
    """Base address, such as http://localhost:8000/v1; `/chat/completions` is added."""
    model: str = "default"
    """Its name there."""
    key_env: str = ""
    """Name of the environment variable that holds the key; empty sends none. The key itself is kept nowhere."""
    extra: str = ""
    """JSON object of further fields of every request; null takes one of ours out, such as {"seed": null}."""
    requests_per_minute: Annotated[float, Field(ge=0)] = 0.0
    """Requests are spread out so that no minute has more of them; 0 is no limit."""
    timeout_s: PositiveFloat = 120.0
    """Of one try."""
    request_tries: Positive = 6
    """Tries per request, with growing pauses."""

    @property
    def fields(self) -> dict[str, pydantic.JsonValue]:
        """`extra` as an object."""
        return dict(json.loads(self.extra or "{}"))

    @pydantic.field_validator("extra")
    @classmethod
    def _is_an_object(cls, value: str) -> str:
        try:
            fields: Any = json.loads(value or "{}")
        except ValueError as error:
            raise ValueError(f"not JSON ({error}); expected a JSON object of request fields") from None
        if not isinstance(fields, dict):
            raise ValueError("expected a JSON object of request fields")
        return value


class JudgeConfig(EndpointConfig):
    """The model that decides whether answers are right: a served one, or without `url` the local `model`."""

    max_tokens: Positive = 512
    """Of a verdict, hidden reasoning included."""
    tries: Positive = 3
    """How often an unreadable verdict is asked for, the first time included."""
    in_flight: Positive = 8
    """Episodes judged at once."""
    cache: str = ""
    """File that keeps verdicts by content; empty: `judge-cache.jsonl` in the run folder."""
