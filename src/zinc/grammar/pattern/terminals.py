"""Terminals of llguidance's Lark dialect: made from patterns, and tested with its lexer.

A terminal is one or more expressions, such as `/a+/ & /.{3}/`. The lexer answers in bounded time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from zinc.grammar.library import llguidance
from zinc.grammar.pattern.anchors import full_match
from zinc.grammar.pattern.chars import Ranges
from zinc.grammar.pattern.render import as_text, render

# Limit for one terminal; zinc.engine.structured sets the limits of a whole grammar.
_FUEL = 400_000


def pattern_terminal(
    pattern: str, spell: Callable[[Ranges], str] = as_text, quote: str = ""
) -> str:
    """Return a terminal that matches each text in which `pattern` is found.

    spell: how sets of characters are written, `as_text` or `as_json`. quote: put before and after
    the text. Raises PatternError.
    """
    expression = render(full_match(pattern), spell)
    if expression is None:
        return "(/a/ & /b/)"  # matches nothing
    return f"/{quote}({expression}){quote}/"


def matches(terminal: str, text: str) -> bool:
    """Return whether a terminal matches the whole text. Raises ValueError if it is too complex."""
    matcher = _matcher(terminal)
    data = list(text.encode())
    copy = matcher.deep_copy()
    return copy.try_consume_tokens(data) == len(data) and bool(copy.is_accepting())


def is_empty(terminal: str) -> bool:
    """Return whether a terminal matches no text. Raises ValueError if it is too complex."""
    matcher = _matcher(terminal)
    copy = matcher.deep_copy()
    if copy.is_accepting():
        return False
    return not any(copy.compute_bitmask()) or bool(copy.is_error())


@lru_cache(256)
def _matcher(terminal: str) -> Any:
    library = llguidance()
    limits = library.LLParserLimits(initial_lexer_fuel=_FUEL, step_lexer_fuel=_FUEL)
    grammar = library.LLMatcher.grammar_from_lark(f"start: LEXEME\nLEXEME: {terminal}")
    matcher = library.LLMatcher(_bytes(), grammar, log_level=0, limits=limits)
    if matcher.is_error():
        raise ValueError(matcher.get_error().splitlines()[0])
    return matcher


@lru_cache(1)
def _bytes() -> Any:
    return llguidance().LLTokenizer("byte")
