"""Parser of regular expressions in the syntax of ECMA-262 with the `u` flag.

Lookaround, back references and word boundaries are not regular and raise PatternError. So does
syntax that ECMA-262 and llguidance read differently.
"""

from __future__ import annotations

from functools import lru_cache

from zinc.grammar.pattern.chars import (
    CLASSES,
    DOT,
    LAST,
    PatternError,
    Ranges,
    complement,
    property_ranges,
    union,
)
from zinc.grammar.pattern.tree import Anchor, Chars, Choice, Node, Repeat, Sequence

MAX_DEPTH = 60
MAX_PATTERN_CHARACTERS = 20_000
MAX_EXPANDED = 20_000  # atoms, with repeats expanded to their minimum
MAX_COUNT = 1 << 24

_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}


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
    """Count the atoms of a tree, with each repeat expanded to its minimum."""
    match node:
        case Sequence(items) | Choice(items):
            return sum(map(_size, items))
        case Repeat(Chars(ranges), least, _) if len(ranges) != 1 or ranges[0][0] != ranges[0][1]:
            return 1 + (least > MAX_EXPANDED) * least
        case Repeat(item, least, _):
            return _size(item) * max(1, least)
    return 1


class _Parser:
    """Recursive descent over one pattern; `_at` is the index of the next character."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._depth = 0

    def parse(self) -> Node:
        node = self._choice()
        if self._at < len(self._text):
            raise PatternError("a closing parenthesis has no opening one")
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
        self._take("?")  # laziness does not change which texts match
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
            most = None  # no text is as long
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
            return None  # a literal brace
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
                return Chars(DOT)
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
        """Return the characters of the escape that starts with a backslash and `char`."""
        if char in CLASSES:
            return CLASSES[char]
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
                raise PatternError("an escape is not a code point of up to 10FFFF")
            self._at += 1
            return code
        code = self._hex(4)
        if 0xD800 <= code < 0xDC00 and self._take("\\u"):
            low = self._hex(4)
            if not 0xDC00 <= low <= 0xDFFF:
                raise PatternError("an unpaired surrogate is not a character")
            return 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
        return code

    def _property(self) -> Ranges:
        end = self._text.find("}", self._at)
        if not self._take("{") or end < 0:
            raise PatternError("\\p needs a property in braces")
        name = self._text[self._at : end]
        self._at = end + 1
        return property_ranges(name)

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
