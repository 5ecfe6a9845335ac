"""An open Vulkan device with its compute queue and command buffers.

A device is opened once per process, or once for each part of a split model that runs on it. All
backends on it share it, so pipelines are made once. One timeline semaphore orders all work: each
submission gets the next number, and a caller waits for the number of its submission.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
import weakref
from contextlib import suppress
from ctypes import addressof, byref, c_char_p, c_float, c_uint32, c_uint64
from typing import Any, NamedTuple

from zinc.backends.vulkan.physical import (
    COOPERATIVE_MATRIX,
    DEVICE_SCOPE,
    EXECUTABLES,
    MEMORY_BUDGET,
    PCI_BUS,
    PORTABILITY,
    SHADER_CORES,
    SM_BUILTINS,
    Candidate,
    choose,
    extensions,
    library,
    registers_of,
    subgroup_of,
    supported_features,
)
from zinc.backends.vulkan.vk import types as vk
from zinc.backends.vulkan.vk.library import Library
from zinc.core.env import VULKAN_COHERENT
from zinc.core.errors import DeviceError, UnsupportedError, ZincError
from zinc.gpu.errors import DeviceLostError
from zinc.gpu.features import MATRIX_SHAPES, NARROW, SQUARE, Features, MatrixShape

SLEEP_S = 2e-4  # a sleeping wait wakes up this much before the expected end
POLL_S = 2e-3  # longest time to poll for a submission that ends late
FLOAT16, FLOAT32, SUBGROUP_SCOPE = 0, 1, 3

_lock = threading.Lock()
_open: dict[tuple[int, str], Device] = {}


def open_device(wanted: str = "", instance: str = "0") -> Device:
    """Return the device that `choose` picks for `wanted`, opened if it is not yet open.

    instance: each has a logical device of its own, with its own queue and memory.
    """
    chosen = choose(wanted)
    lib = library()
    with _lock:
        key = chosen.index, instance
        if key not in _open:
            _open[key] = Device(lib, chosen)
        return _open[key]


class _Properties(NamedTuple):
    """The properties of a device by the version of Vulkan, and its counts of compute units."""

    device: Any
    v11: vk.Properties11
    v12: vk.Properties12
    v13: vk.Properties13
    sms: vk.SMBuiltins
    cores: vk.ShaderCores

    @property
    def compute_units(self) -> int:
        """The number of compute units; a guess if the driver does not report it."""
        cores = self.cores
        if units := self.sms.count or cores.engines * cores.arrays * cores.units:
            return int(units)
        return os.cpu_count() or 1 if self.device.kind == vk.CPU_DEVICE else 16


class Device:
    """An open device with one compute queue.

    unified: GPU and CPU share one memory. coherent: kernels make their stores available themselves,
    so barriers between them need only order execution. With `explains`, pipelines keep their
    statistics and instructions for `zinc.backends.vulkan.explain`, and no queue is opened, because
    there may be no hardware.
    """

    def __init__(self, lib: Library, candidate: Candidate, *, explains: bool = False) -> None:
        self.candidate, self.explains = candidate, explains
        self._lib, self._physical = lib, candidate.handle
        self._read_properties()
        self.family, self.timestamp_bits = self._compute_family()
        self.handle = self._create()
        self.vk = lib.functions(self.handle)
        if not explains:
            self._open_queue()

    def _open_queue(self) -> None:
        queue = c_uint64()
        self.vk.vkGetDeviceQueue(self.handle, self.family, 0, byref(queue))
        self._queue = queue.value
        self._lock = threading.Lock()
        self._last = 0
        kind = vk.SemaphoreType(kind=vk.SEMAPHORE_TIMELINE)
        self.timeline = self.create("vkCreateSemaphore", vk.SemaphoreCreateInfo().chain(kind))
        self._semaphores = (c_uint64 * 1)(self.timeline)
        atexit.register(self._finish)

    def _finish(self) -> None:
        """Wait for the device when Python exits. Other threads may use it, so nothing is freed."""
        with suppress(ZincError):
            self.idle()

    def create(self, call: str, info: Any) -> int:
        """Return the handle that the Vulkan function `call` (vkCreate...) creates."""
        handle = c_uint64()
        getattr(self.vk, call)(self.handle, byref(info), None, byref(handle))
        return handle.value

    def submit(self, commands: CommandBuffer) -> int:
        """Submit recorded commands and return the number to wait for. Raises DeviceError."""
        with self._lock:
            value = self._last + 1
            commands.submitted.value = value
            try:
                self.vk.vkQueueSubmit(self._queue, 1, commands.submission, 0)
            except BaseException:
                commands.submitted.value = 0
                raise
            self._last = value
        return value

    def reached(self) -> int:
        """Return the number of the last finished submission. Raises DeviceError."""
        value = c_uint64()
        self.vk.vkGetSemaphoreCounterValue(self.handle, self.timeline, byref(value))
        return value.value

    def wait(self, value: int, expected_s: float = 0.0, sleeps: bool = True) -> None:
        """Wait for submission `value`, which will take about `expected_s` seconds.

        Waking up from a sleep can take longer than a step, so this sleeps only until shortly before
        the expected end, then polls for a while, and then sleeps again. sleeps: False polls from
        the start. Raises DeviceError.
        """
        if sleeps and expected_s > 2 * SLEEP_S:
            self._sleep(value, expected_s - SLEEP_S)
        counter = c_uint64()
        where, poll = byref(counter), self.vk.vkGetSemaphoreCounterValue
        poll_s = min(POLL_S, max(SLEEP_S, expected_s))
        end = time.perf_counter() + (poll_s if sleeps else max(0.0, expected_s) + POLL_S)
        while True:
            poll(self.handle, self.timeline, where)
            if counter.value >= value:
                return
            if time.perf_counter() > end:
                break
        while not self._sleep(value, 10.0):
            pass

    def is_idle(self) -> bool:
        """Return whether everything that was submitted has finished. Raises DeviceError."""
        return self.reached() >= self._last

    def idle(self) -> None:
        """Wait for everything that was submitted."""
        self.wait(self._last)

    def _sleep(self, value: int, seconds: float) -> bool:
        values = (c_uint64 * 1)(value)
        info = vk.SemaphoreWait(
            count=1, semaphores=addressof(self._semaphores), values=addressof(values)
        )
        done: int = self.vk.vkWaitSemaphores(self.handle, byref(info), int(seconds * 1e9))
        return done == vk.SUCCESS

    def barrier(self, commands: int, source: tuple[int, int], target: tuple[int, int]) -> None:
        """Record a memory barrier. `source` and `target` are (stages, accesses).

        Commands of `target` start after those of `source`, and see what these wrote.
        """
        info = vk.MemoryBarrier(source=source[1], target=target[1])
        self.vk.vkCmdPipelineBarrier(
            commands, source[0], target[0], 0, 1, byref(info), 0, None, 0, None
        )

    def pci_address(self) -> str:
        """Return the address of the device's slot as Linux writes it, "" if it has none."""
        if PCI_BUS not in self.extensions:
            return ""
        bus = vk.PCIBus()
        self._lib.vkGetPhysicalDeviceProperties2(self._physical, byref(vk.Properties2().chain(bus)))
        return f"{bus.domain:04x}:{bus.bus:02x}:{bus.device:02x}.{bus.function:x}"

    def memory(self) -> tuple[Any, list[int]]:
        """Return the memory properties, and the bytes of each heap that are still free."""
        properties, budget = vk.MemoryProperties2(), vk.MemoryBudget()
        if MEMORY_BUDGET in self.extensions:
            properties.chain(budget)
        self._lib.vkGetPhysicalDeviceMemoryProperties2(self._physical, byref(properties))
        p = properties.properties
        sizes = [p.heaps[i].size for i in range(p.nHeaps)]
        if MEMORY_BUDGET in self.extensions:
            sizes = [max(0, budget.budget[i] - budget.usage[i]) for i in range(p.nHeaps)]
        return p, sizes

    def _read_properties(self) -> None:
        """Read the extensions, limits and features that a backend needs to know."""
        self.extensions = extensions(self._lib, self._physical)
        self.enabled = has = supported_features(self._lib, self._physical)
        read = self._properties()
        p = read.device
        self.uuid = bytes(p.uuid).hex()
        self.vendor, self.kind = p.vendor, p.kind
        self.unified = p.kind == vk.INTEGRATED_DEVICE
        self.timestamp_s = p.limits.timestampPeriod * 1e-9
        max_buffer = read.v13.maxBufferSize or 1 << 62
        self.max_allocation = min(read.v11.maxMemoryAllocationSize, max_buffer)
        subgroup, self.sets_subgroup_size = subgroup_of(has, p.vendor, read.v11, read.v13)
        self.fills_subgroups = "computeFullSubgroups" in has
        self.coherent = self._stores_coherently(read.v12.driverID)
        shapes = self._matrix_shapes() if COOPERATIVE_MATRIX in self.extensions else set()
        matrix = next((shape for shape in MATRIX_SHAPES if shape in shapes), None)
        self.features = Features(
            subgroup=subgroup,
            integer_dot="shaderIntegerDotProduct" in has,
            cooperative_matrix=matrix is not None,
            narrow_matrix={SQUARE, NARROW} <= shapes,
            matrix=matrix or SQUARE,
            registers=registers_of(p.vendor, subgroup, read.v13),
            shared_bytes=p.limits.maxComputeSharedMemorySize,
            compute_units=read.compute_units,
        )

    def _properties(self) -> _Properties:
        """Read the properties of the device. Structs of extensions that it lacks stay 0."""
        properties = vk.Properties2()
        v11, v12, v13 = vk.Properties11(), vk.Properties12(), vk.Properties13()
        sms, cores = vk.SMBuiltins(), vk.ShaderCores()
        properties.chain(v11).chain(v12).chain(v13)
        if SM_BUILTINS in self.extensions:
            properties.chain(sms)
        if SHADER_CORES in self.extensions:
            properties.chain(cores)
        self._lib.vkGetPhysicalDeviceProperties2(self._physical, byref(properties))
        return _Properties(properties.properties, v11, v12, v13, sms, cores)

    def _stores_coherently(self, driver: int) -> bool:
        """Return whether kernels store coherently, so that barriers need not flush caches.

        Raises DeviceError if the user asks for it and the device cannot.
        """
        able = DEVICE_SCOPE in self.enabled
        wanted = VULKAN_COHERENT.get()
        if wanted and not able:
            raise DeviceError(
                f"kernels cannot store coherently on {self.candidate.name}",
                f"it lacks {DEVICE_SCOPE}",
                f"unset {VULKAN_COHERENT.name}",
            )
        return driver == vk.DRIVER_RADV and able if wanted is None else wanted

    def _matrix_shapes(self) -> set[MatrixShape]:
        """Return the shapes of all matrix products of float16 into float32."""
        features = vk.CooperativeMatrixFeatures()
        self._lib.vkGetPhysicalDeviceFeatures2(
            self._physical, byref(vk.Features2().chain(features))
        )
        if not features.matrix:
            return set()
        get = self._lib.function("vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR", "!hpp")
        count = c_uint32()
        get(self._physical, byref(count), None)
        tiles = (vk.CooperativeMatrixProperties * count.value)()
        for tile in tiles:
            tile.sType = vk.CooperativeMatrixProperties.stype
        get(self._physical, byref(count), byref(tiles))
        want = (FLOAT16, FLOAT16, FLOAT32, FLOAT32, SUBGROUP_SCOPE)
        return {
            MatrixShape(t.m, t.n, t.k) for t in tiles if (t.a, t.b, t.c, t.result, t.scope) == want
        }

    def _compute_family(self) -> tuple[int, int]:
        """Return a queue family with compute, and the bits of its timestamps.

        The family that also has graphics is preferred, because it reaches all compute units.
        """
        count = c_uint32()
        get = self._lib.vkGetPhysicalDeviceQueueFamilyProperties
        get(self._physical, byref(count), None)
        families = (vk.QueueFamilyProperties * count.value)()
        get(self._physical, byref(count), byref(families))
        able = [i for i, f in enumerate(families) if f.flags & vk.QUEUE_COMPUTE]
        if not able:
            raise DeviceError(
                f"the Vulkan device {self.candidate.name} cannot run zinc",
                "it has no compute queue",
                "choose another device with {device}",
            )
        best = max(able, key=lambda i: (bool(families[i].flags & vk.QUEUE_GRAPHICS), -i))
        return best, families[best].timestampBits

    def _create(self) -> int:
        priority = c_float(1.0)
        queue = vk.DeviceQueueCreateInfo(
            family=self.family, count=1, priorities=addressof(priority)
        )
        info = vk.DeviceCreateInfo(nQueues=1, queues=addressof(queue))
        structs = [vk.Features2(), vk.Features11(), vk.Features12(), vk.Features13()]
        for table, struct in zip(vk.FEATURE_TABLES, structs, strict=True):
            flags = struct.features.flags if struct is structs[0] else struct.flags
            for name, at in table.items():
                flags[at] = name in self.enabled
            info.chain(struct)
        names = [PORTABILITY] if PORTABILITY in self.extensions else []
        if self.features.cooperative_matrix:
            names.append(COOPERATIVE_MATRIX)
            info.chain(vk.CooperativeMatrixFeatures(matrix=1))
        if self.explains:
            names.append(EXECUTABLES)
            info.chain(vk.ExecutableFeatures(info=1))
        extensions = (c_char_p * len(names))(*(name.encode() for name in names))
        info.nExtensions = len(names)
        info.extensions = ctypes.cast(extensions, ctypes.c_void_p)
        handle = c_uint64()
        self._lib.vkCreateDevice(self._physical, byref(info), None, byref(handle))
        return handle.value


class CommandBuffer:
    """A command buffer, with the structs that vkQueueSubmit reads, so that submitting is one call.

    It has a pool of its own, so that threads can record, submit and free command buffers at the
    same time. It is freed with its last reference, once the device has finished it. `max_stamps` is
    the number of timestamps that it may write into `queries`.
    """

    def __init__(self, device: Device, max_stamps: int = 0) -> None:
        f, self.queries = device.vk, 0
        if max_stamps and not device.timestamp_bits:
            raise UnsupportedError(
                f"kernels cannot be timed on {device.candidate.name}",
                "its queue has no timestamps",
            )
        flags = vk.CommandPoolCreateInfo(flags=vk.POOL_RESET, family=device.family)
        pool = device.create("vkCreateCommandPool", flags)
        handle = c_uint64()
        try:
            info = vk.CommandBufferAllocateInfo(pool=pool, count=1)
            f.vkAllocateCommandBuffers(device.handle, byref(info), byref(handle))
            if max_stamps:
                stamps = vk.QueryPoolCreateInfo(queryType=vk.QUERY_TIMESTAMP, count=max_stamps)
                self.queries = device.create("vkCreateQueryPool", stamps)
        except BaseException:
            f.vkDestroyCommandPool(device.handle, pool, None)
            raise
        self.handle, self.submitted = handle.value, c_uint64()
        self._handle, self._timeline = handle, c_uint64(device.timeline)
        self._values = vk.TimelineSubmit(nSignals=1, signals=addressof(self.submitted))
        self._info = vk.SubmitInfo(
            nCommands=1,
            commands=addressof(self._handle),
            nSignals=1,
            signals=addressof(self._timeline),
        ).chain(self._values)
        self.submission = addressof(self._info)
        freed = weakref.finalize(self, _free, device, pool, self.queries, self.submitted)
        freed.atexit = False


def _free(device: Device, pool: int, queries: int, submitted: c_uint64) -> None:
    """Free a command buffer. Any thread may run this, whenever the last reference goes away."""
    with suppress(DeviceLostError):  # nothing runs on a lost device
        device.wait(submitted.value)
    device.vk.vkDestroyCommandPool(device.handle, pool, None)
    if queries:
        device.vk.vkDestroyQueryPool(device.handle, queries, None)
