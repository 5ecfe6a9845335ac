"""A short test of a device: a few ops against the numpy reference, before a model is put there.

It finds drivers that compile a kernel wrongly or crash at the first launch. `zinc verify
--kernels` tests every op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from zinc.backends import api
from zinc.backends.api import Backend, CacheLayout, Kernels, Program, TensorData
from zinc.backends.plans import Plan
from zinc.core.errors import ZincError
from zinc.ops import OPS
from zinc.ops.cases import Case
from zinc.ops.step import Step
from zinc.ops.values import FloatArray
from zinc.plan.planner import make_plan

# Quantised weights are multiplied with rows rounded to 8 bits.
TOLERANCE = 2e-2
BLOCK_TOKENS = 64
SMALLEST_SIZE = 1e-30  # far above the numbers that kernels may store as zeros


def failure(create: Callable[[], Backend]) -> str:
    """Return what is wrong with the results of a device; empty if nothing is.

    create: opens the device. It is called once for each case.
    """
    try:
        for name, case in cases():
            error = _error(create(), case)
            if not error <= TOLERANCE:  # written so that NaN fails
                return f"{name} is off by {error:.0e}"
    except ZincError as error:
        return str(error)
    return ""


def cases() -> Iterator[tuple[str, Case]]:
    """Yield the cases that the ops name for the self-test, each with its op's name."""
    for op in OPS.values():
        if op.self_test:
            yield from ((op.name, case) for case in op.cases() if case.name in op.self_test)


def steps(case: Case) -> Iterator[Step]:
    """Yield the steps of a case: the one that fills its cache, if there is one, and its own."""
    if (before := case.before(BLOCK_TOKENS)) is not None:
        yield before
    yield case.step(BLOCK_TOKENS)


def plan_case(case: Case, kernels: Kernels) -> Plan:
    """Return the plan of a case."""
    n = case.max_tokens
    return make_plan(case.graph, kernels, max_tokens=n, max_outputs=n)


def bind_case(backend: Backend, case: Case, plan: Plan, step: Step) -> Program:
    """Return a program for the plan of a case, with its tensors and its cache filled."""
    for w in plan.weights:
        backend.upload(w, TensorData(w.type, w.shape, case.data(w)))
    n_blocks = max(1, step.tables[0].size)
    layout = CacheLayout(BLOCK_TOKENS, (n_blocks,), state_slots=step.n_sequences)
    program = backend.prepare(plan, backend.allocate(plan.states, layout))
    if (before := case.before(BLOCK_TOKENS)) is not None:
        program.step(before)
    return program


def relative_error(found: FloatArray, wanted: FloatArray) -> float:
    """Return |found - wanted| / |wanted| (Euclidean); infinite if `found` is not finite.

    |wanted| counts as at least SMALLEST_SIZE, unless it is 0: kernels may take the smallest
    numbers for zeros.
    """
    if not np.isfinite(found).all():
        return float("inf")
    size = float(np.linalg.norm(wanted.astype(np.float64)))
    difference = float(np.linalg.norm(found.astype(np.float64) - wanted))
    return difference / max(size, SMALLEST_SIZE) if size else difference


def _error(backend: Backend, case: Case) -> float:
    step, plan = case.step(BLOCK_TOKENS), plan_case(case, backend)
    found = bind_case(backend, case, plan, step).step(step)
    return relative_error(found, bind_case(api.create("ref"), case, plan, step).step(step))
