"""Blocks that leave a sliding window, for sequences that are rolled back after rejected rows."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from zinc.kv import CachePool, Group

BLOCK = 16
CHUNK_TOKENS = 64
# (accepted, rejected) rows of a step
STEPS = st.lists(st.tuples(st.integers(1, 17), st.integers(0, 16)), min_size=1, max_size=40)


class NoData:
    """A copier of a pool that never copies."""


@settings(deadline=None)
@given(steps=STEPS, window=st.integers(1, 100), late=st.booleans())
def test_a_sequence_that_is_rolled_back_keeps_its_window(
    steps: list[tuple[int, int]], window: int, late: bool
) -> None:
    """Every row of a step finds its window, in no more blocks than the pool allows for.

    late: blocks are given back before the rejected rows are known, as with a step in flight.
    """
    groups = [Group(100), Group(100, window)]
    pool = CachePool(groups, BLOCK, 1, NoData(), CHUNK_TOKENS, prefix_cache=False)  # type: ignore[arg-type]
    allocation, n_run = pool.attach(b"", 0)
    longest = 0
    for accepted, rejected in steps:
        end = n_run + accepted + rejected
        longest = max(longest, end)  # blocks of rejected rows stay until the next rows use them
        pool.grow(allocation, end)
        held = sum(block >= 0 for block in allocation.tables[1])
        assert held <= pool.max_blocks(longest)[1]
        for position in range(n_run, end):
            first = max(0, position - window + 1) // BLOCK
            needed = allocation.tables[1][first : position // BLOCK + 1]
            assert len(needed) == position // BLOCK + 1 - first
            assert min(needed) >= 0
        if late:
            pool.trim(allocation, end)
        n_run += accepted
        pool.trim(allocation, n_run)
    pool.release(allocation)
    pool.check()
