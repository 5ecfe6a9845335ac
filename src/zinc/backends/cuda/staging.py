"""Pinned host buffers through which data reaches the device, and the host.

Several threads may use them: each takes a buffer, queues a copy and gives it back. A thread that
fills a buffer first waits until the device has read it. A copy to the host needs no wait before it,
because the copies of a device run in order.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from zinc.backends.cuda.driver import checked
from zinc.core.dataclass import dataclass
from zinc.gpu.memory import Bytes

STAGING_BYTES = 8 << 20
N_BUFFERS = 8


@dataclass(eq=False)
class StagingBuffer:
    """Pinned memory, and an event after the last work on the device that uses it."""

    bytes: Bytes
    event: Any

    @property
    def address(self) -> int:
        return self.bytes.ctypes.data


class Staging:
    """The staging buffers of a device, made when they are first needed.

    pinned: returns that many bytes of pinned memory, or raises MemoryLimitError. enter: makes the
    device's context current in the calling thread.
    """

    def __init__(
        self,
        cuda: Any,
        stream: Any,
        pinned: Callable[[int], Bytes],
        enter: Callable[[], None],
    ) -> None:
        self._cuda, self._stream, self._pinned, self._enter = cuda, stream, pinned, enter
        self._free: queue.SimpleQueue[StagingBuffer | None] = queue.SimpleQueue()
        for _ in range(N_BUFFERS):
            self._free.put(None)

    @contextmanager
    def take(self) -> Iterator[StagingBuffer]:
        """Lend a buffer, which the device may still read. Waits until one is free."""
        buffer = self._free.get()
        try:
            self._enter()  # threads that upload have no context yet
            if buffer is None:
                buffer = self._new()
            yield buffer
        finally:
            self._free.put(buffer)

    def wait(self, buffer: StagingBuffer) -> None:
        """Wait until the device has done its marked work with a buffer."""
        checked(self._cuda.cuEventSynchronize(buffer.event), "cuEventSynchronize")

    def mark(self, buffer: StagingBuffer) -> None:
        """Record that work queued so far uses a buffer."""
        checked(self._cuda.cuEventRecord(buffer.event, self._stream), "cuEventRecord")

    def _new(self) -> StagingBuffer:
        flags = int(self._cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING)
        event = checked(self._cuda.cuEventCreate(flags), "cuEventCreate")
        return StagingBuffer(self._pinned(STAGING_BYTES), event)
