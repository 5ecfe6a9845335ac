"""Values of a schema as rules: one rule for each conjunction of subschemas.

The scalars of a rule form one terminal. Recursive schemas become recursive rules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import field, replace
from fractions import Fraction

from zinc.core.dataclass import dataclass
from zinc.grammar.pattern.render import as_json, times
from zinc.grammar.schema import numbers
from zinc.grammar.schema.document import Json, SchemaError
from zinc.grammar.schema.evaluate import Evaluator
from zinc.grammar.schema.multiples import (
    MAX_MULTIPLES,
    exact_schema,
    multiples_of_ten,
    power_of_ten,
)
from zinc.grammar.schema.objects import ObjectRules
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
    Array,
    Conjunction,
    Literals,
    Number,
    Object,
    Text,
    integer_bounds,
    text_terminal,
)

MAX_RULES = 30_000
MAX_DECIMALS = 60  # of the bound of a number
MAX_PREFIX = 200  # items of an array with schemas of their own

_ESCAPE = (
    r'\\(["\\\x{2f}bfnrt]|u([0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}'
    r"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))"
)
# One character of a string without a pattern; a surrogate pair is one character.
_CHAR = rf'([^"\\\x00-\x1f]|{_ESCAPE})'


@dataclass
class Writer:
    """Builder of the rules of subschemas, and of all that these refer to, in `rules`."""

    evaluator: Evaluator
    rules: RuleSet
    spacing: Spacing
    _names: dict[Conjunction, str] = field(default_factory=dict)
    _pending: list[tuple[str, Conjunction, Collection[str] | None]] = field(default_factory=list)
    _n_multiples: int = 0

    def start(self, conjunction: Conjunction, kinds: Collection[str] | None) -> str:
        """Write the rules of a conjunction and return the name of the first.

        kinds: the JSON types that the value may have, None for all. Raises SchemaError.
        """
        name = self.rules.prefix
        self._pending.append((name, conjunction, kinds))
        if kinds is None:
            self._names[conjunction] = name
        while self._pending:
            name, conjunction, kinds = self._pending.pop()
            self.rules.add(name, [])
            self.rules.add(name, self._body(name, conjunction, kinds))
            if len(self.rules.rules) > MAX_RULES:
                raise SchemaError("its grammar would be too large")
        return self.rules.prefix

    def value(self, conjunction: Conjunction) -> Ref:
        """Return a reference to the rule of a conjunction, which is written later."""
        if conjunction not in self._names:
            self._names[conjunction] = name = f"{self.rules.prefix}_{len(self._names)}"
            self._pending.append((name, conjunction, None))
        return Ref(self._names[conjunction])

    def _body(
        self, name: str, conjunction: Conjunction, kinds: Collection[str] | None
    ) -> Alternatives:
        """Return the alternatives of a conjunction; names of further rules begin with `name`."""
        scalars: list[str] = []
        found: Alternatives = []
        for kind, alternatives in self.evaluator.values(conjunction).items():
            if kinds is not None and kind not in kinds:
                continue
            for each in alternatives:
                match each:
                    case Literals(values) if kind in ("array", "object"):
                        found += [tuple(self._written(value)) for value in values]
                    case Literals(values):
                        scalars += [quoted(spelled(value)) for value in values]
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
            found.insert(0, (self.rules.terminal(" | ".join(scalars)),))
        return found

    def _object(self, name: str, object: Object) -> Alternatives:
        """Return the alternatives of an object; names of further rules begin with `name`."""
        rules = ObjectRules(self.rules, self.evaluator, self.spacing, self.value, name, object)
        return rules.alternatives()

    def _text(self, text: Text) -> list[str]:
        """Return the expression of a set of strings, or nothing if it is empty."""
        if not text.patterns:
            return [f'/"{_CHAR}{times(text.least, text.most)}"/']
        expression = text_terminal(text, as_json, QUOTE)
        return [] if self.evaluator.sets.is_empty_terminal(expression) else [f"({expression})"]

    def _number(self, number: Number) -> list[str]:
        """Return the expression of a range of numbers, or nothing if it is empty."""
        for bound, keyword in ((number.low, "minimum"), (number.high, "maximum")):
            exponent = 0 if bound is None else bound.value.as_tuple().exponent
            if isinstance(exponent, int) and exponent < -MAX_DECIMALS and not number.integer:
                self.evaluator.policy.cannot(keyword, f"has more than {MAX_DECIMALS} decimals")
                return ["/-?(0|[1-9][0-9]*)(\\.[0-9]+)?/"]
        return _number(number)

    def _multiples(self, number: Number) -> Alternatives:
        """Return alternatives for multiples of a number.

        Multiples of a power of ten have a pattern; others are left to llguidance.
        """
        step = number.multiple_of
        assert step is not None
        if number.integer:
            step = Fraction(step.numerator)  # the integers among the multiples
        expressions = self._number(replace(number, multiple_of=None))
        zeros = power_of_ten(step)
        if zeros is not None and not (number.integer and zeros == 0):
            expressions = [f"{each} & /{multiples_of_ten(zeros)}/" for each in expressions]
        plain: Alternatives = [(self.rules.terminal(each),) for each in expressions]
        if zeros is not None or not plain:
            return plain
        schema = exact_schema(number, step)
        if schema is not None:
            # llguidance builds an automaton with about as many states for each schema.
            self._n_multiples += step.numerator * step.denominator
        if schema is None or self._n_multiples > MAX_MULTIPLES:
            self.evaluator.policy.cannot(
                "multipleOf", f"{_short(step)} is not supported with this range"
            )
            return plain
        return [(self.rules.leaf(schema),)]

    def _array(self, name: str, array: Array) -> Alternatives:
        """Return the alternatives of an array: listed items one by one, then a repeat."""
        least, most = array.lengths
        n_prefix = array.n_prefix
        if most is not None:
            n_prefix = min(n_prefix, most)
        if n_prefix > MAX_PREFIX:
            raise SchemaError(f"it has arrays with more than {MAX_PREFIX} listed items")
        comma, close = (
            self.rules.token(self.spacing.comma),
            self.rules.token(self.spacing.close_array),
        )
        open = self.rules.token(self.spacing.open_array)
        found: Alternatives = [('"[]"',)] if least == 0 else []
        if most == 0:
            return found
        following = (comma, self.value(array.item(n_prefix)))
        if n_prefix == 0:
            more = None if most is None else most - 1
            rest = Many(following, max(0, least - 1), more)
            found.append((open, following[1], rest, close))
            return found
        for i in reversed(range(n_prefix)):
            item = self.value(array.item(i))
            head: tuple[Symbol, ...] = (open, item) if i == 0 else (comma, item)
            options: Alternatives = [(*head, close)] if least <= i + 1 else []
            if i + 1 < n_prefix:
                options.append((*head, Ref(f"{name}_{i + 1}")))
            elif most is None or most > n_prefix:
                more = None if most is None else most - n_prefix
                options.append((*head, Many(following, max(1, least - n_prefix), more), close))
            if i == 0:
                found += options
            else:
                self.rules.add(f"{name}_{i}", options)
        return found

    def _written(self, value: Json) -> Iterator[Symbol]:
        """Yield the symbols of a literal array or object."""
        spacing = self.spacing
        match value:
            case dict() if value:
                yield self.rules.token(spacing.open_object)
                for i, (key, each) in enumerate(value.items()):
                    if i:
                        yield self.rules.token(spacing.comma)
                    yield quoted(spelled(key))
                    yield self.rules.token(spacing.colon)
                    yield from self._written(each)
                yield self.rules.token(spacing.close_object)
            case list() if value:
                yield self.rules.token(spacing.open_array)
                for i, each in enumerate(value):
                    if i:
                        yield self.rules.token(spacing.comma)
                    yield from self._written(each)
                yield self.rules.token(spacing.close_array)
            case _:
                yield quoted(spelled(value))


def _number(number: Number) -> list[str]:
    if number.integer:
        pattern = numbers.integer_pattern(*integer_bounds(number))
    else:
        pattern = numbers.decimal_pattern(number.low, number.high)
    return [] if pattern is None else [f"/{pattern}/"]


def _short(step: Fraction) -> str:
    return str(step) if len(str(step)) < 40 else "of this size"
