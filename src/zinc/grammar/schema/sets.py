"""Operations on sets of JSON values: intersection, membership, emptiness."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zinc.grammar.pattern import terminals
from zinc.grammar.schema.document import Located, SchemaError
from zinc.grammar.schema.values import (
    ANY,
    TYPES,
    Alternative,
    Array,
    Conjunction,
    Literals,
    Number,
    Object,
    Text,
    Values,
    conjunction,
    identity,
    merged_numbers,
    merged_texts,
    text_terminal,
    type_of,
    union,
)

MAX_ALTERNATIVES = 512  # of one type in one place
MAX_STEPS = 200_000


class ValueSets:
    """Operations on sets of values whose arrays and objects refer to subschemas.

    values: returns the values that a conjunction of subschemas allows. Methods raise SchemaError if
    they need too many steps.
    """

    def __init__(self, values: Callable[[Conjunction], Values]) -> None:
        self._values = values
        self._n_steps = 0

    def is_empty(self, conjunction: Conjunction, depth: int = 3) -> bool:
        """Return whether no value is allowed, looking at `depth` levels of children."""
        return all(
            self.is_nothing(each, depth)
            for alternatives in self._values(conjunction).values()
            for each in alternatives
        )

    def accepts(self, conjunction: Conjunction, value: Any) -> bool:
        """Return whether a value is allowed."""
        alternatives = self._values(conjunction).get(type_of(value), ())
        return any(self._has(each, value) for each in alternatives)

    def intersected(self, a: Values, b: Values, path: str) -> Values:
        """Return the intersection of two sets; `path` is named if it has too many alternatives."""
        if a is ANY:
            return b
        if b is ANY:
            return a
        found: dict[str, tuple[Alternative, ...]] = {}
        for kind in TYPES:
            pairs = [(x, y) for x in a.get(kind, ()) for y in b.get(kind, ())]
            self._count(len(pairs))
            if len(pairs) > MAX_ALTERNATIVES * 8:
                raise SchemaError("it combines too many alternatives", path)
            both = (self._both(x, y) for x, y in pairs)
            kept = [each for each in both if each is not None and not self.is_nothing(each, 0)]
            if len(kept) > MAX_ALTERNATIVES:
                raise SchemaError("it combines too many alternatives", path)
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

    def is_nothing(self, alternative: Alternative, depth: int) -> bool:
        """Return whether an alternative has no value, looking at `depth` levels of children."""
        self._count(1)
        match alternative:
            case Literals(values):
                return not values
            case Number():
                return alternative.is_empty
            case Text(least, most, patterns):
                if most is not None and least > most:
                    return True
                return (
                    depth > 0 and bool(patterns) and terminals.is_empty(text_terminal(alternative))
                )
            case Array():
                least, most = alternative.lengths
                if most is not None and least > most:
                    return True
                return depth > 0 and any(
                    self.is_empty(alternative.item(i), depth - 1)
                    for i in range(min(least, alternative.n_prefix + 1))
                )
            case Object():
                least, most = alternative.lengths
                if most is not None and max(least, len(alternative.required)) > most:
                    return True
                return depth > 0 and any(
                    self.is_empty(self.member(alternative, key), depth - 1)
                    or not self.is_name(alternative, key)
                    for key in alternative.required
                )

    def _has(self, alternative: Alternative, value: Any) -> bool:
        """Return whether a value of the alternative's type belongs to it."""
        self._count(1)
        match alternative:
            case Literals(values):
                self._count(len(values))
                wanted = identity(value)
                return any(identity(each) == wanted for each in values)
            case Number():
                return alternative.has(value)
            case Text(least, most, patterns):
                if len(value) < least or (most is not None and len(value) > most):
                    return False
                return all(self._matches(each, value) for each in patterns)
            case Array():
                least, most = alternative.lengths
                if len(value) < least or (most is not None and len(value) > most):
                    return False
                return all(self.accepts(alternative.item(i), each) for i, each in enumerate(value))
            case Object():
                least, most = alternative.lengths
                if len(value) < least or (most is not None and len(value) > most):
                    return False
                return all(key in value for key in alternative.required) and all(
                    self.is_name(alternative, key)
                    and self.accepts(self.member(alternative, key), each)
                    for key, each in value.items()
                )

    def _matches(self, pattern: str, text: str) -> bool:
        self._count(20)
        return terminals.matches(terminals.pattern_terminal(pattern), text)

    def is_empty_terminal(self, terminal: str) -> bool:
        """Return whether a terminal matches nothing. Raises SchemaError if it is too complex."""
        self._count(500)
        try:
            return terminals.is_empty(terminal)
        except ValueError:
            raise SchemaError("a pattern is too complex", keyword="pattern") from None

    def _count(self, n: int) -> None:
        """Count `n` steps of work. Raises SchemaError beyond MAX_STEPS."""
        self._n_steps += n
        if self._n_steps > MAX_STEPS:
            raise SchemaError("it takes too many steps to evaluate")

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
        return not object.names or self.accepts(object.names, key)
