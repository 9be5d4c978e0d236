"""What the options of several commands say about an OpenAI-compatible endpoint."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from seekling.errors import ConfigError

if TYPE_CHECKING:
    from seekling.rollout.chat import ChatEndpoint

ENDPOINT_FLAGS = ("--endpoint", "--endpoint-model", "--endpoint-extra")
JUDGE_FLAGS = ("--judge-url", "--judge-model", "--judge-extra")

JudgeUrl = Annotated[str, typer.Option(help="OpenAI-compatible base URL of a judge.")]
JudgeModel = Annotated[str, typer.Option(help="Model name of the judge.")]
JudgeKeyEnv = Annotated[str, typer.Option(help="Environment variable that holds the judge's key.")]
JudgeExtra = Annotated[str, typer.Option(help="JSON object added to each request to the judge.")]
JudgeTokens = Annotated[int, typer.Option(min=1, help="Limit of the judge's reply; reasoning counts.")]


def chat_endpoint(
    url: str,
    model: str,
    key_env: str,
    extra: str,
    *,
    flags: tuple[str, str, str] = ENDPOINT_FLAGS,
    num_tries: int = 6,
) -> ChatEndpoint | None:
    """Read an endpoint's options.

    Args:
        url: base address.
        model: name there.
        key_env: environment variable of the key; empty for none.
        extra: JSON object of further request fields; empty for none.
        flags: how the options of address, model and extra fields are called.
        num_tries: per request.

    Returns:
        The endpoint; None when neither address nor model is given.

    Raises:
        ConfigError: only one of address and model is given, or the extra fields are no JSON object.
    """
    if not (url or model):
        return None
    if not (url and model):
        raise ConfigError(f"got one of {flags[0]} and {flags[1]}; both are needed")
    from seekling.rollout.chat import ChatEndpoint

    try:
        fields = json.loads(extra) if extra else {}
    except ValueError as error:
        raise ConfigError(f"{flags[2]} is not JSON ({error}); expected a JSON object of request fields") from None
    if not isinstance(fields, dict):
        raise ConfigError(f"{flags[2]} is {extra!r}; expected a JSON object of request fields")
    return ChatEndpoint(url, model, key_env, num_tries=num_tries, extra=fields)
