"""Values of arguments in grammars of demanded calls, where they are not one JSON object.

Two notations: values between tags, as text or JSON (Qwen 3 Coder, GLM), and Gemma 4's objects,
which are JSON but for its quotes and bare keys. Text is held to its schema by text_patterns.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from zinc.server.text_patterns import count, text_pattern
from zinc.tokenizer import Tokenizer

Schema: TypeAlias = Any  # a mapping, or true or false

_BARE_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_DEFINITIONS = ("$defs", "definitions")
_SCALARS = ("number", "integer", "boolean", "null")


class Marks:
    """Markers as a grammar has them: a control token by its id, anything else as text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def has(self, marker: str) -> bool:
        """Whether the vocabulary has it as a control token."""
        return self._tokenizer.id_of(marker) in self._tokenizer.special_ids

    def __call__(self, marker: str) -> str:
        return f"<[{self._tokenizer.id_of(marker)}]>" if self.has(marker) else literal(marker)

    def split(self, text: str) -> str:
        """Text in which markers of the form <...> may stand."""
        parts = [part for part in re.split(r"(<[^<>]*>)", text) if part]
        return " ".join(self(part) for part in parts)

    def text_to(self, name: str, marker: str, pattern: str) -> tuple[str, list[str]]:
        """Text up to a marker: what refers to both, and the rules."""
        if self.has(marker):
            terminal = name.upper()  # only those have several expressions
            return f"{terminal} {self(marker)}", [f"{terminal}: {pattern}"]
        return name, [f"{name}[suffix={literal(marker)}]: {pattern}"]


def literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def json_value(schema: Schema, root: Mapping[str, Any]) -> str:
    """A value as JSON. Definitions of the whole schema go with it, as it may refer to them."""
    if isinstance(schema, Mapping):
        shared = {key: root[key] for key in _DEFINITIONS if key in root}
        schema = {**shared, **schema}
    return f"%json {json.dumps(schema)}"


def text_or_json(
    name: str, schema: Schema, root: Mapping[str, Any], open: str, close: str, marks: Marks
) -> list[str]:
    """Rules of a parameter between tags: text stands as it is, other values as JSON."""
    head, value = marks.split(open), f"{name}_value"
    is_text = isinstance(schema, Mapping) and schema.get("type") == "string"
    choices = _choices(schema) if is_text else None
    if choices and all(isinstance(choice, str) for choice in choices):
        return [f"{name}: {head} ({' | '.join(map(literal, choices))}) {marks.split(close)}"]
    if not is_text:
        rule = f"{value}: {json_value(schema, root)}"
        return [f"{name}: {head} {value} {marks.split(close)}", rule]
    marker, _, rest = close.partition(">")
    if marks.has(marker + ">"):
        text, rules = marks.text_to(value, marker + ">", text_pattern(schema))
        return [f"{name}: {head} {text} {literal(rest)}", *rules]
    # To the first tag that ends a line of its own.
    text, rules = marks.text_to(value, close, text_pattern(schema))
    return [f"{name}: {head} {text}", *rules]


class GemmaValues:
    """Rules of values in Gemma 4's notation; `rules` grows with each value asked for.

    {key:<|"|>text<|"|>,other:[1,2]}: `prefix` begins the names of rules, `root` is the schema that
    references are looked up in.
    """

    QUOTE = '<|"|>'

    def __init__(self, prefix: str, root: Mapping[str, Any], marks: Marks) -> None:
        self.rules: list[str] = []
        self._prefix, self._root, self._marks = prefix, root, marks
        self._quote = marks(self.QUOTE)
        self._n_rules = 0
        self._made: dict[str, str] = {}  # rules of references, and of what is shared

    def value(self, schema: Schema) -> str:
        """The name of a rule for what a schema allows; what it cannot express is any value."""
        if not isinstance(schema, Mapping):
            return self._any()
        if isinstance(reference := schema.get("$ref"), str):
            return self._reference(reference)
        choices = _choices(schema)
        if isinstance(choices, Sequence) and choices:
            return self._rule(" | ".join(self._written(choice) for choice in choices))
        for key in ("anyOf", "oneOf", "allOf"):
            parts = schema.get(key)
            if isinstance(parts, Sequence) and parts and (key != "allOf" or len(parts) == 1):
                return self._rule(" | ".join(self.value(part) for part in parts))
        kind = schema.get("type")
        if isinstance(kind, Sequence) and not isinstance(kind, str) and kind:
            return self._rule(" | ".join(self.value({**schema, "type": each}) for each in kind))
        if kind == "string":
            return self._text(schema)
        if kind in _SCALARS:
            return self._rule(json_value(schema, {}))
        if kind == "array":
            return self._array(schema)
        if kind == "object":
            return self.object_of(schema)
        return self._any()

    def object_of(self, schema: Mapping[str, Any]) -> str:
        """Members in the order of the schema; those that are not required may be left out."""
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            if schema.get("additionalProperties") is False or "properties" in schema:
                return self._rule(literal("{}"))
            return self._free_object()
        required = set(schema.get("required") or ())
        # From the last one: what may follow when a member went before, and when none did.
        after, first = self._rule(literal("}")), self._rule(literal("}"))
        for key, each in reversed(list(properties.items())):
            member = f"{self._key(key)} {literal(':')} {self.value(each)}"
            rest = f"{literal(',')} {member} {after}"
            begin = f"{member} {after}"
            after, first = (
                self._rule(rest if key in required else f"{rest} | {after}"),
                self._rule(begin if key in required else f"{begin} | {first}"),
            )
        return self._rule(f"{literal('{')} {first}")

    # -- within -----------------------------------------------------------------------------------

    def _rule(self, body: str) -> str:
        name = self._new_name()
        self.rules.append(f"{name}: {body}")
        return name

    def _new_name(self) -> str:
        self._n_rules += 1
        return f"{self._prefix}_{self._n_rules}"

    def _reference(self, reference: str) -> str:
        if reference not in self._made:
            # Named before it is made, since what it refers to may contain it.
            self._made[reference] = name = self._new_name()
            self.rules.append(f"{name}: {self.value(_resolve(self._root, reference))}")
        return self._made[reference]

    def _key(self, key: str) -> str:
        if _BARE_KEY.fullmatch(key):
            return literal(key)
        return f"{self._quote} {literal(key)} {self._quote}"

    def _text(self, schema: Mapping[str, Any]) -> str:
        text, rules = self._marks.text_to(self._new_name(), self.QUOTE, text_pattern(schema))
        self.rules += rules
        return self._rule(f"{self._quote} {text}")

    def _array(self, schema: Mapping[str, Any]) -> str:
        item = self.value(schema.get("items"))
        least, most = count(schema, "minItems") or 0, count(schema, "maxItems")
        if most == 0:
            return self._rule(literal("[]"))
        times = f"{{{max(0, least - 1)},{'' if most is None else most - 1}}}"
        items = f"{item} ({literal(',')} {item}){times}"
        inside = items if least else f"({items})?"
        return self._rule(f"{literal('[')} {inside} {literal(']')}")

    def _any(self) -> str:
        if "any" not in self._made:
            self._made["any"] = name = self._new_name()
            scalar = self._rule('%json {"type": ["number", "boolean", "null"]}')
            text, list_, object_ = self._text({}), self._array({}), self._free_object()
            self.rules.append(f"{name}: {text} | {scalar} | {list_} | {object_}")
        return self._made["any"]

    def _free_object(self) -> str:
        if "object" not in self._made:
            self._made["object"] = name = self._new_name()
            member = self._rule(f"/{_BARE_KEY.pattern}/ {literal(':')} {self._any()}")
            members = f"({member} ({literal(',')} {member})*)?"
            self.rules.append(f"{name}: {literal('{')} {members} {literal('}')}")
        return self._made["object"]

    def _written(self, value: Any) -> str:
        """A value as it is, in this notation."""
        match value:
            case str():
                return (
                    f"{self._quote} {literal(value)} {self._quote}"
                    if value
                    else (f"{self._quote} {self._quote}")
                )
            case list():
                return self._joined("[", (self._written(each) for each in value), "]")
            case dict():
                members = (f"{self._key(k)} {literal(':')} {self._written(v)}"
                           for k, v in value.items())  # fmt: skip
                return self._joined("{", members, "}")
            case _:
                return literal(json.dumps(value))

    def _joined(self, open: str, parts: Iterable[str], close: str) -> str:
        inside = f" {literal(',')} ".join(parts)
        return " ".join(part for part in (literal(open), inside, literal(close)) if part)


def _choices(schema: Mapping[str, Any]) -> Any:
    """The values that a schema lists, or None."""
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _resolve(root: Mapping[str, Any], reference: str) -> Schema:
    """What a reference within the schema names (RFC 6901); anything else is any value."""
    found: Any = root
    if not reference.startswith("#"):
        return True
    for part in reference.removeprefix("#").split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or key not in found:
            return True
        found = found[key]
    return found
