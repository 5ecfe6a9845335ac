"""Regular expressions for schemas: ranges of numbers, and patterns of ECMA-262.

Oracles are Python's integers, Decimal, and its `re` where the two dialects agree.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal

import effort
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from zinc.grammar.pattern.chars import PatternError
from zinc.grammar.pattern.render import as_json
from zinc.grammar.pattern.terminals import matches, pattern_terminal
from zinc.grammar.schema.numbers import Bound, decimal_pattern, integer_pattern

pytest.importorskip("llguidance")
FEW = settings(max_examples=effort.examples(300), deadline=None)

near_edges = st.sampled_from([0, 9, 10, 99, 2**31, 2**53, 2**63, 2**64, 10**20])
integers = st.one_of(
    st.integers(-1500, 1500),
    st.builds(lambda edge, d, sign: sign * edge + d, near_edges, st.integers(-2, 2),
              st.sampled_from([1, -1])),
)  # fmt: skip
decimals = st.builds(
    lambda n, k: Decimal(n).scaleb(-k), st.integers(-30_000, 30_000), st.integers(0, 4)
)


@FEW
@given(st.none() | integers, st.none() | integers, st.lists(integers, min_size=10, max_size=20))
@example(2**53 + 1, 2**53 + 1, [2**53, 2**53 + 1, 2**53 + 2])
@example(-(2**63), -(2**63), [-(2**63), -(2**63) + 1, 2**63])
def test_integer_patterns_match_exactly_their_range(low, high, values):
    pattern = integer_pattern(low, high)
    edges = [edge + d for edge in (low, high) if edge is not None for d in (-1, 0, 1)]
    for value in [*values, *edges]:
        inside = (low is None or value >= low) and (high is None or value <= high)
        assert (pattern is not None and bool(re.fullmatch(pattern, str(value)))) == inside


@FEW
@given(
    st.none() | st.builds(Bound, decimals, st.booleans()),
    st.none() | st.builds(Bound, decimals, st.booleans()),
    st.lists(decimals, min_size=10, max_size=20),
)
def test_decimal_patterns_match_exactly_their_range(low, high, values):
    if low is None and high is None:
        return
    pattern = decimal_pattern(low, high)
    steps = [Decimal(step) for step in ("-1", "-0.1", "-0.00001", "0", "0.00001", "0.1", "1")]
    edges = [bound.value + step for bound in (low, high) if bound is not None for step in steps]
    for value in [*values, *edges]:
        above = low is None or value > low.value or (value == low.value and not low.is_open)
        below = high is None or value < high.value or (value == high.value and not high.is_open)
        text = format(abs(value) if value == 0 else value, "f")
        assert (pattern is not None and bool(re.fullmatch(pattern, text))) == (above and below)


PATTERNS = [
    "a", "^a", "a$", "^a$", "a|b", "^a|b$", "^(a|b)$", "(^a|b$)", "^(ab)*$", "^a{2,3}$", "a{2}b?",
    "[a-c]", "[^a-c]", "^[^a]$", r"\d", r"^\w+$", r"\.", "^.$", "^.*$", "^$", "", "^", "$", "$^",
    "a^b", "a*^b", "b$a", r"^\D$", r"[\d_]", r"^[\w-]+$", r"^\S+$", "a{,2}", "{", "}", "a{x}", "]",
    "(?:ab)+", "(?<name>a)b", r"\/", "^[a-c&&[b]$", r"\x61", r"\u0061", r"\t", "^(a?){3}$",
]  # fmt: skip
SAMPLES = ["", "a", "b", "ab", "ba", "aa", "aab", "abab", "c", "d", "1", "_", "é", "-", "a-b", ".",
           "\n", "\t", "a{x}", "{", "}", "]", "/", "a{,2}", '"', "\\", "x y", "\U0001f600",
           "b]"]  # fmt: skip


def in_python(pattern: str) -> re.Pattern[str]:
    """Return a pattern in Python's syntax, which differs in spelling only."""
    pattern = pattern.replace("(?<", "(?P<")
    pattern = pattern.replace("a{,2}", r"a\{,2\}").replace("&&[b", r"&\[b")
    return re.compile(re.sub(r"(?<!\\)\$", r"\\Z", pattern), re.ASCII)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_match_where_python_finds_them(pattern):
    expected = in_python(pattern)
    for text in SAMPLES:
        found = matches(pattern_terminal(pattern), text)
        assert found == bool(expected.search(text)), text
        quoted = pattern_terminal(pattern, as_json, '"')
        assert matches(quoted, json.dumps(text, ensure_ascii=False)) == found, text


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (r"^\d$", "7", "७"),
        (r"^\w$", "a", "é"),
        (r"^\s$", "\ufeff", "\u200b"),
        ("^.$", "a", "\r"),
        ("^.$", "\U0001f600", "\u2028"),
        ("^[[:alpha:]$", ":", "b"),  # no POSIX class
        ("^[a&&b]$", "&", "c"),  # no set operation
        (r"^\p{L}$", "é", "1"),
        (r"^\P{Letter}$", "1", "é"),
        (r"^\p{gc=Lu}$", "É", "é"),
        (r"^\cJ$", "\n", "J"),
        (r"^\u{1F600}$", "\U0001f600", "u"),
        (r"^\ud83d\ude00$", "\U0001f600", "?"),
        (r"^[\b]$", "\b", "b"),
        (r"^\0$", "\0", "0"),
        ("^[^]$", "x", ""),
        (r"\Aa\Z", "a", "ba"),
    ],
)
def test_patterns_match_as_ecmascript_says(pattern, yes, no):
    assert matches(pattern_terminal(pattern), yes)
    assert not matches(pattern_terminal(pattern), no)


@pytest.mark.parametrize(
    "pattern",
    ["(", ")", "[", "*", "a**", "a{2,1}", "(?=a)", "(?<!a)", r"\b", r"\1", r"\k<a>", "(?i)a", r"\a",
     r"\q", r"\u12", r"\x1", r"\c1", "[z-a]", r"[\d-z]", r"\p{Greek}", r"\p", "a" * 30_000,
     "(" * 100 + ")" * 100, "((a{1000}){1000}){1000}", "(^a)*", "^*", r"\u{110000}"],
)  # fmt: skip
def test_unsupported_syntax_is_refused(pattern):
    with pytest.raises(PatternError):
        pattern_terminal(pattern)


@FEW
@given(st.sampled_from(PATTERNS), st.text('ab1-_.{}"\\\n é', max_size=6))
def test_random_patterns_match_like_python(pattern, text):
    found = matches(pattern_terminal(pattern), text)
    assert found == bool(in_python(pattern).search(text))
