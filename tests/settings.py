"""Settings of a recipe by their own names, for tests that care little in which sub-section each one is."""

from collections.abc import Mapping

from seekling.config import Recipe, RlConfig, Section, build_recipe


def nested(section: type[Section], settings: Mapping[str, object]) -> dict[str, object]:
    """Put settings where the section has them; a sub-section's name alone stands for its `kind`."""
    fields = section.model_fields
    subsections = {
        name: field.annotation
        for name, field in fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
    }
    placed: dict[str, object] = {}
    for name, value in settings.items():
        if name in subsections and isinstance(value, Mapping):
            placed.setdefault(name, {}).update(nested(subsections[name], value))
        elif name in subsections:
            placed.setdefault(name, {})["kind"] = value
        else:
            homes = [] if name in fields else [home for home, each in subsections.items() if name in each.model_fields]
            (placed.setdefault(homes[0], {}) if homes else placed)[name] = value
    return placed


def recipe_of(sections: Mapping[str, object]) -> Recipe:
    """A recipe of these sections."""
    return build_recipe(nested(Recipe, sections))


def rl_config(**settings: object) -> RlConfig:
    """The section `rl` with these settings."""
    return RlConfig.model_validate(nested(RlConfig, settings))
