"""Rules of a Lark grammar as data, and their text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import field
from decimal import Decimal
from typing import TypeAlias

from zinc.core.dataclass import dataclass
from zinc.grammar.pattern.render import times
from zinc.grammar.schema.document import Json, SchemaError
from zinc.grammar.schema.values import numeral

MAX_CHARACTERS = 4 << 20

QUOTE = '"'  # before and after strings and keys


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference to a rule."""

    name: str


@dataclass(frozen=True, slots=True)
class Many:
    """A group of symbols that is repeated `least` to `most` times; None sets no limit."""

    symbols: tuple[Symbol, ...]
    least: int
    most: int | None


Symbol: TypeAlias = str | Ref | Many  # a str is a literal or the name of a terminal
Alternatives: TypeAlias = list[tuple[Symbol, ...]]


@dataclass
class RuleSet:
    """Rules under construction; `prefix` begins the names of all rules and terminals."""

    prefix: str
    rules: dict[str, Alternatives] = field(default_factory=dict)
    _terminals: dict[str, str] = field(default_factory=dict)
    _leaves: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, alternatives: Alternatives) -> None:
        """Add a rule, or replace it."""
        self.rules[name] = alternatives

    def terminal(self, expression: str) -> str:
        """Return the name of the terminal for an expression."""
        if expression not in self._terminals:
            self._terminals[expression] = f"{self.prefix.upper()}_T{len(self._terminals)}"
        return self._terminals[expression]

    def token(self, text: str) -> str:
        """Return a quoted literal unchanged, or the name of an expression's terminal."""
        return text if text.startswith('"') else self.terminal(text)

    def leaf(self, schema: dict[str, Json]) -> str:
        """Return the name of a rule for a schema that llguidance compiles itself."""
        key = json.dumps(schema)
        if key not in self._leaves:
            self._leaves[key] = f"{self.prefix}_m{len(self._leaves)}"
        return self._leaves[key]

    def lines(self, start: str) -> Iterator[str]:
        """Yield the lines of the grammar, without useless rules. Raises SchemaError."""
        rules = self._productive()
        if not rules.get(start):
            raise SchemaError("it allows no value")
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
            raise SchemaError("its grammar would be too large")

    def _productive(self) -> dict[str, Alternatives]:
        """Return the rules, without alternatives that derive no finite text."""
        good: set[str] = set()
        names = list(reversed(self.rules))
        n_before = -1
        while len(good) != n_before:
            n_before = len(good)
            for name in names:
                if name not in good and any(_ends(each, good) for each in self.rules[name]):
                    good.add(name)
        return {
            name: [_without(each, good) for each in self.rules[name] if _ends(each, good)]
            for name in self.rules
            if name in good
        }


def spelled(value: Json) -> str:
    """Return the JSON text of a value without members."""
    if isinstance(value, Decimal) or (isinstance(value, int) and not isinstance(value, bool)):
        return numeral(value)
    return json.dumps(value, ensure_ascii=False)


def quoted(text: str) -> str:
    """Return a literal of the Lark dialect."""
    return json.dumps(text, ensure_ascii=False)


def _ends(alternative: tuple[Symbol, ...], good: set[str]) -> bool:
    """Return whether an alternative derives a finite text, if the rules in `good` do."""
    for symbol in alternative:
        if isinstance(symbol, Ref) and symbol.name not in good:
            return False
        if isinstance(symbol, Many) and symbol.least and not _ends(symbol.symbols, good):
            return False
    return True


def _without(alternative: tuple[Symbol, ...], good: set[str]) -> tuple[Symbol, ...]:
    """Return `alternative` without the repeats that can only occur zero times."""
    return tuple(
        symbol
        for symbol in alternative
        if not isinstance(symbol, Many) or (symbol.most != 0 and _ends(symbol.symbols, good))
    )


def _reachable(rules: dict[str, Alternatives], start: str) -> list[str]:
    """Return the names of the rules that `start` refers to, directly or not, in that order."""
    found = {start: None}
    pending = [start]

    def refer(symbols: tuple[Symbol, ...]) -> Iterator[str]:
        for symbol in symbols:
            if isinstance(symbol, Ref):
                yield symbol.name
            elif isinstance(symbol, Many):
                yield from refer(symbol.symbols)

    while pending:
        for alternative in rules[pending.pop()]:
            for name in refer(alternative):
                if name not in found:
                    found[name] = None
                    pending.append(name)
    return list(found)


def _text(alternative: tuple[Symbol, ...]) -> str:
    """Return an alternative as Lark writes it."""
    parts: list[str] = []
    for symbol in alternative:
        match symbol:
            case str():
                parts.append(symbol)
            case Ref(name):
                parts.append(name)
            case Many(symbols, least, most):
                parts.append(f"({_text(symbols)}){times(least, most)}")
    return " ".join(parts)
