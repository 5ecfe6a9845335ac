from __future__ import annotations

import pytest

from zinc.core.errors import MemoryLimitError
from zinc.kv import SlotAllocator


def test_the_lowest_free_slot_goes_first() -> None:
    slots = SlotAllocator(3)
    assert [slots.acquire(), slots.acquire()] == [0, 1]
    slots.release(0)
    assert slots.acquire() == 0
    assert slots.n_free == 1
    slots.check()


def test_acquire_fails_without_free_slots() -> None:
    slots = SlotAllocator(1)
    slots.acquire()
    with pytest.raises(MemoryLimitError, match="all 1 state slots are taken"):
        slots.acquire()
    slots.check()


@pytest.mark.parametrize("slot", [0, 1, -1])
def test_a_free_slot_cannot_be_released(slot: int) -> None:
    slots = SlotAllocator(2)
    with pytest.raises(ValueError, match="free already"):
        slots.release(slot)
    slots.check()
