"""Questions about regular expressions, which llguidance's engine answers in bounded time."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

# Of one expression alone; what a whole grammar may take is set in structured.py.
_FUEL = 400_000


def matches(expression: str, text: str) -> bool:
    """Return whether a terminal, such as `/a+/ & /.{3}/`, matches the whole text."""
    matcher = _matcher(expression)
    data = list(text.encode())
    copy = matcher.deep_copy()
    return copy.try_consume_tokens(data) == len(data) and bool(copy.is_accepting())


def is_empty(expression: str) -> bool:
    """Return whether a terminal matches no text at all."""
    matcher = _matcher(expression)
    copy = matcher.deep_copy()
    if copy.is_accepting():
        return False
    return not any(copy.compute_bitmask()) or bool(copy.is_error())


@lru_cache(256)
def _matcher(expression: str) -> Any:
    """Return a matcher of one terminal. Raises ValueError if it is too complex."""
    import llguidance

    limits = llguidance.LLParserLimits(initial_lexer_fuel=_FUEL, step_lexer_fuel=_FUEL)
    grammar = llguidance.LLMatcher.grammar_from_lark(f"start: LEXEME\nLEXEME: {expression}")
    matcher = llguidance.LLMatcher(_bytes(), grammar, log_level=0, limits=limits)
    if matcher.is_error():
        raise ValueError(matcher.get_error().splitlines()[0])
    return matcher


@lru_cache(1)
def _bytes() -> Any:
    import llguidance

    return llguidance.LLTokenizer("byte")
