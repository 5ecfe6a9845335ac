"""Keywords of a subschema that concern a single JSON type: `minimum`, `pattern`, `items`, ...

Every keyword of the schema's draft is followed exactly or refused. Keywords that no draft defines
are annotations and have no effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from decimal import Decimal
from fractions import Fraction
from typing import Any, NoReturn

from zinc.core.dataclass import dataclass
from zinc.grammar.pattern import terminals
from zinc.grammar.schema import formats
from zinc.grammar.schema.document import DRAFT_2020, Document, Located, SchemaError
from zinc.grammar.schema.numbers import Bound
from zinc.grammar.schema.values import (
    ANY,
    Alternative,
    Array,
    ArrayPart,
    Number,
    Object,
    ObjectPart,
    Text,
    Values,
    merged_numbers,
    type_of,
)

MAX_COUNT = 1 << 24  # characters or items; no answer is longer
MAX_LEAST = 1 << 16

_TYPES = ("null", "boolean", "string", "array", "object", "number", "integer")
_APPLICATORS = frozenset(
    ("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if", "then",
     "else", "dependentSchemas", "dependencies")
)  # fmt: skip


@dataclass(slots=True)
class KeywordPolicy:
    """Policy for keywords that zinc does not support.

    By default they raise SchemaError. If `lenient`, they are ignored and listed in `dropped`; the
    allowed values are then a superset of the schema's, and a finished value has to be checked.
    """

    lenient: bool = False
    dropped: dict[str, None] = field(default_factory=dict)

    def cannot(self, keyword: str, why: str = "is not supported", path: str = "#") -> None:
        """Raise SchemaError for a keyword at `path`, or list it in `dropped`."""
        if not self.lenient:
            raise SchemaError(f"{keyword} {why}", path, keyword)
        self.dropped[keyword] = None


class Keywords:
    """The keywords of one subschema. Methods raise SchemaError if a value is not valid."""

    def __init__(self, document: Document, located: Located, policy: KeywordPolicy) -> None:
        self._document = document
        self._located = located
        self._policy = policy
        self.schema: Any = located.schema

    def invalid(self, keyword: str, why: str) -> NoReturn:
        """Raise SchemaError for a keyword whose value is not valid."""
        raise SchemaError(f"{keyword} {why}", self._located.path, keyword)

    def cannot(self, keyword: str, why: str = "is not supported") -> None:
        """Raise SchemaError for a keyword, or list it as dropped."""
        self._policy.cannot(keyword, why, self._located.path)

    def types(self) -> Values:
        """Return the values that `type` allows."""
        kinds = self.schema.get("type")
        if kinds is None and "type" not in self.schema:
            return ANY
        listed = [kinds] if isinstance(kinds, str) else kinds
        if not isinstance(listed, list) or not all(
            isinstance(each, str) and each in _TYPES for each in listed
        ):
            names = ", ".join(_TYPES)
            self.invalid("type", f"must be one of {names}, or a list of these")
        found: dict[str, tuple[Alternative, ...]] = {}
        for each in listed:
            if each == "integer":
                found.setdefault("number", (Number(integer=True),))
            else:
                found[each] = ANY[each]
        return found

    def numbers(self) -> Number | None:
        """Return the numbers that the number keywords allow, or None without such keywords."""
        found: Number | None = None
        for keyword, is_low, is_open in (
            ("minimum", True, False), ("maximum", False, False),
            ("exclusiveMinimum", True, True), ("exclusiveMaximum", False, True),
        ):  # fmt: skip
            if keyword not in self.schema:
                continue
            value = self.schema[keyword]
            if self._document.draft == 4 and is_open:
                if not isinstance(value, bool):
                    self.invalid(keyword, "must be true or false in draft 4")
                keyword = keyword.removeprefix("exclusive").lower()
                if not value or keyword not in self.schema:
                    continue
                value = self.schema[keyword]
            if type_of(value) != "number":
                self.invalid(keyword, "must be a number")
            bound = Bound(Decimal(value), is_open)
            made = Number(low=bound) if is_low else Number(high=bound)
            found = made if found is None else merged_numbers(found, made)
        if "multipleOf" in self.schema:
            step = self.schema["multipleOf"]
            if type_of(step) != "number" or step <= 0:
                self.invalid("multipleOf", "must be a number above 0")
            made = Number(multiple_of=Fraction(step))
            found = made if found is None else merged_numbers(found, made)
        return found

    def _size(self, keyword: str) -> int | None:
        """Return a limit that must be an integer of at least 0, None if it is missing."""
        value = self.schema.get(keyword)
        if keyword not in self.schema:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            self.invalid(keyword, "must be an integer of at least 0")
        return int(value)

    def _sizes(self, least: str, most: str) -> tuple[int, int | None]:
        """Return the values of a pair of keywords, such as minItems and maxItems."""
        low, high = self._size(least) or 0, self._size(most)
        if low > MAX_LEAST:
            if high is not None and high < low:
                return low, high
            self.cannot(least, f"is larger than {MAX_LEAST:,}")
            low = 0
        return low, high if high is None or high <= MAX_COUNT else None

    def text(self) -> Text | None:
        """Return the strings that the string keywords allow, or None without such keywords."""
        least, most = self._sizes("minLength", "maxLength")
        patterns: list[str] = []
        if "pattern" in self.schema:
            pattern = self.schema["pattern"]
            if not isinstance(pattern, str):
                self.invalid("pattern", "must be a string")
            if self._can_follow("pattern", pattern):
                patterns.append(pattern)
        if "format" in self.schema:
            format = self.schema["format"]
            if not isinstance(format, str):
                self.invalid("format", "must be a string")
            known = formats.pattern_of(format)
            if known is None:
                self.cannot("format", f"{format[:40]!r} is not known")
            else:
                patterns.append(known)
        found = Text(least, most, tuple(patterns))
        return None if found == Text() else found

    def _can_follow(self, keyword: str, pattern: str) -> bool:
        """Return whether zinc supports a pattern. Otherwise the keyword is refused or dropped."""
        try:
            terminals.matches(terminals.pattern_terminal(pattern), "")
        except ValueError as error:
            self.cannot(keyword, f"{pattern[:80]!r} cannot be followed: {error}")
            return False
        return True

    def array(self) -> Array | None:
        """Return the arrays that the array keywords allow, or None without such keywords."""
        schema, draft = self.schema, self._document.draft
        least, most = self._sizes("minItems", "maxItems")
        prefix: tuple[Located, ...] = ()
        rest: Located | None = None
        items = schema.get("items")
        if isinstance(items, list) and draft >= DRAFT_2020:
            self.invalid("items", "must be one schema; a list of schemas is prefixItems")
        if "prefixItems" in schema and draft >= DRAFT_2020:
            prefix = tuple(
                self._document.child(self._located, "prefixItems", i)
                for i in range(len(self.schemas("prefixItems")))
            )
        if isinstance(items, list):
            prefix = tuple(
                self._document.child(self._located, "items", i) for i in range(len(items))
            )
            if "additionalItems" in schema:
                rest = self._document.child(self._located, "additionalItems")
        elif "items" in schema:
            rest = self._document.child(self._located, "items")
        if "unevaluatedItems" in schema and draft >= 2019 and rest is None:
            own = self._unevaluated("unevaluatedItems")
            rest = own if own is not None else rest
        if schema.get("uniqueItems") not in (None, False, True):
            self.invalid("uniqueItems", "must be true or false")
        if schema.get("uniqueItems") is True and not (most is not None and most <= 1):
            self.cannot("uniqueItems")
        if "contains" in schema and draft >= 6:
            self._contains()
        found = ArrayPart(prefix, rest, least, most)
        return None if found == ArrayPart() else Array((found,))

    def _contains(self) -> None:
        """Refuse or drop `contains`, unless it has no effect."""
        schema = self.schema
        no_minimum = self._document.draft >= 2019 and self._size("minContains") == 0
        limited = self._document.draft >= 2019 and "maxContains" in schema
        self._document.child(self._located, "contains")
        if not no_minimum or limited:
            self.cannot("contains")

    def _unevaluated(self, keyword: str) -> Located | None:
        """Return the schema of unevaluated items or members.

        Returns None if it has no effect, or if other schemas take part and the keyword is dropped.
        """
        schema = self.schema
        if schema[keyword] is True or schema[keyword] == {}:
            return None
        others = _APPLICATORS | ({"contains"} if keyword == "unevaluatedItems" else set())
        if others & schema.keys():
            self.cannot(keyword, "is not supported together with keywords that apply other schemas")
            return None
        return self._document.child(self._located, keyword)

    def object(self) -> Object | None:
        """Return the objects that the object keywords allow, or None without such keywords."""
        schema = self.schema
        least, most = self._sizes("minProperties", "maxProperties")
        properties: dict[str, Located] = {}
        for key in self.mapping("properties"):
            properties[key] = self._document.child(self._located, "properties", key)
        patterns = tuple(
            (pattern, self._document.child(self._located, "patternProperties", pattern))
            for pattern in self.mapping("patternProperties")
            if self._can_follow("patternProperties", pattern)
        )
        # Keys of a dropped pattern would fall under `rest`, which must not apply to them.
        all_kept = len(patterns) == len(self.mapping("patternProperties"))
        rest = names = None
        if "additionalProperties" in schema:
            rest = self._document.child(self._located, "additionalProperties")
        elif "unevaluatedProperties" in schema and self._document.draft >= 2019:
            rest = self._unevaluated("unevaluatedProperties")
        if "propertyNames" in schema and self._document.draft >= 6:
            names = self._document.child(self._located, "propertyNames")
        if isinstance(required := schema.get("required", []), bool) and self._document.draft == 4:
            required = []
        found = ObjectPart(
            properties,
            patterns,
            rest if all_kept else None,
            names,
            tuple(dict.fromkeys(self.strings("required", required))),
            least,
            most,
        )
        given = any((properties, patterns, found.rest, names, found.required, least))
        return Object((found,)) if given or most is not None else None

    def strings(self, keyword: str, value: Any) -> list[str]:
        """Return a list of strings. Raises SchemaError for other values."""
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            self.invalid(keyword, "must be a list of strings")
        return list(value)

    def mapping(self, keyword: str) -> dict[str, Any]:
        """Return a keyword whose value is an object. Raises SchemaError for other values."""
        value = self.schema.get(keyword, {})
        if not isinstance(value, dict):
            self.invalid(keyword, "must be an object")
        return dict(value)

    def schemas(self, keyword: str) -> Sequence[Any]:
        """Return a keyword whose value is a list of schemas. Raises SchemaError for others."""
        value = self.schema.get(keyword)
        if keyword not in self.schema:
            return ()
        if not isinstance(value, list) or not value:
            self.invalid(keyword, "must be a list of schemas that is not empty")
        return list(value)
