"""The program and the cache of several devices that run a split plan together.

The plan says where the rows of a value are copied through the host, from the arena of one device to
the arena of another, and where partial sums are added up. Everything else in a step runs as it does
on the single devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import groupby, islice
from time import perf_counter

import numpy as np
import numpy.typing as npt

from zinc.backends.api import (
    Cache,
    CacheLayout,
    FinishedStep,
    Program,
    StepResult,
    Work,
)
from zinc.backends.micro_batches import (
    Pipeline,
    can_overlap,
    joined,
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
)
from zinc.backends.step_queue import StepQueue
from zinc.ops.step import Step
from zinc.ops.values import FloatArray

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


def _numbered(plan: SplitPlan) -> list[tuple[int, Segment | Transfer | AllReduce]]:
    """Return the schedule of a plan, with the number of launches before each entry."""
    found: list[tuple[int, Segment | Transfer | AllReduce]] = []
    n = 0
    for entry in plan.schedule:
        found.append((n, entry))
        n += entry.last - entry.first if isinstance(entry, Segment) else 0
    return found


def _makers(plan: SplitPlan) -> dict[int, int]:
    """Return the device from which each value is read, by id.

    Every device that reads a value of constants makes it; it is read from the first one.
    """
    found: dict[int, int] = {}
    for entry in reversed(plan.schedule):
        if isinstance(entry, Segment):
            launches = plan.parts[entry.device].launches[entry.first : entry.last]
            found |= {ref.id: entry.device for launch in launches for ref in launch.outputs}
    for entry in plan.schedule:
        if isinstance(entry, AllReduce):
            found |= {term.total.id: term.device for term in entry.terms}
    return found | {p.given.id: i for i, p in enumerate(plan.parts) if p.given is not None}


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
        self._schedule = _numbered(plan)
        self._makers = _makers(plan)
        self._last = self._makers[plan.output.id]
        # Hidden rows of the last step, if it ran in several parts.
        self._hidden: FloatArray | None = None
        self._micro_batch_tokens = micro_batch_tokens
        self._pipeline = Pipeline(plan, programs, self._last) if can_overlap(plan) else None

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
