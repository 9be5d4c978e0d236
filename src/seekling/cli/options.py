"""Options that several commands have, and what they mean together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from seekling.config import RECIPES, EndpointConfig, JudgeConfig, Section
from seekling.errors import ConfigError

if TYPE_CHECKING:
    from seekling.rollout.chat import Price

_Section = TypeVar("_Section", bound=Section)
_Endpoint = TypeVar("_Endpoint", bound=EndpointConfig)

Recipe = Annotated[
    Path,
    typer.Argument(
        help="A TOML file, or the name of a recipe (`seekling train --list`).", autocompletion=lambda: list(RECIPES)
    ),
]
Overrides = Annotated[list[str] | None, typer.Argument(help="section.key=value, in the recipe's spelling.")]
Policy = Annotated[str, typer.Option(help="Of a run: best, rl or sft; default: the best.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]

EndpointUrl = Annotated[
    str, typer.Option("--endpoint", help="OpenAI-compatible base URL, such as http://host:8000/v1.")
]
EndpointModel = Annotated[str, typer.Option(help="Model name there.")]
EndpointKeyEnv = Annotated[str, typer.Option(help="Environment variable that holds the endpoint's key.")]
EndpointExtra = Annotated[str, typer.Option(help="JSON object added to each request; null removes.")]
EndpointTries = Annotated[
    int, typer.Option("--endpoint-tries", min=1, help="Tries per request, with growing pauses; the judge's too.")
]
JudgeUrl = Annotated[str, typer.Option(help="OpenAI-compatible base URL of a judge.")]
JudgeModel = Annotated[str, typer.Option(help="Model name of the judge.")]
JudgeKeyEnv = Annotated[str, typer.Option(help="Environment variable that holds the judge's key.")]
JudgeExtra = Annotated[str, typer.Option(help="JSON object added to each request to the judge.")]
JudgeTokens = Annotated[
    int, typer.Option("--judge-tokens", min=1, help="Limit of the judge's reply; reasoning counts.")
]
JudgeCache = Annotated[str, typer.Option(help="File in which verdicts are kept.")]
Requests = Annotated[float, typer.Option("--requests-per-minute", min=0, help="At most; 0: no limit.")]
PriceIn = Annotated[float | None, typer.Option(min=0, help="USD per million prompt tokens; with --price-out.")]
PriceOut = Annotated[float | None, typer.Option(min=0, help="USD per million written tokens; with --price-in.")]


def section_of(section: type[_Section], options: Mapping[str, object], prefix: str = "", **more: object) -> _Section:
    """Check a command's options, by name, by the rules of the settings whose names they have.

    Options that are no settings of the section are passed over; `prefix` is of their names, such as judge_; `more` are
    further settings.

    Raises:
        ConfigError: a value is out of range; names the options.
    """
    import pydantic

    named = {key: options[prefix + key] for key in section.model_fields if prefix + key in options}
    try:
        return section.model_validate(named | more)
    except pydantic.ValidationError as error:
        problems = [
            f"--{prefix}{each['loc'][0]}: ".replace("_", "-") + f"{each['msg']} (got {each['input']!r})"
            for each in error.errors()
        ]
        raise ConfigError("; ".join(problems)) from None


def endpoint_of(section: type[_Endpoint], options: Mapping[str, object], **more: object) -> _Endpoint | None:
    """Read the options of a server, --endpoint-... or --judge-..., as `section_of`.

    Returns:
        The settings; None when neither address nor model is given.

    Raises:
        ConfigError: only one of address and model is given, or a setting is wrong.
    """
    name, address = ("judge", "--judge-url") if issubclass(section, JudgeConfig) else ("endpoint", "--endpoint")
    given = [bool(options[f"{name}_{key}"]) for key in ("url", "model")]
    if any(given) and not all(given):
        raise ConfigError(f"got one of {address} and --{name}-model; both are needed")
    return section_of(section, options, f"{name}_", **more) if all(given) else None


def chat_price(price_in: float | None, price_out: float | None) -> Price | None:
    """An endpoint's prices in dollars per million prompt tokens and written tokens; None when neither is given.

    Raises:
        ConfigError: only one is given: costs would be too low, and a budget would be overrun.
    """
    if (price_in is None) != (price_out is None):
        raise ConfigError("got one of --price-in and --price-out; give both, 0 for what is free")
    from seekling.rollout.chat import Price

    return None if price_in is None or price_out is None else Price(price_in, price_out)


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """The numbers of an option such as --at 3,5,10, rising, each once.

    Raises:
        ConfigError: it is no list of whole numbers above 0.
    """
    words = text.replace(",", " ").split()
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise ConfigError(f"{option} {text!r} is not a list of whole numbers above 0, such as 3,5,10")
    return tuple(sorted({int(word) for word in words}))
