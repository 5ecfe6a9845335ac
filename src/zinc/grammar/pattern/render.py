"""Syntax trees as expressions in llguidance's syntax, of plain text or of JSON strings."""

from __future__ import annotations

from collections.abc import Callable

from zinc.grammar.pattern.chars import SCALARS, Ranges, complement, intersection, union
from zinc.grammar.pattern.tree import Chars, Choice, Node, Repeat, Sequence


def render(node: Node, spell: Callable[[Ranges], str]) -> str | None:
    """Return the expression of a tree without anchors, or None if it matches nothing.

    spell: renders a set of characters, `as_text` or `as_json`; it returns "" for an empty set.
    """
    match node:
        case Chars(ranges):
            return spell(intersection(ranges, SCALARS)) or None
        case Sequence(items):
            parts = [render(item, spell) for item in items]
            return None if None in parts else "".join(p for p in parts if p)
        case Choice(options):
            found = [p for p in (render(option, spell) for option in options) if p is not None]
            return f"({'|'.join(found)})" if found else None
        case Repeat(item, least, most):
            inside = render(item, spell)
            if inside is None or most == 0:
                return "" if least == 0 else None
            return f"({inside}){times(least, most)}"
    raise AssertionError("anchors are resolved by `full_match`")


def times(least: int, most: int | None) -> str:
    """Return the quantifier of a repeat: "*", "+", "{2,}" or "{2,5}"."""
    if most is None:
        return "*" if least == 0 else "+" if least == 1 else f"{{{least},}}"
    return f"{{{least},{most}}}"


def as_text(ranges: Ranges) -> str:
    """Return the expression of a set of characters in plain text."""
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


# Characters that JSON strings escape. Each has one spelling here, so that no key can be written in
# two ways.
ESCAPED = union([(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)])
_UNESCAPED = complement(ESCAPED)
_SHORT = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 0x22: '"', 0x5C: "\\"}


def as_json(ranges: Ranges) -> str:
    """Return the expression of a set of characters as a JSON string spells them."""
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
