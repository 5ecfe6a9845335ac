"""JSON Schema documents: subschemas and the targets of references.

Size, depth and numbers of a document are checked once. References are resolved within the document
by base URI (RFC 3986), JSON pointer (RFC 6901) and anchor; nothing is fetched.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, TypeAlias
from urllib.parse import unquote, urldefrag, urljoin

from zinc.core.dataclass import dataclass
from zinc.core.errors import RequestError, with_article

Json: TypeAlias = Any

MAX_NODES = 100_000
MAX_DEPTH = 120
MAX_DIGITS = 400  # of a number, written without an exponent
MAX_SIGNIFICANT = 60

DRAFT_2020 = 2020
_DRAFTS = {
    "json-schema.org/draft-04/schema": 4,
    "json-schema.org/draft-06/schema": 6,
    "json-schema.org/draft-07/schema": 7,
    "json-schema.org/draft/2019-09/schema": 2019,
    "json-schema.org/draft/2020-12/schema": DRAFT_2020,
    "json-schema.org/schema": DRAFT_2020,
}

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas",
         "dependencies")  # fmt: skip
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLE = ("items", "additionalItems", "additionalProperties", "not", "if", "then", "else",
           "contains", "propertyNames", "unevaluatedItems", "unevaluatedProperties",
           "contentSchema")  # fmt: skip


class SchemaError(RequestError):
    """A schema is not valid, or `keyword` is not supported."""

    def __init__(self, why: str, path: str = "", keyword: str = "") -> None:
        self.keyword = keyword
        where = f" (at {path})" if path not in ("", "#") else ""
        super().__init__("the JSON schema cannot be followed", f"{why}{where}")


@dataclass(frozen=True, slots=True, eq=False)
class Located:
    """A subschema with the base URI of its references and its JSON pointer (for messages)."""

    schema: Json
    base: str
    path: str


def checked(value: Json) -> Json:
    """Return a copy of JSON data with exact numbers: int if integral, else Decimal.

    Raises SchemaError for data that is not JSON, or too large.
    """
    n_nodes = 0

    def copy(value: Json, depth: int) -> Json:
        nonlocal n_nodes
        n_nodes += 1
        if n_nodes > MAX_NODES:
            raise SchemaError(f"it has more than {MAX_NODES:,} values")
        if depth > MAX_DEPTH:
            raise SchemaError(f"it is nested deeper than {MAX_DEPTH}")
        match value:
            case None | bool():
                return value
            case str():
                return _checked_text(value)
            case int() | float() | Decimal():
                return checked_number(value)
            case Mapping():
                return {_checked_text(key): copy(each, depth + 1) for key, each in value.items()}
            case list() | tuple():
                return [copy(each, depth + 1) for each in value]
        raise SchemaError(f"it contains {with_article(value)}, which is not JSON")

    return copy(value, 0)


def _checked_text(text: object) -> str:
    if not isinstance(text, str):
        raise SchemaError("a key is not a string")
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        raise SchemaError("a string has an unpaired surrogate")
    return str(text)


def checked_number(value: float | Decimal) -> int | Decimal:
    """Return the exact value of a number: an int if integral, else a Decimal.

    A float has the value of its shortest decimal form.
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            raise SchemaError("a number is infinite or NaN")
        value = Decimal(repr(value))
    if isinstance(value, int):
        if value.bit_length() > MAX_DIGITS * 4:
            raise SchemaError("a number has too many digits")
        value = Decimal(value)
    if not value.is_finite():
        raise SchemaError("a number is infinite or NaN")
    if value == 0:
        return 0
    # Remove trailing zeros by hand, since `normalize` would round.
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).lstrip("0")
    short = text.rstrip("0")
    exponent += len(text) - len(short)
    if len(short) > MAX_SIGNIFICANT or max(len(short) + exponent, -exponent) > MAX_DIGITS:
        raise SchemaError("a number has too many digits")
    if exponent >= 0:
        whole: int = int(short) * 10**exponent
        return -whole if sign else whole
    return Decimal((sign, tuple(map(int, short)), exponent))


def load(text: str) -> Json:
    """Return the JSON data of a text with exact numbers. Raises SchemaError."""
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=Decimal)
    except RecursionError:
        raise SchemaError(f"it is nested deeper than {MAX_DEPTH}") from None
    except ValueError as error:
        raise SchemaError(f"it is not JSON: {error}") from None
    except ArithmeticError:
        raise SchemaError("a number has too many digits") from None


class Document:
    """A schema with an index of its subschemas; `root` is the whole. Raises SchemaError."""

    def __init__(self, schema: Json) -> None:
        schema = checked(schema)
        if not isinstance(schema, dict | bool):
            raise SchemaError("a schema is an object, or true or false")
        self.draft = _draft(schema)
        self._id = "id" if self.draft == 4 else "$id"
        self._located: dict[tuple[int, str], Located] = {}
        self._resources: dict[str, Json] = {}
        self._anchors: dict[tuple[str, str], Located] = {}
        self._dynamic: dict[str, int] = {}
        self._bases: dict[int, tuple[Json, str, str]] = {}
        self._index(schema)
        base = self._bases[id(schema)][1] if isinstance(schema, dict) else ""
        self.root = self.at(schema, base, "#")

    def at(self, schema: Json, base: str, path: str) -> Located:
        """Return the `Located` of a subschema, the same object at each call."""
        if isinstance(schema, dict) and id(schema) in self._bases:
            _, base, path = self._bases[id(schema)]
        if not isinstance(schema, dict | bool):
            raise SchemaError("a schema is an object, or true or false", path)
        key = (id(schema), base) if isinstance(schema, dict) else (int(schema), "")
        if key not in self._located:
            self._located[key] = Located(schema, base, path)
        return self._located[key]

    def child(self, parent: Located, *keys: str | int) -> Located:
        """Return the subschema of `parent` at a path of keys."""
        found = parent.schema
        for key in keys:
            found = found[key]
        return self.at(found, parent.base, _joined(parent.path, *keys))

    def resolve(self, parent: Located, reference: str) -> Located:
        """Return the subschema that a `$ref` in `parent` names."""
        uri, fragment = urldefrag(_join(parent.base, reference))
        if uri not in self._resources:
            raise SchemaError(f"{reference[:80]!r} refers outside the schema", parent.path, "$ref")
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            anchor = self._anchors.get((uri, fragment))
            if anchor is None:
                raise SchemaError(f"{reference[:80]!r} is not in the schema", parent.path, "$ref")
            return anchor
        found, base, path = self._resources[uri], uri, "#"
        for part in fragment.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and key in found:
                found = found[key]
            elif isinstance(found, list) and key.isascii() and key.isdigit() and len(key) < 9 \
                    and int(key) < len(found):  # fmt: skip
                found = found[int(key)]
            else:
                raise SchemaError(f"{reference[:80]!r} is not in the schema", parent.path, "$ref")
            path = _joined(path, key)
            if isinstance(found, dict) and id(found) in self._bases:
                base = self._bases[id(found)][1]
        return self.at(found, base, path)

    def resolve_dynamic(self, parent: Located, reference: str) -> Located:
        """Return the target of a `$dynamicRef`.

        Raises SchemaError if the target could depend on the dynamic scope.
        """
        found = self.resolve(parent, reference)
        name = isinstance(found.schema, dict) and found.schema.get("$dynamicAnchor")
        if isinstance(name, str) and reference.endswith(f"#{name}") and self._dynamic[name] > 1:
            raise SchemaError(
                f"$dynamicRef is not supported with several anchors {name[:40]!r}",
                parent.path,
                "$dynamicRef",
            )
        return found

    def resolve_recursive(self, parent: Located) -> Located:
        """Return the target of `"$recursiveRef": "#"`.

        Raises SchemaError if the target could depend on the dynamic scope.
        """
        if self._dynamic.get("$recursiveAnchor"):
            raise SchemaError("$recursiveAnchor is not supported", parent.path, "$recursiveRef")
        return self.resolve(parent, "#")

    def _index(self, root: Json) -> None:
        self._resources[""] = root
        stack: list[tuple[Json, str, str]] = [(root, "", "#")]
        while stack:
            schema, base, path = stack.pop()
            if not isinstance(schema, dict) or id(schema) in self._bases:
                continue
            base = self._enter(schema, base, path, root)
            self._bases[id(schema)] = (schema, base, path)
            located = self.at(schema, base, path)
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(name := schema.get(keyword), str):
                    self._anchors[base, name] = located
            if isinstance(name := schema.get("$dynamicAnchor"), str):
                self._dynamic[name] = self._dynamic.get(name, 0) + 1
            if schema.get("$recursiveAnchor") is True:
                self._dynamic["$recursiveAnchor"] = 1
            stack += [(each, base, _joined(path, *keys)) for keys, each in _subschemas(schema)]

    def _enter(self, schema: dict[str, Json], base: str, path: str, root: Json) -> str:
        """Register the `$id` of a schema; return the base URI within it."""
        if schema is not root and "$schema" in schema and _draft(schema) != self.draft:
            raise SchemaError("$schema of another draft is not supported here", path, "$schema")
        own = schema.get(self._id)
        if not isinstance(own, str) or (self.draft <= 7 and "$ref" in schema):
            return base
        uri, fragment = urldefrag(_join(base, own))
        if fragment and self.draft <= 7:
            self._anchors[uri, fragment] = self.at(schema, uri, path)
        if own.startswith("#"):
            return base
        self._resources.setdefault(uri, schema)
        return uri


def _draft(schema: Json) -> int:
    uri = schema.get("$schema") if isinstance(schema, dict) else None
    if uri is None:
        return DRAFT_2020
    if isinstance(uri, str):
        name = uri.removeprefix("http://").removeprefix("https://").removesuffix("#")
        if name in _DRAFTS:
            return _DRAFTS[name]
    raise SchemaError(f"the dialect {str(uri)[:80]!r} is not supported", keyword="$schema")


def _join(base: str, reference: str) -> str:
    if reference.startswith("#"):
        return base + reference
    if base.startswith("urn:"):
        return reference
    try:
        return urljoin(base, reference)
    except ValueError:
        raise SchemaError(f"{reference[:80]!r} is not a URI", keyword="$ref") from None


def _joined(path: str, *keys: str | int) -> str:
    for key in keys:
        path += "/" + str(key).replace("~", "~0").replace("/", "~1")[:60]
    return path


def _subschemas(schema: dict[str, Json]) -> Iterator[tuple[tuple[str | int, ...], Json]]:
    for keyword in _MAPS:
        if isinstance(value := schema.get(keyword), dict):
            yield from (((keyword, key), each) for key, each in value.items())
    for keyword in _LISTS:
        if isinstance(value := schema.get(keyword), list):
            yield from (((keyword, i), each) for i, each in enumerate(value))
    for keyword in _SINGLE:
        if isinstance(value := schema.get(keyword), dict):
            yield (keyword,), value
