"""GEMM of float weights with float32 rows on tensor cores: as precise as float32 arithmetic."""

from __future__ import annotations

import re

import numpy as np
import pytest
from backends.test_cuda_compiler import needs_nvrtc
from backends.test_cuda_warp_groups import H100
from cuda_emulator import emulated
from nvrtc import compiled
from ops.running import run

from zinc.backends import api
from zinc.backends.cuda import CUDA_KERNELS
from zinc.engine.load.self_test import BLOCK_TOKENS
from zinc.gpu.addresses import NominalAddresses
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch
from zinc.ops.cases import Case
from zinc.plan.planner import make_plan
from zinc.quant.blocks import GGMLType

TOLERANCE = 5e-7  # float32 arithmetic of numpy gives 1e-7 to 4e-7


def product(type: GGMLType, n_rows: int, cols: int, tokens: int) -> Case:
    case = Case(type.name, n_tokens=tokens)
    weight = case.matrix(n_rows, cols, type, cols**-0.5)
    y = case.graph.linear(case.rows(cols), weight, case.vector(n_rows))
    return case.returns(case.graph.add(y, case.rows(n_rows)))


def router() -> Case:
    """Return a router of 40 experts and the gate of a shared expert, which have the same rows."""
    case = Case("router", n_tokens=70)
    x = case.rows(2048)
    logits = case.graph.linear(x, case.matrix(40, 2048, GGMLType.F32, 2048**-0.5))
    gate = case.graph.linear(x, case.matrix(1, 2048, GGMLType.F32, 2048**-0.5))
    return case.returns(case.graph.gate(logits, gate))


CASES = {
    "router": router(),
    "partial slab": product(GGMLType.F32, n_rows=70, cols=36, tokens=9),
    "F16": product(GGMLType.F16, n_rows=24, cols=520, tokens=20),
    "BF16": product(GGMLType.BF16, n_rows=24, cols=104, tokens=40),
}


def dispatches(case: Case) -> list[Dispatch]:
    """Return the dispatches of a case that are GEMMs of float weights."""
    plan = make_plan(case.graph, api.kernels("cuda"), max_tokens=128, max_outputs=128)
    bucket = Bucket.of_step(plan, case.step(BLOCK_TOKENS))
    lowered = CUDA_KERNELS.lower_all(plan.launches, NominalAddresses(H100, "f16"), bucket)
    return [x for x in lowered if x.kernel.name == "gemm_floats"]


@pytest.mark.parametrize("name", CASES)
def test_products_are_as_precise_as_float32(name: str) -> None:
    case = CASES[name]
    assert dispatches(case)
    got, want = run(emulated.backend(), case), run(api.create("ref"), case)
    assert np.linalg.norm(got - want) <= TOLERANCE * np.linalg.norm(want)


def test_the_columns_of_a_router_are_split_until_it_fills_the_device() -> None:
    assert [(x.groups[1], x.groups[2]) for x in dispatches(CASES["router"])] == [(2, 8), (2, 8)]


@needs_nvrtc
@pytest.mark.parametrize("name", CASES)
def test_products_do_not_spill(name: str) -> None:
    for x in dispatches(CASES[name]):
        _, log = compiled(x.kernel, "sm_90a")
        assert re.search(r"\b0 bytes spill stores", log), log
