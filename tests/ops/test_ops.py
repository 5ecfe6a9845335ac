"""Every case of every op on every backend present, against the numpy reference."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from ops.running import run
from present import computing

from zinc.backends import api, plans
from zinc.backends.api import Kernels
from zinc.ops import OPS
from zinc.ops.cases import Case
from zinc.ops.registry import Op
from zinc.plan.planner import make_plan
from zinc.quant.blocks import BLOCKS
from zinc.testing.parity import case_tolerance, every_case, is_for

CASES = every_case()

# Vulkan kernels are compiled when they are tested, which takes minutes with a software driver. All
# of them decode a format with the same snippet, so `embed` is tested with every format, products
# with one format of each kind, and fused products with some of these.
KINDS = {
    "linear": ("F16", "Q8_0", "Q4_1", "Q4_K", "Q6_K", "IQ2_S", "MXFP4", "Q1_0"),
    "linear_glu": ("F16", "Q4_1", "Q6_K"),
    "head_linear": ("F16", "Q4_K"),
    "moe_glu": ("F16", "Q4_K"),
    "moe_down": ("F16", "Q6_K"),
}
# Cases that run the code of others with other sizes: other heads, fewer tokens, other ranks.
REPEATED = {
    "deep",
    "deep-heads",
    "deep-one",
    "few-plain",
    "selected-heads",
    "selected-wide",
    "selected-wide-deep",
    "4x2x64",
    "8x1x16",
    "alibi-few",
    "latent-few",
    "latent-one",
    "latent-wave",
    "wide-many",
    "140000",
    "4x2x64-neox",
    "chunked-one",
    "2x16",
    "4-softplus",
    "4-40x96-17-1",
    "4-40x96-17-3",
    "64-130x256-46-1",
    "64-130x256-46-3",
}


@cache
def reference(index: int) -> np.ndarray:
    """Return the output of `ref` for a case, computed once for all backends."""
    return run(api.create("ref"), CASES[index][1])


def is_another_format(op: Op, case: Case) -> bool:
    """Return whether a case differs from cases of other formats in its format only."""
    format = case.name.split("-")[0]
    known = format in {block.name for block in BLOCKS.values()}
    return known and op.name in KINDS and format not in KINDS[op.name]


def marks(name: str, op: Op, case: Case) -> list[pytest.MarkDecorator]:
    repeats = is_another_format(op, case) or case.name in REPEATED
    return [pytest.mark.every] if name == "vulkan" and repeats else []


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
