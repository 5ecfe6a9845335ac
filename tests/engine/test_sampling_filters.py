"""Every filter keeps what an obvious reference keeps that sorts the whole vocabulary.

The references below are written from the definitions, in float64 and one token at a time. The
expected sets and probabilities named `PUBLISHED` are the cases of llama.cpp's test-sampling.cpp.
"""

import math

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from zinc.engine.sampling import truncation
from zinc.engine.sampling.candidates import Candidates, largest

LOW = -math.inf


@st.composite
def vocabularies(draw, max_size=40):
    """Draw logits with many ties, some at -inf, at least one finite."""
    grid = st.integers(-12, 12).map(lambda n: n / 4)
    smooth = st.floats(-30, 30, width=32)
    values = draw(st.lists(st.one_of(grid, smooth, st.just(LOW)), min_size=1, max_size=max_size))
    values[draw(st.integers(0, len(values) - 1))] = draw(grid)
    return np.array(values, np.float32)


@st.composite
def big_vocabularies(draw):
    """More entries than the shortcuts for small vocabularies allow, coarse enough to tie."""
    size = draw(st.sampled_from([2049, 4097, 10_000, 33_000]))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    logits = random.normal(0, draw(st.sampled_from([0.01, 1.0, 4.0])), size)
    logits = np.round(logits, draw(st.sampled_from([0, 1, 6]))).astype(np.float32)
    logits[random.random(size) < draw(st.sampled_from([0.0, 0.5, 0.999]))] = LOW
    logits[draw(st.integers(0, size - 1))] = 0
    return logits


any_vocabulary = st.one_of(vocabularies(), big_vocabularies())
any_k = st.one_of(st.integers(0, 300), st.integers(0, 50_000))


def ranked(logits):
    """Finite positions by descending logit, ties by ascending position."""
    finite = [i for i in range(len(logits)) if logits[i] != LOW]
    return sorted(finite, key=lambda i: (-logits[i], i))


def probabilities(logits):
    logits = logits.astype(np.float64)
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def ids(candidates):
    """Return the kept ids, after a check of the order that the candidates claim."""
    kept = np.arange(len(candidates)) if candidates.ids is None else candidates.ids
    claimed = np.lexsort((kept, -candidates.logits)) if candidates.ordered else np.argsort(kept)
    assert np.array_equal(claimed, np.arange(len(kept)))
    return kept.tolist()


def check_smallest_prefix(kept, order, probability, p, min_keep):
    """Check that `kept` is the shortest prefix of `order` that p and min_keep allow."""
    slack = 1e-5
    n = len(kept)
    assert set(kept) == set(order[:n])
    assert n >= min(max(min_keep, 1), len(order))
    mass = np.cumsum(probability[order])
    assert n == len(order) or mass[n - 1] >= p - slack
    assert n <= max(min_keep, 1) or mass[n - 2] <= p + slack


@given(any_vocabulary, any_k)
@settings(max_examples=examples(150), deadline=None)
def test_largest_is_the_head_of_a_full_sort(logits, k):
    assert largest(logits, k).tolist() == ranked(logits)[:k]


@given(any_vocabulary, any_k.filter(bool))
@settings(max_examples=examples(50), deadline=None)
def test_top_k(logits, k):
    kept = truncation.top_k(Candidates(logits), k)
    assert kept.ordered
    assert kept.ids.tolist() == ranked(logits)[:k]
    assert np.array_equal(kept.logits, logits[kept.ids])


@given(any_vocabulary, st.floats(0, 0.99), st.integers(0, 400))
@settings(max_examples=examples(150), deadline=None)
def test_top_p(logits, p, min_keep):
    kept = ids(truncation.top_p(Candidates(logits), p, min_keep))
    order = ranked(logits)
    assert kept == order[: len(kept)]
    check_smallest_prefix(kept, order, probabilities(logits), p, min_keep)


@given(any_vocabulary, st.floats(1e-6, 1), st.integers(0, 400))
@settings(max_examples=examples(150), deadline=None)
def test_min_p(logits, p, min_keep):
    kept = ids(truncation.min_p(Candidates(logits), p, min_keep))
    threshold = np.float32(logits.max()) + np.float32(math.log(p))
    expected = [i for i in range(len(logits)) if logits[i] >= threshold]
    if len(expected) < max(min_keep, 1):
        expected = ranked(logits)[: max(min_keep, 1)]
    assert sorted(kept) == sorted(expected)


@given(any_vocabulary, st.floats(0, 0.99), st.integers(0, 400))
@settings(max_examples=examples(150), deadline=None)
def test_typical_p(logits, p, min_keep):
    kept = ids(truncation.typical_p(Candidates(logits), p, min_keep))
    probability = probabilities(logits)
    possible = [i for i in ranked(logits) if probability[i] > 1e-37]
    surprise = {i: -math.log(probability[i]) for i in possible}
    entropy = math.fsum(probability[i] * surprise[i] for i in possible)
    distance = {i: abs(surprise[i] - entropy) for i in possible}
    # Distances are float32 in the filter and float64 here, so ties may be ordered differently.
    furthest = max(distance[i] for i in kept)
    assert all(distance[i] >= furthest - 1e-4 for i in set(possible).difference(kept))
    assert len(kept) >= min(max(min_keep, 1), len(possible))
    mass = math.fsum(probability[i] for i in kept)
    last = max(probability[i] for i in kept if distance[i] >= furthest - 1e-4)
    assert len(kept) == len(possible) or mass >= p - 1e-5
    assert len(kept) <= max(min_keep, 1) or mass - last <= p + 1e-5


@given(any_vocabulary, st.floats(0.01, 5))
@settings(max_examples=examples(100), deadline=None)
def test_top_n_sigma(logits, n):
    kept = set(ids(truncation.top_n_sigma(Candidates(logits), n)))
    finite = logits[logits != LOW].astype(np.float64)
    threshold = finite.max() - n * finite.std()
    near = 1e-4 * (1 + abs(threshold))
    if len(logits) > 1:
        assert kept >= set(np.flatnonzero(logits > threshold + near).tolist())
        assert kept.isdisjoint(np.flatnonzero(logits < threshold - near).tolist())


@given(any_vocabulary, st.floats(0.01, 0.5), st.integers(0, 5))
@settings(max_examples=examples(150), deadline=None)
def test_xtc(logits, threshold, min_keep):
    kept = ids(truncation.xtc(Candidates(logits), threshold, min_keep))
    probability = probabilities(logits)
    order = ranked(logits)
    outcomes = []
    for edge in (threshold - 1e-5, threshold + 1e-5):
        removed = max(sum(probability[i] >= edge for i in order) - 1, 0)
        removed = 0 if len(logits) - removed < min_keep else removed
        outcomes.append(set(range(len(logits))) - set(order[:removed]))
    assert set(kept) in outcomes


@given(any_vocabulary, st.integers(1, 64))
@settings(max_examples=examples(50), deadline=None)
def test_filters_agree_on_ordered_and_unordered_candidates(logits, k):
    top = Candidates(logits).top(k)
    by_id = top.take(np.argsort(top.ids), ordered=False)
    for narrow in (
        lambda c: truncation.top_k(c, 5),
        lambda c: truncation.top_p(c, 0.7),
        lambda c: truncation.min_p(c, 0.2),
        lambda c: truncation.top_n_sigma(c, 1.5),
        lambda c: truncation.xtc(c, 0.1),
        lambda c: truncation.surprise_cut(c, 3.0),
    ):
        assert sorted(ids(narrow(top))) == sorted(ids(narrow(by_id)))


@pytest.mark.parametrize("k", [1, 40, 5000, 151_936, 10**12])
def test_equal_logits_are_kept_by_ascending_id(k):
    flat = np.zeros(151_936, np.float32)
    assert largest(flat, k).tolist() == list(range(min(k, flat.size)))


@pytest.mark.parametrize("k", [1, 2, 3, 10, 40, 200, 1000, 4000])
def test_largest_of_a_real_sized_row(k):
    row = np.random.default_rng(k).normal(0, 3, 151_936).astype(np.float32)
    assert largest(row, k).tolist() == np.argsort(-row, kind="stable")[:k].tolist()


def test_thresholds_that_are_met_exactly():
    equals = Candidates(np.array([1, 3, 3, 0], np.float32))
    assert ids(truncation.min_p(equals, 1.0)) == [1, 2]
    flat = Candidates(np.zeros(4, np.float32))
    assert ids(truncation.top_p(flat, 0.5)) == [0, 1]  # reaches p
    assert ids(truncation.typical_p(flat, 0.5)) == [0, 1, 2]  # exceeds p
    assert ids(truncation.xtc(flat, 0.25, 1)) == [3]
    assert ids(truncation.xtc(flat, 0.25, 2)) == [0, 1, 2, 3]  # only one would be left
    assert ids(truncation.surprise_cut(flat, 2.0)) == [0, 1, 2, 3]


def test_no_filter_writes_to_the_logits():
    logits = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    logits.setflags(write=False)
    candidates = Candidates(logits)
    truncation.top_k(candidates, 10)
    truncation.top_p(candidates, 0.5)
    truncation.min_p(candidates, 0.5)
    truncation.typical_p(candidates, 0.5)
    truncation.top_n_sigma(candidates, 1.0)
    truncation.xtc(candidates, 0.0001)
    truncation.temperature(candidates, 0.5)


PUBLISHED = [
    ("top_k", (1,), (0.1, 0.2, 0.3, 0.4), [3]),
    ("top_k", (3,), (0.1, 0.2, 0.3, 0.4), [1, 2, 3]),
    ("top_k", (4,), (0.1, 0.2, 0.3, 0.4), [0, 1, 2, 3]),
    ("top_k", (0,), (0.1, 0.2, 0.3, 0.4), [0, 1, 2, 3]),
    ("top_p", (0.0,), (0.1, 0.2, 0.3, 0.4), [3]),
    ("top_p", (0.7,), (0.1, 0.2, 0.3, 0.4), [2, 3]),
    ("top_p", (0.8,), (0.1, 0.2, 0.3, 0.4), [1, 2, 3]),
    ("top_p", (1.0,), (0.1, 0.2, 0.3, 0.4), [0, 1, 2, 3]),
    ("min_p", (0.0,), (0.1, 0.2, 0.3, 0.4), [0, 1, 2, 3]),
    ("min_p", (0.24,), (0.1, 0.2, 0.3, 0.4), [0, 1, 2, 3]),
    ("min_p", (0.26,), (0.1, 0.2, 0.3, 0.4), [1, 2, 3]),
    ("min_p", (0.49,), (0.1, 0.2, 0.3, 0.4), [1, 2, 3]),
    ("min_p", (0.51,), (0.1, 0.2, 0.3, 0.4), [2, 3]),
    ("min_p", (0.74,), (0.1, 0.2, 0.3, 0.4), [2, 3]),
    ("min_p", (0.76,), (0.1, 0.2, 0.3, 0.4), [3]),
    ("min_p", (1.0,), (0.1, 0.2, 0.3, 0.4), [3]),
    ("min_p", (1.05,), (0.1, 0.2, 0.3, 0.4), [3]),
    ("xtc", (0.09,), (0.4, 0.3, 0.2, 0.1), [3]),
    ("xtc", (0.19,), (0.4, 0.3, 0.2, 0.1), [2, 3]),
    ("xtc", (0.29,), (0.4, 0.3, 0.2, 0.1), [1, 2, 3]),
    ("xtc", (0.39,), (0.4, 0.3, 0.2, 0.1), [0, 1, 2, 3]),
    ("typical_p", (0.5,), (0.97, 0.01, 0.01, 0.01), [0]),
    ("typical_p", (0.5,), (0.4, 0.2, 0.2, 0.2), [1, 2, 3]),
    ("top_n_sigma", (1.0,), (0.1, 0.2, 0.3, 0.4), [2, 3]),
    ("top_n_sigma", (0.0,), (0.1, 0.2, 0.3, 0.4), [0, 1, 2, 3]),
    ("top_n_sigma", (3.0,), (0.1, 0.2, 0.3, 0.4), [0, 1, 2, 3]),
]


@pytest.mark.parametrize(("name", "arguments", "given_probabilities", "expected"), PUBLISHED)
def test_published_cases(name, arguments, given_probabilities, expected):
    logits = np.log(np.array(given_probabilities, np.float32))
    kept = getattr(truncation, name)(Candidates(logits), *arguments)
    assert sorted(ids(kept)) == expected


@pytest.mark.parametrize("p", [0.0003, 0.1, 0.8, 0.95])
def test_top_p_of_probabilities_that_are_whole_numbers(p):
    """With p(id) in proportion to id, the nucleus is exact in integers."""
    n = 10_000
    with np.errstate(divide="ignore"):
        logits = np.log(np.arange(n)).astype(np.float32)
    target = math.ceil(p * (n * (n - 1) // 2))
    size, mass = 0, 0
    while mass < target:
        size += 1
        mass += n - size
    kept = truncation.top_p(Candidates(logits), p)
    assert ids(kept) == list(range(n - 1, n - 1 - size, -1))


def test_temperature_scales_the_log_odds():
    logits = np.array([1.0, 2.0, 4.0], np.float32)
    assert truncation.temperature(Candidates(logits), 0.5).logits.tolist() == [2, 4, 8]
    assert truncation.temperature(Candidates(logits), 1.0).logits is logits
