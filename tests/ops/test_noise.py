"""Noise of sampled tokens: published words, its distribution, and independence of neighbours."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from zinc.ops import noise
from zinc.ops.noise import GROUP_IDS, Draw, Stream, group_maxima, gumbel, gumbel_rows, philox

SEED = 0x9E3779B97F4A7C15


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D)),
        ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB),
        ),
    ],
)
def test_philox_gives_the_published_words(counter, key, words):
    """Vectors of Random123 (Salmon et al. 2011), for both kinds of lanes."""
    assert noise._rounds(*counter, *key, 1) == words
    arrays = (np.array([x], np.uint64) for x in (*counter, *key, 1))
    assert [int(x[0]) for x in noise._rounds(*arrays)] == list(words)


def test_one_counter_has_the_same_words_alone_and_among_many():
    ids = np.arange(3000) * 51
    draws = [Draw(SEED, 7), Draw(2**64 - 1, 70_000), Draw(0, 0)]
    rows = np.arange(3000) % 3
    many = gumbel_rows(draws, rows, ids)
    for row, draw in enumerate(draws):
        np.testing.assert_array_equal(gumbel(draw, ids[rows == row][:20]), many[rows == row][:20])
    words = philox(SEED, ids, 7, Stream.TOKEN)
    for few in (1, 2, 40):
        np.testing.assert_array_equal(philox(SEED, ids[:few], 7, 0), np.stack(words)[:, :few])


def test_the_largest_noise_of_a_group_is_known_before_that_of_its_ids():
    draw = Draw(SEED, 3)
    ids, largest = group_maxima(draw, 40)
    every = gumbel(draw, np.arange(40 * GROUP_IDS)).reshape(40, GROUP_IDS)
    np.testing.assert_array_equal(every.max(axis=1), largest)
    np.testing.assert_array_equal(every.argmax(axis=1) + np.arange(40) * GROUP_IDS, ids)


def test_noise_has_the_gumbel_distribution():
    """In the body, and in the tail that decides between many unlikely tokens."""
    n = 400_000
    shares = np.exp(-np.exp(-gumbel(Draw(SEED, 0), np.arange(n))))  # uniform in (0, 1)
    counts = np.histogram(shares, 50, (0, 1))[0]
    assert ((counts - n / 50) ** 2 / (n / 50)).sum() < 85.4  # 0.999 quantile, 49 degrees of freedom
    tails = np.sort(1 - shares)[:400] * n  # nearly the arrivals of a Poisson process of rate 1
    gaps = np.diff(tails, prepend=0)
    assert abs(gaps.mean() - 1) < 0.2
    assert abs((gaps < np.log(2)).mean() - 0.5) < 0.1


def grid(ids, indexes, seeds):
    """Noise [seeds, indexes, ids]."""
    draws = [Draw(SEED + s, i) for s in range(seeds) for i in range(indexes)]
    rows = np.repeat(np.arange(len(draws)), ids)
    noise = gumbel_rows(draws, rows, np.tile(np.arange(ids), len(draws)))
    return noise.reshape(seeds, indexes, ids)


def test_neighbouring_ids_indexes_and_seeds_are_independent():
    """Also for pairs of ids at a distance, and for extremes, which decide most draws."""
    values = grid(ids=40, indexes=50, seeds=60)
    for level in (0.5, 0.05):
        high = values > -np.log(-np.log(1 - level))
        spread = level * (1 - level)
        for axis in range(3):
            for distance in (1, 2, 4, 16):
                a = np.moveaxis(high, axis, 0)
                pairs = (a[distance:] - level) * (a[:-distance] - level)
                assert abs(pairs.mean()) < 5 * spread / pairs.size**0.5, (level, axis, distance)


@pytest.mark.parametrize("stream", Stream)
def test_each_bit_of_a_counter_and_of_a_seed_changes_half_of_the_words_bits(stream):
    n = 4000
    rng = np.random.default_rng(1)
    ids, indexes = rng.integers(0, 2**18, n), rng.integers(0, 2**12, n).astype(np.uint64)
    seeds = rng.integers(0, 2**64, n, np.uint64)
    words = philox(seeds, ids, indexes, stream)
    changed = [philox(seeds, ids ^ 2**bit, indexes, stream) for bit in range(0, 18, 3)]
    changed += [philox(seeds, ids, indexes ^ np.uint64(2**bit), stream) for bit in range(0, 12, 3)]
    changed += [philox(seeds ^ np.uint64(2**bit), ids, indexes, stream) for bit in range(0, 64, 7)]
    for others in changed:
        for word, other in zip(words, others, strict=True):
            flips = ((word ^ other)[:, None] >> np.arange(32) & 1).mean(axis=0)
            assert np.abs(flips - 0.5).max() < 5 * 0.5 / n**0.5


def test_streams_differ():
    ids = np.arange(1000)
    streams = [philox(SEED, ids, 5, stream)[0] for stream in Stream]
    assert all((a == b).mean() < 0.01 for a, b in pairwise(streams))
