"""Several backends as one. Each has a part of the plan, of the weights and of the cache.

The plan says where the rows of a value are copied through the host, from the arena of one device to
the arena of another, and where partial sums are added up. Everything else in a step runs as it does
on the single devices, so the engine and the prefix cache treat this as any other backend.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import groupby, islice
from time import perf_counter
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from zinc.backends.api import (
    Backend,
    Cache,
    CacheLayout,
    FinishedStep,
    Program,
    SplitDevices,
    StepCounts,
    StepResult,
    TensorData,
    Work,
)
from zinc.backends.capabilities import BackendKind, Capabilities, Roofline
from zinc.backends.micro_batches import (
    Pipeline,
    can_overlap,
    joined,
    micro_batch_tokens,
    micro_batches,
    result_of,
)
from zinc.backends.plans import (
    AllReduce,
    Plan,
    Ref,
    Segment,
    SplitPlan,
    Transfer,
    states_of,
    weights_of,
)
from zinc.backends.step_queue import StepQueue
from zinc.ops.graph import Node
from zinc.ops.step import Step, StepCondition
from zinc.ops.values import FloatArray, RowFormat, State, Weight
from zinc.quant.blocks import GGMLType

Views = list[npt.NDArray[np.uint8]]

# Hidden rows that are copied with each step that samples, as the next step may be queued behind it.
MOST_COPIED_ROWS = 64


class SplitCache:
    """The cache of a split backend. Implements `zinc.backends.api.Cache`.

    The views of a block are the views on each device, one device after the other. steps: the steps
    on this cache, for which the methods wait.
    """

    def __init__(self, caches: Sequence[Cache], layout: CacheLayout) -> None:
        self.caches, self.layout, self.steps = tuple(caches), layout, StepQueue()
        self.n_bytes = sum(cache.n_bytes for cache in caches)
        self._n_block_views: dict[int, list[int]] = {}  # by group, for each device
        self._n_state_views: list[int] | None = None

    def copy_block(self, group: int, source: int, target: int) -> None:
        self.steps.settle()
        for cache in self.caches:
            cache.copy_block(group, source, target)

    def copy_state(self, source: int, target: int) -> None:
        self.steps.settle()
        for cache in self.caches:
            cache.copy_state(source, target)

    def block_views(self, group: int, block: int) -> Views:
        self.steps.settle()
        found = [cache.block_views(group, block) for cache in self.caches]
        self._n_block_views[group] = [len(views) for views in found]
        return [view for views in found for view in views]

    def put_block(self, group: int, block: int, views: Views) -> None:
        self.steps.settle()
        if group not in self._n_block_views:
            self.block_views(group, block)
        for cache, part in zip(self.caches, _cut(views, self._n_block_views[group]), strict=True):
            cache.put_block(group, block, part)

    def state_views(self, slot: int) -> Views:
        self.steps.settle()
        found = [cache.state_views(slot) for cache in self.caches]
        self._n_state_views = [len(views) for views in found]
        return [view for views in found for view in views]

    def put_state(self, slot: int, views: Views) -> None:
        self.steps.settle()
        if self._n_state_views is None:
            self.state_views(slot)
        assert self._n_state_views is not None
        for cache, part in zip(self.caches, _cut(views, self._n_state_views), strict=True):
            cache.put_state(slot, part)


def _cut(views: Views, sizes: Sequence[int]) -> list[Views]:
    """Divide views into lists of the given sizes."""
    rest = iter(views)
    return [list(islice(rest, n)) for n in sizes]


class SplitProgram:
    """The program of a split plan. Implements `zinc.backends.api.Program`.

    Launches are numbered in the order in which they run.
    """

    def __init__(
        self,
        plan: SplitPlan,
        programs: Sequence[Program],
        micro_batch_tokens: int,
        steps: StepQueue,
    ) -> None:
        """Make a program. steps: those of all programs on its cache."""
        self.plan: Plan = plan
        self._steps = steps
        self._sampled = np.empty(0, np.int32)  # the tokens of the last step that sampled
        self.work = Work()
        self._programs = tuple(programs)
        self._threads: ThreadPoolExecutor | None = None
        self._schedule: list[tuple[int, Segment | Transfer | AllReduce]] = []
        n = 0
        for entry in plan.schedule:
            self._schedule.append((n, entry))
            n += entry.last - entry.first if isinstance(entry, Segment) else 0
        # Values of constants are made on every device that reads them; the first one is read.
        self._makers: dict[int, int] = {}
        for entry in plan.schedule:
            if isinstance(entry, Segment):
                for launch in plan.parts[entry.device].launches[entry.first : entry.last]:
                    for ref in launch.outputs:
                        self._makers.setdefault(ref.id, entry.device)
        for entry in plan.schedule:
            if isinstance(entry, AllReduce):
                self._makers |= {term.total.id: term.device for term in entry.terms}
        self._makers |= {
            part.given.id: i for i, part in enumerate(plan.parts) if part.given is not None
        }
        self._last = self._makers[plan.output.id]
        # Hidden rows of the last step, if it ran in several parts.
        self._hidden: FloatArray | None = None
        self._micro_batch_tokens = micro_batch_tokens
        self._pipeline = None
        if can_overlap(plan):
            self._pipeline = Pipeline(plan, programs, self._last)

    def step(self, step: Step) -> FloatArray:
        self._steps.settle()
        return self._run_step(step, logits=True).logits()

    def sample(self, step: Step) -> StepResult:
        assert step.sample_params is not None
        logits = bool((step.sample_params["k"] == 0).any())
        return self._steps.submit(lambda: self._sample(step, logits))

    def _sample(self, step: Step, logits: bool) -> FinishedStep:
        """Run a step that samples, and keep its tokens for the next one."""
        result = self._run_step(step.with_ids(self._sampled), logits)
        hidden = self.plan.hidden
        if hidden is not None and result.hidden_rows is None and step.n_tokens <= MOST_COPIED_ROWS:
            rows = self._programs[self._makers[hidden.id]].read(hidden, step.rows(hidden.dim))
            result = replace(result, hidden_rows=rows)
        self._sampled = result.tokens()[:, 0].astype(np.int32)
        return result

    def _run_step(self, step: Step, logits: bool) -> FinishedStep:
        """Run a step and return its tokens, if it samples, and its logits, if they are wanted."""
        parts = self._parts(step)
        if len(parts) > 1:
            return self._overlapped(parts, logits)
        self._run(step, 0, len(self.plan.launches))
        return result_of(self._programs[self._last], self.plan, step, logits)

    def _parts(self, step: Step) -> list[Step]:
        """Return the micro-batches of a step; one if the devices cannot overlap."""
        if self._pipeline is None:
            return [step]
        return micro_batches(step, self._micro_batch_tokens)

    def _overlapped(self, parts: Sequence[Step], logits: bool) -> FinishedStep:
        """Run the parts of a step while the devices work at the same time; return all rows."""
        assert self._pipeline is not None
        started = perf_counter()
        found = self._pipeline.run(parts, logits)
        self.work.waited_s += perf_counter() - started
        self.work.submissions += len(parts) * len(self._programs)
        result = joined(found, self.plan.output.cols)
        self._hidden = result.hidden_rows
        return result

    def run(self, step: Step, first: int, last: int) -> None:
        self._steps.settle()
        self._run(step, first, last)

    def _run(self, step: Step, first: int, last: int) -> None:
        """Run launches. A value is exchanged after the last launch that comes before it."""
        self._hidden = None
        for is_turn, group in groupby(self._schedule, lambda x: isinstance(x[1], Segment)):
            turns = []
            for at, entry in group:
                if isinstance(entry, Segment):
                    begin = max(first - at, 0) + entry.first
                    end = min(last - at, entry.last - entry.first) + entry.first
                    turns += [Segment(entry.device, begin, end)] if begin < end else []
                elif first < at <= last:
                    self._exchange(step, entry)
            if is_turn and turns:
                self._run_turns(step, turns)

    def _run_turns(self, step: Step, turns: Sequence[Segment]) -> None:
        """Run launches of different devices at the same time. Raises as programs do."""
        started = perf_counter()
        if len(turns) > 1 and self._threads is None:
            self._threads = ThreadPoolExecutor(len(self._programs) - 1, "zinc-device")
        others = [
            self._threads.submit(self._programs[x.device].run, step, x.first, x.last)
            for x in turns[1:]
            if self._threads is not None
        ]
        try:
            own = turns[0]
            self._programs[own.device].run(step, own.first, own.last)
        finally:
            wait(others)
        for each in others:
            each.result()
        self.work.waited_s += perf_counter() - started
        self.work.submissions += len(turns)

    def _exchange(self, step: Step, entry: Transfer | AllReduce) -> None:
        """Transfer a value, or add up the parts of one."""
        if isinstance(entry, AllReduce):
            if rows := step.rows(entry.terms[0].total.dim):
                self._all_reduce(entry, rows)
        elif rows := step.rows(entry.sent.dim):
            sent = self._programs[entry.source].read(entry.sent, rows)
            self._programs[entry.target].write(entry.received, sent)

    def _all_reduce(self, entry: AllReduce, rows: int) -> None:
        """Add up the parts in their order, and write the total to each device."""
        first, *others = (
            self._programs[term.device].read(term.part, rows)
            for term in entry.terms
            if term.part is not None
        )
        for part in others:
            first += part
        for term in entry.terms:
            self._programs[term.device].write(term.total, first)

    def read(self, ref: Ref, rows: int) -> FloatArray:
        self._steps.settle()
        if self._hidden is not None and ref == self.plan.hidden:
            return self._hidden[:rows].copy()
        return self._programs[self._makers[ref.id]].read(ref, rows)

    def write(self, ref: Ref, rows: FloatArray) -> None:
        self._steps.settle()
        self._programs[self._makers[ref.id]].write(ref, rows)
        for _, entry in self._schedule:
            if isinstance(entry, Transfer) and entry.sent.id == ref.id:
                self._programs[entry.target].write(entry.received, rows)

    def kernels(self, step: Step, launch: int) -> list[str]:
        device, local = self._local(launch)
        return self._programs[device].kernels(step, local)

    def profile(self, step: Step) -> list[float]:
        """Return the seconds of each launch, run alone with the transfers after it."""
        self._steps.settle()
        seconds = []
        for i in range(len(self.plan.launches)):
            started = perf_counter()
            self._run(step, i, i + 1)
            seconds.append(perf_counter() - started)
        return seconds

    def _local(self, launch: int) -> tuple[int, int]:
        """Return the device of a launch, and its index there."""
        for at, entry in self._schedule:
            if isinstance(entry, Segment) and 0 <= launch - at < entry.last - entry.first:
                return entry.device, entry.first + launch - at
        raise IndexError(f"the plan has no launch {launch}")


@runtime_checkable
class Linkable(Protocol):
    """A backend whose device may write the memory of other devices."""

    def reaches(self, devices: Sequence[Backend]) -> bool:
        """Return whether `devices`, which include this one, can write each other's memory.

        Raises DeviceError.
        """
        ...

    def link(self, devices: Sequence[Backend], plan: SplitPlan, cache: Cache) -> SplitProgram:
        """Return a program whose devices exchange rows without the host.

        The parts of `plan` run on `devices`, which reach each other. cache: the `SplitCache` of
        their backend.
        """
        ...


def unique_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return `names`, with a number after each one that was there before."""
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        seen[name] += 1
        found.append(f"{name} #{seen[name]}" if seen[name] > 1 else name)
    return tuple(found)


class SplitBackend:
    """Several backends as one. Implements `zinc.backends.api.Backend`.

    devices: the backends that take part. division: how the model is divided, see `SplitDevices`.
    selectors: the device that each backend runs on, such as "vulkan:0"; by default each is a
    device of its own with the name of its backend. `keep` tells it where weights and states are.
    """

    def __init__(
        self,
        devices: Sequence[Backend],
        division: Callable[[Node], int] | tuple[float, ...],
        selectors: Sequence[str] = (),
    ) -> None:
        self.devices = tuple(devices)
        names = unique_names(selectors or [backend.name for backend in devices])
        self.split = SplitDevices(self.devices, division, names, tuple(selectors) or names)
        self._weights: list[set[str]] = []
        self._states: list[set[str]] = []
        self.name = "+".join(backend.name for backend in devices)
        each = [backend.capabilities for backend in devices]
        kinds, kv_dtypes = {c.kind for c in each}, {c.kv_dtype for c in each}
        self.capabilities = Capabilities(
            kinds.pop() if len(kinds) == 1 else BackendKind.DEVICE,
            kv_dtype=kv_dtypes.pop() if len(kv_dtypes) == 1 else "f16",
            batch_invariant=all(c.batch_invariant for c in each),
            rollback=all(c.rollback for c in each),
            host_rows=all(c.host_rows for c in each),
            level="+".join(c.level for c in each),
        )

    def keep(self, *plans: SplitPlan) -> None:
        """Remember which device reads each weight and state of `plans`.

        Later uploads and allocations go to these devices. Plans that are prepared later must not
        use other weights or states.
        """
        parts = [[plan.parts[i] for plan in plans] for i in range(len(self.devices))]
        self._weights = [{w.name for w in weights_of(each)} for each in parts]
        self._states = [{s.name for s in states_of(each)} for each in parts]

    def on(self, devices: Sequence[Backend]) -> SplitBackend:
        """Return a backend that runs the same plans on other devices."""
        other = SplitBackend(devices, self.split.division)
        other._weights, other._states = self._weights, self._states
        return other

    @functools.cached_property
    def is_linked(self) -> bool:
        """Whether the devices exchange rows without the host."""
        first = self.devices[0]
        return isinstance(first, Linkable) and first.reaches(self.devices)

    @property
    def micro_batch_tokens(self) -> int:
        """The tokens of a micro-batch of a long step."""
        return micro_batch_tokens(backend.capabilities.kind for backend in self.devices)

    def describe(self) -> str:
        return " with ".join(backend.describe() for backend in self.devices)

    def row_format(self, type: GGMLType) -> RowFormat:
        """Return the row format on the first device. A plan asks the device that runs the node."""
        return self.devices[0].row_format(type)

    def supports(self, kernel: str) -> bool:
        return all(backend.supports(kernel) for backend in self.devices)

    def stores(self, kernel: str, format: RowFormat) -> bool:
        return all(backend.stores(kernel, format) for backend in self.devices)

    def row_bytes(self, format: RowFormat, cols: int) -> int:
        return self.devices[0].row_bytes(format, cols)

    def runs_fused(self, node: Node) -> StepCondition | None:
        """Return None: a plan asks the device that runs the node."""
        return None

    def counts(
        self, plan: Plan, kv_dtype: str, *, tokens: int, outputs: int, sequences: int, keys: int
    ) -> StepCounts | None:
        assert isinstance(plan, SplitPlan)
        found = []
        for entry in plan.schedule:
            if isinstance(entry, Segment):
                part = plan.parts[entry.device]
                counts = self.devices[entry.device].counts(
                    replace(part, launches=part.launches[entry.first : entry.last]),
                    kv_dtype,
                    tokens=tokens,
                    outputs=outputs,
                    sequences=sequences,
                    keys=keys,
                )
                found += [counts] if counts is not None else []
        if not found:
            return None
        return StepCounts(sum(c.dispatches for c in found), sum(c.barriers for c in found))

    def expect(self, weights: Iterable[Weight]) -> None:
        weights = list(weights)
        for backend, names in zip(self.devices, self._weights, strict=True):
            backend.expect([weight for weight in weights if weight.name in names])

    def compile(self, steps: Iterable[tuple[Plan, Step]], kv_dtype: str) -> None:
        """Do nothing: the parts compile their kernels when they are prepared or run."""

    def measure(self) -> Roofline | None:
        """Return None: the parts have different limits."""
        return None

    def upload(self, weight: Weight, data: TensorData) -> None:
        for backend, names in zip(self.devices, self._weights, strict=True):
            if weight.name in names:
                backend.upload(weight, data)

    @property
    def weight_bytes(self) -> int:
        return sum(backend.weight_bytes for backend in self.devices)

    def available_bytes(self) -> int | None:
        """Return None: each device has its own memory and is asked for it."""
        return None

    def shared_bytes(self) -> int | None:
        return None

    def allocate(self, states: tuple[State, ...], layout: CacheLayout) -> SplitCache:
        caches = [
            backend.allocate(tuple(s for s in states if s.name in names), layout)
            for backend, names in zip(self.devices, self._states, strict=True)
        ]
        return SplitCache(caches, layout)

    def prepare(self, plan: Plan, cache: Any) -> SplitProgram:
        assert isinstance(plan, SplitPlan)
        first = self.devices[0]
        if self.is_linked and isinstance(first, Linkable):
            return first.link(self.devices, plan, cache)
        programs = [
            backend.prepare(part, each)
            for backend, part, each in zip(self.devices, plan.parts, cache.caches, strict=True)
        ]
        return SplitProgram(plan, programs, self.micro_batch_tokens, cache.steps)
