"""Slots for what a sequence carries besides cache blocks: one each, of the same size for everybody.

A recurrent state is as large after one token as after a million, so a sequence holds one slot in
every recurrent layer from its first step to its last. The prefix cache keeps copies of states in
slots too (checkpoints), and gives them back when a sequence needs one.
"""

from __future__ import annotations

import heapq

from zinc.core.errors import MemoryLimitError


class SlotAllocator:
    """Gives out slot numbers 0 to n_slots - 1, the lowest free one first."""

    def __init__(self, n_slots: int) -> None:
        self.n_slots = n_slots
        self._free = list(range(n_slots))  # a heap
        self._held: set[int] = set()

    @property
    def n_free(self) -> int:
        return len(self._free)

    def acquire(self) -> int:
        """A free slot. Raises MemoryLimitError when there is none."""
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
        if slot not in self._held:
            raise ValueError(f"slot {slot} is free already")
        self._held.remove(slot)
        heapq.heappush(self._free, slot)

    def check(self) -> None:
        """Raises AssertionError when free list and holders disagree; call it when idle."""
        assert len(set(self._free)) == len(self._free), "a slot is free twice"
        assert set(self._free) | self._held == set(range(self.n_slots)), "a slot is lost"
        assert not self._held & set(self._free), "a slot is free and held"
