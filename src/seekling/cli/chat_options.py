"""What the options of several commands say about an OpenAI-compatible endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from seekling.cli.section_options import section_of
from seekling.config import EndpointConfig, JudgeConfig
from seekling.errors import ConfigError

if TYPE_CHECKING:
    from seekling.rollout.chat_roller import Price

_Endpoint = TypeVar("_Endpoint", bound=EndpointConfig)

EndpointUrl = Annotated[str, typer.Option(help="OpenAI-compatible base URL, such as http://host:8000/v1.")]
EndpointModel = Annotated[str, typer.Option(help="Model name there.")]
EndpointKeyEnv = Annotated[str, typer.Option(help="Environment variable that holds the endpoint's key.")]
EndpointExtra = Annotated[str, typer.Option(help="JSON object added to each request; null removes.")]
EndpointTries = Annotated[int, typer.Option(min=1, help="Tries per request, with growing pauses.")]
JudgeUrl = Annotated[str, typer.Option(help="OpenAI-compatible base URL of a judge.")]
JudgeModel = Annotated[str, typer.Option(help="Model name of the judge.")]
JudgeKeyEnv = Annotated[str, typer.Option(help="Environment variable that holds the judge's key.")]
JudgeExtra = Annotated[str, typer.Option(help="JSON object added to each request to the judge.")]
Requests = Annotated[float, typer.Option(min=0, help="Requests per minute, at most; 0: no limit.")]
JudgeTokens = Annotated[int, typer.Option(min=1, help="Limit of the judge's reply; reasoning counts.")]
PriceIn = Annotated[float | None, typer.Option(min=0, help="USD per million prompt tokens; with --price-out.")]
PriceOut = Annotated[float | None, typer.Option(min=0, help="USD per million written tokens; with --price-in.")]


def chat_price(price_in: float | None, price_out: float | None) -> Price | None:
    """Read an endpoint's prices.

    Args:
        price_in: dollars per million prompt tokens.
        price_out: the same of written tokens.

    Returns:
        The prices; None when neither is given.

    Raises:
        ConfigError: only one is given: costs would be too low, and a budget would be overrun.
    """
    if price_in is None and price_out is None:
        return None
    if price_in is None or price_out is None:
        raise ConfigError("got one of --price-in and --price-out; give both, 0 for what is free")
    from seekling.rollout.chat_roller import Price

    return Price(price_in, price_out)


def endpoint_of(
    section: type[_Endpoint], url: str, model: str, key_env: str, extra: str, **more: str | float
) -> _Endpoint | None:
    """Read the options of a server.

    Args:
        section: what it is: an endpoint, or a judge.
        url: base address.
        model: name there.
        key_env: environment variable of the key; empty for none.
        extra: JSON object of further request fields; empty for none.
        more: its other settings.

    Returns:
        The settings; None when neither address nor model is given.

    Raises:
        ConfigError: only one of address and model is given, or a setting is wrong.
    """
    is_judge = issubclass(section, JudgeConfig)
    prefix, address = ("--judge-", "--judge-url") if is_judge else ("--endpoint-", "--endpoint")
    if not (url or model):
        return None
    if not (url and model):
        raise ConfigError(f"got one of {address} and {prefix}model; both are needed")
    return section_of(section, prefix, url=url, model=model, key_env=key_env, extra=extra, **more)
