"""A plan on a GPU: recorded once for each bucket of step sizes, and submitted for each step.

Everything that changes from step to step is in the step data, which recorded kernels read. A step
costs a copy of a few numbers, one submission and one wait. Two steps may be queued, each with its
own step data, so the device starts a step while the host reads the tokens of the previous one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from time import perf_counter

import numpy as np

from zinc.backends.api import StepCounts, Work
from zinc.backends.plans import Plan, Ref
from zinc.core.dataclass import dataclass
from zinc.gpu.addresses import DeviceWeight, ProgramAddresses
from zinc.gpu.bucket import Bucket
from zinc.gpu.cache import GpuCache
from zinc.gpu.dispatch import KernelVariant
from zinc.gpu.features import Features
from zinc.gpu.graph import DispatchGraph, dispatch_graph
from zinc.gpu.hazards import dependencies
from zinc.gpu.host import Download, Host, Recording
from zinc.gpu.kernel_set import KernelSet
from zinc.gpu.memory import (
    Buffer,
    CounterAllocator,
    MemoryKind,
    Pool,
    ScratchAllocator,
    Slice,
)
from zinc.gpu.rows import decode_q8_rows
from zinc.gpu.step_data import StepData
from zinc.ops.step import Step
from zinc.ops.values import Constant, FloatArray, RowFormat

MAX_RECORDINGS = 64
IN_FLIGHT = 2
# Larger hidden rows, such as those of prompts, are copied when they are read, not in each step.
MAX_HIDDEN_BYTES = 1 << 20
POLL_S = 1e-2  # longest wait without a sleep


@dataclass(slots=True)
class RecordedStep:
    """A recorded step, the host's views of its results, and its recent duration.

    hidden: empty if the step does not copy its hidden rows.
    """

    recording: Recording
    logits: FloatArray
    tokens: FloatArray
    hidden: FloatArray
    seconds: float = 0.0


NO_ROWS = np.empty((0, 0), np.float32)


class RunningStep:
    """A submitted step; implements `zinc.backends.api.StepResult`."""

    def __init__(self, program: GpuProgram, recorded: RecordedStep, rows: int) -> None:
        self._program, self._recorded, self._rows = program, recorded, rows
        self.done = False
        self.submitted = perf_counter()
        self._ticket = recorded.recording.submit()
        program.work.submissions += 1
        program.work.waited_s += perf_counter() - self.submitted

    def wait(self) -> None:
        """Wait until the step has run. Raises DeviceError."""
        if self.done:
            return
        program, recorded = self._program, self._recorded
        # Steps run one after another: this one began when the step before it had ended.
        began, started = max(self.submitted, program.last_ended), perf_counter()
        left = recorded.seconds - (started - began)
        # With no step queued behind this one, the device is idle until the host has its results.
        is_followed = program._last not in (None, self)
        program.host.wait(self._ticket, left, sleeps=is_followed or left > POLL_S)
        self.done = True
        program.last_ended = perf_counter()
        program.work.waited_s += program.last_ended - started
        known, seconds = recorded.seconds, program.last_ended - began
        recorded.seconds = 0.8 * known + 0.2 * seconds if known else seconds

    def tokens(self) -> FloatArray:
        self.wait()
        return self._recorded.tokens[: self._rows]

    def logits(self) -> FloatArray:
        self.wait()
        return self._recorded.logits[: self._rows]

    def hidden(self, rows: int) -> FloatArray | None:
        if rows > len(self._recorded.hidden):
            return None
        self.wait()
        return self._recorded.hidden[:rows].copy()


def _n_adapters(plan: Plan) -> int:
    """Return the number of adapters that the launches of a plan may apply."""
    return max((1 + int(x.attributes.get("adapter", -1)) for x in plan.launches), default=0)


class GpuProgram:
    """A `zinc.backends.api.Program` on a `Host`.

    Raises UnsupportedError when a step needs a kernel that the kernel set does not have.
    """

    def __init__(
        self,
        plan: Plan,
        host: Host,
        kernels: KernelSet,
        features: Features,
        weights: Mapping[str, tuple[DeviceWeight | None, Slice]],
        cache: GpuCache,
        compile: Callable[[Iterable[KernelVariant]], None],
    ) -> None:
        """Make a program. compile: makes kernels ready that no earlier step has needed."""
        self.plan, self.host, self._kernels = plan, host, kernels
        self._compile = compile
        self.work = Work()
        self._arena = host.buffer(plan.arena_bytes)
        sampled = self._arena.address + plan.sampled.offset if plan.sampled else 0
        self._data = [
            StepData(host, plan.max_tokens, plan.max_outputs, sampled, _n_adapters(plan))
            for _ in range(IN_FLIGHT)
        ]
        self._pool = Pool(host)
        self._scratch: list[Buffer] = []
        self._addresses = ProgramAddresses(
            features,
            self._arena,
            self._data[0].address,
            weights,
            self._constants(),
            cache,
            ScratchAllocator(self._new_scratch),
            CounterAllocator(self._new_counters),
        )
        # The key says which launches run. Plans have few alternatives, so there are few entries.
        self._dependencies: dict[tuple[bool, ...], list[tuple[int, ...]]] = {}
        self._recordings: OrderedDict[tuple[Bucket, int], RecordedStep] = OrderedDict()
        # The last step of each slot. A comparison by identity is cheaper than a search.
        self._latest: list[tuple[Bucket, RecordedStep] | None] = [None] * IN_FLIGHT
        self._parts: OrderedDict[Bucket, dict[tuple[int, int], RecordedStep]] = OrderedDict()
        self._running: list[RunningStep | None] = [None] * IN_FLIGHT
        self._last: RunningStep | None = None  # None after `run` or `profile`
        self._downloads: dict[tuple[Ref, int], Buffer] = {}
        self.last_ended = 0.0

    def step(self, step: Step) -> FloatArray:
        return self.submit(step, logits=True).logits()

    def sample(self, step: Step) -> RunningStep:
        assert step.sample_params is not None
        return self.submit(step, logits=bool((step.sample_params["k"] == 0).any()))

    def submit(self, step: Step, logits: bool) -> RunningStep:
        """Queue a step. logits: copy the logits to the host. Waits while two steps are queued."""
        self._check(step)
        slot = self._free_slot()
        recorded = self._recorded(Bucket.of_step(self.plan, step, logits), slot)
        self._data[slot].write(step)
        running = RunningStep(self, recorded, len(step.output_rows))
        self._running[slot] = self._last = running
        return running

    def _free_slot(self) -> int:
        """Return the index of step data that no running step reads. Waits if there is none."""
        for slot, running in enumerate(self._running):
            if running is None or running.done:
                return slot
        oldest = min((r for r in self._running if r is not None), key=lambda r: r.submitted)
        oldest.wait()
        return self._running.index(oldest)

    def _settle(self) -> None:
        """Wait for the steps that were submitted."""
        for running in self._running:
            if running is not None:
                running.wait()

    def run(self, step: Step, first: int, last: int) -> None:
        bucket = self._prepared(step)
        found = self._parts.setdefault(bucket, {})
        self._parts.move_to_end(bucket)
        if (first, last) not in found:
            recording = self.host.record(self._graph(bucket, first, last))
            found[first, last] = RecordedStep(recording, NO_ROWS, NO_ROWS, NO_ROWS)
        if len(self._parts) > MAX_RECORDINGS:
            self._parts.popitem(last=False)
        RunningStep(self, found[first, last], 0).wait()

    def read(self, ref: Ref, rows: int) -> FloatArray:
        if ref == self.plan.hidden and self._last is not None:
            hidden = self._last.hidden(rows)
            if hidden is not None:
                return hidden
        base = ref.offset - 4 * ref.first  # a view starts inside the rows of its base
        data = self.host.read(self._arena, base, rows * ref.stride)
        data = data.reshape(rows, ref.stride)
        if ref.format is RowFormat.F32:
            chosen = data.view(np.float32)[:, ref.first : ref.first + ref.cols]
            return np.ascontiguousarray(chosen)  # whole rows are not copied again
        return decode_q8_rows(data, ref.cols, ref.runs)

    def write(self, ref: Ref, rows: FloatArray) -> None:
        rows = np.ascontiguousarray(rows, np.float32)
        if ref.stride == 4 * ref.cols:
            self.host.write(self._arena, ref.offset, rows.reshape(-1).view(np.uint8))
            return
        for i, row in enumerate(rows):  # a view shares its rows with other columns
            self.host.write(self._arena, ref.offset + i * ref.stride, row.view(np.uint8))

    def kernels(self, step: Step, launch: int) -> list[str]:
        bucket = Bucket.of_step(self.plan, step)
        lowered = self._kernels.lower(self.plan.launches[launch], self._addresses, bucket)
        return [self.host.kernel_name(dispatch.kernel) for dispatch in lowered]

    def profile(self, step: Step) -> list[float]:
        """Run a step as usual and return the seconds of each launch.

        The launches of a level share its time equally.
        """
        graph = self._graph(self._prepared(step))
        seconds = [0.0] * len(self.plan.launches)
        for level, took in zip(graph.levels(), self.host.level_seconds(graph), strict=True):
            for node in level:
                seconds[node.launch] += took / len(level)
        return seconds

    def recording(self, step: Step) -> Recording:
        """Return the recorded launches of a step, which a measurement submits many times.

        The launches read the step's data until another step is run or recorded.
        """
        return self.host.record(self._graph(self._prepared(step)))

    def counts(self, step: Step) -> StepCounts:
        """Return the dispatches and barriers that were recorded for a step."""
        return self._recorded(Bucket.of_step(self.plan, step), 0).recording.counts

    def _prepared(self, step: Step) -> Bucket:
        """Write the data of a step whose launches run in several submissions; return its bucket."""
        self._check(step)
        self._settle()
        self._last = None
        self._data[0].write(step)
        self._data[0].flush()
        self._read_from(self._data[0])
        return Bucket.of_step(self.plan, step)

    def _read_from(self, data: StepData) -> None:
        """Bind the next recording to this step data."""
        self._addresses.step, self._addresses.adapters = data.address, data.adapters

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
            self.host.write(place.buffer, place.offset, values.view(np.uint8))
        return result

    def _new_scratch(self, n_bytes: int) -> int:
        """Return the address of new scratch memory, which the program keeps."""
        self._scratch.append(self.host.buffer(n_bytes))
        return self._scratch[-1].address

    def _new_counters(self, n_bytes: int) -> int:
        """Return the address of zeroed memory, which the program keeps."""
        address = self._new_scratch(n_bytes)
        self.host.clear(self._scratch[-1])
        return address

    def _graph(self, bucket: Bucket, first: int = 0, last: int | None = None) -> DispatchGraph:
        """Return the dispatches of launches `first` to `last`, whose kernels are then compiled."""
        part = replace(self.plan, launches=self.plan.launches[first:last])
        before = [
            tuple(j - first for j in launches if j >= first)
            for launches in self._dependencies_of(bucket)[first:last]
        ]
        graph = dispatch_graph(self._kernels, part, before, self._addresses, bucket)
        self._compile(node.dispatch.kernel for node in graph.nodes)
        return graph

    def _dependencies_of(self, bucket: Bucket) -> list[tuple[int, ...]]:
        """Return the dependencies of all launches in the steps of `bucket`."""
        running = tuple(bucket.runs(launch) for launch in self.plan.launches)
        if running not in self._dependencies:
            self._dependencies[running] = dependencies(self.plan, bucket)
        return self._dependencies[running]

    def _recorded(self, bucket: Bucket, slot: int) -> RecordedStep:
        latest = self._latest[slot]
        if latest is not None and latest[0] is bucket:
            return latest[1]
        found = self._recordings.get((bucket, slot))
        if found is None:
            found = self._record(bucket, slot)
        self._recordings.move_to_end((bucket, slot))
        self._latest[slot] = bucket, found
        return found

    def _record(self, bucket: Bucket, slot: int) -> RecordedStep:
        self._read_from(self._data[slot])
        graph = self._graph(bucket)
        downloads: list[Download] = []
        plan, wanted = self.plan, bucket.outputs > 0
        logits = self._download(downloads, plan.output, bucket, slot, wanted and bucket.logits)
        tokens = self._download(downloads, plan.sampled, bucket, slot, wanted and bucket.samples)
        hidden = self._download(downloads, plan.hidden, bucket, slot, self._copies_hidden(bucket))
        recording = self.host.record(graph, downloads, self._data[slot].upload(bucket))
        recorded = RecordedStep(recording, logits, tokens, hidden)
        self._recordings[bucket, slot] = recorded
        if len(self._recordings) > MAX_RECORDINGS:
            self._recordings.popitem(last=False)
        return recorded

    def _copies_hidden(self, bucket: Bucket) -> bool:
        """Return whether a step of `bucket` copies its hidden rows to the host."""
        hidden = self.plan.hidden
        if hidden is None or hidden.format is not RowFormat.F32 or hidden.first:
            return False
        return bucket.rows(hidden.dim) * hidden.stride <= MAX_HIDDEN_BYTES

    def _download(
        self, downloads: list[Download], ref: Ref | None, bucket: Bucket, slot: int, wanted: bool
    ) -> FloatArray:
        """Add a copy of the rows of `ref` to `downloads` and return the host's view of the copy."""
        rows = bucket.rows(ref.dim) if ref is not None and wanted else 0
        if ref is None or not rows:
            return np.empty((0, ref.cols if ref else 0), np.float32)
        size = rows * ref.stride
        buffer = self._downloads.get((ref, slot))
        if buffer is None or buffer.size < size:
            buffer = self._downloads[ref, slot] = self.host.buffer(size, MemoryKind.DOWNLOAD)
        downloads.append(Download(self._arena, ref.offset, buffer, size))
        assert buffer.bytes is not None
        found = buffer.bytes[:size].reshape(rows, ref.stride)
        return found[:, : 4 * ref.cols].view(np.float32)
