"""CUDA buffers, and copies between them and host arrays.

Everything runs in the order of the calls on one stream. Reads and writes pass through pinned
staging buffers, because copies of pageable memory are much slower. To write, the host fills one
buffer while the device copies another.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from zinc.backends.cuda.driver import checked
from zinc.backends.cuda.staging import Staging
from zinc.core.errors import MemoryLimitError, ZincError
from zinc.gpu.errors import out_of_memory
from zinc.gpu.memory import Buffer, Bytes, MemoryKind, aligned


class Memory:
    """Allocator of buffers on one device. A buffer is freed with its last reference.

    enter: makes the device's context current in the calling thread.
    """

    def __init__(self, cuda: Any, stream: Any, enter: Callable[[], None]) -> None:
        self._cuda, self._stream, self._enter = cuda, stream, enter
        self.staging = Staging(cuda, stream, self._pinned, enter)

    def available_bytes(self) -> int:
        """Return the bytes of device memory that are free."""
        self._enter()
        free, _ = checked(self._cuda.cuMemGetInfo(), "cuMemGetInfo")
        return int(free)

    def buffer(self, size: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        """Return a new buffer of at least `size` bytes. Raises MemoryLimitError.

        A STEP buffer is pinned host memory, whose address is the handle, and a copy on the device,
        which `flush` updates. A DOWNLOAD buffer is pinned host memory.
        """
        self._enter()
        size = aligned(size)
        view = None if kind is MemoryKind.DEVICE else self._pinned(size)
        if kind is MemoryKind.DOWNLOAD:
            assert view is not None
            return Buffer(0, view.ctypes.data, size, view)
        address = self._allocate(size)
        buffer = Buffer(0 if view is None else view.ctypes.data, address, size, view)
        weakref.finalize(buffer, self._free, address).atexit = False
        return buffer

    def _allocate(self, size: int) -> int:
        """Return the address of `size` bytes of device memory. Raises MemoryLimitError."""
        try:
            return int(checked(self._cuda.cuMemAlloc(size), "cuMemAlloc"))
        except MemoryLimitError as error:
            free, total = checked(self._cuda.cuMemGetInfo(), "cuMemGetInfo")
            raise out_of_memory(
                f"{size / 1e9:,.2f} GB in one piece were needed, and {free / 1e9:,.2f} GB of "
                f"{total / 1e9:,.2f} GB are free"
            ) from error

    def flush(self, buffer: Buffer, offset: int, n_bytes: int) -> None:
        """Copy bytes that the host wrote to a STEP buffer to the device."""
        self.to_device(buffer.address + offset, buffer.handle + offset, n_bytes)

    def write(self, target: Buffer, offset: int, data: Bytes) -> None:
        """Copy `data` into a buffer, where everything submitted later sees it."""
        self._enter()
        data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        at = target.address + offset
        while len(data):
            with self.staging.take() as buffer:
                part, data = np.split(data, [len(buffer.bytes)])
                self.staging.wait(buffer)
                buffer.bytes[: len(part)] = part
                self.to_device(at, buffer.address, len(part))
                self.staging.mark(buffer)
            at += len(part)

    def read(self, source: Buffer, offset: int, n_bytes: int) -> Bytes:
        """Return bytes of a buffer as they are after everything submitted so far."""
        self._enter()
        result = np.empty(n_bytes, np.uint8)
        at, rest = source.address + offset, result
        while len(rest):
            with self.staging.take() as buffer:
                part, rest = np.split(rest, [len(buffer.bytes)])
                copy = self._cuda.cuMemcpyDtoHAsync
                queued = copy(buffer.address, at, len(part), self._stream)
                checked(queued, "cuMemcpyDtoHAsync")
                self.staging.mark(buffer)
                self.staging.wait(buffer)
                part[:] = buffer.bytes[: len(part)]
            at += len(part)
        return result

    def copy(self, source: Buffer, offset: int, target: Buffer, at: int, n_bytes: int) -> None:
        """Copy bytes between buffers on the device."""
        self._enter()
        copy = self._cuda.cuMemcpyDtoDAsync
        checked(
            copy(target.address + at, source.address + offset, n_bytes, self._stream),
            "cuMemcpyDtoDAsync",
        )

    def clear(self, target: Buffer) -> None:
        """Fill a buffer with zeros."""
        self._enter()
        fill = self._cuda.cuMemsetD8Async
        checked(fill(target.address, 0, target.size, self._stream), "cuMemsetD8Async")

    def to_device(self, target: int, source: int, n_bytes: int) -> None:
        """Queue a copy from pinned memory at the address `source`."""
        self._enter()
        copy = self._cuda.cuMemcpyHtoDAsync
        checked(copy(target, source, n_bytes, self._stream), "cuMemcpyHtoDAsync")

    def _pinned(self, size: int) -> Bytes:
        """Return `size` bytes of pinned host memory, which is freed with the last view of it."""
        try:
            where = int(checked(self._cuda.cuMemHostAlloc(size, 0), "cuMemHostAlloc"))
        except MemoryLimitError as error:
            raise MemoryLimitError(
                "the host has no memory left",
                f"the CUDA driver could not allocate {size / 1e6:,.1f} MB of pinned memory",
                "close other programs, or allow more locked memory (`ulimit -l`)",
            ) from error
        memory = (ctypes.c_uint8 * size).from_address(where)
        weakref.finalize(memory, self._free_host, where).atexit = False
        return np.ctypeslib.as_array(memory)

    def _free(self, address: int) -> None:
        with suppress(ZincError), self._visited():
            self._cuda.cuMemFree(address)

    def _free_host(self, where: int) -> None:
        with suppress(ZincError), self._visited():
            self._cuda.cuMemFreeHost(where)

    @contextmanager
    def _visited(self) -> Iterator[None]:
        """Make the device's context current, then the previous one again. Raises DeviceError.

        Finalizers run between any two calls of a thread, which may be working on another device.
        """
        before = checked(self._cuda.cuCtxGetCurrent(), "cuCtxGetCurrent")
        self._enter()  # raises if the device was lost: its context is gone
        try:
            yield
        finally:
            checked(self._cuda.cuCtxSetCurrent(before), "cuCtxSetCurrent")
