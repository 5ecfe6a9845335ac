"""Numbers that are multiples of another number, as patterns or as schemas for llguidance."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from zinc.grammar.schema.document import Json
from zinc.grammar.schema.values import Number

EXACT_DOUBLE = 2**53
MAX_MULTIPLES = 60_000  # sum over all `multipleOf` that are not a power of ten


def power_of_ten(step: Fraction) -> int | None:
    """Return k of 10**k, or None for another number."""
    k = len(str(step.numerator)) - len(str(step.denominator))
    return k if step == Fraction(10) ** k else None


def multiples_of_ten(k: int) -> str:
    """Return a pattern of the multiples of 10**k, in plain decimals."""
    if k <= 0:
        fraction = rf"\.[0-9]{{1,{-k}}}0*" if k else r"\.0+"
        return rf"-?(0|[1-9][0-9]*)({fraction})?"
    return rf"-?(0|[1-9][0-9]*0{{{k}}})(\.0+)?"


def exact_schema(number: Number, step: Fraction) -> dict[str, Json] | None:
    """Return a schema for the multiples of `step` if llguidance computes it exactly, else None."""
    exponent = next((e for e in range(10) if (step * 10**e).denominator == 1), None)
    if exponent is None or step * 10**exponent > MAX_MULTIPLES:
        return None
    # llguidance multiplies the double by ten until it is integral.
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
