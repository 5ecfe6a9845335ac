"""Recording: dispatches, barriers between them and timestamps, into a buffer of commands.

Recorded once, such a buffer is submitted as often as one likes; it is freed with the last reference
to it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from ctypes import addressof, c_uint64
from itertools import pairwise

from zinc.backends.vulkan.device import Device, Submission
from zinc.backends.vulkan.dispatch import Dispatch
from zinc.backends.vulkan.memory import Buffer
from zinc.backends.vulkan.shaders import Pipelines
from zinc.backends.vulkan.vk import types as vk

_WRITTEN = (vk.STAGE_COMPUTE, vk.ACCESS_SHADER_WRITE)
_NEXT = (vk.STAGE_COMPUTE, vk.ACCESS_SHADER_READ | vk.ACCESS_SHADER_WRITE)
_BEFORE = (
    vk.STAGE_COMPUTE | vk.STAGE_TRANSFER,
    vk.ACCESS_SHADER_WRITE | vk.ACCESS_TRANSFER_WRITE,
)


class Commands:
    """What was recorded. `n_dispatches` and `n_barriers` count what it has of them."""

    def __init__(self, recorder: Recorder) -> None:
        self._device = recorder.device
        self._queries, self._n_stamps = recorder.queries, recorder.n_stamps
        self.submission: Submission = self._device.submission(recorder.handle)
        self.n_dispatches, self.n_barriers = recorder.n_dispatches, recorder.n_barriers
        weakref.finalize(self, _free, self._device, recorder.handle, recorder.queries)

    def run(self, expected_s: float = 0.0) -> None:
        """Submits and waits. Raises DeviceError."""
        self._device.wait(self._device.submit(self.submission), expected_s)

    def seconds(self) -> list[float]:
        """From each timestamp to the next, of the last run."""
        device, ticks = self._device, (c_uint64 * self._n_stamps)()
        flags = vk.QUERY_RESULT_64 | vk.QUERY_RESULT_WAIT
        n, size = self._n_stamps, 8 * self._n_stamps
        where = addressof(ticks)
        device.vk.vkGetQueryPoolResults(device.handle, self._queries, 0, n, size, where, 8, flags)
        mask = (1 << device.timestamp_bits) - 1
        spans = pairwise(ticks)
        return [((b - a) & mask) * device.timestamp_s for a, b in spans]


class Recorder:
    """Commands in the making, for at most `max_stamps` timestamps.

    It begins with a barrier: what earlier submissions wrote is there.
    """

    def __init__(self, device: Device, pipelines: Pipelines, max_stamps: int = 0) -> None:
        self.device, self._pipelines, self._vk = device, pipelines, device.vk
        self.handle = device.command_buffer()
        self.n_dispatches = self.n_barriers = self.n_stamps = self.queries = 0
        begin = vk.CommandBufferBeginInfo()
        self._vk.vkBeginCommandBuffer(self.handle, addressof(begin))
        device.barrier(self.handle, _BEFORE, _NEXT)
        if max_stamps:
            info = vk.QueryPoolCreateInfo(queryType=vk.QUERY_TIMESTAMP, count=max_stamps)
            self.queries = device.create("vkCreateQueryPool", info)
            self._vk.vkCmdResetQueryPool(self.handle, self.queries, 0, max_stamps)

    def dispatch(self, dispatch: Dispatch) -> None:
        """Runs beside what was recorded since the last barrier."""
        f, layout, push = self._vk, self._pipelines.layout, dispatch.push
        f.vkCmdBindPipeline(self.handle, vk.BIND_COMPUTE, self._pipelines.get(dispatch.shader))
        f.vkCmdPushConstants(self.handle, layout, vk.SHADER_STAGE_COMPUTE, 0, len(push), push)
        f.vkCmdDispatch(self.handle, *dispatch.groups)
        self.n_dispatches += 1

    def barrier(self) -> None:
        """What was recorded is done, and seen by all dispatches that follow."""
        self.device.barrier(self.handle, _WRITTEN, _NEXT)
        self.n_barriers += 1

    def level(self, dispatches: Iterable[Dispatch]) -> None:
        """Dispatches that may run side by side, after everything before them."""
        if self.n_dispatches:
            self.barrier()
        for dispatch in dispatches:
            self.dispatch(dispatch)

    def timestamp(self) -> None:
        self._vk.vkCmdWriteTimestamp(self.handle, vk.STAGE_COMPUTE, self.queries, self.n_stamps)
        self.n_stamps += 1

    def read_back(self, source: Buffer, offset: int, target: Buffer, size: int) -> None:
        """Copies to memory that the host reads once all this has run."""
        self.device.barrier(self.handle, _WRITTEN, (vk.STAGE_TRANSFER, vk.ACCESS_TRANSFER_READ))
        region = vk.BufferCopy(source=offset, size=size)
        self._vk.vkCmdCopyBuffer(self.handle, source.handle, target.handle, 1, addressof(region))
        copied = (vk.STAGE_TRANSFER, vk.ACCESS_TRANSFER_WRITE)
        self.device.barrier(self.handle, copied, (vk.STAGE_HOST, vk.ACCESS_HOST_READ))

    def finish(self) -> Commands:
        self._vk.vkEndCommandBuffer(self.handle)
        return Commands(self)


def _free(device: Device, handle: int, queries: int) -> None:
    device.free_command_buffer(handle)
    if queries:
        device.vk.vkDestroyQueryPool(device.handle, queries, None)
