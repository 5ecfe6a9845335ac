"""Sets of JSON values, by JSON type.

    Values = {"string": (Text(...), Literals(...)), "null": (Literals((None,)),)}

A missing type is not allowed; several alternatives of a type form a union. Arrays and objects refer
to subschemas by location, so a recursive schema stays finite. A conjunction of subschemas is a
tuple of locations.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from math import ceil, floor, lcm
from typing import Any, TypeAlias

from zinc.core.dataclass import dataclass
from zinc.grammar.pattern.chars import Ranges
from zinc.grammar.pattern.render import as_text, render
from zinc.grammar.pattern.terminals import pattern_terminal
from zinc.grammar.pattern.tree import ANY_CHARS, Repeat
from zinc.grammar.schema.document import Located
from zinc.grammar.schema.numbers import Bound

TYPES = ("null", "boolean", "number", "string", "array", "object")

Conjunction: TypeAlias = tuple[Located, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Literals:
    """Listed values, compared as JSON values: [1] differs from [true]."""

    values: tuple[Any, ...]

    @property
    def identities(self) -> frozenset[str]:
        return frozenset(map(identity, self.values))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literals) and self.identities == other.identities

    def __hash__(self) -> int:
        return hash(self.identities)


@dataclass(frozen=True, slots=True)
class Number:
    """Numbers in a range, optionally only integers or multiples of a number."""

    low: Bound | None = None
    high: Bound | None = None
    integer: bool = False
    multiple_of: Fraction | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the range holds no number; `multiple_of` is not considered."""
        low, high = self.low, self.high
        if self.integer:
            least, most = integer_bounds(self)
            return least is not None and most is not None and least > most
        if low is None or high is None:
            return False
        return low.value > high.value or (low.value == high.value and (low.is_open or high.is_open))

    def has(self, value: int | Decimal) -> bool:
        """Return whether a number belongs to the set."""
        low, high = self.low, self.high
        if low is not None and (value < low.value or (value == low.value and low.is_open)):
            return False
        if high is not None and (value > high.value or (value == high.value and high.is_open)):
            return False
        exact = Fraction(value)
        if self.integer and exact.denominator != 1:
            return False
        return self.multiple_of is None or (exact / self.multiple_of).denominator == 1


@dataclass(frozen=True, slots=True)
class Text:
    """Strings in which all patterns (ECMA-262) are found; lengths count code points."""

    least: int = 0
    most: int | None = None
    patterns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ArrayPart:
    """The array keywords of one subschema; `rest` applies after `prefix`."""

    prefix: tuple[Located, ...] = ()
    rest: Located | None = None
    least: int = 0
    most: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ObjectPart:
    """The object keywords of one subschema; `rest` applies to keys that nothing else matches."""

    properties: Mapping[str, Located] | None = None
    patterns: tuple[tuple[str, Located], ...] = ()
    rest: Located | None = None
    names: Located | None = None
    required: tuple[str, ...] = ()
    least: int = 0
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Array:
    """Arrays that satisfy all parts."""

    parts: tuple[ArrayPart, ...] = ()

    @property
    def lengths(self) -> tuple[int, int | None]:
        """Least and greatest number of items; None is no limit."""
        return _limits(self.parts)

    @property
    def n_prefix(self) -> int:
        """Number of leading items with a schema of their own."""
        return max((len(part.prefix) for part in self.parts), default=0)

    def item(self, i: int) -> Conjunction:
        """Return the subschemas that apply to item `i`."""
        found = (part.prefix[i] if i < len(part.prefix) else part.rest for part in self.parts)
        return conjunction(found)


@dataclass(frozen=True, slots=True)
class Object:
    """Objects that satisfy all parts."""

    parts: tuple[ObjectPart, ...] = ()

    @property
    def lengths(self) -> tuple[int, int | None]:
        """Least and greatest number of members; None is no limit."""
        return _limits(self.parts)

    @property
    def required(self) -> list[str]:
        """Keys that must be present, in the order of the schema."""
        return list(dict.fromkeys(key for part in self.parts for key in part.required))

    @property
    def names(self) -> Conjunction:
        """Subschemas that apply to every key (`propertyNames`)."""
        return conjunction(part.names for part in self.parts)


Alternative: TypeAlias = Literals | Number | Text | Array | Object
Values: TypeAlias = Mapping[str, tuple[Alternative, ...]]

NONE: Values = {}
ANY: Values = {
    "null": (Literals((None,)),),
    "boolean": (Literals((False, True)),),
    "number": (Number(),),
    "string": (Text(),),
    "array": (Array(),),
    "object": (Object(),),
}


def type_of(value: object) -> str:
    """Return the JSON type of a value; integers are numbers."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float() | Decimal():
            return "number"
        case str():
            return "string"
        case Mapping():
            return "object"
    return "array"


def identity(value: object) -> str:
    """Return a text that is the same for equal JSON values only: 1 equals 1.0 but not true."""
    match value:
        case Mapping():
            members = sorted((str(key), identity(each)) for key, each in value.items())
            return "{" + ",".join(f"{json.dumps(key)}:{each}" for key, each in members) + "}"
        case list() | tuple():
            return "[" + ",".join(map(identity, value)) + "]"
        case str() | None | bool():
            return json.dumps(value)
    return numeral(value)


def numeral(value: Any) -> str:
    """Return a number as JSON writes it, in plain decimals."""
    return str(value) if isinstance(value, int) else format(value, "f")


def merged_numbers(a: Number, b: Number) -> Number:
    """Return the intersection of two sets of numbers."""
    return Number(
        _tighter(a.low, b.low, 1),
        _tighter(a.high, b.high, -1),
        a.integer or b.integer,
        _common_multiple(a.multiple_of, b.multiple_of),
    )


def _tighter(a: Bound | None, b: Bound | None, sign: int) -> Bound | None:
    if a is None or b is None:
        return a or b
    if a.value == b.value:
        return a if a.is_open else b
    return a if (a.value > b.value) == (sign > 0) else b


def _common_multiple(a: Fraction | None, b: Fraction | None) -> Fraction | None:
    if a is None or b is None:
        return a or b
    denominator = lcm(a.denominator, b.denominator)
    return Fraction(lcm(int(a * denominator), int(b * denominator)), denominator)


def integer_bounds(number: Number) -> tuple[int | None, int | None]:
    """Return the smallest and largest integer of a range."""
    least = most = None
    if (low := number.low) is not None:
        least = ceil(low.value)
        least += low.is_open and low.value == least
    if (high := number.high) is not None:
        most = floor(high.value)
        most -= high.is_open and high.value == most
    return least, most


def merged_texts(a: Text, b: Text) -> Text:
    """Return the intersection of two sets of strings."""
    patterns = (*a.patterns, *(each for each in b.patterns if each not in a.patterns))
    return Text(max(a.least, b.least), smaller(a.most, b.most), patterns)


def _limits(parts: Sequence[ArrayPart | ObjectPart]) -> tuple[int, int | None]:
    least, most = 0, None
    for part in parts:
        least, most = max(least, part.least), smaller(most, part.most)
    return least, most


def smaller(a: int | None, b: int | None) -> int | None:
    """Return the smaller of two limits, where None is no limit."""
    return b if a is None else a if b is None else min(a, b)


def union(*several: Values) -> Values:
    """Return the union of several sets, each alternative once."""
    found: dict[str, list[Alternative]] = {}
    for values in several:
        for kind, alternatives in values.items():
            known = found.setdefault(kind, [])
            known += [each for each in alternatives if each not in known]
    return {kind: _listed_together(alternatives) for kind, alternatives in found.items()}


def _listed_together(alternatives: list[Alternative]) -> tuple[Alternative, ...]:
    """Return alternatives with their `Literals` merged into one."""
    literals = [each for each in alternatives if isinstance(each, Literals)]
    if len(literals) < 2:
        return tuple(alternatives)
    values = {identity(value): value for each in literals for value in each.values}
    others = [each for each in alternatives if not isinstance(each, Literals)]
    return (replace(literals[0], values=tuple(values.values())), *others)


def conjunction(parts: Iterable[Located | None]) -> Conjunction:
    """Return the conjunction of some subschemas, without duplicates and those that allow all."""
    found = dict.fromkeys(each for each in parts if each is not None and each.schema is not True)
    return tuple(sorted(found, key=_by_path)) if len(found) > 1 else tuple(found)


def _by_path(located: Located) -> tuple[str, str]:
    return located.path, located.base


def literals(choices: Iterable[Any]) -> Values:
    """Return the set of some listed values."""
    found: dict[str, dict[str, Any]] = {}
    for value in choices:
        found.setdefault(type_of(value), {})[identity(value)] = value
    return {kind: (Literals(tuple(values.values())),) for kind, values in found.items()}


def text_terminal(text: Text, spell: Callable[[Ranges], str] = as_text, quote: str = "") -> str:
    """Return a terminal that matches the strings of a set; arguments as in `pattern_terminal`."""
    parts = [pattern_terminal(pattern, spell, quote) for pattern in text.patterns]
    if text.least or text.most is not None or not parts:
        any_text = Repeat(ANY_CHARS, text.least, text.most)
        parts.append(f"/{quote}{render(any_text, spell) or '()'}{quote}/")
    return " & ".join(parts)
