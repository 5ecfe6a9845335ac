"""Every case of every op on every backend present, against the numpy reference."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from ops.running import run
from ops.vulkan_cases import is_repeated
from present import computing

from zinc.backends import api, plans
from zinc.backends.api import Kernels
from zinc.ops import OPS
from zinc.ops.cases import Case
from zinc.ops.registry import Op
from zinc.plan.planner import make_plan
from zinc.testing.parity import case_tolerance, every_case, is_for

CASES = every_case()


@cache
def reference(index: int) -> np.ndarray:
    """Return the output of `ref` for a case, computed once for all backends."""
    return run(api.create("ref"), CASES[index][1])


def marks(name: str, op: Op, case: Case) -> list[pytest.MarkDecorator]:
    return [pytest.mark.every] if name == "vulkan" and is_repeated(op, case) else []


RUNS = [
    pytest.param(name, index, id=f"{op.name}-{case.name}-{name}", marks=marks(name, op, case))
    for index, (op, case) in enumerate(CASES)
    for name in computing()
    if is_for(api.kernels(name), op, case)
]


@pytest.mark.parametrize(("name", "index"), RUNS)
def test_kernel_agrees_with_reference(name, index):
    op, case = CASES[index]
    got = run(api.create(name), case)
    want = reference(index)
    assert got.shape == want.shape
    assert np.isfinite(got).all()
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    assert error <= case_tolerance(op, case, api.kernels(name))


def test_every_op_has_a_case_or_is_part_of_one():
    """An op without cases must appear in the plan of a case of another op."""
    backends = api.create("null"), api.kernels("vulkan"), api.kernels("cuda")
    planned = (
        plan_of(backend, case)
        for backend in backends
        for op, case in CASES
        if is_for(backend, op, case)
    )
    covered = {launch.kernel for plan in planned for launch in plan}
    unfused = {node.op for _, case in CASES for node in case.graph.nodes}
    assert set(OPS) - covered - unfused == set()


def plan_of(backend: Kernels, case: Case) -> tuple[plans.Launch, ...]:
    return make_plan(case.graph, backend, max_tokens=64, max_outputs=64).launches
