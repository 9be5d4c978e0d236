"""Options that several commands have, and what they mean together."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import typer

from seekling.config import RECIPES, EndpointConfig, JudgeConfig, Section
from seekling.errors import ConfigError

if TYPE_CHECKING:
    from seekling.rollout.chat import Price

Recipe = Annotated[
    Path,
    typer.Argument(
        help="A TOML file, or the name of a recipe (`seekling train --list`).", autocompletion=lambda: list(RECIPES)
    ),
]
Overrides = Annotated[list[str] | None, typer.Argument(help="section.key=value, in the recipe's spelling.")]
Policy = Annotated[str, typer.Option(help="Of a run: best, rl or sft; default: the best.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
PriceIn = Annotated[float | None, typer.Option(min=0, help="USD per million prompt tokens; with --price-out.")]
PriceOut = Annotated[float | None, typer.Option(min=0, help="USD per million written tokens; with --price-in.")]

Function = Callable[..., None]


def settings(
    argument: str,
    section: type[Section],
    names: Mapping[str, str] | str = "",
    *,
    is_optional: bool = False,
    defaults: Mapping[str, object] = MappingProxyType({}),
) -> Callable[[Function], Function]:
    """Replace a command's argument, which takes a section of settings, by an option for each of some settings.

    Args:
        argument: of the command.
        section: each option has a setting's default, its documentation as help, and its rules.
        names: of settings (all, when left out), with their options; or alone, for options named like the settings.
        is_optional: the argument is a server's, and None where neither `url` nor another `model` is given.
        defaults: instead of the section's.
    """
    if isinstance(names, str):
        names = {name: f"--{name.replace('_', '-')}" for name in names.split() or section.model_fields}

    def decorate(function: Function) -> Function:
        options = {}
        for name, option in names.items():
            field = section.model_fields[name]
            kind = field.annotation if field.annotation in (bool, int, float) else str
            default = defaults.get(name, field.default)
            form = f"{option}/--no-{option.removeprefix('--')}" if kind is bool and default else option
            annotation = Annotated[kind, typer.Option(form, help=field.description)]  # type: ignore[valid-type]
            key = f"{argument}_{name}" if is_optional else name
            options[key] = inspect.Parameter(
                key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
            )

        @functools.wraps(function)
        def command(**given: object) -> None:
            values = {name: given.pop(key) for name, key in zip(names, options, strict=True)}
            is_none = is_optional and not values["url"] and values["model"] == defaults.get("model")
            function(**given, **{argument: None if is_none else _checked(section, names, values)})

        signature = inspect.signature(function, eval_str=True)
        kept = [each for each in signature.parameters.values() if each.name != argument]
        kept = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in kept]
        command.__signature__ = signature.replace(parameters=[*kept, *options.values()])  # type: ignore[attr-defined]
        return command

    return decorate


def _checked(section: type[Section], names: Mapping[str, str], values: Mapping[str, object]) -> Section:
    import pydantic

    if "url" in names and not (values["url"] and values["model"]):
        raise ConfigError(f"got one of {names['url']} and {names['model']}; both are needed")
    try:
        return section.model_validate(values)
    except pydantic.ValidationError as error:
        problems = [f"{names[str(each['loc'][0])]}: {each['msg']} (got {each['input']!r})" for each in error.errors()]
        raise ConfigError("; ".join(problems)) from None


_ENDPOINT = {
    "url": "--endpoint",
    "model": "--endpoint-model",
    "key_env": "--endpoint-key-env",
    "extra": "--endpoint-extra",
    "request_tries": "--endpoint-tries",
    "requests_per_minute": "--requests-per-minute",
}
_JUDGE = {
    "url": "--judge-url",
    "model": "--judge-model",
    "key_env": "--judge-key-env",
    "extra": "--judge-extra",
    "request_tries": "--judge-tries",
    "max_tokens": "--judge-tokens",
    "cache": "--judge-cache",
}


def served_models(function: Function) -> Function:
    """Options for a command's arguments `endpoint`, a served model, and `judge`; each is None where it is not named."""
    for_judge = {"model": "", "max_tokens": 1024}
    with_judge = settings("judge", JudgeConfig, _JUDGE, is_optional=True, defaults=for_judge)(function)
    return settings("endpoint", EndpointConfig, _ENDPOINT, is_optional=True, defaults={"model": ""})(with_judge)


def chat_price(price_in: float | None, price_out: float | None) -> Price | None:
    """An endpoint's prices in dollars per million prompt tokens and written tokens; None when neither is given.

    Raises:
        ConfigError: only one is given: costs would be too low, and a budget would be overrun.
    """
    if (price_in is None) != (price_out is None):
        raise ConfigError("got one of --price-in and --price-out; give both, 0 for what is free")
    from seekling.rollout.chat import Price

    return None if price_in is None or price_out is None else Price(price_in, price_out)
