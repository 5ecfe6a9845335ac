"""Objects of a schema as rules: named members in the order of the schema, then other members."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from zinc.core.dataclass import dataclass
from zinc.grammar.pattern.render import as_json
from zinc.grammar.pattern.terminals import pattern_terminal
from zinc.grammar.schema.document import SchemaError
from zinc.grammar.schema.evaluate import Evaluator
from zinc.grammar.schema.spacing import Spacing
from zinc.grammar.schema.symbols import (
    QUOTE,
    Alternatives,
    Many,
    Ref,
    RuleSet,
    Symbol,
    quoted,
    spelled,
)
from zinc.grammar.schema.values import (
    Alternative,
    Conjunction,
    Literals,
    Object,
    Text,
    conjunction,
    text_terminal,
)

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


class MemberLists:
    """Builder of the rules of lists of members in `rules`. Their names begin with `name`.

    members: named members, in their order. other: a member with another key, None if there are
    none. comma: the symbol between members.
    """

    def __init__(
        self,
        rules: RuleSet,
        name: str,
        members: Sequence[Member],
        other: Ref | None,
        comma: Symbol,
    ) -> None:
        self._rules, self._name = rules, name
        self._members, self._other, self._comma = members, other, comma

    def of_any_length(self) -> Alternatives:
        """Return the alternatives of a list with one member or more.

        Rules halve the list of members, so their nesting depth is logarithmic.
        """
        found: Alternatives = []
        tail: tuple[Symbol, ...] = ()
        if self._other is not None:
            tail = (Many((self._comma, self._other), 0, None),)
            if not any(member.is_required for member in self._members):
                found.append((self._other, *tail))
        if self._members:
            found += [(*each, *tail) for each in self._first(0, len(self._members))]
        return found

    def _first(self, low: int, high: int) -> Alternatives:
        """Return members low to high, at least one; the first has no comma before it."""
        if high - low == 1:
            return [self._members[low].symbols]
        middle = (low + high) // 2
        rule = Ref(f"{self._name}_f{low}_{middle}")
        self._rules.add(rule.name, self._first(low, middle))
        found: Alternatives = [(rule, *self._after(middle, high))]
        if not any(member.is_required for member in self._members[low:middle]):
            later = Ref(f"{self._name}_f{middle}_{high}")
            self._rules.add(later.name, self._first(middle, high))
            found.append((later,))
        return found

    def _after(self, low: int, high: int) -> tuple[Symbol, ...]:
        """Return members low to high, each after a comma; optional ones may be absent."""
        if high - low <= 8:
            symbols: list[Symbol] = []
            for member in self._members[low:high]:
                with_comma = (self._comma, *member.symbols)
                symbols += with_comma if member.is_required else [Many(with_comma, 0, 1)]
            return tuple(symbols)
        rule = Ref(f"{self._name}_a{low}_{high}")
        if rule.name not in self._rules.rules:
            middle = (low + high) // 2
            self._rules.add(rule.name, [(*self._after(low, middle), *self._after(middle, high))])
        return (rule,)

    def counted(self, least: int, most: int | None, close: Symbol) -> Ref:
        """Return the rule of a list of `least` to `most` members, followed by `close`.

        Each rule is a state: the next member, and the number of members written so far.
        """
        limit, last = max(least, most or 0, 1), len(self._members)
        for n in range(min(last, limit) + 1):
            options: Alternatives = [(close,)] if least <= n and n else []
            if self._other is not None and most is not None and n < most:
                separator = (self._comma,) if n else ()
                # One repeat for the rest: a rule for each member would nest too deeply.
                more = Many((self._comma, self._other), max(0, least - n - 1), most - n - 1)
                options.append((*separator, self._other, more, close))
            self._rules.add(self._state(last, n, limit).name, options)
        for i in reversed(range(last)):
            for n in range(min(i, limit) + 1):
                options = []
                if most is None or n < most:
                    separator = (self._comma,) if n else ()
                    rest = self._state(i + 1, n + 1, limit)
                    options.append((*separator, *self._members[i].symbols, rest))
                if not self._members[i].is_required:
                    options.append((self._state(i + 1, n, limit),))
                self._rules.add(self._state(i, n, limit).name, options)
        return self._state(0, 0, limit)

    def _state(self, i: int, n: int, limit: int) -> Ref:
        """Return the rule for member i on after n members; `limit` stands for all larger n."""
        return Ref(f"{self._name}_{i}_{min(n, limit)}")


class ObjectRules:
    """Builder of the rules of one object in `rules`. Their names begin with `name`.

    value: returns a reference to the rule of the values that a conjunction of subschemas allows.
    """

    def __init__(
        self,
        rules: RuleSet,
        evaluator: Evaluator,
        spacing: Spacing,
        value: Callable[[Conjunction], Ref],
        name: str,
        object: Object,
    ) -> None:
        self._rules, self._evaluator, self._sets = rules, evaluator, evaluator.sets
        self._spacing, self._value = spacing, value
        self._name, self._object = name, object

    def alternatives(self) -> Alternatives:
        """Return the alternatives of the object; add the rules they need. Raises SchemaError."""
        object, rules, spacing = self._object, self._rules, self._spacing
        required = set(object.required)
        keys = [key for key in self._keys() if self._sets.is_name(object, key)]
        if not required.issubset(keys):
            return []
        if len(keys) > MAX_KEYS:
            raise SchemaError(f"it has an object with more than {MAX_KEYS:,} named keys")
        others: Alternatives = [] if object.lengths[1] == 0 else self._other_members(keys)
        least, most = self._bounds(len(keys), bool(others))
        colon = rules.token(spacing.colon)
        members = [
            Member(
                (quoted(spelled(key)), colon, self._value(self._sets.member(object, key))),
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
        comma = rules.token(spacing.comma)
        lists = MemberLists(rules, self._name, members, other, comma)
        if least <= 1 and most is None:
            return found + [(open, *each, close) for each in lists.of_any_length()]
        return [*found, (open, lists.counted(least, most, close))]

    def _bounds(self, n_keys: int, has_others: bool) -> tuple[int, int | None]:
        """Return the least and the most members, None for no limit.

        n_keys: named keys. has_others: other keys are allowed. Bounds that the keys imply are left
        out, and so are bounds that the policy drops. Raises SchemaError for bounds that would need
        too many rules.
        """
        cannot = self._evaluator.policy.cannot
        least, most = self._object.lengths
        if least <= len(set(self._object.required)):
            least = 0
        if least > 1 and has_others:
            cannot("minProperties", "is supported up to 1 where keys are not all known")
            least = 1
        if most is not None and not has_others and most >= n_keys:
            most = None
        if max(least, most or 0) > 1 and n_keys > MAX_COUNTED:
            keyword = "minProperties" if most is None else "maxProperties"
            cannot(keyword, f"is supported with at most {MAX_COUNTED} named keys")
            least, most = min(least, 1), None
        return least, most

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
        return self._evaluator.values(self._object.names).get("string", ())

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
            found.append((expression, self._value(value)))
        return found
