"""Every case of every op, on every backend present, against the numpy reference."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from present import computing

from zinc.backends import api
from zinc.backends.api import Backend, CacheLayout, TensorData
from zinc.ops import OPS
from zinc.ops.cases import Case
from zinc.ops.graph import Weight
from zinc.plan.passes import READS_ROWS
from zinc.plan.planner import make_plan
from zinc.quant.blocks import BLOCKS, GGMLType

CASES = [(op, case) for op in OPS.values() for case in op.cases()]
BLOCK_TOKENS = 64
# Rows in front of a quantised weight are rounded to 8 bits: 1 / 254 of a block's largest each,
# which averages out over the sum. Errors of products in a row add up, and what they feed on, the
# product of gate and up, has larger peaks.
QUANTISED_TOLERANCE = 1e-2


def run(backend: Backend, case: Case) -> np.ndarray:
    assert case.graph.output is not None
    n = case.n_tokens
    plan = make_plan(case.graph, backend, max_tokens=n, max_outputs=n)
    for w in plan.weights:
        backend.upload(w, TensorData(w.type, w.shape, case.data(w)))
    step = case.step(BLOCK_TOKENS)
    n_blocks = max(1, step.tables[0].size)
    layout = CacheLayout(BLOCK_TOKENS, (n_blocks,), state_slots=step.n_sequences)
    cache = backend.allocate(plan.states, layout)
    return np.array(backend.prepare(plan, cache).step(step))


def is_matrix(x: object) -> bool:
    return isinstance(x, Weight) and not x.is_vector


def tolerance(op_tolerance: float, case: Case) -> float:
    products = [node for node in case.graph.nodes if node.op in READS_ROWS]
    matrices = {w for node in products for w in node.inputs if is_matrix(w)}
    types = {w.type for w in matrices}
    if GGMLType.BF16 in types or any(BLOCKS[t].block_size > 1 for t in types):
        return QUANTISED_TOLERANCE * len(matrices)
    return op_tolerance


@cache
def reference(index: int) -> np.ndarray:
    """What `ref` makes of a case, once for all backends."""
    return run(api.create("ref"), CASES[index][1])


@pytest.mark.parametrize("name", computing())
@pytest.mark.parametrize("index", range(len(CASES)), ids=[f"{o.name}-{c.name}" for o, c in CASES])
def test_kernel_agrees_with_reference(name, index):
    op, case = CASES[index]
    got = run(api.create(name), case)
    want = reference(index)
    assert got.shape == want.shape
    assert np.isfinite(got).all()
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    assert error <= tolerance(op.tolerance, case)


def test_every_op_has_a_case_or_is_part_of_one():
    """An op without cases of its own must appear in the plan of another op's case."""
    null = api.create("null")
    covered = {launch.kernel for _, case in CASES for launch in plan_of(null, case)}
    unfused = {node.op for _, case in CASES for node in case.graph.nodes}
    assert set(OPS) - covered - unfused == set()


def plan_of(backend: Backend, case: Case) -> tuple[api.Launch, ...]:
    return make_plan(case.graph, backend, max_tokens=64, max_outputs=64).launches
