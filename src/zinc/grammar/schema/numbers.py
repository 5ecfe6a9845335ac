"""Regular expressions for ranges of numbers, exact at any size.

    integer_pattern(-5, 120)                 -5 .. 120
    decimal_pattern(Bound(0), Bound(1, True)) 0 <= x < 1, in plain decimals without an exponent

Patterns match the whole numeral as JSON writes it: no leading zeros, no plus sign.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal

from zinc.core.dataclass import dataclass

# Exponents are limited so that values with one digit before the point are finite doubles.
ANY_NUMBER = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?(30[0-7]|[12][0-9][0-9]|[0-9][0-9]?))?"
ANY_INTEGER = "(0|-?[1-9][0-9]*)"


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a range; `is_open` excludes the value itself."""

    value: Decimal
    is_open: bool = False


def integer_pattern(low: int | None, high: int | None) -> str | None:
    """Return a pattern of the integers from `low` to `high`, or None if there are none."""
    if low is None and high is None:
        return ANY_INTEGER
    if low is not None and high is not None and low > high:
        return None
    parts: list[str] = []
    if low is None or low < 0:
        least = 1 if high is None or high >= 0 else -high
        parts.append(f"-{_naturals(least, None if low is None else -low)}")
    if high is None or high >= 0:
        parts.append(_naturals(max(0, low or 0), high))
    return _either(parts)


def decimal_pattern(low: Bound | None, high: Bound | None) -> str | None:
    """Return a pattern of the decimals in a range, or None if it is empty.

    Without bounds the pattern includes exponents; with one, numbers are plain decimals.
    """
    if low is None and high is None:
        return ANY_NUMBER
    zero = Bound(Decimal(0))
    parts: list[str] = []
    if low is None or low.value < 0:
        # Zero belongs to the non-negative half.
        near = (
            Bound(high.value.copy_negate(), high.is_open)
            if high and high.value < 0
            else Bound(zero.value, True)
        )
        far = None if low is None else Bound(low.value.copy_negate(), low.is_open)
        if (found := _positives(near, far)) is not None:
            parts.append(f"-{found}")
    if high is None or high.value >= 0:
        near = low if low is not None and low.value > 0 else zero
        if low is not None and low.value == 0:
            near = low
        if (found := _positives(near, high)) is not None:
            parts.append(found)
    return _either(parts) if parts else None


def _either(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({'|'.join(parts)})"


def _digits(first: int, last: int) -> str:
    return str(first) if first == last else f"[{first}-{last}]"


def _naturals(low: int, high: int | None) -> str:
    """Return a pattern of the integers from `low` >= 0 to `high` >= `low`."""
    n_low, n_high = len(str(low)), None if high is None else len(str(high))
    if n_low == n_high:
        return _same_length(str(low), str(high))
    parts: list[str] = []
    full_from = n_low
    if low != 10 ** (n_low - 1):
        parts.append(_same_length(str(low), "9" * n_low))
        full_from += 1
    full_to = n_high
    if high is not None and n_high is not None and high != 10**n_high - 1:
        full_to = n_high - 1
    # All integers whose number of digits lies between those of the bounds.
    if full_to is None:
        parts.append(f"[1-9][0-9]{{{full_from - 1},}}")
    elif full_from <= full_to:
        parts.append(f"[1-9][0-9]{{{full_from - 1},{full_to - 1}}}")
    if high is not None and n_high is not None and full_to != n_high:
        parts.append(_same_length(str(10 ** (n_high - 1)), str(high)))
    return _either(parts)


def _same_length(low: str, high: str) -> str:
    """Return a pattern of the digit strings from `low` to `high`, which have the same length.

    Alternatives are flat: nested as deep as there are digits, they would exceed what regular
    expression parsers take.
    """
    n = next((i for i, (a, b) in enumerate(zip(low, high, strict=True)) if a != b), len(low))
    shared, a, b = _runs(low[:n]), int(low[n : n + 1] or 0), int(high[n : n + 1] or 0)
    low, high = low[n + 1 :], high[n + 1 :]
    rest = len(low)
    if a == b:
        return shared
    if rest == 0:
        return f"{shared}{_digits(a, b)}"
    parts: list[str] = []
    if low.strip("0"):
        parts += (f"{a}{each}" for each in _others(low, 9))
        a += 1
    if high.strip("9"):
        parts += (f"{b}{each}" for each in _others(high, 0))
        b -= 1
    if a <= b:
        parts.append(f"{_digits(a, b)}[0-9]{{{rest}}}")
    return shared + _either(parts)


def _others(digits: str, end: int) -> Iterator[str]:
    """Yield patterns of digit strings from `digits` up to 99... (`end` 9) or down to 00... (0)."""
    yield _runs(digits)
    for i, digit in enumerate(map(int, digits)):
        rest = len(digits) - i - 1
        after = f"[0-9]{{{rest}}}" if rest else ""
        if digit < end:
            yield f"{_runs(digits[:i])}{_digits(digit + 1, 9)}{after}"
        elif digit > end:
            yield f"{_runs(digits[:i])}{_digits(0, digit - 1)}{after}"


def _runs(digits: str) -> str:
    """Return the digits, each long run replaced by a counted repeat."""
    return re.sub(r"(\d)\1{4,}", lambda run: f"{run[1]}{{{len(run[0])}}}", digits)


def _positives(low: Bound, high: Bound | None) -> str | None:
    """Return a pattern of the decimals from `low` >= 0 to `high`."""
    if high is not None and low.value > high.value:
        return None
    whole_low, digits_low = _split(low.value)
    lower = _Fraction(digits_low, low.is_open)
    if high is None:
        parts = [_decimals(_runs(str(whole_low)), lower, None)]
        parts.append(f"{_naturals(whole_low + 1, None)}(\\.[0-9]+)?")
    else:
        whole_high, digits_high = _split(high.value)
        upper = _Fraction(digits_high, high.is_open)
        if whole_low == whole_high:
            return _decimals(_runs(str(whole_low)), lower, upper)
        parts = [_decimals(_runs(str(whole_low)), lower, None)]
        if whole_low + 1 < whole_high:
            parts.append(f"{_naturals(whole_low + 1, whole_high - 1)}(\\.[0-9]+)?")
        parts.append(_decimals(_runs(str(whole_high)), None, upper))
    found = [part for part in parts if part is not None]
    return _either(found) if found else None


@dataclass(frozen=True, slots=True)
class _Fraction:
    """Digits after the point that bound others; "" is zero, and the last digit is not 0."""

    digits: str
    is_open: bool

    @property
    def rest(self) -> _Fraction:
        return _Fraction(self.digits[1:], self.is_open)


def _split(value: Decimal) -> tuple[int, str]:
    """Return the integer part and the digits after the point, without trailing zeros."""
    whole, _, digits = format(value, "f").partition(".")
    return int(whole), digits.rstrip("0")


def _decimals(whole: str, low: _Fraction | None, high: _Fraction | None) -> str | None:
    """Return a pattern of numerals with the integer part `whole` and a bounded fraction."""
    digits, may_be_empty = _fractions(low, high)
    if digits is None:
        return whole if may_be_empty else None
    return f"{whole}(\\.{digits})?" if may_be_empty else f"{whole}\\.{digits}"


def _fractions(low: _Fraction | None, high: _Fraction | None) -> tuple[str | None, bool]:
    """Return a pattern of the digits after the point, and whether they may be absent.

    The fraction is at least `low` and at most `high`; None is no bound.
    """
    if low is not None and not low.digits and not low.is_open:
        low = None
    if high is not None and not high.digits:
        return (None, False) if high.is_open or low is not None else ("0+", True)
    if low is None and high is None:
        return "[0-9]+", True
    if low is not None and not low.digits and high is None:
        return "[0-9]*[1-9][0-9]*", False
    a = -1 if low is None else int(low.digits[:1] or 0)
    b = 10 if high is None else int(high.digits[0])
    parts: list[str] = []
    if a == b:
        assert low is not None
        assert high is not None
        parts += _after(a, low.rest, high.rest)
    elif a < b:
        if low is not None:
            parts += _after(a, low.rest, None)
        if a + 1 <= b - 1:
            parts.append(f"{_digits(a + 1, b - 1)}[0-9]*")
        if high is not None:
            parts += _after(b, None, high.rest)
    return (_either(parts) if parts else None), low is None


def _after(digit: int, low: _Fraction | None, high: _Fraction | None) -> list[str]:
    digits, may_be_empty = _fractions(low, high)
    if digits is None:
        return [str(digit)] if may_be_empty else []
    return [f"{digit}({digits})?" if may_be_empty else f"{digit}{digits}"]
