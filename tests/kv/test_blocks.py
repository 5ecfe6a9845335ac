from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zinc.core.errors import MemoryLimitError
from zinc.kv import BlockAllocator


def test_a_single_sequence_gets_contiguous_blocks():
    allocator = BlockAllocator(8)
    first = allocator.acquire(3)
    allocator.release(first)
    assert allocator.acquire(5) == [0, 1, 2, 3, 4]


def test_a_failed_acquire_takes_no_blocks():
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


def test_a_kept_block_is_idle_without_holders_and_can_be_shared_again():
    allocator = BlockAllocator(3)
    blocks = allocator.acquire(2)
    allocator.keep(blocks[0])
    allocator.release(blocks)
    assert (allocator.n_free, allocator.n_idle, allocator.n_held) == (2, 1, 0)
    allocator.share([blocks[0]])
    assert (allocator.n_idle, allocator.n_held) == (0, 1)
    allocator.drop(blocks[0])
    assert allocator.n_held == 1
    allocator.release([blocks[0]])
    assert allocator.n_free == 3
    with pytest.raises(ValueError, match="not kept"):
        allocator.drop(blocks[0])
    with pytest.raises(ValueError, match="free"):
        allocator.keep(blocks[0])


ACTIONS = st.sampled_from(["acquire", "share", "release", "keep", "drop"])


@settings(deadline=None)
@given(st.lists(st.tuples(ACTIONS, st.integers(0, 5))))
def test_counts_agree_after_any_actions(actions):
    allocator = BlockAllocator(12)
    held: list[list[int]] = []
    kept: set[int] = set()
    for action, n in actions:
        if action == "acquire" and n <= allocator.n_free:
            held.append(allocator.acquire(n))
        elif action == "share" and held:
            allocator.share(held[n % len(held)])
            held.append(list(held[n % len(held)]))
        elif action == "release" and held:
            allocator.release(held.pop(n % len(held)))
        elif action == "keep" and held:
            fresh = [b for b in held[n % len(held)] if b not in kept]
            kept.update(fresh)
            for block in fresh:
                allocator.keep(block)
        elif action == "drop" and kept:
            allocator.drop(kept.pop())
        allocator.check()
        in_use = {b for blocks in held for b in blocks}
        assert allocator.n_held == len(in_use)
        assert allocator.n_idle == len(kept - in_use)
        for blocks in held:
            alone = [b for b in blocks if sum(b in other for other in held) == 1]
            assert allocator.n_exclusive(blocks) == len(alone)
    for blocks in held:
        allocator.release(blocks)
    for block in kept:
        allocator.drop(block)
    allocator.check()
    assert allocator.n_free == 12
