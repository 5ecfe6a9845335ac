"""A plan on the device: recorded once for each bucket of step sizes, submitted again each step.

Lowerings turn launches into dispatches; hazards (schedule.py) say which may run side by side, and
barriers stand only between levels. What changes from step to step lies in the step's data, so a
step costs one copy of a few numbers, one submission and one wait.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import numpy.typing as npt

from zinc.backends.api import Plan, Ref, StepCounts, Work
from zinc.backends.vulkan.cache import VulkanCache
from zinc.backends.vulkan.commands import Commands, Recorder
from zinc.backends.vulkan.device import Device
from zinc.backends.vulkan.dispatch import Bucket, DeviceWeight, Dispatch, Features
from zinc.backends.vulkan.memory import Buffer, Kind, Memory, Pool, Slice, Staging
from zinc.backends.vulkan.operands import Operands
from zinc.backends.vulkan.schedule import lowered, schedule, waits
from zinc.backends.vulkan.shaders import Pipelines, Progress, for_device
from zinc.backends.vulkan.stepdata import StepData
from zinc.ops.graph import Act, Constant, FloatArray
from zinc.ops.step import Step

MAX_RECORDINGS = 64


@dataclass(slots=True)
class Recording:
    """A recorded step, where its logits arrive, and how long it took lately."""

    commands: Commands
    logits: Buffer | None
    seconds: float = 0.0


class VulkanProgram:
    """Implements zinc.backends.api.Program. Raises UnsupportedError for what cannot be lowered."""

    def __init__(
        self,
        plan: Plan,
        device: Device,
        features: Features,
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
        self.work = Work()
        self._arena = memory.buffer(plan.arena_bytes)
        self._data = StepData(memory, plan.max_tokens, plan.max_outputs)
        self._pool = Pool(memory)
        self._operands = Operands(
            features, memory, self._arena, self._data, weights, self._constants(), cache
        )
        self._waits = waits(plan)
        self._recordings: OrderedDict[Bucket, Recording] = OrderedDict()
        self._logits: Buffer | None = None

    def step(self, step: Step) -> FloatArray:
        self._check(step)
        recording = self._recorded(step)
        self._data.write(step)
        started = perf_counter()
        recording.commands.run(recording.seconds)
        seconds = perf_counter() - started
        self.work.submissions += 1
        self.work.waited_s += seconds
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
        everything = [
            dispatch
            for launch in self.plan.launches[first:last]
            for dispatch in lowered(launch, self._operands, bucket)
        ]
        self._pipelines.prepare((d.shader for d in everything), self._progress)
        recorder = Recorder(self._device, self._pipelines)
        for dispatch in everything:
            recorder.level([dispatch])
        recorder.finish().run()

    def read(self, ref: Ref, rows: int) -> FloatArray:
        base = ref.offset - 4 * ref.first  # a view has the rows of its base
        data = self._staging.read(self._arena, base, rows * ref.stride)
        data = data.reshape(rows, ref.stride)
        if ref.act is Act.F32:
            return data.view(np.float32)[:, ref.first : ref.first + ref.cols].copy()
        return _decode_q8_rows(data, ref)

    def write(self, ref: Ref, rows: FloatArray) -> None:
        for i, row in enumerate(np.ascontiguousarray(rows, np.float32)):
            self._staging.write(
                self._arena, ref.offset + i * ref.stride, row[: ref.cols].view(np.uint8)
            )

    def kernels(self, step: Step, launch: int) -> list[str]:
        dispatches = lowered(self.plan.launches[launch], self._operands, self._bucket(step))
        return [
            str(for_device(dispatch.shader, self._operands.features)) for dispatch in dispatches
        ]

    def profile(self, step: Step) -> list[float]:
        """Seconds of each launch in a step run as usual: launches of one level share its time."""
        self._check(step)
        self._data.write(step)
        steps = self._schedule(self._bucket(step))
        recorder = Recorder(self._device, self._pipelines, len(steps) + 1)
        recorder.timestamp()
        for level in steps:
            recorder.level(dispatch for _, dispatch in level)
            recorder.timestamp()
        commands = recorder.finish()
        commands.run()
        seconds = [0.0] * len(self.plan.launches)
        for level, took in zip(steps, commands.seconds(), strict=True):
            for launch, _ in level:
                seconds[launch] += took / len(level)
        return seconds

    def counts(self, step: Step) -> StepCounts:
        """What was recorded for a step."""
        commands = self._recorded(step).commands
        return StepCounts(commands.n_dispatches, commands.n_barriers)

    def _check(self, step: Step) -> None:
        if step.n_tokens > self.plan.max_tokens or len(step.output_rows) > self.plan.max_outputs:
            raise ValueError(
                f"a step of {step.n_tokens} tokens and {len(step.output_rows)} outputs exceeds "
                f"the plan's {self.plan.max_tokens} and {self.plan.max_outputs}"
            )

    def _bucket(self, step: Step) -> Bucket:
        return Bucket.of(
            self.plan,
            tokens=len(step.ids),
            outputs=len(step.output_rows),
            sequences=len(step.state_slot),
            keys=int(step.positions.max()) + 1,
        )

    def _constants(self) -> dict[Constant, Slice]:
        found = [x for launch in self.plan.launches for x in launch.inputs]
        result = {}
        for constant in dict.fromkeys(x for x in found if isinstance(x, Constant)):
            values = np.array(constant.values, np.float32)
            result[constant] = place = self._pool.take(values.nbytes)
            self._staging.write(place.buffer, place.offset, values.view(np.uint8))
        return result

    def _schedule(self, bucket: Bucket) -> list[list[tuple[int, Dispatch]]]:
        """As `schedule`; the pipelines are made."""
        levels = schedule(self.plan, self._waits, self._operands, bucket)
        self._pipelines.prepare((d.shader for level in levels for _, d in level), self._progress)
        return levels

    def _recorded(self, step: Step) -> Recording:
        bucket = self._bucket(step)
        found = self._recordings.get(bucket)
        if found is None:
            return self._record(bucket)
        self._recordings.move_to_end(bucket)
        return found

    def _record(self, bucket: Bucket) -> Recording:
        steps = self._schedule(bucket)
        recorder = Recorder(self._device, self._pipelines)
        for level in steps:
            recorder.level(dispatch for _, dispatch in level)
        logits = None
        if bucket.outputs:
            output = self.plan.output
            size = bucket.outputs * output.stride
            if self._logits is None or self._logits.size < size:
                self._logits = self._memory.buffer(size, Kind.DOWNLOAD)
            logits = self._logits
            recorder.read_back(self._arena, output.offset, logits, size)
        recording = Recording(recorder.finish(), logits)
        self._recordings[bucket] = recording
        if len(self._recordings) > MAX_RECORDINGS:
            self._recordings.popitem(last=False)
        return recording


def _decode_q8_rows(data: npt.NDArray[np.uint8], ref: Ref) -> FloatArray:
    """Rows of Q8_32 in float32: int8 numbers, then a scale and a sum for each 32 of them."""
    runs, cols = ref.runs, ref.cols // ref.runs
    size = ref.stride // runs
    parts = []
    for i in range(runs):
        row = np.ascontiguousarray(data[:, i * size : (i + 1) * size])
        numbers = row[:, :cols].view(np.int8).astype(np.float32)
        behind = row[:, -(-cols // 16) * 16 :][:, : 8 * -(-cols // 32)]
        scales = np.ascontiguousarray(behind).view(np.float32)[:, ::2]
        parts.append(numbers * np.repeat(scales, 32, axis=1)[:, :cols])
    return np.concatenate(parts, axis=1)
