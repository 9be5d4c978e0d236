"""Python types as JSON schema, and a model's arguments checked against it.

Only what a small model can be taught to fill in: texts, numbers, yes or no, one of a few values, and lists of those.
The texts of the errors raised here are read by a model (wrong arguments) or by the author of a tool (wrong type).
"""

from __future__ import annotations

import difflib
import inspect
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence

from pydantic import ConfigDict, TypeAdapter

from seekling.errors import ConfigError, ToolError
from seekling.types import Json

JsonSchema = Mapping[str, Json]

_JSON_NAMES: Mapping[object, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_PYTHON_NAMES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_SCALARS: Mapping[str, TypeAdapter[str | int | float | bool]] = {
    "string": TypeAdapter(str, config=ConfigDict(coerce_numbers_to_str=True)),
    "integer": TypeAdapter(int),
    "number": TypeAdapter(float),
    "boolean": TypeAdapter(bool),
}
_SUPPORTED = "str, int, float, bool, Literal[...], list[...] of these, or one of them | None"


def schema_of_function(function: Callable[..., object], descriptions: Mapping[str, str]) -> dict[str, Json]:
    """Describe a tool's parameters as a JSON schema of type object, in their order; `descriptions` may lack some.

    Raises:
        ConfigError: a type hint is missing or not supported, or a parameter cannot be given by name.
    """
    tool = f"tool {function.__name__!r}"
    try:
        hints = typing.get_type_hints(function)
    except NameError as error:
        raise ConfigError(f"{tool}: {error} in a type hint; define or import the type") from None
    properties: dict[str, Json] = {}
    required: list[Json] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"{tool}: parameter {parameter} cannot be given by name; give it a plain name")
        if parameter.name not in hints:
            raise ConfigError(f"{tool}: parameter {parameter.name!r} has no type hint; expected {_SUPPORTED}")
        schema = _schema_of_type(hints[parameter.name], where=f"{tool}, parameter {parameter.name!r}")
        if parameter.name in descriptions:
            schema["description"] = descriptions[parameter.name]
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif parameter.default is not None:
            schema["default"] = parameter.default
        properties[parameter.name] = schema
    return {"type": "object", "properties": properties, "required": required}


def properties_of(parameters: JsonSchema) -> dict[str, dict[str, Json]]:
    """The schema of each parameter by name, in order."""
    return typing.cast("dict[str, dict[str, Json]]", parameters.get("properties", {}))


def check_arguments(name: str, parameters: JsonSchema, arguments: object) -> dict[str, Json]:
    """Check a call's arguments, and convert what is only written differently ("3" for 3, a text for a list of one).

    Parameters that were left out stay out.

    Raises:
        ToolError: one sentence per problem: missing, unknown, or of the wrong type.
    """
    properties = properties_of(parameters)
    if not isinstance(arguments, dict):
        got = _show(arguments)
        raise ToolError(f"the arguments of {name} must be a JSON object with {_names(properties)}, got {got}")
    problems = [f"{each} is missing" for each in _required(parameters) if each not in arguments]
    checked: dict[str, Json] = {}
    for key, value in arguments.items():
        if key not in properties:
            near = difflib.get_close_matches(str(key), properties, n=1, cutoff=0.6)
            hint = f"; did you mean {near[0]}?" if near else f"; it takes {_names(properties)}"
            problems.append(f"{name} has no parameter {key}{hint}")
            continue
        try:
            checked[key] = _convert(value, properties[key])
        except ValueError:
            problems.append(f"{key} must be {type_name(properties[key])}, got {_show(value)}")
    if problems:
        raise ToolError(f"wrong arguments for {name}: " + ". ".join(problems))
    return checked


def bind_arguments(
    name: str, parameters: JsonSchema, positional: Sequence[object], named: Mapping[str, object]
) -> dict[str, object]:
    """Give positional arguments their names, as Python does.

    Raises:
        ToolError: too many arguments, or one is given twice.
    """
    names = list(properties_of(parameters))
    if len(positional) > len(names):
        raise ToolError(f"{name} takes {_names(names)}, got {len(positional)} arguments")
    bound: dict[str, object] = dict(zip(names, positional, strict=False))
    if twice := sorted(bound.keys() & named.keys()):
        raise ToolError(f"{name} got {', '.join(twice)} twice")
    return {**bound, **named}


def type_name(schema: JsonSchema) -> str:
    """How a parameter's type is told to a model: in Python's words."""
    choices = schema.get("enum")
    if isinstance(choices, list):
        return " or ".join(json.dumps(each, ensure_ascii=False) for each in choices)
    kind = schema["type"]
    if isinstance(kind, list):
        return " or ".join(type_name({**schema, "type": each}) for each in kind)
    if kind == "array":
        return f"list[{type_name(typing.cast(JsonSchema, schema['items']))}]"
    return _PYTHON_NAMES.get(str(kind), str(kind))


def signature(name: str, parameters: JsonSchema) -> str:
    """A call as Python shows it, such as `look_up(word, limit: int = 3)`; texts are left unmarked to save tokens."""
    required = _required(parameters)
    parts = []
    for key, schema in properties_of(parameters).items():
        part = key if schema.get("type") == "string" and "enum" not in schema else f"{key}: {type_name(schema)}"
        parts.append(part if key in required else f"{part} = {schema.get('default')!r}")
    return f"{name}({', '.join(parts)})"


def _required(parameters: JsonSchema) -> list[str]:
    return typing.cast("list[str]", parameters.get("required", []))


def _schema_of_type(annotation: object, *, where: str) -> dict[str, Json]:
    if annotation in _JSON_NAMES:
        return {"type": _JSON_NAMES[annotation]}
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is list and len(arguments) == 1:
        return {"type": "array", "items": _schema_of_type(arguments[0], where=where)}
    if origin is typing.Literal and len({type(each) for each in arguments}) == 1 and type(arguments[0]) in _JSON_NAMES:
        return {"type": _JSON_NAMES[type(arguments[0])], "enum": list(arguments)}
    if origin in (typing.Union, types.UnionType) and types.NoneType in arguments and len(arguments) == 2:
        inner = next(each for each in arguments if each is not types.NoneType)
        schema = _schema_of_type(inner, where=where)
        schema["type"] = [schema["type"], "null"]
        if "enum" in schema:
            schema["enum"] = [*typing.cast("list[Json]", schema["enum"]), None]
        return schema
    raise ConfigError(f"{where}: type {annotation!r} is not supported; expected {_SUPPORTED}")


def _convert(value: object, schema: JsonSchema) -> Json:
    """The value as the schema has it; ValueError: it is something else."""
    kind = schema["type"]
    if isinstance(kind, list):
        if value is None:
            return None
        kind = kind[0]
    if kind == "array":
        items = typing.cast(JsonSchema, schema["items"])
        return [_convert(each, items) for each in (value if isinstance(value, list | tuple) else [value])]
    if isinstance(value, bool) and kind != "boolean":
        raise ValueError
    converted = _SCALARS[str(kind)].validate_python(value)
    if "enum" in schema and converted not in typing.cast("list[Json]", schema["enum"]):
        raise ValueError
    return converted


def _names(names: Mapping[str, object] | Sequence[str]) -> str:
    return ", ".join(names) or "no arguments"


def _show(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
