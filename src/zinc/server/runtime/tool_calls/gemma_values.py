"""Grammar rules for argument values in Gemma 4's notation.

It is JSON with `<|"|>` as the quote and bare keys: {key:<|"|>text<|"|>,other:[1,2]}. Keywords of a
schema that the rules cannot express are dropped with `SchemaRules.drop`, which refuses them for a
strict tool.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, TypeAlias

from zinc.grammar.schema.rules import SchemaRules
from zinc.server.runtime.tool_calls.marks import Marks, literal

Schema: TypeAlias = Any  # a mapping, or true or false

_BARE_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_SCALARS = ("number", "integer", "boolean", "null")
_MAX_COUNT = 10_000

# Keywords that allow or forbid nothing. `then` and `else` only act with `if`, which is dropped.
_ANNOTATIONS = frozenset(
    ("$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default",
     "examples", "deprecated", "readOnly", "writeOnly", "strict", "then", "else")
)  # fmt: skip
# The keywords that GemmaValues expresses, by type.
_READ = {
    "string": {"minLength", "maxLength", "pattern", "format"},
    "array": {"items", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}


class GemmaValues:
    """Builder of grammar rules for values, collected in `rules`.

    prefix: the beginning of the names of rules. root: the schema that references are resolved in.
    schema_rules: where keywords that cannot be expressed are dropped.
    """

    QUOTE = '<|"|>'

    def __init__(
        self, prefix: str, root: Mapping[str, Any], marks: Marks, schema_rules: SchemaRules
    ) -> None:
        self.rules: list[str] = []
        self._schema_rules = schema_rules
        self._prefix, self._root, self._marks = prefix, root, marks
        self._quote = marks(self.QUOTE)
        self._n_rules = 0
        self._made: dict[str, str] = {}  # names of shared rules: by reference, "any" and "object"

    def value(self, schema: Schema) -> str:
        """Return the name of a rule for the values of `schema`: any value if it says nothing."""
        if not isinstance(schema, Mapping):
            return self._any()
        if isinstance(reference := schema.get("$ref"), str):
            self._drop_unread(schema, {"$ref"})
            return self._reference(reference)
        choices = _choices(schema)
        if isinstance(choices, Sequence) and choices:
            self._drop_unread(schema, {"const", "enum", "type"})
            return self._rule(" | ".join(self._written(choice) for choice in choices))
        for key in ("anyOf", "oneOf", "allOf"):
            parts = schema.get(key)
            if isinstance(parts, Sequence) and parts and (key != "allOf" or len(parts) == 1):
                self._drop_unread(schema, {key})
                if key == "oneOf" and len(parts) > 1:
                    self._schema_rules.drop("oneOf", "is not supported in this model's calls")
                return self._rule(" | ".join(self.value(part) for part in parts))
        kind = schema.get("type")
        if isinstance(kind, Sequence) and not isinstance(kind, str) and kind:
            return self._rule(" | ".join(self.value({**schema, "type": each}) for each in kind))
        if kind != "object":  # `object_of` drops its own
            read = _READ.get("number" if kind == "integer" else str(kind), set())
            self._drop_unread(schema, {"type", *read})
        if kind == "string":
            return self._text(schema)
        if kind in _SCALARS:
            return self._scalar(schema)
        if kind == "array":
            return self._array(schema)
        if kind == "object":
            return self.object_of(schema)
        return self._any()

    def object_of(self, schema: Mapping[str, Any]) -> str:
        """Return the name of a rule for an object with its members in the order of the schema.

        Members that are not required are optional.
        """
        self._drop_unread(schema, {"type", *_READ["object"]})
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            if schema.get("additionalProperties") is False or "properties" in schema:
                return self._rule(literal("{}"))
            return self._free_object()
        required = set(schema.get("required") or ())
        # Backwards from the last member. `after`: the rest of the object after another member,
        # which begins with a comma. `first`: the rest when no member has been written yet.
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

    def _drop_unread(self, schema: Mapping[str, Any], read: Set[str]) -> None:
        """Drop the keywords of `schema` that are neither in `read` nor annotations."""
        for keyword in schema:
            if keyword not in read and keyword not in _ANNOTATIONS:
                self._schema_rules.drop(keyword, "is not supported in this model's calls")

    def _scalar(self, schema: Mapping[str, Any]) -> str:
        made = self._part(schema).json(self._new_name())
        self.rules += made.lines
        return made.start

    def _part(self, schema: Mapping[str, Any]) -> SchemaRules:
        """Return rules for the scalar `schema` that drop keywords into the same list."""
        return self._schema_rules.sharing(schema)

    def _rule(self, body: str) -> str:
        name = self._new_name()
        self.rules.append(f"{name}: {body}")
        return name

    def _new_name(self) -> str:
        self._n_rules += 1
        return f"{self._prefix}_{self._n_rules}"

    def _reference(self, reference: str) -> str:
        if reference not in self._made:
            # The name comes first: the definition may refer to itself.
            self._made[reference] = name = self._new_name()
            self.rules.append(f"{name}: {self.value(_resolve(self._root, reference))}")
        return self._made[reference]

    def _key(self, key: str) -> str:
        if _BARE_KEY.fullmatch(key):
            return literal(key)
        return f"{self._quote} {literal(key)} {self._quote}"

    def _text(self, schema: Mapping[str, Any]) -> str:
        pattern = self._part({**schema, "type": "string"}).text()
        text, rules = self._marks.text_to(self._new_name(), self.QUOTE, pattern)
        self.rules += rules
        return self._rule(f"{self._quote} {text}")

    def _array(self, schema: Mapping[str, Any]) -> str:
        item = self.value(schema.get("items"))
        least, most = _count(schema, "minItems") or 0, _count(schema, "maxItems")
        if most == 0:
            return self._rule(literal("[]"))
        times = f"{{{max(0, least - 1)},{'' if most is None else most - 1}}}"
        items = f"{item} ({literal(',')} {item}){times}"
        inside = items if least else f"({items})?"
        return self._rule(f"{literal('[')} {inside} {literal(']')}")

    def _any(self) -> str:
        if "any" not in self._made:
            self._made["any"] = name = self._new_name()
            scalar = self._scalar({"type": ["number", "boolean", "null"]})
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
        """Return the symbols of one constant value."""
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


def _count(schema: Mapping[str, Any], key: str) -> int | None:
    """Return the length limit `key` of a schema, or None if a grammar cannot enforce it."""
    value = schema.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value <= _MAX_COUNT else None


def _choices(schema: Mapping[str, Any]) -> Any:
    """Return the constant values that a schema allows, or None if it lists none."""
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _resolve(root: Mapping[str, Any], reference: str) -> Schema:
    """Return the part of the schema `root` that a JSON pointer (RFC 6901) names.

    True, the schema of any value, if there is no such part.
    """
    found: Any = root
    if not reference.startswith("#"):
        return True
    for part in reference.removeprefix("#").split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or key not in found:
            return True
        found = found[key]
    return found
