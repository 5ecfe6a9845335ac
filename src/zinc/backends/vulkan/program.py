"""A plan on the device: recorded once for each bucket of step sizes, submitted again each step.

Lowerings turn launches into dispatches; hazards (schedule.py) say which may run side by side, and
barriers stand only between levels. What changes from step to step lies in the step's data, so a
step costs one copy of a few numbers, one submission and one wait.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Mapping
from ctypes import addressof, c_uint64
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from zinc.backends.api import Launch, Plan, Ref
from zinc.backends.vulkan.cache import VulkanCache
from zinc.backends.vulkan.device import Device, Submission
from zinc.backends.vulkan.dispatch import (
    LOWERINGS,
    MAX_PUSH_BYTES,
    Bucket,
    DeviceKV,
    DeviceWeight,
    Dispatch,
    Features,
)
from zinc.backends.vulkan.memory import Buffer, Kind, Memory, Pool, Slice, Staging
from zinc.backends.vulkan.schedule import levels, waits
from zinc.backends.vulkan.shaders import Pipelines, Progress
from zinc.backends.vulkan.stepdata import StepData
from zinc.backends.vulkan.vk import types as vk
from zinc.core.errors import UnsupportedError
from zinc.ops.graph import Act, Constant, Dim, FloatArray, KVState, RecurrentState, Weight
from zinc.ops.step import Step

MAX_RECORDINGS = 64
SMALLEST_KEYS = 256
SCRATCH_BYTES = 16 << 20
_COMPUTE = (vk.STAGE_COMPUTE, vk.ACCESS_SHADER_WRITE)
_COMPUTE_AFTER = (vk.STAGE_COMPUTE, vk.ACCESS_SHADER_READ | vk.ACCESS_SHADER_WRITE)


class Operands:
    """Where the operands of a plan are: what lowerings ask (dispatch.Addresses)."""

    def __init__(
        self,
        device: Device,
        memory: Memory,
        arena: Buffer,
        data: StepData,
        weights: Mapping[str, tuple[DeviceWeight | None, Slice]],
        constants: Mapping[Constant, Slice],
        cache: VulkanCache,
    ) -> None:
        self.features: Features = device.features
        self.step = data.address
        self._memory, self._arena = memory, arena
        self._weights, self._constants, self._cache = weights, constants, cache
        self._scratch = memory.buffer(SMALLEST_KEYS)
        self._scratch_used = 0
        self._outgrown: list[Buffer] = []
        self.taken: list[tuple[int, int]] = []

    def ref(self, ref: Ref) -> int:
        return self._arena.address + ref.offset

    def weight(self, weight: Weight) -> DeviceWeight:
        found, _ = self._weights[weight.name]
        assert found is not None, f"{weight.name} is a vector"
        return found

    def vector(self, weight: Weight | Constant) -> int:
        if isinstance(weight, Constant):
            return self._constants[weight].address
        return self._weights[weight.name][1].address

    def kv(self, state: KVState) -> DeviceKV:
        return self._cache.layers[state.name]

    def recurrent(self, state: RecurrentState) -> int:
        return self._cache.recurrent[state.name]

    def scratch(self, n_bytes: int) -> int:
        """From a ring: who gets bytes that an earlier launch had waits for it."""
        n_bytes = -(-n_bytes // 256) * 256
        if n_bytes > self._scratch.size:
            self._outgrown.append(self._scratch)  # recorded commands may still name it
            self._scratch = self._memory.buffer(max(SCRATCH_BYTES, 2 * n_bytes))
            self._scratch_used = 0
        if self._scratch_used + n_bytes > self._scratch.size:
            self._scratch_used = 0
        address = self._scratch.address + self._scratch_used
        self._scratch_used += n_bytes
        self.taken.append((address, address + n_bytes))
        return address


@dataclass(slots=True)
class Recording:
    """A recorded step. `dispatches` and `barriers` count what it has of them."""

    submission: Submission
    logits: Buffer | None
    dispatches: int
    barriers: int
    seconds: float = 0.0


class VulkanProgram:
    """Implements zinc.backends.api.Program. Raises UnsupportedError for what cannot be lowered."""

    def __init__(
        self,
        plan: Plan,
        device: Device,
        memory: Memory,
        staging: Staging,
        pipelines: Pipelines,
        weights: Mapping[str, tuple[DeviceWeight | None, Slice]],
        cache: VulkanCache,
        progress: Progress | None = None,
    ) -> None:
        self.plan, self._device, self._memory = plan, device, memory
        self._staging, self._pipelines, self._cache = staging, pipelines, cache
        self._progress = progress
        self._arena = memory.buffer(plan.arena_bytes)
        self._data = StepData(memory, plan.max_tokens, plan.max_outputs)
        self._pool = Pool(memory)
        self._operands = Operands(
            device, memory, self._arena, self._data, weights, self._constants(), cache
        )
        self._waits = waits(plan)
        self._recordings: OrderedDict[Bucket, Recording] = OrderedDict()
        self._logits: Buffer | None = None

    def step(self, step: Step) -> FloatArray:
        self._check(step)
        bucket = self._bucket(step)
        recording = self._recordings.get(bucket) or self._record(bucket)
        self._data.write(step)
        started = perf_counter()
        self._device.wait(self._device.submit(recording.submission), recording.seconds)
        seconds = perf_counter() - started
        known = recording.seconds
        recording.seconds = 0.8 * known + 0.2 * seconds if known else seconds
        n, cols = len(step.output_rows), self.plan.output.cols
        if not n or recording.logits is None:
            return np.empty((0, cols), np.float32)
        assert recording.logits.bytes is not None
        stride = self.plan.output.stride
        rows = recording.logits.bytes[: n * stride].reshape(n, stride)
        return rows[:, : 4 * cols].view(np.float32)

    def run(self, step: Step, first: int, last: int) -> None:
        self._check(step)
        self._data.write(step)
        bucket = self._bucket(step)
        lowered = [self._lower(launch, bucket) for launch in self.plan.launches[first:last]]
        everything = [d for dispatches in lowered for d in dispatches]
        self._pipelines.prepare((d.shader for d in everything), self._progress)
        commands = self._device.command_buffer()
        try:
            self._begin(commands)
            for dispatch in everything:
                self._dispatch(commands, dispatch)
                self._device.barrier(commands, _COMPUTE, _COMPUTE_AFTER)
            self._device.vk.vkEndCommandBuffer(commands)
            self._device.wait(self._device.submit(self._device.submission(commands)), 1.0)
        finally:
            self._device.free_command_buffer(commands)

    def read(self, ref: Ref, rows: int) -> FloatArray:
        start = ref.offset
        size = rows * ref.stride if ref.act is not Act.F32 else (rows - 1) * ref.stride
        size += 0 if ref.act is not Act.F32 else 4 * ref.cols
        data = self._staging.read(self._arena, start, size)
        if ref.act is Act.F32:
            values = data.view(np.float32)
            step = ref.stride // 4
            padded = np.zeros(rows * step, np.float32)
            padded[: len(values)] = values
            return padded.reshape(rows, step)[:, : ref.cols].copy()
        return _decode_q8_rows(data.reshape(rows, ref.stride), ref)

    def write(self, ref: Ref, rows: FloatArray) -> None:
        for i, row in enumerate(np.ascontiguousarray(rows, np.float32)):
            self._staging.write(
                self._arena, ref.offset + i * ref.stride, row[: ref.cols].view(np.uint8)
            )

    def profile(self, step: Step) -> list[float]:
        """Seconds of each launch in a step run as usual: launches of one level share its time."""
        self._check(step)
        self._data.write(step)
        bucket = self._bucket(step)
        steps = self._schedule(bucket)
        device, f = self._device, self._device.vk
        pool = device.create(
            "vkCreateQueryPool",
            vk.QueryPoolCreateInfo(queryType=vk.QUERY_TIMESTAMP, count=len(steps) + 1),
        )
        commands = device.command_buffer()
        try:
            self._begin(commands)
            f.vkCmdResetQueryPool(commands, pool, 0, len(steps) + 1)
            f.vkCmdWriteTimestamp(commands, vk.STAGE_COMPUTE, pool, 0)
            for i, level in enumerate(steps):
                for _, dispatch in level:
                    self._dispatch(commands, dispatch)
                device.barrier(commands, _COMPUTE, _COMPUTE_AFTER)
                f.vkCmdWriteTimestamp(commands, vk.STAGE_COMPUTE, pool, i + 1)
            f.vkEndCommandBuffer(commands)
            device.wait(device.submit(device.submission(commands)), 1.0)
            ticks = (c_uint64 * (len(steps) + 1))()
            size, flags = 8 * len(ticks), vk.QUERY_RESULT_64 | vk.QUERY_RESULT_WAIT
            f.vkGetQueryPoolResults(
                device.handle, pool, 0, len(ticks), size, addressof(ticks), 8, flags
            )
        finally:
            device.free_command_buffer(commands)
            f.vkDestroyQueryPool(device.handle, pool, None)
        seconds = [0.0] * len(self.plan.launches)
        for i, level in enumerate(steps):
            took = (ticks[i + 1] - ticks[i]) * device.timestamp_s
            for launch, _ in level:
                seconds[launch] += took / len(level)
        return seconds

    def _check(self, step: Step) -> None:
        if step.n_tokens > self.plan.max_tokens or len(step.output_rows) > self.plan.max_outputs:
            raise ValueError(
                f"a step of {step.n_tokens} tokens and {len(step.output_rows)} outputs exceeds "
                f"the plan's {self.plan.max_tokens} and {self.plan.max_outputs}"
            )

    def _bucket(self, step: Step) -> Bucket:
        plan = self.plan
        return Bucket(
            tokens=min(_bound(len(step.ids)), plan.max_tokens),
            outputs=min(_bound(len(step.output_rows)), plan.max_outputs),
            sequences=min(_bound(len(step.state_slot)), plan.max_tokens),
            keys=max(SMALLEST_KEYS, _bound(int(step.positions.max()) + 1)),
        )

    def _constants(self) -> dict[Constant, Slice]:
        found = [x for launch in self.plan.launches for x in launch.inputs]
        result = {}
        for constant in dict.fromkeys(x for x in found if isinstance(x, Constant)):
            values = np.array(constant.values, np.float32)
            result[constant] = place = self._pool.take(values.nbytes)
            self._staging.write(place.buffer, place.offset, values.view(np.uint8))
        return result

    def _lower(self, launch: Launch, bucket: Bucket) -> list[Dispatch]:
        if not bucket.rows(launch.dim):
            return []
        try:
            dispatches = LOWERINGS[launch.kernel](launch, self._operands, bucket)
        except (KeyError, NotImplementedError, ValueError) as error:
            raise UnsupportedError(
                f"the Vulkan backend cannot run {launch.label or 'this model'}",
                f"{launch.kernel}: {error}",
                "choose another backend with --backend",
            ) from error
        for dispatch in dispatches:
            assert len(dispatch.push) <= MAX_PUSH_BYTES, f"{launch.kernel} pushes too much"
            assert max(dispatch.groups[1:]) < 1 << 16, f"{launch.kernel} has too large a grid"
        return [d for d in dispatches if min(d.groups) > 0]

    def _schedule(self, bucket: Bucket) -> list[list[tuple[int, Dispatch]]]:
        """Dispatches with the index of their launch, by level; their pipelines are made."""
        lowered, before = [], []
        ring: list[tuple[int, int, int]] = []  # scratch of earlier launches: launch, start, end
        for i, launch in enumerate(self.plan.launches):
            self._operands.taken.clear()
            lowered.append(self._lower(launch, bucket))
            taken = list(self._operands.taken)
            same = {j for j, a, b in ring for start, end in taken if a < end and start < b}
            before.append(tuple({*self._waits[i], *same}))
            ring = [x for x in ring if x[0] not in same]
            ring += [(i, start, end) for start, end in taken]
        depth = [sum(1 for k, d in enumerate(ds) if k == 0 or d.waits) for ds in lowered]
        first = levels(before, depth)
        steps: list[list[tuple[int, Dispatch]]] = []
        for i, dispatches in enumerate(lowered):
            at = first[i]
            for k, dispatch in enumerate(dispatches):
                at += 1 if k and dispatch.waits else 0
                while len(steps) <= at:
                    steps.append([])
                steps[at].append((i, dispatch))
        self._pipelines.prepare((d.shader for s in steps for _, d in s), self._progress)
        return [level for level in steps if level]

    def _record(self, bucket: Bucket) -> Recording:
        steps = self._schedule(bucket)
        device = self._device
        commands = device.command_buffer()
        self._begin(commands)
        for i, level in enumerate(steps):
            if i:
                device.barrier(commands, _COMPUTE, _COMPUTE_AFTER)
            for _, dispatch in level:
                self._dispatch(commands, dispatch)
        logits = self._record_readback(commands, bucket.outputs) if bucket.outputs else None
        device.vk.vkEndCommandBuffer(commands)
        recording = Recording(
            device.submission(commands),
            logits,
            dispatches=sum(len(level) for level in steps),
            barriers=max(0, len(steps) - 1),
        )
        weakref.finalize(recording.submission, device.free_command_buffer, commands)
        self._recordings[bucket] = recording
        if len(self._recordings) > MAX_RECORDINGS:
            self._recordings.popitem(last=False)
        return recording

    def _record_readback(self, commands: int, outputs: int) -> Buffer:
        output = self.plan.output
        size = outputs * output.stride
        if self._logits is None or self._logits.size < size:
            self._logits = self._memory.buffer(size, Kind.DOWNLOAD)
        device = self._device
        device.barrier(commands, _COMPUTE, (vk.STAGE_TRANSFER, vk.ACCESS_TRANSFER_READ))
        region = vk.BufferCopy(source=output.offset, size=size)
        device.vk.vkCmdCopyBuffer(
            commands, self._arena.handle, self._logits.handle, 1, addressof(region)
        )
        copied = (vk.STAGE_TRANSFER, vk.ACCESS_TRANSFER_WRITE)
        device.barrier(commands, copied, (vk.STAGE_HOST, vk.ACCESS_HOST_READ))
        return self._logits

    def _begin(self, commands: int) -> None:
        """Starts a recording; what earlier submissions wrote is visible to it."""
        begin = vk.CommandBufferBeginInfo()
        self._device.vk.vkBeginCommandBuffer(commands, addressof(begin))
        stages = vk.STAGE_COMPUTE | vk.STAGE_TRANSFER
        written = vk.ACCESS_SHADER_WRITE | vk.ACCESS_TRANSFER_WRITE
        self._device.barrier(commands, (stages, written), _COMPUTE_AFTER)

    def _dispatch(self, commands: int, dispatch: Dispatch) -> None:
        f, pipelines = self._device.vk, self._pipelines
        f.vkCmdBindPipeline(commands, vk.BIND_COMPUTE, pipelines.get(dispatch.shader))
        push = dispatch.push
        f.vkCmdPushConstants(
            commands, pipelines.layout, vk.SHADER_STAGE_COMPUTE, 0, len(push), push
        )
        f.vkCmdDispatch(commands, *dispatch.groups)


def _bound(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << (n - 1).bit_length() if n > 0 else 0


def _decode_q8_rows(data: np.ndarray, ref: Ref) -> FloatArray:
    """Rows of Q8_32 in float32: int8 numbers, then a scale and a sum for each 32 of them."""
    runs, cols = ref.runs, ref.cols // ref.runs
    size = ref.stride // runs
    parts = []
    for i in range(runs):
        row = np.ascontiguousarray(data[:, i * size : (i + 1) * size])
        numbers = row[:, :cols].view(np.int8).astype(np.float32)
        scales = row[:, -(-cols // 16) * 16 :][:, : 8 * (cols // 32)]
        scales = np.ascontiguousarray(scales).view(np.float32)[:, ::2]
        parts.append(numbers * np.repeat(scales, 32, axis=1))
    return np.concatenate(parts, axis=1)


__all__ = ["Dim", "VulkanProgram"]
