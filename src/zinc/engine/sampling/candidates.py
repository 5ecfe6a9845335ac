"""The tokens still in the running, and how to find the few largest of many without a sort.

A filter maps `Candidates` to fewer `Candidates` and never writes to them. At first all tokens of
the vocabulary run, `ids` is None and position is id, so nothing of that size is built.

    logits [151936] → maxima of 1024 strided groups → k-th largest maximum = floor
                    → the few logits >= floor → their exact top k

k groups have a member >= floor, so at least k logits do: the floor never cuts one of the top k.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Positions = NDArray[np.int64]

_SMALL = 2048  # at or below, one argsort is faster than looking for a floor
_GROUPS_PER_RANK = 8  # with so many groups a rank, the floor lets few more than k through


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens and their logits, both [n]; `ids` None stands for 0, 1, … n - 1.

    `ordered` says that logits descend and ids ascend among equals. Otherwise ids ascend, so that
    what is drawn with a seed depends on the candidates alone and not on how they were found.
    """

    logits: Floats
    ids: Positions | None = None
    ordered: bool = False

    def __len__(self) -> int:
        return self.logits.size

    def token(self, position: int) -> int:
        return position if self.ids is None else int(self.ids[position])

    def peak(self) -> np.float32:
        """The largest logit."""
        return self.logits[0] if self.ordered else np.float32(self.logits.max())

    def weights(self) -> Floats:
        """exp(logit - peak), [n]: probabilities but for the factor 1 / their sum."""
        weights: Floats = np.exp(self.logits - self.peak())
        return weights

    def take(self, positions: Positions, *, ordered: bool) -> Candidates:
        ids = positions if self.ids is None else self.ids[positions]
        return Candidates(self.logits[positions], ids, ordered)

    def head(self, n: int) -> Candidates:
        """The first n of candidates that are ordered."""
        ids = np.arange(min(n, len(self))) if self.ids is None else self.ids[:n]
        return Candidates(self.logits[:n], ids, True)

    def ranking(self, k: int) -> Positions:
        """Positions of the k most likely candidates, most likely first, without any at -inf."""
        if self.ordered:
            return np.arange(min(k, len(self)))
        return largest(self.logits, k)

    def top(self, k: int) -> Candidates:
        return self.take(self.ranking(k), ordered=True)


def largest(values: Floats, k: int) -> Positions:
    """Positions of the k largest values, largest first, the lower position first among equals.

    Values of -inf are left out, so fewer than k may come back. values: [n] without NaN.
    """
    k = min(k, values.size)
    if k <= 0:
        return np.empty(0, np.int64)
    pool = np.flatnonzero(values >= _floor(values, k))
    chosen = values[pool]
    if pool.size > 2 * k + 64:  # many equals, or no floor was looked for
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
    """A value that at least k of `values` reach if so many are finite, and few others do."""
    lowest = np.finfo(np.float32).min
    groups = max(1024, 1 << (k * _GROUPS_PER_RANK - 1).bit_length())
    rows = values.size // groups
    if values.size <= _SMALL or rows < 2:
        return lowest
    # Strided groups: neighbours in a vocabulary are alike, and this reduction is contiguous.
    maxima = values[: rows * groups].reshape(rows, groups).max(axis=0)
    # Of a masked row most are -inf, and a partition of many equals is ten times as slow.
    finite = maxima[maxima >= lowest]
    return lowest if finite.size < k else np.partition(finite, finite.size - k)[finite.size - k]
