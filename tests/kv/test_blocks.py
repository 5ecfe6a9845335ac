from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zinc.core.errors import MemoryLimitError
from zinc.kv import BlockAllocator


def test_a_lone_sequence_gets_a_contiguous_run():
    allocator = BlockAllocator(8)
    first = allocator.acquire(3)
    allocator.release(first)
    assert allocator.acquire(5) == [0, 1, 2, 3, 4]


def test_too_few_blocks_takes_none():
    allocator = BlockAllocator(4)
    allocator.acquire(3)
    with pytest.raises(MemoryLimitError, match="1 of 4 are free"):
        allocator.acquire(2)
    assert allocator.n_free == 1


def test_a_shared_block_is_freed_by_its_last_holder():
    allocator = BlockAllocator(2)
    blocks = allocator.acquire(1)
    allocator.share(blocks)
    allocator.release(blocks)
    assert allocator.n_free == 1
    allocator.release(blocks)
    assert allocator.n_free == 2
    with pytest.raises(ValueError, match="free already"):
        allocator.release(blocks)


@given(st.lists(st.tuples(st.sampled_from(["acquire", "share", "release"]), st.integers(0, 5))))
def test_counts_hold_under_any_use(actions):
    allocator = BlockAllocator(12)
    held: list[list[int]] = []
    for action, n in actions:
        if action == "acquire" and n <= allocator.n_free:
            held.append(allocator.acquire(n))
        elif action == "share" and held:
            allocator.share(held[n % len(held)])
            held.append(list(held[n % len(held)]))
        elif action == "release" and held:
            allocator.release(held.pop(n % len(held)))
        allocator.check()
        assert allocator.n_held == len({b for blocks in held for b in blocks})
    for blocks in held:
        allocator.release(blocks)
    allocator.check()
    assert allocator.n_free == 12
