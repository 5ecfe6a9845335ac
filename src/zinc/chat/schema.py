"""The tools of a request for parsers: their names and the types of their parameters.

In formats without quotes, the type of a value is ambiguous: `<parameter=zip>01234` can be text or a
number. The tool's JSON schema decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zinc.chat.json_text import parsed, quoted

_PYTHON_LITERALS = {"True": "true", "False": "false", "None": "null"}


class Tools:
    """Tools by name. Each has the form of OpenAI, its inner `function`, or Anthropic."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self._schemas: dict[str, Mapping[str, Any]] = {}
        for tool in tools:
            inner = tool.get("function")
            function = inner if isinstance(inner, Mapping) else tool
            schema = function.get("parameters") or function.get("input_schema")
            if isinstance(name := function.get("name"), str):
                self._schemas[name] = schema if isinstance(schema, Mapping) else {}

    def __contains__(self, name: str) -> bool:
        return name in self._schemas

    def parameters(self, name: str) -> list[str]:
        """Return the names of a tool's parameters, in the order of its schema."""
        return list(_mapping(self._schemas.get(name, {}).get("properties")))

    def types(self, name: str, parameter: str) -> frozenset[str]:
        """Return the JSON types of a parameter; empty if the schema does not say."""
        root = self._schemas.get(name, {})
        schema = _mapping(root.get("properties")).get(parameter, root.get("additionalProperties"))
        return _types(schema, root, set())


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _types(schema: object, root: Mapping[str, Any], seen: set[str]) -> frozenset[str]:
    """Return the JSON types that `schema` allows.

    seen: the references followed so far; none is followed twice.
    """
    schema = _mapping(schema)
    if isinstance(kind := schema.get("type"), str):
        return frozenset({kind})
    if isinstance(kind, Sequence):
        return frozenset(item for item in kind if isinstance(item, str))
    if isinstance(values := schema.get("enum"), Sequence):
        return frozenset(_type(value) for value in values)
    if "const" in schema:
        return frozenset({_type(schema["const"])})
    if isinstance(reference := schema.get("$ref"), str) and reference not in seen:
        seen.add(reference)
        target: object = root
        for key in reference.removeprefix("#/").split("/"):
            target = _mapping(target).get(key.replace("~1", "/").replace("~0", "~"))
        return _types(target, root, seen)
    for choice in ("anyOf", "oneOf", "allOf"):
        if isinstance(options := schema.get(choice), Sequence):
            found = [_types(option, root, seen) for option in options]
            return frozenset().union(*found) if all(found) else frozenset()
    return frozenset()


def _type(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case Mapping():
            return "object"
    return "array"


def typed(text: str, types: frozenset[str]) -> str:
    """Return a value that a model wrote without quotes, as JSON text.

    It is a string unless its text is a value of another type in `types`; if `types` is empty, of
    any other type.
    """
    if types == {"string"}:
        return quoted(text)
    plain = text.strip()
    plain = _PYTHON_LITERALS.get(plain, plain)
    try:
        kind = _type(parsed(plain))
    except ValueError:
        return quoted(text)
    if kind == "string":
        # The model wrote quotes: a JSON string, unless the parameter is text with quotes.
        return plain if types and "string" not in types else quoted(text)
    fits = kind in types or (kind == "integer" and "number" in types)
    whole = kind == "number" and "integer" in types and float(plain).is_integer()
    return plain if not types or fits or whole else quoted(text)
