"""Values of arguments in grammars of forced calls, where they are not one JSON object.

Two notations: values between tags, as text or JSON (Qwen 3 Coder, GLM), and Gemma 4's objects,
which are JSON with other quotes and bare keys. Keywords that a notation cannot express are dropped
from the grammar by `SchemaRules.drop`, which refuses them for a tool that is strict.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, TypeAlias

from zinc.grammar.schema.rules import SchemaRules
from zinc.tokenizer import Tokenizer

Schema: TypeAlias = Any  # a mapping, or true or false

_BARE_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_SCALARS = ("number", "integer", "boolean", "null")
_MAX_COUNT = 10_000

# Of no effect by themselves; `then` and `else` count with `if`.
_ANNOTATIONS = frozenset(
    ("$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default",
     "examples", "deprecated", "readOnly", "writeOnly", "strict", "then", "else")
)  # fmt: skip
# Keywords about an object as a whole.
_VALIDATION = frozenset(
    ("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "const", "enum",
     "minProperties", "maxProperties", "propertyNames", "dependentRequired", "dependentSchemas",
     "dependencies")
)  # fmt: skip
# What GemmaValues reads, by type.
_READ = {
    "string": {"minLength", "maxLength", "pattern", "format"},
    "array": {"items", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}


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


def drop_unwritten(parameters: Mapping[str, Any], rules: SchemaRules) -> None:
    """Drop keywords of a tool's parameters that do not speak of single properties."""
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
    """Return rules of the parameter `key` between tags: text as it stands, other values as JSON.

    The list is empty if the schema allows no value.
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
            # Text that spells a number is read as one.
            rules.drop("type", f"of {key[:40]!r} mixes text with other types")
    if others and not (options and rules.is_any(*at)):
        json = rules.json(f"{name}_json", *at, kinds=others)
        options.append(f"{head} {json.start} {marks.split(close)}")
        made += json.lines
    return [f"{name}: {' | '.join(options)}", *made]


def _text(name: str, pattern: str, close: str, marks: Marks) -> tuple[str, list[str]]:
    """Text up to a closing tag: what refers to both, and the rules."""
    marker, _, rest = close.partition(">")
    if marks.has(marker + ">"):
        text, rules = marks.text_to(name, marker + ">", pattern)
        return f"{text} {literal(rest)}", rules
    # To the first tag that ends a line of its own.
    return marks.text_to(name, close, pattern)


class GemmaValues:
    """Rules of values in Gemma 4's notation; `rules` grows with each value asked for.

    {key:<|"|>text<|"|>,other:[1,2]}: `prefix` begins the names of rules, `root` is the schema that
    references are looked up in. Keywords that are not read are dropped from `schema_rules`.
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
        self._made: dict[str, str] = {}  # rules of references, and of what is shared

    def value(self, schema: Schema) -> str:
        """The name of a rule for what a schema allows; what it cannot express is any value."""
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
        if kind != "object":  # `object_of` looks at its own
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
        """Members in the order of the schema; those that are not required may be left out."""
        self._drop_unread(schema, {"type", *_READ["object"]})
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

    def _drop_unread(self, schema: Mapping[str, Any], read: Set[str]) -> None:
        """Drop the keywords that are neither read nor annotations."""
        for keyword in schema:
            if keyword not in read and keyword not in _ANNOTATIONS:
                self._schema_rules.drop(keyword, "is not supported in this model's calls")

    def _scalar(self, schema: Mapping[str, Any]) -> str:
        made = self._part(schema).json(self._new_name())
        self.rules += made.lines
        return made.start

    def _part(self, schema: Mapping[str, Any]) -> SchemaRules:
        """Rules of one scalar, which drop keywords as those of the whole schema do."""
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
            # Named before it is made, since what it refers to may contain it.
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


def _count(schema: Mapping[str, Any], key: str) -> int | None:
    """A bound on lengths, where it is one that a grammar can hold."""
    value = schema.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value <= _MAX_COUNT else None


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
