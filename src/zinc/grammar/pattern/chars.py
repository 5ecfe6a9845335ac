"""Sets of characters as ranges of code points, and the character classes of ECMA-262."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import TypeAlias

LAST = 0x10FFFF

# Sorted, disjoint ranges of code points; both ends belong to a range.
Ranges: TypeAlias = tuple[tuple[int, int], ...]


class PatternError(ValueError):
    """A pattern has a syntax error, or uses a construct that zinc does not support."""


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
    """Return the complement of a set of code points."""
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
    """Return the intersection of two sets of code points."""
    return complement(union((*complement(a), *complement(b))))


_SURROGATES: Ranges = ((0xD800, 0xDFFF),)
SCALARS = complement(_SURROGATES)
_DIGITS = union([(0x30, 0x39)])
_WORD = union([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
# WhiteSpace and LineTerminator of ECMA-262.
_SPACE = union(
    [(9, 13), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
     (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)]
)  # fmt: skip
DOT = complement(union([(10, 10), (13, 13), (0x2028, 0x2029)]))
CLASSES = {
    "d": _DIGITS, "D": complement(_DIGITS), "w": _WORD, "W": complement(_WORD),
    "s": _SPACE, "S": complement(_SPACE),
}  # fmt: skip
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


def property_ranges(name: str) -> Ranges:
    """Return the code points of a Unicode property: a general category, Any or ASCII.

    Raises PatternError for others, such as scripts.
    """
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
    """Return the ranges of each general category (`Lu`, `Nd`, ...)."""
    found: dict[str, list[tuple[int, int]]] = {}
    start, last = 0, unicodedata.category("\0")
    for code in range(1, sys.maxunicode + 1):
        category = unicodedata.category(chr(code))
        if category != last:
            found.setdefault(last, []).append((start, code - 1))
            start, last = code, category
    found.setdefault(last, []).append((start, sys.maxunicode))
    return found
