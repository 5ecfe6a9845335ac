"""Every case of every op, on every backend present, against the numpy reference."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from present import computing

from zinc.backends import api
from zinc.backends.api import Backend
from zinc.cli.parity import CASE_BLOCK_TOKENS, bind_case, case_tolerance, every_case, is_for
from zinc.ops import OPS
from zinc.ops.cases import Case
from zinc.plan.planner import make_plan

CASES = every_case()


def run(backend: Backend, case: Case) -> np.ndarray:
    assert case.graph.output is not None
    n = case.max_tokens
    plan = make_plan(case.graph, backend, max_tokens=n, max_outputs=n)
    step = case.step(CASE_BLOCK_TOKENS)
    return np.array(bind_case(backend, case, plan, step).step(step))


@cache
def reference(index: int) -> np.ndarray:
    """What `ref` makes of a case, once for all backends."""
    return run(api.create("ref"), CASES[index][1])


RUNS = [
    pytest.param(name, index, id=f"{op.name}-{case.name}-{name}")
    for index, (op, case) in enumerate(CASES)
    for name in computing()
    if is_for(api.kernels(name), op)
]


@pytest.mark.parametrize(("name", "index"), RUNS)
def test_kernel_agrees_with_reference(name, index):
    op, case = CASES[index]
    got = run(api.create(name), case)
    want = reference(index)
    assert got.shape == want.shape
    assert np.isfinite(got).all()
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    assert error <= case_tolerance(op, case)


def test_every_op_has_a_case_or_is_part_of_one():
    """An op without cases of its own must appear in the plan of another op's case."""
    null = api.create("null")
    covered = {launch.kernel for _, case in CASES for launch in plan_of(null, case)}
    unfused = {node.op for _, case in CASES for node in case.graph.nodes}
    assert set(OPS) - covered - unfused == set()


def plan_of(backend: Backend, case: Case) -> tuple[api.Launch, ...]:
    return make_plan(case.graph, backend, max_tokens=64, max_outputs=64).launches
