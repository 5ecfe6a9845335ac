"""Repetition, presence and frequency penalties on the tokens of a recent window.

`zinc.ops.penalties` defines them. Counts are updated with each accepted token, so a step costs time
in the number of distinct tokens, not in the length of the window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from zinc.engine.sampling.candidates import Candidates, Floats, Positions
from zinc.ops.penalties import MOST_PENALIZED, CountArray, RowPenalties, penalized


class TokenWindow:
    """Counts of each distinct token among the last `last_n` tokens (-1: among all)."""

    def __init__(self, last_n: int) -> None:
        self._last_n = last_n
        self.clear()

    def clear(self) -> None:
        self._recent: deque[int] = deque()
        self._slots: dict[int, int] = {}
        self._ids = np.zeros(64, np.int64)
        self._counts = np.zeros(64, np.int32)

    def push(self, token: int) -> None:
        if self._last_n == 0:
            return
        slot = self._slots.setdefault(token, len(self._slots))
        if slot == self._ids.size:
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[slot] = token
        self._counts[slot] += 1
        if self._last_n > 0:
            self._recent.append(token)
            if len(self._recent) > self._last_n:
                self._forget(self._recent.popleft())

    def _forget(self, token: int) -> None:
        slot = self._slots[token]
        self._counts[slot] -= 1
        if self._counts[slot] == 0:
            # The last slot moves into the gap, so that the arrays stay dense.
            del self._slots[token]
            last = len(self._slots)
            if slot != last:
                moved = int(self._ids[last])
                self._ids[slot], self._counts[slot] = moved, self._counts[last]
                self._slots[moved] = slot
            self._counts[last] = 0

    def counts_after(self, tokens: Sequence[int], n_unknown: int) -> CountArray:
        """Return the counts after `tokens` and `n_unknown` further ones, which do not count.

        uint32 [n, 2]: distinct tokens with their counts, of which some may be 0.
        """
        slots = dict(self._slots) if tokens else self._slots
        added = [slots.setdefault(token, len(slots)) for token in tokens]
        found = np.zeros((len(slots), 2), np.uint32)
        n = len(self._slots)
        found[:n, 0], found[:n, 1] = self._ids[:n], self._counts[:n]
        for token, slot in zip(tokens, added, strict=True):
            found[slot, 0] = token
            found[slot, 1] += 1
        if self._last_n > 0:
            n_forgotten = len(self._recent) + len(tokens) + n_unknown - self._last_n
            for token in islice(chain(self._recent, tokens), max(n_forgotten, 0)):
                found[slots[token], 1] -= 1
        return found

    @property
    def ids(self) -> Positions:
        """The distinct tokens, [n] in no particular order."""
        return self._ids[: len(self._slots)]

    @property
    def counts(self) -> NDArray[np.int32]:
        """Occurrences of each of `ids`, [n], all at least 1."""
        return self._counts[: len(self._slots)]


class Penalties:
    """The sampler `penalties`. repeat 1, presence 0 and frequency 0 are neutral."""

    def __init__(self, last_n: int, repeat: float, presence: float, frequency: float) -> None:
        self._last_n = last_n
        self._window = TokenWindow(last_n)
        self._repeat = np.float32(repeat)
        self._presence = np.float32(presence)
        self._frequency = np.float32(frequency)

    def accept(self, tokens: Sequence[int]) -> None:
        for token in tokens[-self._last_n :] if self._last_n > 0 else tokens:
            self._window.push(token)

    def reset(self) -> None:
        self._window.clear()

    def __call__(self, candidates: Candidates) -> Candidates:
        ids, counts = self._window.ids, self._window.counts
        if ids.size == 0:
            return candidates
        candidates, found, where = locate(candidates, ids)
        logits = penalized(
            *(candidates.logits[where], counts[found]),
            *(self._repeat, self._presence, self._frequency),
        )
        return rewrite(candidates, where, logits)

    def fits_device(self, n_more: int) -> bool:
        """Return whether a device has room for the window after `n_more` further tokens."""
        return len(self._window.ids) + n_more <= MOST_PENALIZED

    def of_row(self, drafted: Sequence[int], behind: bool) -> RowPenalties:
        """Return the penalties of an output row after the tokens `drafted`.

        behind: whether one further token comes before the row, as its input; it is not known yet.
        """
        counts = self._window.counts_after(drafted, int(behind))
        return RowPenalties(
            float(self._repeat), float(self._presence), float(self._frequency), counts, behind
        )


def locate(candidates: Candidates, ids: Positions) -> tuple[Candidates, Positions, Positions]:
    """Find which of `ids` are candidates.

    Returns the candidates in order of their ids, the indices into `ids` that are among them, and
    their positions.
    """
    if candidates.ids is None:
        return candidates, np.arange(ids.size), ids
    if candidates.ordered:
        candidates = candidates.take(np.argsort(candidates.ids), ordered=False)
    sorted_ids = candidates.ids
    assert sorted_ids is not None
    where = np.searchsorted(sorted_ids, ids)
    where[where == sorted_ids.size] = 0
    found = np.flatnonzero(sorted_ids[where] == ids) if sorted_ids.size else where[:0]
    return candidates, found, where[found]


def rewrite(candidates: Candidates, where: Positions, logits: Floats) -> Candidates:
    """Return candidates with other logits at some positions, no longer ordered.

    This is the only function of the package that writes to its argument. The chain gives samplers
    that rewrite logits a row of their own, so that they need not each copy the vocabulary.
    """
    candidates.logits[where] = logits
    return Candidates(candidates.logits, candidates.ids)
