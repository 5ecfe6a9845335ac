"""Penalties and DRY, compared with definitions that recount the history at every step."""

import math
from collections import Counter

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from zinc.engine.sampling import breaker_sequences
from zinc.engine.sampling.candidates import Candidates
from zinc.engine.sampling.dry import Dry, z_lengths
from zinc.engine.sampling.penalties import Penalties, TokenWindow

few_tokens = st.integers(0, 3)
histories = st.lists(few_tokens, max_size=40)


def softmax(logits):
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return weights / weights.sum()


# -- penalties


@given(st.lists(st.integers(0, 200), max_size=300), st.sampled_from([-1, 0, 1, 5, 64]))
def test_the_window_counts_what_a_recount_counts(tokens, last_n):
    window = TokenWindow(last_n)
    for step, token in enumerate(tokens, 1):
        window.push(token)
        seen = tokens[:step] if last_n < 0 else tokens[:step][max(0, step - last_n) :]
        assert dict(zip(window.ids.tolist(), window.counts.tolist(), strict=True)) == Counter(seen)


@given(histories, st.sampled_from([-1, 3, 64]), st.booleans(), st.integers(0, 2**32 - 1))
def test_penalties_follow_their_definition(history, last_n, narrowed, seed):
    repeat, presence, frequency = 1.3, 0.5, 0.25
    logits = np.random.default_rng(seed).normal(0, 2, 6).astype(np.float32)
    expected = logits.astype(np.float64)
    for token, count in Counter(history if last_n < 0 else history[-last_n:]).items():
        expected[token] = (
            expected[token] / repeat if expected[token] > 0 else logits[token] * repeat
        )
        expected[token] -= count * frequency + presence
    sampler = Penalties(last_n, repeat, presence, frequency)
    sampler.accept(history[:5])
    for token in history[5:]:
        sampler.accept([token])
    candidates = Candidates(logits.copy())
    if narrowed:
        candidates = candidates.top(4)
    result = sampler(candidates)
    kept = np.arange(6) if result.ids is None else result.ids
    assert set(kept) == set(np.argsort(-logits, kind="stable")[: 4 if narrowed else 6])
    np.testing.assert_allclose(result.logits, expected[kept], rtol=1e-5, atol=1e-5)


PUBLISHED_PENALTIES = [
    ((50.0, 0.0, 0.0), [0], [0, 0.25, 0.25, 0.25, 0.25]),
    ((50.0, 0.0, 0.0), [0, 1, 2], [0, 0, 0, 0.5, 0.5]),
    ((50.0, 0.0, 0.0), [0, 1, 2, 0, 0], [0, 0, 0, 0.5, 0.5]),
    ((1.0, 5.0, 5.0), [0], [0.000011, 0.249997, 0.249997, 0.249997, 0.249997]),
    ((1.0, 5.0, 5.0), [0, 1, 2], [0.000023, 0.000023, 0.000023, 0.499966, 0.499966]),
    ((1.0, 5.0, 5.0), [0, 1, 2, 0, 0], [0, 0.000023, 0.000023, 0.499977, 0.499977]),
]


@pytest.mark.parametrize(("strengths", "history", "expected"), PUBLISHED_PENALTIES)
def test_published_penalties(strengths, history, expected):
    """The cases of llama.cpp's test-sampling.cpp."""
    sampler = Penalties(len(history), *strengths)
    sampler.accept(history)
    result = sampler(Candidates(np.log(np.full(5, 0.2, np.float32))))
    np.testing.assert_allclose(softmax(result.logits), expected, atol=1e-5)


# -- DRY


def dry_by_definition(history, allowed, last_n, breakers):
    """Return, for each next token, the longest repetition that it would extend."""
    history = history if last_n < 0 else history[max(0, len(history) - last_n) :]
    size = len(history)
    limit = size
    if size <= allowed:
        return {}
    for start in range(size - 1, -1, -1):
        matching = [b for b in breakers if history[start : start + len(b)] == list(b)]
        if matching:
            limit = size - start - max(map(len, matching))
            break
    if limit < allowed:
        return {}
    longest = {}
    for end in range(size - 1):
        length = 0
        while length <= end and history[end - length] == history[size - 1 - length]:
            length += 1
        length = min(length, limit)
        token = history[end + 1]
        if length >= allowed and (token,) not in breakers:
            longest[token] = max(longest.get(token, 0), length)
    return longest


breaker_sets = st.lists(
    st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple), max_size=2
).map(set)


@given(histories, histories, st.integers(0, 4), st.sampled_from([-1, 1, 4, 7, 20]), breaker_sets)
@settings(max_examples=examples(500), deadline=None)
def test_dry_follows_its_definition(prompt, answer, allowed, last_n, breakers):
    dry = Dry(1.0, 1.75, allowed, last_n, breakers)
    dry.accept(prompt)
    for step in range(len(answer) + 1):
        ids, lengths = dry.repetitions()
        history = prompt + answer[:step]
        expected = dry_by_definition(history, allowed, last_n, breakers)
        assert dict(zip(ids.tolist(), lengths.tolist(), strict=True)) == expected
        dry.accept(answer[step : step + 1])


@given(st.lists(st.integers(0, 2), max_size=60))
def test_z_lengths(tokens):
    expected = [0] * len(tokens)
    for i in range(1, len(tokens)):
        while i + expected[i] < len(tokens) and tokens[expected[i]] == tokens[i + expected[i]]:
            expected[i] += 1
    assert z_lengths(tokens).tolist() == expected


def test_z_lengths_are_linear_on_one_token_repeated():
    """A quadratic pass over 200,000 equal tokens would compare 2e10 times."""
    assert z_lengths([7] * 200_000)[1] == 199_999


PUBLISHED_DRY = [
    ((1.0, 1.1, 2, 4), [], [0, 1], [0.25, 0.25, 0.25, 0.25]),
    ((1.0, 1.1, 2, 5), [], [0, 1, 2, 0, 1], [0.296923, 0.296923, 0.109232, 0.296923]),
    ((1.0, 1.1, 2, 6), [(3,)], [0, 1, 3, 4, 0, 1], [0.2, 0.2, 0.2, 0.2, 0.2]),
    ((2.0, 1.1, 2, 5), [], [0, 1, 2, 0, 1], [0.241818, 0.241818, 0.032727, 0.241818, 0.241818]),
    ((1.0, 1.1, 4, 7), [], [0, 1, 2, 3, 4, 0, 1], [0.2, 0.2, 0.2, 0.2, 0.2]),
]


@pytest.mark.parametrize(("strengths", "breakers", "history", "expected"), PUBLISHED_DRY)
def test_published_dry(strengths, breakers, history, expected):
    """The cases of llama.cpp's test-sampling.cpp."""
    dry = Dry(*strengths, breakers)
    dry.accept(history)
    n = len(expected)
    result = dry(Candidates(np.log(np.full(n, 1 / n, np.float32))))
    np.testing.assert_allclose(softmax(result.logits), expected, atol=1e-5)


def test_a_long_repetition_stays_finite_and_bans_nothing():
    dry = Dry(1e6, 4.0, 2, -1)
    dry.accept([5] * 3000)
    logits = np.zeros(8, np.float32)
    logits[6] = -math.inf
    result = dry(Candidates(logits))
    assert np.isfinite(result.logits[5])
    assert result.logits[5] < -1e30
    assert result.logits[6] == -math.inf


def test_penalties_and_dry_forget_on_reset():
    for sampler in (Penalties(64, 2.0, 1.0, 1.0), Dry(1.0, 1.75, 1, -1, [(9,)])):
        sampler.accept([1, 2, 1, 2, 1])
        sampler.reset()
        logits = np.ones(10, np.float32)
        assert sampler(Candidates(logits)).logits.tolist() == [1.0] * 10


# -- sequence breakers


def test_breakers_are_found_inside_and_across_tokens():
    pieces = [b"a", b"x:\n", b"\n", b"end", b" th", b"e end", b"<", b"/s", b">", b"</s>"]

    def encode(text):
        return {"/s>": [7, 8], "nd": [3], "s>": [7, 8], ">": [8]}[text]

    assert breaker_sequences(["\n"], pieces, encode) == ((1,), (2,))
    assert breaker_sequences(["</s>"], pieces, encode) == ((6, 7, 8), (9,))
    assert breaker_sequences(["\n", ":"], pieces, encode) == ((1,), (2,))
    assert breaker_sequences([], pieces, encode) == ()


def test_a_breaker_may_be_split_inside_a_character():
    pieces = [b"\xe2", b"\x80", b"\x94", b"x\xe2\x80", "\N{EM DASH}".encode(), b"a"]
    found = breaker_sequences(["\N{EM DASH}"], pieces, lambda text: pytest.fail(text))
    assert found == ((0, 1, 2), (3, 2), (4,))
    without_bytes = [b"x\xe2\x80", "\N{EM DASH}".encode()]
    assert breaker_sequences(["\N{EM DASH}"], without_bytes, lambda text: []) == ((1,),)


def test_long_tails_are_cut():
    found = breaker_sequences(["a" + "b" * 39], [b"a", b"b"], lambda text: [1] * len(text))
    assert found == ((0, *[1] * 20),)
