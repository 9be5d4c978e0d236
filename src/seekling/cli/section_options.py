"""Options of a command that are settings of a section of the recipe."""

from __future__ import annotations

from typing import TypeVar

from seekling.config import Section
from seekling.errors import ConfigError

_Section = TypeVar("_Section", bound=Section)


def section_of(section: type[_Section], /, prefix: str = "--", **values: str | float) -> _Section:
    """Check options by the rules of the settings whose names they have.

    Args:
        section: which one.
        prefix: of the options' names.
        values: of the options, by setting.

    Raises:
        ConfigError: a value is out of range; names the options.
    """
    import pydantic

    try:
        return section.model_validate(values)
    except pydantic.ValidationError as error:
        problems = [
            f"{prefix}{str(each['loc'][0]).replace('_', '-')}: {each['msg']} (got {each['input']!r})"
            for each in error.errors()
        ]
        raise ConfigError("; ".join(problems)) from None
