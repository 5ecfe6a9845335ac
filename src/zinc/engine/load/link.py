"""Latency of an all-reduce between devices, which limits tensor parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import perf_counter

import numpy as np

from zinc.backends.api import Backend, CacheLayout
from zinc.backends.plans import AllReduce, Plan, Segment, SplitPlan, Term
from zinc.backends.split import SplitBackend
from zinc.backends.split_program import SplitProgram
from zinc.ops.graph import Graph
from zinc.ops.step import Step
from zinc.ops.values import Constant
from zinc.plan.planner import make_plan

RUNS = 15
SUMS = 64  # of a run, so that its start and end count little
LAYOUT = CacheLayout(block_tokens=1, n_blocks=(1,))


def all_reduce_seconds(devices: Sequence[Backend], cols: int) -> float:
    """Return the seconds of an all-reduce of a row of `cols` columns, an even number."""
    program, step = summing_program(devices, cols)
    seconds = []
    for _ in range(RUNS):
        started = perf_counter()
        program.step(step)
        seconds.append(perf_counter() - started)
    return median(seconds) / SUMS


def summing_program(devices: Sequence[Backend], cols: int) -> tuple[SplitProgram, Step]:
    """Return a program of SUMS all-reduces of a row on `devices`, and a step to run it with."""
    graph = Graph()
    row = graph.rope_table(Constant("link", (1.0,) * (cols // 2)))  # the one op without weights
    graph.output = graph.select_rows(row)
    plan = _plan([make_plan(graph, each, max_tokens=1, max_outputs=1) for each in devices])
    backend = SplitBackend(devices, (1.0,) * len(devices))
    backend.keep(plan)
    none = np.zeros(1, np.int32)
    step = Step(none, none, none, none, np.array([0, 1], np.int32), none, (none.reshape(1, 1),))
    return backend.prepare(plan, backend.allocate((), LAYOUT)), step


def _plan(parts: Sequence[Plan]) -> SplitPlan:
    """Return a plan in which each device computes a row and all-reduces it SUMS times."""
    rows = [next(x.outputs[0] for x in part.launches if x.kernel == "rope_table") for part in parts]
    terms = tuple(Term(device, row, row) for device, row in enumerate(rows))
    return SplitPlan(
        launches=tuple(launch for part in parts for launch in part.launches),
        output=parts[0].output,
        arena_bytes=sum(part.arena_bytes for part in parts),
        max_tokens=1,
        max_outputs=1,
        parts=tuple(parts),
        schedule=(
            *(Segment(device, 0, len(part.launches)) for device, part in enumerate(parts)),
            *[AllReduce(terms)] * SUMS,
        ),
    )
