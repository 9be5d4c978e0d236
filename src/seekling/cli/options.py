"""Options that several commands have, and what they mean together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from seekling.config import RECIPES, Section
from seekling.errors import ConfigError

if TYPE_CHECKING:
    from seekling.rollout.chat import ChatEndpoint
    from seekling.rollout.chat_roller import Price

_Section = TypeVar("_Section", bound=Section)

Recipe = Annotated[
    Path,
    typer.Argument(
        help="A TOML file, or the name of a recipe (`seekling train --list`).", autocompletion=lambda: list(RECIPES)
    ),
]
Overrides = Annotated[list[str] | None, typer.Argument(help="section.key=value, in the recipe's spelling.")]
Policy = Annotated[str, typer.Option(help="Of a run: best, rl or sft; default: the best.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]

ENDPOINT_FLAGS = ("--endpoint", "--endpoint-model", "--endpoint-extra")
JUDGE_FLAGS = ("--judge-url", "--judge-model", "--judge-extra")

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
JudgeCache = Annotated[Path | None, typer.Option(help="File in which verdicts are kept.")]
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


def chat_endpoint(
    url: str,
    model: str,
    key_env: str,
    extra: str,
    *,
    flags: tuple[str, str, str] = ENDPOINT_FLAGS,
    num_tries: int = 6,
    requests_per_minute: float = 0.0,
) -> ChatEndpoint | None:
    """Read an endpoint's options.

    Args:
        url: base address.
        model: name there.
        key_env: environment variable of the key; empty for none.
        extra: JSON object of further request fields; empty for none.
        flags: how the options of address, model and extra fields are called.
        num_tries: per request.
        requests_per_minute: at most; 0 is no limit.

    Returns:
        The endpoint; None when neither address nor model is given.

    Raises:
        ConfigError: only one of address and model is given, or the extra fields are no JSON object.
    """
    if not (url or model):
        return None
    if not (url and model):
        raise ConfigError(f"got one of {flags[0]} and {flags[1]}; both are needed")
    from seekling.rollout.chat import ChatEndpoint, read_fields

    fields = read_fields(extra, flags[2])
    return ChatEndpoint(url, model, key_env, num_tries=num_tries, extra=fields, requests_per_minute=requests_per_minute)


def section_of(section: type[_Section], options: Mapping[str, object]) -> _Section:
    """Check options by the rules of the settings whose names they have.

    Args:
        section: which one.
        options: of the command, by name; those that are no settings of the section are passed over.

    Raises:
        ConfigError: a value is out of range; names the options.
    """
    import pydantic

    try:
        return section.model_validate({name: each for name, each in options.items() if name in section.model_fields})
    except pydantic.ValidationError as error:
        problems = [
            f"--{str(each['loc'][0]).replace('_', '-')}: {each['msg']} (got {each['input']!r})"
            for each in error.errors()
        ]
        raise ConfigError("; ".join(problems)) from None


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """Read the value of an option such as --at 3,5,10.

    Returns:
        The numbers, rising, each once.

    Raises:
        ConfigError: it is no list of whole numbers above 0.
    """
    words = text.replace(",", " ").split()
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise ConfigError(f"{option} {text!r} is not a list of whole numbers above 0, such as 3,5,10")
    return tuple(sorted({int(word) for word in words}))
