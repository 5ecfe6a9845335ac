"""The syntax tree of a regular expression."""

from __future__ import annotations

from typing import TypeAlias

from zinc.core.dataclass import dataclass
from zinc.grammar.pattern.chars import SCALARS, Ranges


@dataclass(frozen=True, slots=True)
class Chars:
    """A pattern that matches one character of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Anchor:
    """The anchor ^ or $."""

    is_start: bool


@dataclass(frozen=True, slots=True)
class Sequence:
    """A pattern that matches its items one after another."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """A pattern that matches one of several alternatives."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A pattern that repeats an item `least` to `most` times; None sets no limit."""

    item: Node
    least: int
    most: int | None


Node: TypeAlias = Chars | Anchor | Sequence | Choice | Repeat
EMPTY = Sequence(())
ANY_CHARS = Chars(SCALARS)
ANY_TEXT = Repeat(ANY_CHARS, 0, None)
