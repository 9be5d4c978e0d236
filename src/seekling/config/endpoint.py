"""Servers that a run asks: any OpenAI-compatible chat endpoint, and the judge, which is one or a local model."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pydantic
from pydantic import Field

from seekling.config.base import Positive, PositiveFloat, Section


class EndpointConfig(Section):
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
