"""A plan on the device: recorded once for each bucket of step sizes, submitted again each step.

Lowerings turn launches into dispatches; hazards (schedule.py) say which may run side by side, and
barriers stand only between levels. What changes from step to step lies in the step's data, so a
step costs a copy of a few numbers, one submission and one wait. So does a part of a step, where
places take turns. Two steps may be queued, each with data of its own: the device begins the next
while the host still looks at the last.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
import numpy.typing as npt

from zinc.backends.api import Plan, Ref, StepCounts, Work
from zinc.backends.vulkan.cache import VulkanCache
from zinc.backends.vulkan.commands import Commands, Recorder
from zinc.backends.vulkan.device import Device
from zinc.backends.vulkan.memory import Buffer, Kind, Memory, Pool, Slice, Staging
from zinc.backends.vulkan.operands import Operands
from zinc.backends.vulkan.shaders import Pipelines, Progress, for_device
from zinc.backends.vulkan.stepdata import StepData
from zinc.gpu.dispatch import Bucket, DeviceWeight, Dispatch, Features
from zinc.gpu.schedule import lowered, schedule, waits
from zinc.ops.step import Step
from zinc.ops.values import Constant, FloatArray, RowFormat

MAX_RECORDINGS = 64
IN_FLIGHT = 2


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of an output as the host reads them, and the buffer that they are copied to."""

    values: FloatArray
    buffer: Buffer | None = None


NO_ROWS = Rows(np.empty((0, 0), np.float32))


@dataclass(slots=True)
class Recording:
    """A recorded step, where its rows arrive, and how long it took lately."""

    commands: Commands
    logits: Rows
    tokens: Rows
    seconds: float = 0.0


class Running:
    """A step that was submitted; implements `zinc.backends.api.StepResult`."""

    def __init__(self, program: VulkanProgram, recording: Recording, rows: int) -> None:
        self._program, self._recording, self._rows = program, recording, rows
        self.done = False
        self.submitted = perf_counter()
        self._value = program.device.submit(recording.commands.buffer)
        program.work.submissions += 1
        program.work.waited_s += perf_counter() - self.submitted

    def wait(self) -> None:
        """Raises DeviceError."""
        if self.done:
            return
        program, recording = self._program, self._recording
        # Steps run one after another: this one began when the last had ended.
        began, started = max(self.submitted, program.last_ended), perf_counter()
        program.device.wait(self._value, recording.seconds - (started - began))
        self.done = True
        program.last_ended = perf_counter()
        program.work.waited_s += program.last_ended - started
        known, seconds = recording.seconds, program.last_ended - began
        recording.seconds = 0.8 * known + 0.2 * seconds if known else seconds

    def tokens(self) -> FloatArray:
        self.wait()
        return self._recording.tokens.values[: self._rows]

    def logits(self) -> FloatArray:
        self.wait()
        return self._recording.logits.values[: self._rows]


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
        self.plan, self.device, self._memory = plan, device, memory
        self._staging, self._pipelines, self._cache = staging, pipelines, cache
        self._progress = progress
        self.work = Work()
        self._arena = memory.buffer(plan.arena_bytes)
        sampled = self._arena.address + plan.sampled.offset if plan.sampled else 0
        self._data = [
            StepData(memory, plan.max_tokens, plan.max_outputs, sampled) for _ in range(IN_FLIGHT)
        ]
        self._pool = Pool(memory)
        self._operands = Operands(
            features,
            memory,
            self._arena,
            self._data[0].address,
            weights,
            self._constants(),
            cache,
        )
        self._waits = waits(plan)
        self._recordings: OrderedDict[tuple[Bucket, int], Recording] = OrderedDict()
        self._parts: OrderedDict[Bucket, dict[tuple[int, int], Recording]] = OrderedDict()
        self._running: list[Running | None] = [None] * IN_FLIGHT
        self._downloads: dict[tuple[Ref, int], Buffer] = {}
        self.last_ended = 0.0

    def step(self, step: Step) -> FloatArray:
        return self._submit(step, logits=True).logits()

    def sample(self, step: Step) -> Running:
        assert step.sample_params is not None
        return self._submit(step, logits=bool((step.sample_params["k"] == 0).any()))

    def _submit(self, step: Step, logits: bool) -> Running:
        self._check(step)
        slot = self._free_slot()
        recording = self._recorded(bucket_of(self.plan, step, logits), slot)
        self._data[slot].write(step)
        running = Running(self, recording, len(step.output_rows))
        self._running[slot] = running
        return running

    def _free_slot(self) -> int:
        """Step data that no running step reads; the first, unless another step is on its way."""
        for slot, running in enumerate(self._running):
            if running is None or running.done:
                return slot
        oldest = min((r for r in self._running if r is not None), key=lambda r: r.submitted)
        oldest.wait()
        return self._running.index(oldest)

    def _settle(self) -> None:
        """Waits for the steps that are on their way."""
        for running in self._running:
            if running is not None:
                running.wait()

    def run(self, step: Step, first: int, last: int) -> None:
        bucket = self._prepared(step)
        found = self._parts.setdefault(bucket, {})
        self._parts.move_to_end(bucket)
        if (first, last) not in found:
            commands = self._levels(self._schedule(bucket, first, last)).finish()
            found[first, last] = Recording(commands, NO_ROWS, NO_ROWS)
        if len(self._parts) > MAX_RECORDINGS:
            self._parts.popitem(last=False)
        Running(self, found[first, last], 0).wait()

    def read(self, ref: Ref, rows: int) -> FloatArray:
        base = ref.offset - 4 * ref.first  # a view has the rows of its base
        data = self._staging.read(self._arena, base, rows * ref.stride)
        data = data.reshape(rows, ref.stride)
        if ref.format is RowFormat.F32:
            return data.view(np.float32)[:, ref.first : ref.first + ref.cols].copy()
        return _decode_q8_rows(data, ref)

    def write(self, ref: Ref, rows: FloatArray) -> None:
        rows = np.ascontiguousarray(rows, np.float32)
        if ref.stride == 4 * ref.cols:
            self._staging.write(self._arena, ref.offset, rows.reshape(-1).view(np.uint8))
            return
        for i, row in enumerate(rows):  # a view: its base has other columns beside it
            self._staging.write(self._arena, ref.offset + i * ref.stride, row.view(np.uint8))

    def kernels(self, step: Step, launch: int) -> list[str]:
        dispatches = lowered(self.plan.launches[launch], self._operands, bucket_of(self.plan, step))
        return [
            str(for_device(dispatch.kernel, self._operands.features)) for dispatch in dispatches
        ]

    def profile(self, step: Step) -> list[float]:
        """Seconds of each launch in a step run as usual: launches of one level share its time."""
        steps = self._schedule(self._prepared(step))
        recorder = Recorder(self.device, self._pipelines, len(steps) + 1)
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
        commands = self._recorded(bucket_of(self.plan, step), 0).commands
        return StepCounts(commands.n_dispatches, commands.n_barriers)

    def _prepared(self, step: Step) -> Bucket:
        """The bucket of a step that is run launch by launch, with its data in place."""
        self._check(step)
        self._settle()
        self._data[0].write(step)
        self._operands.step = self._data[0].address
        return bucket_of(self.plan, step)

    def _check(self, step: Step) -> None:
        if step.n_tokens > self.plan.max_tokens or len(step.output_rows) > self.plan.max_outputs:
            raise ValueError(
                f"a step of {step.n_tokens} tokens and {len(step.output_rows)} outputs exceeds "
                f"the plan's {self.plan.max_tokens} and {self.plan.max_outputs}"
            )

    def _constants(self) -> dict[Constant, Slice]:
        found = [x for launch in self.plan.launches for x in launch.inputs]
        result = {}
        for constant in dict.fromkeys(x for x in found if isinstance(x, Constant)):
            values = np.array(constant.values, np.float32)
            result[constant] = place = self._pool.take(values.nbytes)
            self._staging.write(place.buffer, place.offset, values.view(np.uint8))
        return result

    def _schedule(
        self, bucket: Bucket, first: int = 0, last: int | None = None
    ) -> list[list[tuple[int, Dispatch]]]:
        """As `schedule`, of some launches or all; the pipelines are made."""
        part = replace(self.plan, launches=self.plan.launches[first:last])
        before = [tuple(j - first for j in w if j >= first) for w in self._waits[first:last]]
        levels = schedule(part, before, self._operands, bucket)
        self._pipelines.prepare((d.kernel for level in levels for _, d in level), self._progress)
        return levels

    def _recorded(self, bucket: Bucket, slot: int) -> Recording:
        found = self._recordings.get((bucket, slot))
        if found is None:
            return self._record(bucket, slot)
        self._recordings.move_to_end((bucket, slot))
        return found

    def _record(self, bucket: Bucket, slot: int) -> Recording:
        self._operands.step = self._data[slot].address
        recorder = self._levels(self._schedule(bucket))
        wanted = bucket.outputs > 0
        logits = self._download(recorder, self.plan.output, bucket, slot, wanted and bucket.logits)
        tokens = self._download(
            recorder, self.plan.sampled, bucket, slot, wanted and bucket.samples
        )
        recording = Recording(recorder.finish(), logits, tokens)
        self._recordings[bucket, slot] = recording
        if len(self._recordings) > MAX_RECORDINGS:
            self._recordings.popitem(last=False)
        return recording

    def _levels(self, steps: list[list[tuple[int, Dispatch]]]) -> Recorder:
        recorder = Recorder(self.device, self._pipelines)
        for level in steps:
            recorder.level(dispatch for _, dispatch in level)
        return recorder

    def _download(
        self, recorder: Recorder, ref: Ref | None, bucket: Bucket, slot: int, wanted: bool
    ) -> Rows:
        """Has the rows of an output copied to where the host reads them."""
        if ref is None or not wanted:
            return Rows(np.empty((0, ref.cols if ref else 0), np.float32))
        size = bucket.outputs * ref.stride
        buffer = self._downloads.get((ref, slot))
        if buffer is None or buffer.size < size:
            buffer = self._downloads[ref, slot] = self._memory.buffer(size, Kind.DOWNLOAD)
        recorder.read_back(self._arena, ref.offset, buffer, size)
        assert buffer.bytes is not None
        rows = buffer.bytes[:size].reshape(bucket.outputs, ref.stride)
        return Rows(rows[:, : 4 * ref.cols].view(np.float32), buffer)


def bucket_of(plan: Plan, step: Step, logits: bool = True) -> Bucket:
    return Bucket.of(
        plan,
        tokens=len(step.ids),
        outputs=len(step.output_rows),
        sequences=len(step.state_slot),
        keys=max(step.positions.tolist()) + 1,
        samples=step.sample_params is not None,
        logits=logits,
    )


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
