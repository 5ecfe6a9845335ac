"""Grammar rules for argument values between tags, as text or JSON (Qwen 3 Coder, GLM)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zinc.grammar.schema.rules import SchemaRules
from zinc.server.runtime.tool_calls.marks import Marks, literal

# Keywords that concern a whole object.
_VALIDATION = frozenset(
    ("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "const", "enum",
     "minProperties", "maxProperties", "propertyNames", "dependentRequired", "dependentSchemas",
     "dependencies")
)  # fmt: skip


def drop_object_keywords(parameters: Mapping[str, Any], rules: SchemaRules) -> None:
    """Drop the keywords of a tool's parameters that concern more than one property."""
    for keyword in parameters:
        if keyword in _VALIDATION:
            rules.drop(keyword, "is not supported at the top of this model's calls")
    required = parameters.get("required")
    properties = parameters.get("properties")
    if isinstance(required, list) and isinstance(properties, Mapping):
        missing = [key for key in required if key not in properties]
        if missing:
            rules.drop("required", f"names {str(missing[0])[:40]!r}, which properties lacks")


def text_or_json(
    name: str, key: str, rules: SchemaRules, open: str, close: str, marks: Marks
) -> list[str]:
    """Return the rules of the argument `key` between the tags `open` and `close`.

    Strings are written as plain text, other values as JSON. The list is empty if the schema allows
    no value. name: the name of the first rule.
    """
    at = ("properties", key)
    kinds = rules.kinds(*at)
    if not kinds:
        return []
    head, others = marks.split(open), kinds - {"string"}
    options: list[str] = []
    made: list[str] = []
    if "string" in kinds:
        text, made = _text(f"{name}_value", rules.text(*at), close, marks)
        options.append(f"{head} {text}")
        if others - {"null"} and not rules.is_any(*at):
            # As plain text, the string "12" and the number 12 look the same.
            rules.drop("type", f"of {key[:40]!r} mixes text with other types")
    if others and not (options and rules.is_any(*at)):
        json = rules.json(f"{name}_json", *at, kinds=others)
        options.append(f"{head} {json.start} {marks.split(close)}")
        made += json.lines
    return [f"{name}: {' | '.join(options)}", *made]


def _text(name: str, pattern: str, close: str, marks: Marks) -> tuple[str, list[str]]:
    """Return symbols for text that ends with the tag `close`, and the rules they refer to."""
    marker, _, rest = close.partition(">")
    if marks.has(marker + ">"):
        text, rules = marks.text_to(name, marker + ">", pattern)
        return f"{text} {literal(rest)}", rules
    # The text ends at the first closing tag on a line of its own.
    return marks.text_to(name, close, pattern)
