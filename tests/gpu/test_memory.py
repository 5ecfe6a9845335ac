"""Slices of large buffers, and scratch memory."""

from __future__ import annotations

from itertools import pairwise

import pytest

from zinc.core.errors import MemoryLimitError
from zinc.gpu.memory import (
    COUNTER_BYTES,
    SMALLEST_SCRATCH,
    Buffer,
    CounterAllocator,
    MemoryKind,
    Pool,
    ScratchAllocator,
    Slice,
)


class LimitedAllocator:
    """An allocator that allows at most `given` bytes a buffer, though it claims `allowed`."""

    def __init__(self, allowed: int, given: int) -> None:
        self.max_buffer_bytes, self.given = allowed, given
        self.made: list[int] = []

    def buffer(self, size: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        if size > min(self.given, self.max_buffer_bytes):
            raise MemoryLimitError("the device has no memory left")
        self.made.append(size)
        return Buffer(len(self.made), 1 << 32, size)

    def flush(self, buffer: Buffer, offset: int, n_bytes: int) -> None:
        pass


def overlaps(slices: list[Slice]) -> bool:
    spans = sorted((s.buffer.handle, s.offset, s.offset + s.size) for s in slices)
    return any(a[0] == b[0] and b[1] < a[2] for a, b in pairwise(spans))


def test_expected_slices_share_one_buffer() -> None:
    allocator = LimitedAllocator(allowed=1 << 32, given=1 << 32)
    pool, sizes = Pool(allocator), [5 << 20, 1000, 3 << 20, 1]
    pool.expect(sizes)
    taken = [pool.take(size) for size in sizes]
    assert allocator.made == [(8 << 20) + 1024 + 256] == [pool.n_bytes]
    assert not overlaps(taken)
    pool.take(1)
    assert len(allocator.made) == 2, "a slice that was not expected needs a buffer of its own"


@pytest.mark.parametrize(
    ("allowed", "given"), [((4 << 20) + 100, 1 << 32), (1 << 32, (4 << 20) + 100)]
)
def test_buffers_become_smaller_when_large_ones_fail(allowed: int, given: int) -> None:
    allocator = LimitedAllocator(allowed, given)
    pool, sizes = Pool(allocator), [3 << 20] * 5 + [1 << 20] * 5
    pool.expect(sizes)
    taken = [pool.take(size) for size in sizes]
    assert max(allocator.made) <= (4 << 20) + 100
    assert sum(allocator.made) <= sum(sizes) + (2 << 20), "small slices fill the gaps"
    assert not overlaps(taken)
    with pytest.raises(MemoryLimitError):
        Pool(allocator).take(5 << 20)


def test_scratch_is_reused_in_a_ring() -> None:
    made: list[int] = []

    def new_memory(n_bytes: int) -> int:
        made.append(n_bytes)
        return len(made) << 40

    scratch, third = ScratchAllocator(new_memory), SMALLEST_SCRATCH // 3 // 256 * 256
    addresses = []
    for _ in range(4):
        scratch.taken.clear()  # another launch
        addresses.append(scratch.take(third))
        assert scratch.taken == [(addresses[-1], addresses[-1] + third)]
    assert made == [SMALLEST_SCRATCH]
    assert addresses == [(1 << 40) + i * third for i in (0, 1, 2, 0)]
    assert scratch.take(SMALLEST_SCRATCH + 1) == 2 << 40
    assert made == [SMALLEST_SCRATCH, 2 * (SMALLEST_SCRATCH + 256)]


def test_scratch_of_one_launch_does_not_overlap() -> None:
    made: list[int] = []

    def new_memory(n_bytes: int) -> int:
        made.append(n_bytes)
        return len(made) << 40

    scratch, half = ScratchAllocator(new_memory), SMALLEST_SCRATCH // 2
    scratch.take(half // 2)
    scratch.taken.clear()
    first, second = scratch.take(half), scratch.take(half)
    assert made == [SMALLEST_SCRATCH, 2 * SMALLEST_SCRATCH], "the ring has become larger"
    assert (first, second) == ((1 << 40) + half // 2, 2 << 40)


def test_counters_are_handed_out_once() -> None:
    made: list[int] = []

    def new_memory(n_bytes: int) -> int:
        made.append(n_bytes)
        return len(made) << 32

    counters = CounterAllocator(new_memory)
    n = COUNTER_BYTES // 4
    taken = [counters.take(x) for x in (8, n - 9, 1, 1, 2 * n)]
    first, second, third = 1 << 32, 2 << 32, 3 << 32
    assert taken == [first, first + 32, first + 4 * (n - 1), second, third]
    assert made == [COUNTER_BYTES, COUNTER_BYTES, 2 * COUNTER_BYTES]
