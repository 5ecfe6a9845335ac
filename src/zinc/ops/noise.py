"""Random numbers of sampled tokens, as a function of seed, index and token id.

A token is drawn by the Gumbel-max trick: it is the candidate with the largest sum of logit and
Gumbel noise -log E, where E is an exponential variate of the candidate's id. The index is that of
the token in the answer. A draw depends on no earlier draw, so it may be repeated, or made ahead.

E of the ids of a group of 1,024 is generated from its smallest value, whose distribution and
position are known; exponential variates are memoryless, so the others lie above it by variates of
the same distribution. The minima of a few groups thus rule out most tokens of a vocabulary.

    group g   minimum m = -log(1 - u) / 1024 at position p
    id i      E = m if i is p of its group, else m - log(1 - u)

The numbers u are those of Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as
1, 2, 3") with the seed as the key and (id or group, index, stream, 0) as the counter.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

GROUP_IDS = 1024
SEED_MASK = 2**64 - 1

Doubles: TypeAlias = npt.NDArray[np.float64]
Ids: TypeAlias = npt.NDArray[np.int64]
Seeds: TypeAlias = npt.NDArray[np.uint64]

_MASK = 2**32 - 1
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_ONE = (1).to_bytes(8, "little")
_FEW = 512  # up to as many counters, integers of Python are faster than arrays


class Stream(IntEnum):
    """Use of a random number. `EXCLUDE` decides whether XTC acts on a token."""

    TOKEN = 0
    GROUP = 1
    EXCLUDE = 2


class Draw(NamedTuple):
    """The draw of one token: the seed (64 bits) and the index of the token in the answer."""

    seed: int
    token_index: int


def gumbel(draw: Draw, ids: Ids) -> Doubles:
    """Return the Gumbel noise of each of `ids` in one draw, float64 [n]."""
    return _gumbel(draw.seed, draw.token_index, ids)


def gumbel_rows(draws: Sequence[Draw], rows: Ids, ids: Ids) -> Doubles:
    """Return the Gumbel noise of ids[i] in draws[rows[i]], float64 [n]."""
    rows = np.concatenate((rows, rows))
    seeds, indexes = (np.array(column, np.uint64)[rows] for column in zip(*draws, strict=True))
    return _gumbel(seeds, indexes, ids)


def group_maxima(draw: Draw, n_groups: int) -> tuple[Ids, Doubles]:
    """Return the id with the largest noise of each of the first groups, and that noise, [n]."""
    groups = np.arange(n_groups)
    smallest, position = philox(draw.seed, groups, draw.token_index, Stream.GROUP)
    return groups * GROUP_IDS + position % GROUP_IDS, -np.log(_exponential(smallest) / GROUP_IDS)


def uniform(draw: Draw, stream: Stream) -> float:
    """Return a random number in (0, 1) that belongs to the token but to none of its ids."""
    words, _ = philox(draw.seed, np.zeros(1, np.int64), draw.token_index, stream)
    return (int(words[0]) + 0.5) / 2**32


def philox(
    seeds: int | Seeds, first: Ids, second: int | Seeds, third: int | Ids
) -> tuple[Ids, Ids]:
    """Return two of the four words of Philox4x32-10 for each key and counter, both int64 [n].

    seeds: keys of 64 bits. The words of a counter are `first`, `second`, `third` and 0. An integer
    stands for an array of that value.
    """
    n = first.size
    low, high = seeds & _MASK, seeds >> 32
    if n > _FEW:
        none, one = np.zeros(1, np.uint64), np.ones(1, np.uint64)
        operands = (first, second, third, none, low, high, one)
        c0, c1 = _rounds(*(np.atleast_1d(x).astype(np.uint64) for x in operands))
        return c0.astype(np.int64), c1.astype(np.int64)
    # An array of numpy costs more than its elements here, so a Python integer holds a lane of
    # 64 bits for each counter. Products of 32 bits stay inside their lanes.
    ones = int.from_bytes(_ONE * n, "little")
    lanes = (_lanes(x, ones) for x in (first, second, third, 0, low, high, 1))
    words = [x.to_bytes(8 * n, "little") for x in _rounds(*lanes)]
    return np.frombuffer(words[0], "<i8"), np.frombuffer(words[1], "<i8")


def _gumbel(seeds: int | Seeds, indexes: int | Seeds, ids: Ids) -> Doubles:
    """Return the noise of `ids` [n]. seeds, indexes: of each id, twice over [2n], or one of all."""
    n = ids.size
    counters = np.concatenate((ids, ids // GROUP_IDS))
    streams = np.arange(2 * n) // n  # Stream.TOKEN of the ids, Stream.GROUP of their groups
    words, positions = philox(seeds, counters, indexes, streams)
    variates = _exponential(words)
    own, minima = variates[:n], variates[n:] / GROUP_IDS
    is_smallest = (positions[n:] ^ ids) % GROUP_IDS == 0
    noise: Doubles = -np.log(np.where(is_smallest, minima, minima + own))
    return noise


def _rounds(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any, ones: Any) -> tuple[Any, Any]:
    """Return words 0 and 1 of each counter. ones: a 1 in each lane."""
    mask = ones * _MASK
    steps = [ones * step for step in _KEY_STEPS]
    for _ in range(_ROUNDS):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = (p1 >> 32 & mask) ^ c1 ^ k0, p1 & mask
        c2, c3 = (p0 >> 32 & mask) ^ c3 ^ k1, p0 & mask
        k0, k1 = k0 + steps[0] & mask, k1 + steps[1] & mask
    return c0, c1


def _lanes(words: int | Seeds | Ids, ones: int) -> int:
    if isinstance(words, int):
        return words * ones
    return int.from_bytes(words.astype("<u8").tobytes(), "little")


def _exponential(words: Ids) -> Doubles:
    """Return -log(1 - u), where u is (word + 1/2) / 2^32."""
    variates: Doubles = -np.log1p((words + 0.5) * -(2.0**-32))
    return variates
