"""Device memory as every GPU backend sees it: buffers, and slices cut from a few large ones.

Drivers limit the number of allocations, so weights share large buffers, and so do the layers of a
cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field
from enum import Enum, auto
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from zinc.core.dataclass import dataclass
from zinc.core.errors import MemoryLimitError
from zinc.core.rounding import round_up

Bytes: TypeAlias = npt.NDArray[np.uint8]

ALIGNMENT = 256
SMALLEST_CHUNK, LARGEST_CHUNK = (
    1 << 20,
    256 << 20,
)  # sizes of buffers for slices that were not announced
SMALLEST_SCRATCH = 16 << 20
COUNTER_BYTES = 64 << 10  # size of a buffer of counters


class MemoryKind(Enum):
    """Use of a buffer: the processors that read and write it."""

    DEVICE = auto()  # the device alone
    STEP = auto()  # the host writes it before each step, kernels read it
    DOWNLOAD = auto()  # the device writes it, the host reads it


@dataclass(eq=False)
class Buffer:
    """`size` bytes of device memory, starting at `address`.

    `handle` is the host API's own number for it. `bytes` is the host's view of the memory, None
    if the host cannot see it.
    """

    handle: int
    address: int
    size: int
    bytes: Bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Slice:
    """`size` bytes of a buffer, starting at `offset`."""

    buffer: Buffer
    offset: int
    size: int

    @property
    def address(self) -> int:
        return self.buffer.address + self.offset


class Allocator(Protocol):
    """Allocator of buffers, which are freed when nothing refers to them any more."""

    @property
    def max_buffer_bytes(self) -> int: ...

    def buffer(self, size: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        """Return a new buffer of at least `size` bytes. Raises MemoryLimitError."""
        ...

    def flush(self, buffer: Buffer, offset: int, n_bytes: int) -> None:
        """Make bytes that the host wrote to a STEP buffer visible to later submissions."""
        ...


class Pool:
    """Memory pool that cuts slices from a few large buffers. Slices are freed with the pool.

    Buffers are large because a device translates their addresses faster (docs/benchmarks.md).
    """

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self.buffers: list[Buffer] = []
        self._used: list[int] = []
        self._expected = 0
        self.n_bytes = 0

    def expect(self, sizes: Iterable[int]) -> None:
        """Announce slices of these sizes, so that the next buffers hold all of them."""
        self._expected += sum(aligned(size) for size in sizes)

    def take(self, size: int) -> Slice:
        """Return a slice of `size` bytes. Raises MemoryLimitError if it does not fit."""
        room = aligned(size)
        i = next((i for i, x in enumerate(self.buffers) if self._used[i] + room <= x.size), None)
        if i is None:
            i = len(self.buffers)
            self.buffers.append(self._larger_buffer(room))
            self._used.append(0)
        offset = self._used[i]
        self._used[i] += room
        self._expected = max(0, self._expected - room)
        self.n_bytes += room
        return Slice(self.buffers[i], offset, size)

    def _larger_buffer(self, room: int) -> Buffer:
        """Return a buffer for all expected slices, or one as large as all buffers so far."""
        wanted = self._expected or min(LARGEST_CHUNK, max(SMALLEST_CHUNK, self.n_bytes))
        largest = self._allocator.max_buffer_bytes // ALIGNMENT * ALIGNMENT
        size = max(room, min(wanted, largest))
        while True:
            try:
                return self._allocator.buffer(size)
            except MemoryLimitError:
                if size == room:
                    raise
                size = max(room, aligned(size // 2))  # memory may be free in smaller pieces


def aligned(size: int) -> int:
    """Return `size`, at least 1, rounded up to the alignment of slices."""
    return round_up(max(size, 1), ALIGNMENT)


class ScratchAllocator:
    """Ring of scratch memory for launches, whose oldest bytes are reused.

    `new_memory(n_bytes)` returns the address of memory that stays allocated, because recorded
    dispatches use it even after a larger ring has replaced it. `taken` lists the address ranges
    of the launch that was lowered last: a launch whose range overlaps the range of an earlier
    launch must wait for that launch.
    """

    def __init__(self, new_memory: Callable[[int], int]) -> None:
        self._new_memory = new_memory
        self._base = self._size = self._used = 0
        self.taken: list[tuple[int, int]] = []

    def take(self, n_bytes: int) -> int:
        """Return the address of `n_bytes` for the launch being lowered. Raises MemoryLimitError."""
        n_bytes = aligned(n_bytes)
        if n_bytes > self._size:
            self._grow(max(SMALLEST_SCRATCH, 2 * n_bytes))
        if self._used + n_bytes > self._size:
            self._used = 0
        address = self._base + self._used
        if any(start < address + n_bytes and address < end for start, end in self.taken):
            self._grow(2 * self._size)
            address = self._base
        self._used += n_bytes
        self.taken.append((address, address + n_bytes))
        return address

    def _grow(self, size: int) -> None:
        self._base, self._size, self._used = self._new_memory(size), size, 0


class CounterAllocator:
    """Counters of four bytes that are 0 before and after each dispatch that uses them.

    `new_memory(n_bytes)` returns the address of memory that is filled with zeros and stays
    allocated. Each counter is handed out once, so launches may run side by side.
    """

    def __init__(self, new_memory: Callable[[int], int]) -> None:
        self._new_memory = new_memory
        self._next = self._end = 0

    def take(self, n: int) -> int:
        """Return the address of `n` counters. Raises MemoryLimitError."""
        if self._next + 4 * n > self._end:
            size = max(COUNTER_BYTES, 4 * n)
            self._next = self._new_memory(size)
            self._end = self._next + size
        address = self._next
        self._next += 4 * n
        return address
