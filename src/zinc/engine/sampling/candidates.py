"""Candidates: the tokens that may still be sampled, and a fast search for the largest logits.

A filter maps `Candidates` to fewer `Candidates` and never writes to them. At first every token of
the vocabulary is a candidate, `ids` is None and the position is the id, so no array of that size is
built.

    logits [151936] → maxima of 1024 strided groups → k-th largest maximum = floor
                    → the few logits >= floor → their exact top k

At least k groups have a member >= floor, so at least k logits do, and the floor never removes one
of the top k.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from zinc.core.dataclass import dataclass

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Positions = NDArray[np.int64]

_SMALL = 2048  # at or below, one argsort is faster than looking for a floor
_GROUPS_PER_RANK = 8  # groups for each of the k ranks: few more than k values pass the floor


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens and their logits, both [n]. ids: None stands for 0, 1, ... n - 1.

    ordered: logits descend, and equal logits have ascending ids. Otherwise ids ascend, so a seeded
    sample depends on the candidates alone and not on how they were found.
    """

    logits: Floats
    ids: Positions | None = None
    ordered: bool = False

    def __len__(self) -> int:
        return self.logits.size

    def token(self, position: int) -> int:
        return position if self.ids is None else int(self.ids[position])

    def peak(self) -> np.float32:
        """Return the largest logit."""
        return self.logits[0] if self.ordered else np.float32(self.logits.max())

    def weights(self) -> Floats:
        """Return exp(logit - peak), [n]: probabilities up to the factor 1 / sum."""
        weights: Floats = np.exp(self.logits - self.peak())
        return weights

    def take(self, positions: Positions, *, ordered: bool) -> Candidates:
        ids = positions if self.ids is None else self.ids[positions]
        return Candidates(self.logits[positions], ids, ordered)

    def head(self, n: int) -> Candidates:
        """Return the first `n` of ordered candidates."""
        ids = np.arange(min(n, len(self))) if self.ids is None else self.ids[:n]
        return Candidates(self.logits[:n], ids, True)

    def ranking(self, k: int) -> Positions:
        """Return the positions of the k most likely candidates in order, without any at -inf."""
        if self.ordered:
            return np.arange(min(k, len(self)))
        return largest(self.logits, k)

    def top(self, k: int) -> Candidates:
        return self.take(self.ranking(k), ordered=True)


def largest(values: Floats, k: int) -> Positions:
    """Return the positions of the k largest values in descending order.

    The lower position wins a tie. values: [n] without NaN. Values of -inf are left out, so fewer
    than k positions may be returned.
    """
    k = min(k, values.size)
    if k <= 0:
        return np.empty(0, np.int64)
    pool = np.flatnonzero(values >= _floor(values, k))
    chosen = values[pool]
    if pool.size > 2 * k + 64:  # many equal values, or no floor was computed
        kth = np.partition(chosen, pool.size - k)[pool.size - k]
        keep = np.flatnonzero(chosen >= kth)
        if keep.size > 2 * k + 64:
            above = np.flatnonzero(chosen > kth)
            equal = np.flatnonzero(chosen == kth)[: k - above.size]
            keep = np.union1d(above, equal)
        pool, chosen = pool[keep], chosen[keep]
    order = np.argsort(-chosen, kind="stable")[:k]
    return pool[order]


def _floor(values: Floats, k: int) -> np.float32:
    """Return a value that at least k of `values` reach if k are finite, and few others reach."""
    lowest = np.finfo(np.float32).min
    groups = max(1024, 1 << (k * _GROUPS_PER_RANK - 1).bit_length())
    rows = values.size // groups
    if values.size <= _SMALL or rows < 2:
        return lowest
    # Groups are strided: neighbours in a vocabulary have similar logits, and the reduction is
    # contiguous.
    maxima = values[: rows * groups].reshape(rows, groups).max(axis=0)
    # Most values of a masked row are -inf, and a partition of many equal values is slow.
    finite = maxima[maxima >= lowest]
    return lowest if finite.size < k else np.partition(finite, finite.size - k)[finite.size - k]
