"""Slots for the recurrent states of sequences and of checkpoints.

A recurrent state has the same size after any number of tokens, so a sequence holds one slot from
its first step to its last. A slot spans all recurrent layers. The prefix cache keeps checkpoints
(copies of states) in slots too and frees them when a sequence needs one.
"""

from __future__ import annotations

import heapq

from zinc.core.errors import MemoryLimitError


class SlotAllocator:
    """Allocator of slot numbers 0 to n_slots - 1, the lowest free one first."""

    def __init__(self, n_slots: int) -> None:
        self.n_slots = n_slots
        self._free = list(range(n_slots))  # a heap
        self._held: set[int] = set()

    @property
    def n_free(self) -> int:
        return len(self._free)

    def acquire(self) -> int:
        """Return a free slot. Raises MemoryLimitError if there is none."""
        if not self._free:
            raise MemoryLimitError(
                "cannot run another sequence",
                f"all {self.n_slots} state slots are taken",
                "wait for another request to finish",
            )
        slot = heapq.heappop(self._free)
        self._held.add(slot)
        return slot

    def release(self, slot: int) -> None:
        """Free a slot. Raises ValueError if it is free already."""
        if slot not in self._held:
            raise ValueError(f"slot {slot} is free already")
        self._held.remove(slot)
        heapq.heappush(self._free, slot)

    def check(self) -> None:
        """Raise AssertionError if a slot is lost, or both free and held."""
        assert len(set(self._free)) == len(self._free), "a slot is free twice"
        assert set(self._free) | self._held == set(range(self.n_slots)), "a slot is lost"
        assert not self._held & set(self._free), "a slot is free and held"
