"""Regular expressions of JSON Schema (ECMA-262, `u` flag) as expressions that llguidance takes.

A pattern is parsed into sets of code points, sequences, alternatives and repeats. `whole` turns a
search (a match anywhere in the text) into one expression of the whole text, resolving ^ and $.
Rendering has two forms: the text itself, or the text as a JSON string escapes it.

Lookaround, back references and word boundaries are not regular here and raise PatternError, as
does syntax that ECMA-262 and llguidance read differently.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

LAST = 0x10FFFF
MAX_DEPTH = 60
MAX_PATTERN_CHARACTERS = 20_000
MAX_EXPANDED = 20_000  # atoms, with repeats written out as often as they must be
MAX_COUNT = 1 << 24
MAX_BRANCHES = 256

Ranges: TypeAlias = tuple[tuple[int, int], ...]


class PatternError(ValueError):
    """A pattern has a syntax error, or uses a construct that cannot be followed."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of sorted, disjoint ranges of code points."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Anchor:
    """^ or $."""

    is_start: bool


@dataclass(frozen=True, slots=True)
class Sequence:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    item: Node
    least: int
    most: int | None


Node: TypeAlias = Chars | Anchor | Sequence | Choice | Repeat
EMPTY = Sequence(())
NOTHING = Choice(())


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Merge ranges of code points into sorted, disjoint ones."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def complement(ranges: Ranges) -> Ranges:
    found: list[tuple[int, int]] = []
    at = 0
    for low, high in ranges:
        if at < low:
            found.append((at, low - 1))
        at = high + 1
    if at <= LAST:
        found.append((at, LAST))
    return tuple(found)


def intersection(a: Ranges, b: Ranges) -> Ranges:
    return complement(union((*complement(a), *complement(b))))


_SURROGATES: Ranges = ((0xD800, 0xDFFF),)
_SCALARS = complement(_SURROGATES)
_DIGITS = union([(0x30, 0x39)])
_WORD = union([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
# WhiteSpace and LineTerminator of ECMA-262.
_SPACE = union(
    [(9, 13), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
     (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)]
)  # fmt: skip
_DOT = complement(union([(10, 10), (13, 13), (0x2028, 0x2029)]))
_CLASSES = {
    "d": _DIGITS, "D": complement(_DIGITS), "w": _WORD, "W": complement(_WORD),
    "s": _SPACE, "S": complement(_SPACE),
}  # fmt: skip
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
ANY_CHARS = Chars(_SCALARS)
ANY_TEXT = Repeat(ANY_CHARS, 0, None)


# -- parsing ---------------------------------------------------------------------------------------


@lru_cache(256)
def parse(pattern: str) -> Node:
    """Return the tree of a pattern. Raises PatternError."""
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise PatternError(f"it has more than {MAX_PATTERN_CHARACTERS:,} characters")
    node = _Parser(pattern).parse()
    if _size(node) > MAX_EXPANDED:
        raise PatternError("its repeats are too large")
    return node


def _size(node: Node) -> int:
    """Count the atoms of a tree, each repeat written out to its minimum."""
    match node:
        case Sequence(items) | Choice(items):
            return sum(map(_size, items))
        case Repeat(Chars(ranges), least, _) if len(ranges) != 1 or ranges[0][0] != ranges[0][1]:
            return 1 + (least > MAX_EXPANDED) * least
        case Repeat(item, least, _):
            return _size(item) * max(1, least)
    return 1


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._depth = 0

    def parse(self) -> Node:
        node = self._choice()
        if self._at < len(self._text):
            raise PatternError("a parenthesis is closed that was not opened")
        return node

    def _peek(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _take(self, text: str) -> bool:
        if self._peek(text):
            self._at += len(text)
            return True
        return False

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise PatternError("it ends early")
        self._at += 1
        return self._text[self._at - 1]

    def _choice(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise PatternError(f"its groups are nested deeper than {MAX_DEPTH}")
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        self._depth -= 1
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Node:
        items: list[Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            items.append(self._quantified(self._atom()))
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _quantified(self, item: Node) -> Node:
        bounds = self._quantifier()
        if bounds is None:
            return item
        self._take("?")  # laziness does not change what matches
        if self._quantifier() is not None:
            raise PatternError("a quantifier follows another one")
        least, most = bounds
        if isinstance(item, Anchor):
            raise PatternError("an anchor is repeated")
        if most is not None and least > most:
            raise PatternError("a repeat has its bounds in the wrong order")
        if least > MAX_COUNT:
            raise PatternError("its repeats are too large")
        if most is not None and most > MAX_COUNT:
            most = None  # no text is that long
        return Repeat(item, least, most)

    def _quantifier(self) -> tuple[int, int | None] | None:
        if self._take("*"):
            return 0, None
        if self._take("+"):
            return 1, None
        if self._take("?"):
            return 0, 1
        if not self._peek("{"):
            return None
        end = self._text.find("}", self._at)
        low, comma, high = self._text[self._at + 1 : max(end, 0)].partition(",")
        if end < 0 or not _is_number(low) or (high and not _is_number(high)):
            return None  # a brace that stands for itself
        self._at = end + 1
        if not comma:
            return int(low), int(low)
        return int(low), int(high) if high else None

    def _atom(self) -> Node:
        match self._next():
            case "^":
                return Anchor(True)
            case "$":
                return Anchor(False)
            case "(":
                return self._group()
            case "[":
                return Chars(self._class())
            case ".":
                return Chars(_DOT)
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                raise PatternError("a quantifier has nothing to repeat")
            case char:
                return Chars(((ord(char), ord(char)),))

    def _group(self) -> Node:
        if self._take("?"):
            if self._take("=") or self._take("!") or self._take("<=") or self._take("<!"):
                raise PatternError("lookahead and lookbehind are not supported")
            if self._take("<") or self._take("P<"):
                end = self._text.find(">", self._at)
                if end < 0 or not self._text[self._at : end].isidentifier():
                    raise PatternError("the name of a group is not valid")
                self._at = end + 1
            elif not self._take(":"):
                raise PatternError("flags and other extensions of groups are not supported")
        inside = self._choice()
        if not self._take(")"):
            raise PatternError("a group is not closed")
        return inside

    def _escape(self) -> Node:
        char = self._next()
        match char:
            case "b" | "B":
                raise PatternError("word boundaries are not supported")
            case "A":
                return Anchor(True)
            case "Z" | "z":
                return Anchor(False)
            case "k":
                raise PatternError("back references are not supported")
        if char in "123456789":
            raise PatternError("back references are not supported")
        return Chars(self._escaped(char))

    def _escaped(self, char: str) -> Ranges:
        """Return the characters of an escape whose backslash and `char` were read."""
        if char in _CLASSES:
            return _CLASSES[char]
        if char in "pP":
            ranges = self._property()
            return complement(ranges) if char == "P" else ranges
        code = self._code(char)
        return ((code, code),)

    def _code(self, char: str) -> int:
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char == "0" and not self._text[self._at : self._at + 1].isdigit():
            return 0
        if char == "c":
            letter = self._next()
            if not (letter.isascii() and letter.isalpha()):
                raise PatternError("\\c needs a letter")
            return ord(letter) % 32
        if char == "x":
            return self._hex(2)
        if char == "u":
            return self._unicode()
        if char.isalnum():
            raise PatternError(f"\\{char} is not an escape of ECMA-262")
        return ord(char)

    def _hex(self, n: int) -> int:
        digits = self._text[self._at : self._at + n]
        if len(digits) < n or any(c not in "0123456789abcdefABCDEF" for c in digits):
            raise PatternError("an escape needs hexadecimal digits")
        self._at += n
        return int(digits, 16)

    def _unicode(self) -> int:
        if self._take("{"):
            end = self._text.find("}", self._at)
            n = end - self._at
            code = self._hex(n) if 0 < n <= 8 else LAST + 1
            if code > LAST:
                raise PatternError("an escape names no code point")
            self._at += 1
            return code
        code = self._hex(4)
        if 0xD800 <= code < 0xDC00 and self._take("\\u"):
            low = self._hex(4)
            if not 0xDC00 <= low <= 0xDFFF:
                raise PatternError("half a surrogate pair is not a character")
            return 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
        return code

    def _property(self) -> Ranges:
        end = self._text.find("}", self._at)
        if not self._take("{") or end < 0:
            raise PatternError("\\p needs a property in braces")
        name = self._text[self._at : end]
        self._at = end + 1
        return _property(name)

    def _class(self) -> Ranges:
        is_negated = self._take("^")
        found: list[tuple[int, int]] = []
        while not self._take("]"):
            low = self._class_atom()
            if self._peek("-") and not self._peek("-]"):
                self._at += 1
                high = self._class_atom()
                if not (len(low) == len(high) == 1 and low[0][0] == low[0][1]
                        and high[0][0] == high[0][1]):  # fmt: skip
                    raise PatternError("a range of a class has an end that is a class")
                if low[0][0] > high[0][0]:
                    raise PatternError("a range of a class is in the wrong order")
                found.append((low[0][0], high[0][0]))
            else:
                found += low
        ranges = union(found)
        return complement(ranges) if is_negated else ranges

    def _class_atom(self) -> Ranges:
        char = self._next()
        if char != "\\":
            return ((ord(char), ord(char)),)
        char = self._next()
        if char == "b":
            return ((8, 8),)
        if char == "B" or char in "123456789":
            raise PatternError(f"\\{char} is not an escape of a class")
        return self._escaped(char)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 12


_LONG_NAMES = {
    "Letter": "L", "Cased_Letter": "LC", "Uppercase_Letter": "Lu", "Lowercase_Letter": "Ll",
    "Titlecase_Letter": "Lt", "Modifier_Letter": "Lm", "Other_Letter": "Lo", "Mark": "M",
    "Combining_Mark": "M", "Nonspacing_Mark": "Mn", "Spacing_Mark": "Mc", "Enclosing_Mark": "Me",
    "Number": "N", "Decimal_Number": "Nd", "digit": "Nd", "Letter_Number": "Nl",
    "Other_Number": "No", "Punctuation": "P", "punct": "P", "Connector_Punctuation": "Pc",
    "Dash_Punctuation": "Pd", "Open_Punctuation": "Ps", "Close_Punctuation": "Pe",
    "Initial_Punctuation": "Pi", "Final_Punctuation": "Pf", "Other_Punctuation": "Po",
    "Symbol": "S", "Math_Symbol": "Sm", "Currency_Symbol": "Sc", "Modifier_Symbol": "Sk",
    "Other_Symbol": "So", "Separator": "Z", "Space_Separator": "Zs", "Line_Separator": "Zl",
    "Paragraph_Separator": "Zp", "Other": "C", "Control": "Cc", "cntrl": "Cc", "Format": "Cf",
    "Private_Use": "Co", "Unassigned": "Cn", "Surrogate": "Cs",
}  # fmt: skip


def _property(name: str) -> Ranges:
    """Return the code points of a general category, of Any or of ASCII; scripts are refused."""
    key, _, value = name.rpartition("=")
    if key in ("", "gc", "General_Category"):
        if value == "Any":
            return ((0, LAST),)
        if value == "ASCII":
            return ((0, 127),)
        category = _LONG_NAMES.get(value, value)
        tables = _categories()
        if category == "LC":
            return union(r for each in ("Lu", "Ll", "Lt") for r in tables[each])
        if 0 < len(category) <= 2:
            found = [r for each, rs in tables.items() if each.startswith(category) for r in rs]
            if found:
                return union(found)
    raise PatternError(f"the property \\p{{{name[:40]}}} is not supported")


@lru_cache(1)
def _categories() -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    start, last = 0, unicodedata.category("\0")
    for code in range(1, sys.maxunicode + 1):
        category = unicodedata.category(chr(code))
        if category != last:
            found.setdefault(last, []).append((start, code - 1))
            start, last = code, category
    found.setdefault(last, []).append((start, sys.maxunicode))
    return found


# -- anchors ---------------------------------------------------------------------------------------


@lru_cache(256)
def whole(pattern: str) -> Node:
    """Return a tree that matches the whole of each text in which `pattern` is found."""
    options: list[Node] = []
    for branch in _branches(parse(pattern)):
        found = _anchored(branch)
        if found is not None:
            options.append(found)
    return Choice(tuple(options)) if len(options) != 1 else options[0]


def _branches(node: Node) -> list[tuple[Node, ...]]:
    """Rewrite `node` as alternatives whose anchors all stand at the top level."""
    if not _has_anchor(node):
        return [(node,)]
    match node:
        case Choice(options):
            found = [branch for option in options for branch in _branches(option)]
        case Sequence(items):
            found = [()]
            for item in items:
                more = _branches(item)
                if len(found) * len(more) > MAX_BRANCHES:
                    raise PatternError("it has too many alternatives with anchors")
                found = [(*before, *after) for before in found for after in more]
        case Repeat(item, least, most) if most == 1:
            found = _branches(item) + ([()] if least == 0 else [])
        case Repeat():
            raise PatternError("an anchor stands in a repeated group")
        case _:
            found = [(node,)]
    if len(found) > MAX_BRANCHES:
        raise PatternError("it has too many alternatives with anchors")
    return found


def _has_anchor(node: Node) -> bool:
    match node:
        case Anchor():
            return True
        case Sequence(items) | Choice(items):
            return any(map(_has_anchor, items))
        case Repeat(item, _, _):
            return _has_anchor(item)
    return False


def _anchored(branch: tuple[Node, ...]) -> Node | None:
    """Return the whole text of a branch, or None if its anchors can never hold."""
    starts = [i for i, item in enumerate(branch) if isinstance(item, Anchor) and item.is_start]
    ends = [i for i, item in enumerate(branch) if isinstance(item, Anchor) and not item.is_start]
    if starts and ends and ends[0] < starts[-1]:
        # The end comes before the start: only the empty text can match.
        parts = [item for item in branch if not isinstance(item, Anchor)]
        return EMPTY if all(map(_nullable, parts)) else None
    first, last = (starts[-1] + 1 if starts else 0), (ends[0] if ends else len(branch))
    outside = (*branch[:first], *branch[last:])
    if not all(isinstance(item, Anchor) or _nullable(item) for item in outside):
        return None
    before = () if starts else (ANY_TEXT,)
    after = () if ends else (ANY_TEXT,)
    return Sequence((*before, *branch[first:last], *after))


def _nullable(node: Node) -> bool:
    match node:
        case Sequence(items):
            return all(map(_nullable, items))
        case Choice(options):
            return any(map(_nullable, options))
        case Repeat(item, least, _):
            return least == 0 or _nullable(item)
    return False


# -- rendering -------------------------------------------------------------------------------------


def render(node: Node, one: Callable[[Ranges], str]) -> str | None:
    """Return the expression of a tree, or None if it matches nothing.

    one: renders a set of characters, with `as_text` or `as_json`; "" means that it is empty.
    """
    match node:
        case Chars(ranges):
            return one(intersection(ranges, _SCALARS)) or None
        case Sequence(items):
            parts = [render(item, one) for item in items]
            return None if None in parts else "".join(p for p in parts if p)
        case Choice(options):
            found = [p for p in (render(option, one) for option in options) if p is not None]
            return f"({'|'.join(found)})" if found else None
        case Repeat(item, least, most):
            inside = render(item, one)
            if inside is None or most == 0:
                return "" if least == 0 else None
            return f"({inside}){times(least, most)}"
    raise AssertionError("anchors are resolved by `whole`")


def times(least: int, most: int | None) -> str:
    """Return the quantifier of a repeat."""
    if most is None:
        return "*" if least == 0 else "+" if least == 1 else f"{{{least},}}"
    return f"{{{least},{most}}}"


def as_text(ranges: Ranges) -> str:
    """Render a set of characters that stand for themselves."""
    if not ranges:
        return ""
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _code_point(ranges[0][0])
    return "[" + "".join(
        _code_point(low) if low == high else f"{_code_point(low)}-{_code_point(high)}"
        for low, high in ranges
    ) + "]"  # fmt: skip


def _code_point(code: int) -> str:
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\x{{{code:x}}}"


# Characters that JSON strings escape, and their only spelling here: with one spelling each, a key
# cannot be written in two ways.
ESCAPED = union([(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)])
_UNESCAPED = complement(ESCAPED)
_SHORT = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 0x22: '"', 0x5C: "\\"}


def as_json(ranges: Ranges) -> str:
    """Render a set of characters as a JSON string spells them."""
    plain = as_text(intersection(ranges, _UNESCAPED))
    short = ""
    codes: list[str] = []
    for low, high in intersection(ranges, ESCAPED):
        for code in range(low, high + 1):
            if code in _SHORT:
                short += _code_point(ord(_SHORT[code]))
            else:
                codes.append(f"u00{code:02x}")
    escapes = [f"[{short}]"] if short else []
    if codes:
        escapes.append(f"({'|'.join(codes)})")
    if not escapes:
        return plain
    escaped = f"\\x{{5c}}({'|'.join(escapes)})"
    return f"({plain}|{escaped})" if plain else escaped
