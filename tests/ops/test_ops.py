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
from zinc.ops.registry import Op
from zinc.plan.planner import make_plan
from zinc.quant.blocks import BLOCKS

CASES = every_case()

# Kernels of Vulkan are compiled as they are tested, for minutes where the driver has no hardware. A
# format is one snippet in all of them, so these ops are tested with a format of each kind.
WITH_FORMATS = ("linear_glu", "head_linear", "moe_glu", "moe_down")
KINDS = ("F16", "Q8_0", "Q4_1", "Q4_K", "Q6_K", "IQ2_S", "MXFP4", "NVFP4", "Q1_0")


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


def is_another_format(op: Op, case: Case) -> bool:
    """Whether a case differs from those of other formats in nothing but its format."""
    format = case.name.split("-")[0]
    known = format in {block.name for block in BLOCKS.values()}
    return known and op.name in WITH_FORMATS and format not in KINDS


@pytest.mark.parametrize(("name", "index"), RUNS)
def test_kernel_agrees_with_reference(name, index, request):
    op, case = CASES[index]
    if name == "vulkan" and is_another_format(op, case) and not request.config.getoption("--every"):
        pytest.skip("of another format only: --every")
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
