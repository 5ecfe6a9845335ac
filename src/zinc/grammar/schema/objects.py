"""Objects of a schema as rules: named members in the order of the schema, then other members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from zinc.grammar.pattern.render import as_json
from zinc.grammar.pattern.terminals import pattern_terminal
from zinc.grammar.schema.document import SchemaError
from zinc.grammar.schema.symbols import QUOTE, Alternatives, Many, Ref, Symbol, quoted, spelled
from zinc.grammar.schema.values import (
    Alternative,
    Literals,
    Object,
    Text,
    conjunction,
    text_terminal,
)

if TYPE_CHECKING:
    from zinc.grammar.schema.writer import Writer

MAX_PATTERNS = 5  # of `patternProperties` in one place; keys fall into 2**n classes
MAX_COUNTED = 60  # keys of an object whose members are counted
MAX_KEYS = 2_500  # of one object

# Keys have one spelling each: with two, a key could be given twice.
_ANY_KEY = f'/"({as_json(((0, 0xD7FF), (0xE000, 0x10FFFF)))}*)"/'


@dataclass(frozen=True, slots=True)
class Member:
    """A named member: the symbols of its key, the colon and its value."""

    symbols: tuple[Symbol, ...]
    is_required: bool


class ObjectRules:
    """Builder of the rules of one object in `writer`. Their names begin with `name`."""

    def __init__(self, writer: Writer, name: str, object: Object) -> None:
        self._writer = writer
        self._rules = writer.rules
        self._sets = writer.evaluator.sets
        self._name = name
        self._object = object

    def alternatives(self) -> Alternatives:
        """Return the alternatives of the object; add the rules they need. Raises SchemaError."""
        object, rules, cannot = self._object, self._rules, self._writer.evaluator.policy.cannot
        least, most = object.lengths
        required = set(object.required)
        least = 0 if least <= len(required) else least
        keys = [key for key in self._keys() if self._sets.is_name(object, key)]
        if not required.issubset(keys):
            return []
        if len(keys) > MAX_KEYS:
            raise SchemaError(f"it has an object with more than {MAX_KEYS:,} named keys")
        others: Alternatives = [] if most == 0 else self._other_members(keys)
        if least > 1 and others:
            cannot("minProperties", "is supported up to 1 where keys are not all known")
            least = 1
        if most is not None and not others and most >= len(keys):
            most = None
        if max(least, most or 0) > 1 and len(keys) > MAX_COUNTED:
            keyword = "minProperties" if most is None else "maxProperties"
            cannot(keyword, f"is supported with at most {MAX_COUNTED} named keys")
            least, most = min(least, 1), None
        spacing = self._writer.spacing
        colon = rules.token(spacing.colon)
        members = [
            Member(
                (quoted(spelled(key)), colon, self._writer.value(self._sets.member(object, key))),
                key in required,
            )
            for key in keys
        ]
        other: Ref | None = None
        if others:
            other = Ref(f"{self._name}_x")
            rules.add(
                other.name, [(rules.terminal(str(each[0])), colon, *each[1:]) for each in others]
            )
        found: Alternatives = [('"{}"',)] if least == 0 and not required else []
        if most == 0:
            return [] if required else found
        open, close = rules.token(spacing.open_object), rules.token(spacing.close_object)
        if least <= 1 and most is None:
            return found + [(open, *each, close) for each in self._members(members, other)]
        self._counted(members, other, least, most)
        return [*found, (open, Ref(f"{self._name}_0_0"))]

    def _members(self, members: Sequence[Member], other: Ref | None) -> Alternatives:
        """Return one member or more, with commas between them.

        Rules halve the list of members, so their nesting depth is logarithmic.
        """
        comma = self._rules.token(self._writer.spacing.comma)

        def after(low: int, high: int) -> tuple[Symbol, ...]:
            """Return members low to high, each after a comma; optional ones may be absent."""
            if high - low <= 8:
                return tuple(
                    symbol
                    for member in members[low:high]
                    for symbol in (
                        (comma, *member.symbols)
                        if member.is_required
                        else (Many((comma, *member.symbols), 0, 1),)
                    )
                )
            rule = Ref(f"{self._name}_a{low}_{high}")
            if rule.name not in self._rules.rules:
                middle = (low + high) // 2
                self._rules.add(rule.name, [(*after(low, middle), *after(middle, high))])
            return (rule,)

        def first(low: int, high: int) -> Alternatives:
            """Return members low to high, at least one; the first has no comma before it."""
            if high - low == 1:
                return [members[low].symbols]
            middle = (low + high) // 2
            rule = Ref(f"{self._name}_f{low}_{middle}")
            self._rules.add(rule.name, first(low, middle))
            found: Alternatives = [(rule, *after(middle, high))]
            if not any(member.is_required for member in members[low:middle]):
                later = Ref(f"{self._name}_f{middle}_{high}")
                self._rules.add(later.name, first(middle, high))
                found.append((later,))
            return found

        found: Alternatives = []
        tail: tuple[Symbol, ...] = ()
        if other is not None:
            tail = (Many((comma, other), 0, None),)
            if not any(member.is_required for member in members):
                found.append((other, *tail))
        if members:
            found += [(*each, *tail) for each in first(0, len(members))]
        return found

    def _counted(
        self,
        members: Sequence[Member],
        other: Ref | None,
        least: int,
        most: int | None,
    ) -> None:
        """Add a rule for each state: the next member, and the number of members written so far."""
        spacing = self._writer.spacing
        comma, close = self._rules.token(spacing.comma), self._rules.token(spacing.close_object)
        counted = max(least, most or 0, 1)

        def state(i: int, n: int) -> Ref:
            return Ref(f"{self._name}_{i}_{min(n, counted)}")

        last = len(members)
        if other is not None:
            for n in range(min(last, counted) + 1):
                options: Alternatives = [(close,)] if least <= n and n else []
                if most is not None and n < most:
                    separator = (comma,) if n else ()
                    # One repeat for the rest: a rule for each member would nest too deeply.
                    more = Many((comma, other), max(0, least - n - 1), most - n - 1)
                    options.append((*separator, other, more, close))
                self._rules.add(state(last, n).name, options)
        else:
            for n in range(min(last, counted) + 1):
                self._rules.add(state(last, n).name, [(close,)] if least <= n and n else [])
        for i in reversed(range(last)):
            for n in range(min(i, counted) + 1):
                options = []
                if most is None or n < most:
                    separator = (comma,) if n else ()
                    options.append((*separator, *members[i].symbols, state(i + 1, n + 1)))
                if not members[i].is_required:
                    options.append((state(i + 1, n),))
                self._rules.add(state(i, n).name, options)

    def _keys(self) -> list[str]:
        """Return the keys named by `properties`, `required` or an enum in `propertyNames`."""
        named = chain.from_iterable(part.properties or () for part in self._object.parts)
        keys = dict.fromkeys([*named, *self._object.required])
        for each in self._name_alternatives():
            if isinstance(each, Literals):
                keys.update(dict.fromkeys(each.values))
        return list(keys)

    def _name_alternatives(self) -> Sequence[Alternative]:
        """Return the strings that `propertyNames` allows."""
        return self._writer.evaluator.values(self._object.names).get("string", ())

    def _other_members(self, keys: Sequence[str]) -> Alternatives:
        """Return a pair (key terminal, value) for each class of keys that are not named.

        The keys of a class match the same patterns of `patternProperties`.
        """
        object = self._object
        names: list[str] = []
        for each in self._name_alternatives():
            if isinstance(each, Text):
                plain = not each.patterns and not each.least and each.most is None
                names.append(_ANY_KEY if plain else f"({text_terminal(each, as_json, QUOTE)})")
        if not names:
            return []
        allowed = names[0] if len(names) == 1 else f"({' | '.join(names)})"
        taken = set(keys).union(*(part.properties or () for part in object.parts))
        without = f" & ~({' | '.join(quoted(spelled(key)) for key in sorted(taken))})"
        patterns = list(dict.fromkeys(p for part in object.parts for p, _ in part.patterns))
        if len(patterns) > MAX_PATTERNS:
            raise SchemaError(
                f"patternProperties has more than {MAX_PATTERNS} patterns in one place",
                keyword="patternProperties",
            )
        found: Alternatives = []
        for choice in range(1 << len(patterns)):
            matched = {p for i, p in enumerate(patterns) if choice >> i & 1}
            parts: list[Any] = []
            for part in object.parts:
                own = [schema for pattern, schema in part.patterns if pattern in matched]
                parts += own or [part.rest]
            value = conjunction(parts)
            if self._sets.is_empty(value):
                continue
            expression = allowed
            for pattern in patterns:
                sign = "" if pattern in matched else "~"
                expression += f" & {sign}{pattern_terminal(pattern, as_json, QUOTE)}"
            expression += without if taken else ""
            if " & " in expression and self._sets.is_empty_terminal(expression):
                continue
            found.append((expression, self._writer.value(value)))
        return found
