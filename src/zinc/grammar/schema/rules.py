"""JSON values of a schema as rules of llguidance's Lark dialect.

    value_0: "{" value_0_1           members in the order of the schema,
    value_0_1: KEY ":" value_1 ...   then keys that it does not name

A rule stands for a conjunction of subschemas, so recursive schemas become recursive rules. Scalars
of one place are one terminal. Rules that derive no finite text are removed, and a schema of which
nothing is left is refused.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from typing import Any, TypeAlias

from zinc.grammar.schema import numbers
from zinc.grammar.schema.document import Document, Json, SchemaError
from zinc.grammar.schema.ecmascript import as_json, times
from zinc.grammar.schema.evaluate import Evaluator, conjunction, pattern_expression, text_expression
from zinc.grammar.schema.values import (
    ANY,
    Alternative,
    Array,
    Conjunction,
    Literals,
    Number,
    Object,
    Text,
    integer_bounds,
    numeral,
)

MAX_RULES = 30_000
MAX_CHARACTERS = 4 << 20
MAX_PATTERNS = 5  # of `patternProperties` in one place; keys fall into 2**n classes
MAX_COUNTED = 60  # keys of an object whose members are counted
MAX_DECIMALS = 60  # of the bound of a number
MAX_KEYS = 2_500  # of one object
MAX_PREFIX = 200  # items of an array with schemas of their own
EXACT_DOUBLE = 2**53
MAX_MULTIPLES = 60_000  # the sum of all `multipleOf` that are no power of ten

_QUOTE = '"'
_ESCAPE = (
    r'\\(["\\\x{2f}bfnrt]|u([0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}'
    r"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))"
)
# One character of a string that no pattern looks at; a surrogate pair is one.
_CHAR = rf'([^"\\\x00-\x1f]|{_ESCAPE})'
# Keys have one spelling each: in two they could be given twice.
_ANY_KEY = f'/"({as_json(((0, 0xD7FF), (0xE000, 0x10FFFF)))}*)"/'


@dataclass(frozen=True, slots=True)
class Spacing:
    """Tokens of JSON with the whitespace around them, as Lark terminals."""

    open_object: str
    close_object: str
    open_array: str
    close_array: str
    colon: str
    comma: str


# A space, or a line break and an indentation; never more, since a small model may write nothing
# else.
_BLANK = r"( |\n[ \t]{0,24})?"
FLEXIBLE = Spacing(
    rf"/\{{{_BLANK}/", rf"/{_BLANK}\}}/", rf"/\[{_BLANK}/", rf"/{_BLANK}\]/",
    rf"/:{_BLANK}/", rf"/,{_BLANK}/",
)  # fmt: skip
# As models were shown calls of tools.
SPACED = Spacing('"{"', '"}"', '"["', '"]"', '": "', '", "')


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules of a schema; `start` is the name of the first."""

    start: str
    lines: tuple[str, ...]


class SchemaRules:
    """Writes rules of one schema or of parts of it. Raises SchemaError, as its methods do.

    lenient: leave out keywords that cannot be followed, and list them in `dropped`. A part of the
    schema is named by its keys: `("properties", "city")`.
    """

    def __init__(self, schema: Json, *, spacing: Spacing = FLEXIBLE, lenient: bool = False) -> None:
        self._document = Document(schema)
        self._evaluator = Evaluator(self._document, lenient=lenient)
        self._spacing = spacing

    @property
    def dropped(self) -> dict[str, None]:
        """Return the keywords that the rules so far leave out."""
        return self._evaluator.dropped

    def drop(self, keyword: str, why: str) -> None:
        """Leave out a keyword, or refuse it."""
        self._evaluator.cannot(keyword, why)

    def sharing(self, schema: Json) -> SchemaRules:
        """Return a writer of another schema that drops keywords into the same list."""
        other = SchemaRules(schema, spacing=self._spacing)
        other._evaluator.share(self._evaluator)
        return other

    def kinds(self, *at: str | int) -> frozenset[str]:
        """Return the JSON types that a value of a part may have."""
        return frozenset(self._evaluator.values(self._part(at)))

    def is_any(self, *at: str | int) -> bool:
        """Return whether a part allows every value."""
        return not self._part(at) or self._evaluator.values(self._part(at)) == ANY

    def json(self, prefix: str, *at: str | int, kinds: Collection[str] | None = None) -> Rules:
        """Return the rules of values as JSON.

        prefix: begins the names of all rules; lower case. kinds: the types that the value may have.
        """
        part = self._part(at)
        if self._document.root.schema is False:
            raise SchemaError("false allows no value")
        writer = _Writer(self._evaluator, prefix, self._spacing)
        name = writer.start(part, kinds)
        return Rules(name, tuple(writer.lines(name)))

    def text(self, *at: str | int) -> str:
        """Return a terminal of the strings of a part as they stand, without quotes."""
        found: list[str] = []
        for each in self._evaluator.values(self._part(at)).get("string", ()):
            match each:
                case Literals(values):
                    found += [_quoted(value) if value else "/()/" for value in values]
                case Text(0, None, ()):
                    found.append("/(?s:.*)/")
                case Text():
                    found.append(f"({text_expression(each)})")
        expression = found[0] if len(found) == 1 else f"({' | '.join(found)})"
        if not found or (" & " in expression and self._evaluator.is_empty_lexeme(expression)):
            raise SchemaError("no text is valid by it")
        return expression

    def _part(self, at: Sequence[str | int]) -> Conjunction:
        located = self._document.root
        if at:
            located = self._document.child(located, *at)
        return conjunction([located])


def rules_of(schema: Json, *, prefix: str = "value", spacing: Spacing = FLEXIBLE) -> Rules:
    """Return the rules of a JSON schema. Raises SchemaError."""
    return SchemaRules(schema, spacing=spacing).json(prefix)


@dataclass(frozen=True, slots=True)
class _Ref:
    name: str


@dataclass(frozen=True, slots=True)
class _Many:
    symbols: tuple[_Symbol, ...]
    least: int
    most: int | None


_Symbol: TypeAlias = str | _Ref | _Many  # a str is a literal or the name of a terminal


@dataclass(frozen=True, slots=True)
class _Member:
    symbols: tuple[_Symbol, ...]
    is_required: bool


_Alternatives: TypeAlias = list[tuple[_Symbol, ...]]


@dataclass
class _Writer:
    evaluator: Evaluator
    prefix: str
    spacing: Spacing
    _rules: dict[str, _Alternatives] = field(default_factory=dict)
    _terminals: dict[str, str] = field(default_factory=dict)
    _leaves: dict[str, str] = field(default_factory=dict)
    _names: dict[Conjunction, str] = field(default_factory=dict)
    _pending: list[tuple[str, Conjunction, Collection[str] | None]] = field(default_factory=list)
    _n_multiples: int = 0

    def start(self, conjunction: Conjunction, kinds: Collection[str] | None) -> str:
        name = self.prefix
        self._pending.append((name, conjunction, kinds))
        if kinds is None:
            self._names[conjunction] = name
        while self._pending:
            name, conjunction, kinds = self._pending.pop()
            self._rules[name] = []
            self._rules[name] = self._body(name, conjunction, kinds)
            if len(self._rules) > MAX_RULES:
                raise SchemaError("it becomes too large a grammar")
        return self.prefix

    def lines(self, start: str) -> Iterator[str]:
        """Yield the lines of the grammar, without unreachable and unproductive rules."""
        rules = self._productive()
        if not rules.get(start):
            raise SchemaError("no value is valid by it")
        n_characters = 0
        for name in _reachable(rules, start):
            line = f"{name}: " + " | ".join(_text(each) for each in rules[name])
            n_characters += len(line)
            yield line
        for expression, name in self._terminals.items():
            n_characters += len(expression)
            yield f"{name}: {expression}"
        for schema, name in self._leaves.items():
            yield f"{name}: %json {schema}"
        if n_characters > MAX_CHARACTERS:
            raise SchemaError("it becomes too large a grammar")

    def _productive(self) -> dict[str, _Alternatives]:
        """Return the rules without alternatives that derive no finite text."""
        good: set[str] = set()
        names = list(reversed(self._rules))
        n_before = -1
        while len(good) != n_before:
            n_before = len(good)
            for name in names:
                if name not in good and any(_ends(each, good) for each in self._rules[name]):
                    good.add(name)
        return {
            name: [_without(each, good) for each in self._rules[name] if _ends(each, good)]
            for name in self._rules
            if name in good
        }

    # -- values -----------------------------------------------------------------------------------

    def _value(self, conjunction: Conjunction) -> _Ref:
        if conjunction not in self._names:
            self._names[conjunction] = name = f"{self.prefix}_{len(self._names)}"
            self._pending.append((name, conjunction, None))
        return _Ref(self._names[conjunction])

    def _body(
        self, name: str, conjunction: Conjunction, kinds: Collection[str] | None
    ) -> _Alternatives:
        scalars: list[str] = []
        found: _Alternatives = []
        for kind, alternatives in self.evaluator.values(conjunction).items():
            if kinds is not None and kind not in kinds:
                continue
            for each in alternatives:
                match each:
                    case Literals(values) if kind in ("array", "object"):
                        found += [tuple(self._written(value)) for value in values]
                    case Literals(values):
                        scalars += [_quoted(_spelled(value)) for value in values]
                    case Text():
                        scalars += self._text(each)
                    case Number() if each.multiple_of is not None:
                        found += self._multiples(each)
                    case Number():
                        scalars += self._number(each)
                    case Array():
                        found += self._array(f"{name}_a{len(found)}", each)
                    case Object():
                        found += self._object(f"{name}_o{len(found)}", each)
        if len(scalars) == 1 and scalars[0].startswith('"'):
            found.insert(0, (scalars[0],))
        elif scalars:
            found.insert(0, (self._terminal(" | ".join(scalars)),))
        return found

    def _terminal(self, expression: str) -> str:
        if expression not in self._terminals:
            self._terminals[expression] = f"{self.prefix.upper()}_T{len(self._terminals)}"
        return self._terminals[expression]

    def _token(self, text: str) -> str:
        """Return a literal unchanged, and the terminal's name for an expression."""
        return text if text.startswith('"') else self._terminal(text)

    def _text(self, text: Text) -> list[str]:
        if not text.patterns:
            return [f'/"{_CHAR}{times(text.least, text.most)}"/']
        expression = text_expression(text, as_json, _QUOTE)
        return [] if self.evaluator.is_empty_lexeme(expression) else [f"({expression})"]

    def _number(self, number: Number) -> list[str]:
        for bound, keyword in ((number.low, "minimum"), (number.high, "maximum")):
            exponent = 0 if bound is None else bound.value.as_tuple().exponent
            if isinstance(exponent, int) and exponent < -MAX_DECIMALS and not number.integer:
                self.evaluator.cannot(keyword, f"has more than {MAX_DECIMALS} decimals")
                return ["/-?(0|[1-9][0-9]*)(\\.[0-9]+)?/"]
        return _number(number)

    def _multiples(self, number: Number) -> _Alternatives:
        """Write multiples of a power of ten by their digits, of other numbers by llguidance."""
        step = number.multiple_of
        assert step is not None
        if number.integer:
            step = Fraction(step.numerator)  # the integers among the multiples
        expressions = self._number(replace(number, multiple_of=None))
        zeros = _power_of_ten(step)
        if zeros is not None and not (number.integer and zeros == 0):
            expressions = [f"{each} & /{_multiples_of_ten(zeros)}/" for each in expressions]
        plain: _Alternatives = [(self._terminal(each),) for each in expressions]
        if zeros is not None or not plain:
            return plain
        schema = _leaf(number, step)
        if schema is not None:
            # llguidance builds an automaton of about as many states, each time.
            self._n_multiples += step.numerator * step.denominator
        if schema is None or self._n_multiples > MAX_MULTIPLES:
            self.evaluator.cannot("multipleOf", f"{_short(step)} is not supported with this range")
            return plain
        key = json.dumps(schema)
        if key not in self._leaves:
            self._leaves[key] = f"{self.prefix}_m{len(self._leaves)}"
        return [(self._leaves[key],)]

    # -- arrays -----------------------------------------------------------------------------------

    def _array(self, name: str, array: Array) -> _Alternatives:
        least, most = self.evaluator.lengths(array)
        n_prefix = self.evaluator.n_prefix(array)
        if most is not None:
            n_prefix = min(n_prefix, most)
        if n_prefix > MAX_PREFIX:
            raise SchemaError(f"it has arrays with more than {MAX_PREFIX} listed items")
        comma, close = self._token(self.spacing.comma), self._token(self.spacing.close_array)
        open = self._token(self.spacing.open_array)
        found: _Alternatives = [('"[]"',)] if least == 0 else []
        if most == 0:
            return found
        following = (comma, self._value(self.evaluator.item(array, n_prefix)))
        if n_prefix == 0:
            more = None if most is None else most - 1
            rest = _Many(following, max(0, least - 1), more)
            found.append((open, following[1], rest, close))
            return found
        for i in reversed(range(n_prefix)):
            item = self._value(self.evaluator.item(array, i))
            head: tuple[_Symbol, ...] = (open, item) if i == 0 else (comma, item)
            options: _Alternatives = [(*head, close)] if least <= i + 1 else []
            if i + 1 < n_prefix:
                options.append((*head, _Ref(f"{name}_{i + 1}")))
            elif most is None or most > n_prefix:
                more = None if most is None else most - n_prefix
                options.append((*head, _Many(following, max(1, least - n_prefix), more), close))
            if i == 0:
                found += options
            else:
                self._rules[f"{name}_{i}"] = options
        return found

    # -- objects ----------------------------------------------------------------------------------

    def _object(self, name: str, object: Object) -> _Alternatives:
        """Write an object: named members in order, then others."""
        evaluator = self.evaluator
        least, most = evaluator.n_members(object)
        required = set(evaluator.required(object))
        least = 0 if least <= len(required) else least
        keys = [key for key in self._keys(object) if evaluator.is_name(object, key)]
        if not required.issubset(keys):
            return []
        if len(keys) > MAX_KEYS:
            raise SchemaError(f"it has an object with more than {MAX_KEYS:,} named keys")
        others: _Alternatives = [] if most == 0 else self._other_members(object, keys)
        if least > 1 and others:
            evaluator.cannot("minProperties", "is supported up to 1 where keys are not all known")
            least = 1
        if most is not None and not others and most >= len(keys):
            most = None
        if max(least, most or 0) > 1 and len(keys) > MAX_COUNTED:
            keyword = "minProperties" if most is None else "maxProperties"
            evaluator.cannot(keyword, f"is supported with at most {MAX_COUNTED} named keys")
            least, most = min(least, 1), None
        colon = self._token(self.spacing.colon)
        members = [
            _Member(
                (_quoted(_spelled(key)), colon, self._value(evaluator.member(object, key))),
                key in required,
            )
            for key in keys
        ]
        other: _Ref | None = None
        if others:
            other = _Ref(f"{name}_x")
            self._rules[other.name] = [
                (self._terminal(str(each[0])), colon, *each[1:]) for each in others
            ]
        found: _Alternatives = [('"{}"',)] if least == 0 and not required else []
        if most == 0:
            return [] if required else found
        open, close = self._token(self.spacing.open_object), self._token(self.spacing.close_object)
        if least <= 1 and most is None:
            return found + [(open, *each, close) for each in self._members(name, members, other)]
        self._counted(name, members, other, least, most)
        return [*found, (open, _Ref(f"{name}_0_0"))]

    def _members(self, name: str, members: Sequence[_Member], other: _Ref | None) -> _Alternatives:
        """Write one member or more. Rules halve the list, so their nesting depth is logarithmic.

        `after` is some members, each behind a comma; `first` has a member without one.
        """
        comma = self._token(self.spacing.comma)

        def after(low: int, high: int) -> tuple[_Symbol, ...]:
            if high - low <= 8:
                return tuple(
                    symbol
                    for member in members[low:high]
                    for symbol in (
                        (comma, *member.symbols)
                        if member.is_required
                        else (_Many((comma, *member.symbols), 0, 1),)
                    )
                )
            rule = _Ref(f"{name}_a{low}_{high}")
            if rule.name not in self._rules:
                middle = (low + high) // 2
                self._rules[rule.name] = [(*after(low, middle), *after(middle, high))]
            return (rule,)

        def first(low: int, high: int) -> _Alternatives:
            if high - low == 1:
                return [members[low].symbols]
            middle = (low + high) // 2
            rule = _Ref(f"{name}_f{low}_{middle}")
            self._rules[rule.name] = first(low, middle)
            found: _Alternatives = [(rule, *after(middle, high))]
            if not any(member.is_required for member in members[low:middle]):
                later = _Ref(f"{name}_f{middle}_{high}")
                self._rules[later.name] = first(middle, high)
                found.append((later,))
            return found

        found: _Alternatives = []
        tail: tuple[_Symbol, ...] = ()
        if other is not None:
            tail = (_Many((comma, other), 0, None),)
            if not any(member.is_required for member in members):
                found.append((other, *tail))
        if members:
            found += [(*each, *tail) for each in first(0, len(members))]
        return found

    def _counted(
        self,
        name: str,
        members: Sequence[_Member],
        other: _Ref | None,
        least: int,
        most: int | None,
    ) -> None:
        """Add a rule for each state: the next member, and the number of members written so far."""
        comma, close = self._token(self.spacing.comma), self._token(self.spacing.close_object)
        counted = max(least, most or 0, 1)

        def state(i: int, n: int) -> _Ref:
            return _Ref(f"{name}_{i}_{min(n, counted)}")

        last = len(members)
        if other is not None:
            for n in range(min(last, counted) + 1):
                options: _Alternatives = [(close,)] if least <= n and n else []
                if most is not None and n < most:
                    separator = (comma,) if n else ()
                    # All that may follow at once, since a rule for each would nest as deep.
                    more = _Many((comma, other), max(0, least - n - 1), most - n - 1)
                    options.append((*separator, other, more, close))
                self._rules[state(last, n).name] = options
        else:
            for n in range(min(last, counted) + 1):
                self._rules[state(last, n).name] = [(close,)] if least <= n and n else []
        for i in reversed(range(last)):
            for n in range(min(i, counted) + 1):
                options = []
                if most is None or n < most:
                    separator = (comma,) if n else ()
                    options.append((*separator, *members[i].symbols, state(i + 1, n + 1)))
                if not members[i].is_required:
                    options.append((state(i + 1, n),))
                self._rules[state(i, n).name] = options

    def _keys(self, object: Object) -> list[str]:
        """Return the keys named by `properties`, `required` or an enum in `propertyNames`."""
        named = chain.from_iterable(part.properties or () for part in object.parts)
        keys = dict.fromkeys([*named, *self.evaluator.required(object)])
        for each in self._name_alternatives(object):
            if isinstance(each, Literals):
                keys.update(dict.fromkeys(each.values))
        return list(keys)

    def _name_alternatives(self, object: Object) -> Sequence[Alternative]:
        names = conjunction(part.names for part in object.parts)
        return self.evaluator.values(names).get("string", ())

    def _other_members(self, object: Object, keys: Sequence[str]) -> _Alternatives:
        """Return alternatives of key terminal and value for the keys that are not named."""
        names: list[str] = []
        for each in self._name_alternatives(object):
            if isinstance(each, Text):
                plain = not each.patterns and not each.least and each.most is None
                names.append(_ANY_KEY if plain else f"({text_expression(each, as_json, _QUOTE)})")
        if not names:
            return []
        allowed = names[0] if len(names) == 1 else f"({' | '.join(names)})"
        taken = set(keys).union(*(part.properties or () for part in object.parts))
        without = f" & ~({' | '.join(_quoted(_spelled(key)) for key in sorted(taken))})"
        patterns = list(dict.fromkeys(p for part in object.parts for p, _ in part.patterns))
        if len(patterns) > MAX_PATTERNS:
            raise SchemaError(
                f"patternProperties has more than {MAX_PATTERNS} patterns in one place",
                keyword="patternProperties",
            )
        found: _Alternatives = []
        for choice in range(1 << len(patterns)):
            matched = {p for i, p in enumerate(patterns) if choice >> i & 1}
            parts: list[Any] = []
            for part in object.parts:
                own = [schema for pattern, schema in part.patterns if pattern in matched]
                parts += own or [part.rest]
            value = conjunction(parts)
            if self.evaluator.is_empty(value):
                continue
            expression = allowed
            for pattern in patterns:
                sign = "" if pattern in matched else "~"
                expression += f" & {sign}{pattern_expression(pattern, as_json, _QUOTE)}"
            expression += without if taken else ""
            if " & " in expression and self.evaluator.is_empty_lexeme(expression):
                continue
            found.append((expression, self._value(value)))
        return found

    def _written(self, value: Json) -> Iterator[_Symbol]:
        """Yield the symbols of a listed array or object, with the usual whitespace."""
        spacing = self.spacing
        match value:
            case dict() if value:
                yield self._token(spacing.open_object)
                for i, (key, each) in enumerate(value.items()):
                    if i:
                        yield self._token(spacing.comma)
                    yield _quoted(_spelled(key))
                    yield self._token(spacing.colon)
                    yield from self._written(each)
                yield self._token(spacing.close_object)
            case list() if value:
                yield self._token(spacing.open_array)
                for i, each in enumerate(value):
                    if i:
                        yield self._token(spacing.comma)
                    yield from self._written(each)
                yield self._token(spacing.close_array)
            case _:
                yield _quoted(_spelled(value))


def _spelled(value: Json) -> str:
    """Return the JSON text of a value without members."""
    if isinstance(value, Decimal) or (isinstance(value, int) and not isinstance(value, bool)):
        return numeral(value)
    return json.dumps(value, ensure_ascii=False)


def _quoted(text: str) -> str:
    """Return a literal of the Lark dialect."""
    return json.dumps(text, ensure_ascii=False)


def _number(number: Number) -> list[str]:
    if number.integer:
        pattern = numbers.integer_pattern(*integer_bounds(number))
    else:
        pattern = numbers.decimal_pattern(number.low, number.high)
    return [] if pattern is None else [f"/{pattern}/"]


def _power_of_ten(step: Fraction) -> int | None:
    """Return k of 10**k, or None for another number."""
    k = len(str(step.numerator)) - len(str(step.denominator))
    return k if step == Fraction(10) ** k else None


def _multiples_of_ten(k: int) -> str:
    """Return a pattern of the multiples of 10**k, in plain decimals."""
    if k <= 0:
        fraction = rf"\.[0-9]{{1,{-k}}}0*" if k else r"\.0+"
        return rf"-?(0|[1-9][0-9]*)({fraction})?"
    return rf"-?(0|[1-9][0-9]*0{{{k}}})(\.0+)?"


def _leaf(number: Number, step: Fraction) -> dict[str, Json] | None:
    """Return a schema of these multiples that llguidance computes exactly, or None."""
    exponent = next((e for e in range(10) if (step * 10**e).denominator == 1), None)
    if exponent is None or step * 10**exponent > MAX_MULTIPLES:
        return None
    # llguidance multiplies the double by ten until it is whole.
    value, n = float(step), 0
    while value != int(value) and n <= exponent:
        value, n = value * 10, n + 1
    if n != exponent or value != step * 10**exponent:
        return None
    schema: dict[str, Json] = {"type": "integer" if number.integer else "number"}
    schema["multipleOf"] = int(step) if exponent == 0 else float(step)
    for bound, name in ((number.low, "inimum"), (number.high, "aximum")):
        if bound is None:
            continue
        exact = Fraction(bound.value)
        if abs(exact) >= EXACT_DOUBLE or Decimal(repr(float(exact))) != bound.value:
            return None
        if exact.denominator != 1 and (number.integer or len(bound.value.as_tuple().digits) > 15):
            return None
        keyword = f"exclusiveM{name}" if bound.is_open else f"m{name}"
        schema[keyword] = int(exact) if exact.denominator == 1 else float(exact)
    return schema


def _short(step: Fraction) -> str:
    return str(step) if len(str(step)) < 40 else "of this size"


def _ends(alternative: tuple[_Symbol, ...], good: set[str]) -> bool:
    for symbol in alternative:
        if isinstance(symbol, _Ref) and symbol.name not in good:
            return False
        if isinstance(symbol, _Many) and symbol.least and not _ends(symbol.symbols, good):
            return False
    return True


def _without(alternative: tuple[_Symbol, ...], good: set[str]) -> tuple[_Symbol, ...]:
    """Return an alternative without the repeats that can only be empty."""
    return tuple(
        symbol
        for symbol in alternative
        if not isinstance(symbol, _Many) or (symbol.most != 0 and _ends(symbol.symbols, good))
    )


def _reachable(rules: dict[str, _Alternatives], start: str) -> list[str]:
    found = {start: None}
    pending = [start]

    def refer(symbols: tuple[_Symbol, ...]) -> Iterator[str]:
        for symbol in symbols:
            if isinstance(symbol, _Ref):
                yield symbol.name
            elif isinstance(symbol, _Many):
                yield from refer(symbol.symbols)

    while pending:
        for alternative in rules[pending.pop()]:
            for name in refer(alternative):
                if name not in found:
                    found[name] = None
                    pending.append(name)
    return list(found)


def _text(alternative: tuple[_Symbol, ...]) -> str:
    parts: list[str] = []
    for symbol in alternative:
        match symbol:
            case str():
                parts.append(symbol)
            case _Ref(name):
                parts.append(name)
            case _Many(symbols, least, most):
                parts.append(f"({_text(symbols)}){times(least, most)}")
    return " ".join(parts)
