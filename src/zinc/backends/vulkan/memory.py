"""Vulkan buffers, and staging copies to memory that the host cannot see.

There are two staging buffers: the host fills one while the device copies the other. Where GPU and
CPU share one memory, the host sees all buffers, and writes into them without staging if the device
is idle.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from contextlib import suppress
from ctypes import byref, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from zinc.backends.vulkan.device import CommandBuffer, Device
from zinc.backends.vulkan.vk import types as vk
from zinc.core import host_memory
from zinc.core.errors import MemoryLimitError
from zinc.gpu.errors import DeviceLostError
from zinc.gpu.memory import Buffer, Bytes, MemoryKind, aligned

STAGING_BYTES = 32 << 20
_LOCAL, _VISIBLE = vk.MEMORY_DEVICE_LOCAL, vk.MEMORY_HOST_VISIBLE
_COHERENT, _CACHED = vk.MEMORY_HOST_COHERENT, vk.MEMORY_HOST_CACHED
# Memory types with other flags belong to extensions: protected, lazily allocated, uncached.
_ORDINARY = _LOCAL | _VISIBLE | _COHERENT | _CACHED


# For each kind flags that a memory type must have, flags that it should have, and flags that it
# should not have.
_SHARED = _VISIBLE | _COHERENT
_FLAGS = {
    MemoryKind.DEVICE: (_LOCAL, 0, _VISIBLE),
    MemoryKind.STEP: (_VISIBLE | _COHERENT, _LOCAL, _CACHED),
    MemoryKind.DOWNLOAD: (_VISIBLE | _COHERENT, _CACHED, _LOCAL),
}


def set_aside_bytes(pci_address: str, devices: Path = Path("/sys/bus/pci/devices")) -> int:
    """Return the free bytes that firmware has set aside for an AMD GPU in the machine's memory.

    pci_address: name of the GPU's folder in `devices`, "" if it is not known. Linux does not count
    these bytes as memory of the machine. Returns 0 for other GPUs, and on other systems.
    """
    folder = devices / pci_address
    try:
        total, used = (
            int((folder / f"mem_info_vram_{name}").read_text()) for name in ("total", "used")
        )
    except (OSError, ValueError):
        return 0
    return max(0, total - used)


def choose_type(properties: Any, kind: MemoryKind, unified: bool, allowed: int) -> int:
    """Return the index of the best of the `allowed` memory types for a kind of buffer.

    properties: VkPhysicalDeviceMemoryProperties. unified: GPU and CPU share one memory, so device
    memory that the host sees is as fast as any other. Raises MemoryLimitError if there is none.
    """
    needed, wanted, unwanted = _FLAGS[kind]
    able = [
        (i, properties.types[i])
        for i in range(properties.nTypes)
        if allowed >> i & 1
        and properties.types[i].flags & needed == needed
        and not properties.types[i].flags & ~_ORDINARY
    ]
    if not able:
        raise MemoryLimitError(
            "the device has no memory for zinc's buffers",
            f"it has no memory of the kind {kind.name}",
            "update its driver, or choose another device with {device}",
        )

    def rank(x: tuple[int, Any]) -> tuple[int, ...]:
        i, type = x
        size: int = properties.heaps[type.heap].size
        if unified and kind is MemoryKind.DEVICE:
            shared = type.flags & _SHARED == _SHARED
            return size, shared, not type.flags & _CACHED, -i
        return bool(type.flags & wanted), not type.flags & unwanted, size, -i

    return max(able, key=rank)[0]


class Memory:
    """Allocator of buffers on one device. A buffer is freed with its last reference."""

    def __init__(self, device: Device) -> None:
        self.device = device

    @property
    def max_buffer_bytes(self) -> int:
        size: int = self.device.max_allocation
        return size

    def type_of(self, kind: MemoryKind, allowed: int = 0xFFFFFFFF) -> tuple[int, int]:
        """Return the best of the `allowed` memory types for a kind of buffer, and its heap."""
        properties, _ = self.device.memory()
        i = choose_type(properties, kind, self.device.unified, allowed)
        return i, properties.types[i].heap

    def _sees(self, kind: MemoryKind, index: int) -> bool:
        """Return whether the host writes to a buffer of `kind` in memory of type `index`."""
        if kind is not MemoryKind.DEVICE:
            return True
        flags: int = self.device.memory()[0].types[index].flags
        return bool(self.device.unified) and flags & _SHARED == _SHARED

    def available_bytes(self) -> int:
        """Return the bytes of device memory that are still free according to the driver.

        If the CPU shares this memory, return at most what programs can still allocate there.
        """
        _, heap = self.type_of(MemoryKind.DEVICE)
        free = self.device.memory()[1][heap]
        shared = self.shared_bytes()
        return free if shared is None else min(free, shared)

    def shared_bytes(self) -> int | None:
        """Return the free bytes of the memory that the device shares with the CPU.

        The part that firmware sets aside for the GPU counts too. None: the device has its own.
        """
        if not self.device.unified:
            return None
        return host_memory.available_memory_bytes() + set_aside_bytes(self.device.pci_address())

    def buffer(self, size: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        """Return a new buffer of at least `size` bytes. Raises MemoryLimitError."""
        device, f = self.device, self.device.vk
        size = aligned(size)
        if size > device.max_allocation:
            raise MemoryLimitError(
                f"a buffer of {size / 1e9:.1f} GB is more than the device allows in one piece",
                f"its driver has a limit of {device.max_allocation / 1e9:.1f} GB",
                "choose a smaller {context}",
            )
        usage = vk.BUFFER_TRANSFER_SOURCE | vk.BUFFER_TRANSFER_TARGET
        usage |= vk.BUFFER_STORAGE | vk.BUFFER_ADDRESS
        handle = device.create("vkCreateBuffer", vk.BufferCreateInfo(size=size, usage=usage))
        memory = 0
        try:
            needs = vk.MemoryRequirements()
            f.vkGetBufferMemoryRequirements(device.handle, handle, byref(needs))
            index, _ = self.type_of(kind, needs.types)
            info = vk.MemoryAllocateInfo(size=needs.size, memoryType=index)
            info.chain(vk.MemoryAllocateFlags(flags=vk.ALLOCATE_DEVICE_ADDRESS))
            memory = device.create("vkAllocateMemory", info)
            f.vkBindBufferMemory(device.handle, handle, memory, 0)
            mapped = self._map(memory, size) if self._sees(kind, index) else None
        except BaseException:
            _free(device, handle, memory)
            raise
        asked = vk.BufferAddress(buffer=handle)
        address = f.vkGetBufferDeviceAddress(device.handle, byref(asked))
        view = None if mapped is None else np.ctypeslib.as_array(mapped)
        buffer = Buffer(handle, address, size, view)
        # Arrays over mapped memory may outlive the buffer, so the memory is freed with them.
        weakref.finalize(mapped or buffer, _free, device, handle, memory).atexit = False
        return buffer

    def _map(self, memory: int, size: int) -> Any:
        where = c_void_p()
        self.device.vk.vkMapMemory(self.device.handle, memory, 0, size, 0, byref(where))
        assert where.value
        return (ctypes.c_uint8 * size).from_address(where.value)


def _free(device: Device, handle: int, memory: int) -> None:
    with suppress(DeviceLostError):  # nothing runs on a lost device
        device.idle()
    device.vk.vkDestroyBuffer(device.handle, handle, None)
    if memory:
        device.vk.vkFreeMemory(device.handle, memory, None)


class Staging:
    """Copies between host arrays and device buffers. Copies run in the order of the calls."""

    def __init__(self, memory: Memory) -> None:
        self._memory, self._device = memory, memory.device
        self._lock = threading.Lock()
        self._buffers: list[Buffer] = []
        self._commands: list[CommandBuffer] = []
        self._busy = [0, 0]
        self._next = 0

    def write(self, target: Buffer, offset: int, data: Bytes) -> None:
        """Copy `data` into a buffer, where all later submissions see it."""
        with self._lock:
            if target.bytes is not None and self._device.is_idle():
                target.bytes[offset : offset + len(data)] = data
                return
            for start in range(0, len(data), STAGING_BYTES):
                part = data[start : start + STAGING_BYTES]
                i, staging = self._turn()
                assert staging.bytes is not None
                staging.bytes[: len(part)] = part
                self._copy(i, staging, 0, target, offset + start, len(part))

    def read(self, source: Buffer, offset: int, size: int) -> Bytes:
        """Return bytes of a buffer as they are after everything submitted so far."""
        result = np.empty(size, np.uint8)
        with self._lock:
            for start in range(0, size, STAGING_BYTES):
                n = min(STAGING_BYTES, size - start)
                i, staging = self._turn()
                assert staging.bytes is not None
                self._copy(i, source, offset + start, staging, 0, n)
                self._device.wait(self._busy[i])
                result[start : start + n] = staging.bytes[:n]
        return result

    def copy(self, source: Buffer, offset: int, target: Buffer, at: int, size: int) -> None:
        """Copy bytes between buffers on the device."""
        with self._lock:
            i, _ = self._turn()
            self._copy(i, source, offset, target, at, size)

    def clear(self, target: Buffer) -> None:
        """Fill a buffer with zeros."""
        with self._lock:
            i, _ = self._turn()
            commands = self._begin(i)
            self._device.vk.vkCmdFillBuffer(commands, target.handle, 0, target.size, 0)
            self._end(i)

    def _turn(self) -> tuple[int, Buffer]:
        """Return the staging buffer whose turn it is, and its index. Waits until it is free."""
        if not self._buffers:
            buffers = [self._memory.buffer(STAGING_BYTES, MemoryKind.DOWNLOAD) for _ in range(2)]
            self._commands = [CommandBuffer(self._device) for _ in range(2)]
            self._buffers = buffers
        i, self._next = self._next, 1 - self._next
        self._device.wait(self._busy[i])
        return i, self._buffers[i]

    def _copy(
        self, i: int, source: Buffer, offset: int, target: Buffer, at: int, size: int
    ) -> None:
        commands = self._begin(i)
        region = vk.BufferCopy(source=offset, target=at, size=size)
        self._device.vk.vkCmdCopyBuffer(commands, source.handle, target.handle, 1, byref(region))
        self._end(i)

    def _begin(self, i: int) -> int:
        commands = self._commands[i].handle
        begin = vk.CommandBufferBeginInfo(flags=vk.USAGE_ONE_TIME)
        self._device.vk.vkBeginCommandBuffer(commands, byref(begin))
        everything = (vk.STAGE_COMPUTE | vk.STAGE_TRANSFER, _WRITES)
        self._device.barrier(commands, everything, (vk.STAGE_TRANSFER, _TRANSFERS))
        return commands

    def _end(self, i: int) -> None:
        commands = self._commands[i].handle
        later = (vk.STAGE_COMPUTE | vk.STAGE_TRANSFER | vk.STAGE_HOST, _ANY)
        self._device.barrier(commands, (vk.STAGE_TRANSFER, vk.ACCESS_TRANSFER_WRITE), later)
        self._device.vk.vkEndCommandBuffer(commands)
        self._busy[i] = self._device.submit(self._commands[i])


_WRITES = vk.ACCESS_SHADER_WRITE | vk.ACCESS_TRANSFER_WRITE
_TRANSFERS = vk.ACCESS_TRANSFER_READ | vk.ACCESS_TRANSFER_WRITE
_ANY = vk.ACCESS_SHADER_READ | vk.ACCESS_SHADER_WRITE | vk.ACCESS_HOST_READ | _TRANSFERS
