"""Recording of dispatches, barriers and timestamps into command buffers.

A command buffer is recorded once and submitted any number of times.
"""

from __future__ import annotations

from collections.abc import Iterable
from ctypes import byref, c_uint64
from itertools import pairwise

from zinc.backends.api import StepCounts
from zinc.backends.vulkan.device import CommandBuffer, Device
from zinc.backends.vulkan.shaders import Pipelines
from zinc.backends.vulkan.vk import types as vk
from zinc.gpu.dispatch import Dispatch
from zinc.gpu.memory import Buffer

_WRITTEN = (vk.STAGE_COMPUTE, vk.ACCESS_SHADER_WRITE)
_NEXT = (vk.STAGE_COMPUTE, vk.ACCESS_SHADER_READ | vk.ACCESS_SHADER_WRITE)
# Without accesses: with coherent kernels a barrier only orders execution.
_EXECUTED = (vk.STAGE_COMPUTE, 0)
_BEFORE = (
    vk.STAGE_COMPUTE | vk.STAGE_TRANSFER,
    vk.ACCESS_SHADER_WRITE | vk.ACCESS_TRANSFER_WRITE,
)


class Commands:
    """Recorded commands; implements `zinc.gpu.host.Recording`."""

    def __init__(self, recorder: Recorder) -> None:
        self._device, self._buffer = recorder.device, recorder.buffer
        self._n_stamps = recorder.n_stamps
        self.counts = StepCounts(recorder.n_dispatches, recorder.n_barriers)

    def submit(self) -> int:
        """Queue one run and return the number to wait for. Raises DeviceError."""
        return self._device.submit(self._buffer)

    def run(self) -> None:
        """Submit and wait. Raises DeviceError."""
        self._device.wait(self.submit())

    def seconds(self) -> list[float]:
        """Return the seconds between neighbouring timestamps of the last run."""
        device, ticks = self._device, (c_uint64 * self._n_stamps)()
        flags = vk.QUERY_RESULT_64 | vk.QUERY_RESULT_WAIT
        n, size, queries = self._n_stamps, 8 * self._n_stamps, self._buffer.queries
        device.vk.vkGetQueryPoolResults(device.handle, queries, 0, n, size, byref(ticks), 8, flags)
        mask = (1 << device.timestamp_bits) - 1
        spans = pairwise(ticks)
        return [((b - a) & mask) * device.timestamp_s for a, b in spans]


class Recorder:
    """A command buffer under construction, with at most `max_stamps` timestamps.

    It starts with a barrier, after which writes of earlier submissions are visible.
    """

    def __init__(self, device: Device, pipelines: Pipelines, max_stamps: int = 0) -> None:
        self.device, self._pipelines, self._vk = device, pipelines, device.vk
        self.buffer = CommandBuffer(device, max_stamps)
        self.handle, self.queries = self.buffer.handle, self.buffer.queries
        self.n_dispatches = self.n_barriers = self.n_stamps = 0
        self._vk.vkBeginCommandBuffer(self.handle, byref(vk.CommandBufferBeginInfo()))
        device.barrier(self.handle, _BEFORE, _NEXT)
        if max_stamps:
            self._vk.vkCmdResetQueryPool(self.handle, self.queries, 0, max_stamps)

    def dispatch(self, dispatch: Dispatch) -> None:
        """Record a dispatch, which may run beside those recorded since the last barrier."""
        f, layout, push = self._vk, self._pipelines.layout, dispatch.arguments.pack()
        f.vkCmdBindPipeline(self.handle, vk.BIND_COMPUTE, self._pipelines.get(dispatch.kernel))
        f.vkCmdPushConstants(self.handle, layout, vk.SHADER_STAGE_COMPUTE, 0, len(push), push)
        f.vkCmdDispatch(self.handle, *dispatch.groups)
        self.n_dispatches += 1

    def barrier(self) -> None:
        """Record that later dispatches start after all earlier ones, and see what these wrote."""
        if self.device.coherent:
            self.device.barrier(self.handle, _EXECUTED, _EXECUTED)
        else:
            self.device.barrier(self.handle, _WRITTEN, _NEXT)
        self.n_barriers += 1

    def level(self, dispatches: Iterable[Dispatch]) -> None:
        """Record dispatches that may run side by side, after everything recorded before."""
        if self.n_dispatches:
            self.barrier()
        for dispatch in dispatches:
            self.dispatch(dispatch)

    def timestamp(self) -> None:
        self._vk.vkCmdWriteTimestamp(self.handle, vk.STAGE_COMPUTE, self.queries, self.n_stamps)
        self.n_stamps += 1

    def read_back(self, source: Buffer, offset: int, target: Buffer, size: int) -> None:
        """Record a copy to a buffer that the host reads after the run."""
        self.device.barrier(self.handle, _WRITTEN, (vk.STAGE_TRANSFER, vk.ACCESS_TRANSFER_READ))
        region = vk.BufferCopy(source=offset, size=size)
        self._vk.vkCmdCopyBuffer(self.handle, source.handle, target.handle, 1, byref(region))
        copied = (vk.STAGE_TRANSFER, vk.ACCESS_TRANSFER_WRITE)
        self.device.barrier(self.handle, copied, (vk.STAGE_HOST, vk.ACCESS_HOST_READ))

    def finish(self) -> Commands:
        self._vk.vkEndCommandBuffer(self.handle)
        return Commands(self)
