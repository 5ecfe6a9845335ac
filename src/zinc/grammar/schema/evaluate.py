"""Keywords of JSON Schema -> the values that they allow.

Every keyword of the schema's draft is followed exactly or refused: `Evaluator` raises SchemaError
with the keyword named. A lenient evaluator leaves such a keyword out instead and lists it in
`dropped`; its values are then a superset of the schema's, and the finished value has to be checked.
Keywords that no draft defines are annotations and have no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, NoReturn

from zinc.grammar.schema import ecmascript, formats, lexemes
from zinc.grammar.schema.document import DRAFT_2020, Document, Located, SchemaError
from zinc.grammar.schema.numbers import Bound
from zinc.grammar.schema.values import (
    ANY,
    NONE,
    TYPES,
    Alternative,
    Array,
    ArrayPart,
    Conjunction,
    Literals,
    Number,
    Object,
    ObjectPart,
    Text,
    Values,
    identity,
    integer_bounds,
    merged_numbers,
    merged_texts,
    smaller,
    type_of,
    union,
)

MAX_ALTERNATIVES = 512  # of one type in one place
MAX_STEPS = 200_000
MAX_SUBSCHEMAS = 8_000
MAX_NESTED = 80  # subschemas applied to the same value, one within the other
MAX_COUNT = 1 << 24  # of characters or items; no answer is longer
MAX_LEAST = 1 << 16

_SCALAR_TYPES = {
    "null": {"null"}, "boolean": {"boolean"}, "string": {"string"}, "array": {"array"},
    "object": {"object"}, "number": {"number"}, "integer": {"number"},
}  # fmt: skip
_APPLICATORS = frozenset(
    ("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if", "then",
     "else", "dependentSchemas", "dependencies")
)  # fmt: skip


class Evaluator:
    """Reads the subschemas of a document and caches their values."""

    def __init__(self, document: Document, *, lenient: bool = False) -> None:
        self.document = document
        self.dropped: dict[str, None] = {}
        self._lenient = lenient
        self._known: dict[Located, Values] = {}
        self._conjunctions: dict[Conjunction, Values] = {}
        self._active: list[Located] = []
        self._n_steps = 0

    def share(self, other: Evaluator) -> None:
        """Refuse or drop keywords as `other` does, and list them in its `dropped`."""
        self._lenient, self.dropped = other._lenient, other.dropped

    # -- sets of values ---------------------------------------------------------------------------

    def values(self, conjunction: Conjunction) -> Values:
        """Return the values that all of some subschemas allow."""
        found = self._conjunctions.get(conjunction)
        if found is None:
            found = ANY
            for located in conjunction:
                found = self._intersected(found, self._evaluate(located))
            self._conjunctions[conjunction] = found
        return found

    def is_empty(self, conjunction: Conjunction, depth: int = 3) -> bool:
        """Return whether no value is allowed, looking at `depth` levels of children."""
        return all(
            self._is_nothing(each, depth)
            for alternatives in self.values(conjunction).values()
            for each in alternatives
        )

    def accepts(self, conjunction: Conjunction, value: Any) -> bool:
        """Return whether a value is allowed."""
        alternatives = self.values(conjunction).get(type_of(value), ())
        return any(self._has(each, value) for each in alternatives)

    def _intersected(self, a: Values, b: Values) -> Values:
        if a is ANY:
            return b
        if b is ANY:
            return a
        found: dict[str, tuple[Alternative, ...]] = {}
        for kind in TYPES:
            pairs = [(x, y) for x in a.get(kind, ()) for y in b.get(kind, ())]
            self._count(len(pairs))
            if len(pairs) > MAX_ALTERNATIVES * 8:
                raise SchemaError("it combines too many alternatives", self._path)
            both = (self._both(x, y) for x, y in pairs)
            kept = [each for each in both if each is not None and not self._is_nothing(each, 0)]
            if len(kept) > MAX_ALTERNATIVES:
                raise SchemaError("it combines too many alternatives", self._path)
            if kept:
                found[kind] = tuple(kept)
        return union(found)

    def _both(self, a: Alternative, b: Alternative) -> Alternative | None:
        """Return the intersection of two alternatives of the same type."""
        match a, b:
            case Literals(), Literals():
                self._count(len(a.values) + len(b.values))
                both = b.identities
                same = tuple(value for value in a.values if identity(value) in both)
                return Literals(same) if same else None
            case Literals(), _:
                kept = tuple(value for value in a.values if self._has(b, value))
                return Literals(kept) if kept else None
            case _, Literals():
                return self._both(b, a)
            case Number(), Number():
                return merged_numbers(a, b)
            case Text(), Text():
                return merged_texts(a, b)
            case Array(), Array():
                return Array((*a.parts, *(each for each in b.parts if each not in a.parts)))
            case Object(), Object():
                return Object((*a.parts, *(each for each in b.parts if each not in a.parts)))
        raise AssertionError("alternatives of different types")

    def _is_nothing(self, alternative: Alternative, depth: int) -> bool:
        """Return whether an alternative has no value, looking at `depth` levels of children."""
        self._count(1)
        match alternative:
            case Literals(values):
                return not values
            case Number():
                return _no_number(alternative)
            case Text(least, most, patterns):
                if most is not None and least > most:
                    return True
                return (
                    depth > 0 and bool(patterns) and lexemes.is_empty(text_expression(alternative))
                )
            case Array():
                least, most = self.lengths(alternative)
                if most is not None and least > most:
                    return True
                return depth > 0 and any(
                    self.is_empty(self.item(alternative, i), depth - 1)
                    for i in range(min(least, self.n_prefix(alternative) + 1))
                )
            case Object():
                least, most = self.n_members(alternative)
                if most is not None and max(least, len(self.required(alternative))) > most:
                    return True
                return depth > 0 and any(
                    self.is_empty(self.member(alternative, key), depth - 1)
                    or not self.is_name(alternative, key)
                    for key in self.required(alternative)
                )

    def _has(self, alternative: Alternative, value: Any) -> bool:
        self._count(1)
        match alternative:
            case Literals(values):
                self._count(len(values))
                wanted = identity(value)
                return any(identity(each) == wanted for each in values)
            case Number():
                return _in_range(alternative, value)
            case Text(least, most, patterns):
                if len(value) < least or (most is not None and len(value) > most):
                    return False
                return all(self._matches(each, value) for each in patterns)
            case Array():
                least, most = self.lengths(alternative)
                if len(value) < least or (most is not None and len(value) > most):
                    return False
                return all(
                    self.accepts(self.item(alternative, i), each) for i, each in enumerate(value)
                )
            case Object():
                least, most = self.n_members(alternative)
                if len(value) < least or (most is not None and len(value) > most):
                    return False
                return all(key in value for key in self.required(alternative)) and all(
                    self.is_name(alternative, key)
                    and self.accepts(self.member(alternative, key), each)
                    for key, each in value.items()
                )

    def _matches(self, pattern: str, text: str) -> bool:
        self._count(20)  # as long as it takes
        return lexemes.matches(pattern_expression(pattern), text)

    def is_empty_lexeme(self, expression: str) -> bool:
        """Return whether a terminal matches nothing. Raises SchemaError if it is too complex."""
        self._count(500)
        try:
            return lexemes.is_empty(expression)
        except ValueError:
            raise SchemaError("a pattern is too complex", keyword="pattern") from None

    def _count(self, n: int) -> None:
        self._n_steps += n
        if self._n_steps > MAX_STEPS:
            raise SchemaError("it takes too many steps to work out")

    # -- parts of arrays and objects --------------------------------------------------------------

    @staticmethod
    def lengths(array: Array) -> tuple[int, int | None]:
        least, most = 0, None
        for part in array.parts:
            least, most = max(least, part.least), smaller(most, part.most)
        return least, most

    @staticmethod
    def n_prefix(array: Array) -> int:
        """Return the number of items with a schema of their own."""
        return max((len(part.prefix) for part in array.parts), default=0)

    @staticmethod
    def item(array: Array, i: int) -> Conjunction:
        """Return the subschemas that apply to item `i` of an array."""
        found = (part.prefix[i] if i < len(part.prefix) else part.rest for part in array.parts)
        return conjunction(found)

    @staticmethod
    def n_members(object: Object) -> tuple[int, int | None]:
        least, most = 0, None
        for part in object.parts:
            least, most = max(least, part.least), smaller(most, part.most)
        return least, most

    @staticmethod
    def required(object: Object) -> list[str]:
        return list(dict.fromkeys(key for part in object.parts for key in part.required))

    def member(self, object: Object, key: str) -> Conjunction:
        """Return the subschemas that apply to the value of a key."""
        found: list[Located | None] = []
        for part in object.parts:
            n = len(found)
            if part.properties and key in part.properties:
                found.append(part.properties[key])
            found += [schema for pattern, schema in part.patterns if self._matches(pattern, key)]
            if len(found) == n:
                found.append(part.rest)
        return conjunction(found)

    def is_name(self, object: Object, key: str) -> bool:
        """Return whether `propertyNames` allows a key."""
        names = conjunction(part.names for part in object.parts)
        return not names or self.accepts(names, key)

    # -- keywords ---------------------------------------------------------------------------------

    @property
    def _path(self) -> str:
        return self._active[-1].path if self._active else "#"

    def _invalid(self, keyword: str, why: str) -> NoReturn:
        raise SchemaError(f"{keyword} {why}", self._path, keyword)

    def cannot(self, keyword: str, why: str = "is not supported") -> None:
        """Refuse a keyword, or leave it out if the evaluator is lenient."""
        if not self._lenient:
            self._invalid(keyword, why)
        self.dropped[keyword] = None

    def _evaluate(self, located: Located) -> Values:
        if located.schema is True:
            return ANY
        if located.schema is False:
            return NONE
        if located in self._known:
            return self._known[located]
        if located in self._active:
            raise SchemaError("$ref leads back to itself", located.path, "$ref")
        if len(self._active) >= MAX_NESTED:
            raise SchemaError("its references are nested too deeply", located.path)
        if len(self._known) >= MAX_SUBSCHEMAS:
            raise SchemaError(f"it has more than {MAX_SUBSCHEMAS:,} subschemas")
        self._active.append(located)
        try:
            found = self._read(located)
        finally:
            self._active.pop()
        self._known[located] = found
        return found

    def _read(self, located: Located) -> Values:
        schema, draft = located.schema, self.document.draft
        if draft <= 7 and "$ref" in schema:
            return self._referred(located, "$ref")
        parts = [self._typed(schema)]
        if numbers := self._numbers(schema):
            parts.append({**ANY, "number": (numbers,)})
        if text := self._text(schema):
            parts.append({**ANY, "string": (text,)})
        if array := self._array(located):
            parts.append({**ANY, "array": (array,)})
        if object := self._object(located):
            parts.append({**ANY, "object": (object,)})
        parts += self._dependencies(located)
        for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            if keyword in schema and (keyword != "$dynamicRef" or draft >= DRAFT_2020):
                parts.append(self._referred(located, keyword))
        for i in range(len(self._schemas(schema, "allOf"))):
            parts.append(self._evaluate(self.document.child(located, "allOf", i)))
        if self._schemas(schema, "anyOf"):
            parts.append(union(*self._options(located, "anyOf")))
        if self._schemas(schema, "oneOf"):
            parts.append(self._one_of(located))
        if "not" in schema:
            parts.append(self._not(located))
        if "if" in schema:
            parts.append(self._if(located))
        if "const" in schema and draft >= 6:
            parts.append(_listed([schema["const"]]))
        if "enum" in schema:
            choices = schema["enum"]
            if not isinstance(choices, list):
                self._invalid("enum", "must be a list")
            parts.append(_listed(choices))
        found = ANY
        # Listed values come last: they are filtered by everything else.
        for part in parts:
            found = self._intersected(found, part)
        return found

    def _typed(self, schema: Any) -> Values:
        kinds = schema.get("type")
        if kinds is None and "type" not in schema:
            return ANY
        listed = [kinds] if isinstance(kinds, str) else kinds
        if not isinstance(listed, list) or not all(
            isinstance(each, str) and each in _SCALAR_TYPES for each in listed
        ):
            names = ", ".join(_SCALAR_TYPES)
            self._invalid("type", f"must be one of {names}, or a list of these")
        found: dict[str, tuple[Alternative, ...]] = {}
        for each in listed:
            if each == "integer":
                found.setdefault("number", (Number(integer=True),))
            else:
                found[each] = ANY[each]
        return found

    def _numbers(self, schema: Any) -> Number | None:
        found: Number | None = None
        for keyword, is_low, is_open in (
            ("minimum", True, False), ("maximum", False, False),
            ("exclusiveMinimum", True, True), ("exclusiveMaximum", False, True),
        ):  # fmt: skip
            if keyword not in schema:
                continue
            value = schema[keyword]
            if self.document.draft == 4 and is_open:
                if not isinstance(value, bool):
                    self._invalid(keyword, "must be true or false in draft 4")
                keyword = keyword.removeprefix("exclusive").lower()
                if not value or keyword not in schema:
                    continue
                value = schema[keyword]
            if type_of(value) != "number":
                self._invalid(keyword, "must be a number")
            bound = Bound(Decimal(value), is_open)
            made = Number(low=bound) if is_low else Number(high=bound)
            found = made if found is None else merged_numbers(found, made)
        if "multipleOf" in schema:
            step = schema["multipleOf"]
            if type_of(step) != "number" or step <= 0:
                self._invalid("multipleOf", "must be a number above 0")
            made = Number(multiple_of=Fraction(step))
            found = made if found is None else merged_numbers(found, made)
        return found

    def _size(self, schema: Any, keyword: str) -> int | None:
        value = schema.get(keyword)
        if keyword not in schema:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            self._invalid(keyword, "must be an integer of at least 0")
        return int(value)

    def _sizes(self, schema: Any, least: str, most: str) -> tuple[int, int | None]:
        low, high = self._size(schema, least) or 0, self._size(schema, most)
        if low > MAX_LEAST:
            if high is not None and high < low:
                return low, high
            self.cannot(least, f"is larger than {MAX_LEAST:,}")
            low = 0
        return low, high if high is None or high <= MAX_COUNT else None

    def _text(self, schema: Any) -> Text | None:
        least, most = self._sizes(schema, "minLength", "maxLength")
        patterns: list[str] = []
        if "pattern" in schema:
            pattern = schema["pattern"]
            if not isinstance(pattern, str):
                self._invalid("pattern", "must be a string")
            if self._can_follow("pattern", pattern):
                patterns.append(pattern)
        if "format" in schema:
            format = schema["format"]
            if not isinstance(format, str):
                self._invalid("format", "must be a string")
            known = formats.pattern_of(format)
            if known is None:
                self.cannot("format", f"{format[:40]!r} is not known")
            else:
                patterns.append(known)
        found = Text(least, most, tuple(patterns))
        return None if found == Text() else found

    def _can_follow(self, keyword: str, pattern: str) -> bool:
        try:
            lexemes.matches(pattern_expression(pattern), "")
        except ValueError as error:
            self.cannot(keyword, f"{pattern[:80]!r} cannot be followed: {error}")
            return False
        return True

    def _array(self, located: Located) -> Array | None:
        schema, draft = located.schema, self.document.draft
        least, most = self._sizes(schema, "minItems", "maxItems")
        prefix: tuple[Located, ...] = ()
        rest: Located | None = None
        items = schema.get("items")
        if isinstance(items, list) and draft >= DRAFT_2020:
            self._invalid("items", "must be one schema; a list of schemas is prefixItems")
        if "prefixItems" in schema and draft >= DRAFT_2020:
            prefix = tuple(
                self.document.child(located, "prefixItems", i)
                for i in range(len(self._schemas(schema, "prefixItems")))
            )
        if isinstance(items, list):
            prefix = tuple(self.document.child(located, "items", i) for i in range(len(items)))
            if "additionalItems" in schema:
                rest = self.document.child(located, "additionalItems")
        elif "items" in schema:
            rest = self.document.child(located, "items")
        if "unevaluatedItems" in schema and draft >= 2019 and rest is None:
            own = self._unevaluated(located, "unevaluatedItems")
            rest = own if own is not None else rest
        if schema.get("uniqueItems") not in (None, False, True):
            self._invalid("uniqueItems", "must be true or false")
        if schema.get("uniqueItems") is True and not (most is not None and most <= 1):
            self.cannot("uniqueItems")
        if "contains" in schema and draft >= 6:
            self._contains(located)
        found = ArrayPart(prefix, rest, least, most)
        return None if found == ArrayPart() else Array((found,))

    def _contains(self, located: Located) -> None:
        schema = located.schema
        no_minimum = self.document.draft >= 2019 and self._size(schema, "minContains") == 0
        limited = self.document.draft >= 2019 and "maxContains" in schema
        self.document.child(located, "contains")
        if not no_minimum or limited:
            self.cannot("contains")

    def _unevaluated(self, located: Located, keyword: str) -> Located | None:
        """Return the schema of unevaluated items or members, if this subschema alone decides it."""
        schema = located.schema
        if schema[keyword] is True or schema[keyword] == {}:
            return None
        others = _APPLICATORS | ({"contains"} if keyword == "unevaluatedItems" else set())
        if others & schema.keys():
            self.cannot(keyword, "is not supported beside keywords that apply other schemas")
            return None
        return self.document.child(located, keyword)

    def _object(self, located: Located) -> Object | None:
        schema = located.schema
        least, most = self._sizes(schema, "minProperties", "maxProperties")
        properties: dict[str, Located] = {}
        for key in self._mapping(schema, "properties"):
            properties[key] = self.document.child(located, "properties", key)
        patterns = tuple(
            (pattern, self.document.child(located, "patternProperties", pattern))
            for pattern in self._mapping(schema, "patternProperties")
            if self._can_follow("patternProperties", pattern)
        )
        # What a dropped pattern would have matched must not be held to the rest.
        all_kept = len(patterns) == len(self._mapping(schema, "patternProperties"))
        rest = names = None
        if "additionalProperties" in schema:
            rest = self.document.child(located, "additionalProperties")
        elif "unevaluatedProperties" in schema and self.document.draft >= 2019:
            rest = self._unevaluated(located, "unevaluatedProperties")
        if "propertyNames" in schema and self.document.draft >= 6:
            names = self.document.child(located, "propertyNames")
        if isinstance(required := schema.get("required", []), bool) and self.document.draft == 4:
            required = []
        found = ObjectPart(
            properties,
            patterns,
            rest if all_kept else None,
            names,
            tuple(dict.fromkeys(self._strings("required", required))),
            least,
            most,
        )
        given = any((properties, patterns, found.rest, names, found.required, least))
        return Object((found,)) if given or most is not None else None

    def _strings(self, keyword: str, value: Any) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            self._invalid(keyword, "must be a list of strings")
        return list(value)

    def _mapping(self, schema: Any, keyword: str) -> dict[str, Any]:
        value = schema.get(keyword, {})
        if not isinstance(value, dict):
            self._invalid(keyword, "must be an object")
        return dict(value)

    def _schemas(self, schema: Any, keyword: str) -> Sequence[Any]:
        value = schema.get(keyword)
        if keyword not in schema:
            return ()
        if not isinstance(value, list) or not value:
            self._invalid(keyword, "must be a list of schemas that is not empty")
        return list(value)

    def _dependencies(self, located: Located) -> Iterator[Values]:
        """Yield the values each dependency allows: the key is absent, or the dependency holds."""
        schema, draft = located.schema, self.document.draft
        found: list[tuple[str, str, Any]] = []
        if draft >= 2019:
            found += [("dependentRequired", k, v)
                      for k, v in self._mapping(schema, "dependentRequired").items()]  # fmt: skip
            found += [("dependentSchemas", k, v)
                      for k, v in self._mapping(schema, "dependentSchemas").items()]  # fmt: skip
        # Newer drafts keep it for compatibility.
        found += [("dependencies", k, v)
                  for k, v in self._mapping(schema, "dependencies").items()]  # fmt: skip
        never = self.document.at(False, "", located.path)
        for keyword, key, value in found:
            absent = {**ANY, "object": (Object((ObjectPart({key: never}),)),)}
            needed = (key, *value) if isinstance(value, list) else (key,)
            present: Values = {
                "object": (
                    Object((ObjectPart(required=tuple(self._strings(keyword, list(needed)))),)),
                )
            }
            if not isinstance(value, list):
                if keyword == "dependentRequired":
                    self._invalid(keyword, "must have lists of strings")
                child = self.document.child(located, keyword, key)
                present = self._intersected(present, self._evaluate(child))
            yield union(absent, present)

    def _referred(self, located: Located, keyword: str) -> Values:
        reference = located.schema[keyword]
        if not isinstance(reference, str):
            self._invalid(keyword, "must be a string")
        if keyword == "$dynamicRef":
            target = self.document.resolve_dynamic(located, reference)
        elif keyword == "$recursiveRef":
            target = self.document.resolve_recursive(located)
        else:
            target = self.document.resolve(located, reference)
        return self._evaluate(target)

    def _options(self, located: Located, keyword: str) -> list[Values]:
        n = len(located.schema[keyword])
        return [self._evaluate(self.document.child(located, keyword, i)) for i in range(n)]

    def _one_of(self, located: Located) -> Values:
        """Return the union of `oneOf`, whose alternatives must be disjoint."""
        siblings = {key: value for key, value in located.schema.items() if key in ("type",)}
        own = self._typed(siblings)
        options = [self._intersected(own, each) for each in self._options(located, "oneOf")]
        for i, one in enumerate(options):
            for j in range(i):
                both = self._intersected(options[j], one)
                overlap = [
                    kind
                    for kind, alternatives in both.items()
                    if not all(self._is_nothing(each, 3) for each in alternatives)
                ]
                if overlap:
                    self.cannot(
                        "oneOf",
                        f"has alternatives {j} and {i} that may both allow the same {overlap[0]}",
                    )
                    return union(*options)
        return union(*options)

    def _not(self, located: Located) -> Values:
        inside = self._evaluate(self.document.child(located, "not"))
        found: dict[str, tuple[Alternative, ...]] = {}
        for kind in TYPES:
            if not inside.get(kind):
                found[kind] = ANY[kind]
            elif inside[kind] != ANY[kind]:
                self.cannot("not", "is supported with whole types alone")
                return ANY
        return found

    def _if(self, located: Located) -> Values:
        schema = located.schema
        if self.document.draft < 7 or not {"then", "else"} & schema.keys():
            return ANY
        condition = self._evaluate(self.document.child(located, "if"))
        chosen = "then" if condition == ANY else "else" if not condition else None
        if chosen is None:
            self.cannot("if")
            return ANY
        return self._evaluate(self.document.child(located, chosen)) if chosen in schema else ANY


def conjunction(parts: Any) -> Conjunction:
    """Return subschemas that all apply, each once; those that allow anything are left out."""
    found = dict.fromkeys(each for each in parts if each is not None and each.schema is not True)
    return tuple(sorted(found, key=_by_path)) if len(found) > 1 else tuple(found)


def _by_path(located: Located) -> tuple[str, str]:
    return located.path, located.base


def _listed(choices: Sequence[Any]) -> Values:
    found: dict[str, dict[str, Any]] = {}
    for value in choices:
        found.setdefault(type_of(value), {})[identity(value)] = value
    return {kind: (Literals(tuple(values.values())),) for kind, values in found.items()}


def _no_number(number: Number) -> bool:
    low, high = number.low, number.high
    if number.integer:
        least, most = integer_bounds(number)
        return least is not None and most is not None and least > most
    if low is None or high is None:
        return False
    return low.value > high.value or (low.value == high.value and (low.is_open or high.is_open))


def _in_range(number: Number, value: Any) -> bool:
    low, high = number.low, number.high
    if low is not None and (value < low.value or (value == low.value and low.is_open)):
        return False
    if high is not None and (value > high.value or (value == high.value and high.is_open)):
        return False
    exact = Fraction(value)
    if number.integer and exact.denominator != 1:
        return False
    return number.multiple_of is None or (exact / number.multiple_of).denominator == 1


def text_expression(
    text: Text, one: Callable[[ecmascript.Ranges], str] = ecmascript.as_text, quote: str = ""
) -> str:
    """Return a terminal that matches the texts of a set.

    one: how characters are spelled. quote: what stands around the text.
    """
    parts = [pattern_expression(pattern, one, quote) for pattern in text.patterns]
    if text.least or text.most is not None or not parts:
        any_text = ecmascript.Repeat(ecmascript.ANY_CHARS, text.least, text.most)
        parts.append(f"/{quote}{ecmascript.render(any_text, one) or '()'}{quote}/")
    return " & ".join(parts)


def pattern_expression(
    pattern: str, one: Callable[[ecmascript.Ranges], str] = ecmascript.as_text, quote: str = ""
) -> str:
    """Return a terminal that matches each text in which `pattern` is found. Raises PatternError."""
    expression = ecmascript.render(ecmascript.whole(pattern), one)
    if expression is None:
        return "(/a/ & /b/)"
    return f"/{quote}({expression}){quote}/"
