"""CUDA's norms that also convert their rows for tensor cores, on the emulator."""

from __future__ import annotations

import numpy as np
import pytest
from backends.test_cuda_split import FIVE_UNITS, TOLERANCE, emulates
from cuda_emulator import emulated
from ops.running import run

from zinc.backends import api
from zinc.backends.cuda import CUDA_KERNELS
from zinc.backends.cuda.tiles import gemm_split
from zinc.backends.plans import Plan
from zinc.engine.load.self_test import BLOCK_TOKENS
from zinc.gpu.addresses import NominalAddresses
from zinc.gpu.ahead import kernels
from zinc.gpu.bucket import Bucket
from zinc.ops.cases import Case
from zinc.ops.values import ActivationFn
from zinc.plan.planner import make_plan
from zinc.quant.blocks import GGMLType

T = GGMLType


def products(types: list[GGMLType], *, cols: int = 512, tokens: int = 20) -> Case:
    """Return products of normalised rows with matrices of 64 rows, joined into one value."""
    case = Case("norm", n_tokens=tokens)
    graph, scale = case.graph, case.vector(cols)
    x = graph.rms_norm(case.rows(cols, scale=3.0), scale, eps=1e-6)
    y, *others = (graph.linear(x, case.matrix(64, cols, type, cols**-0.5)) for type in types)
    for other in others:
        y = graph.concat_heads(y, other, n_heads=1)
    return case.returns(y)


def gated() -> Case:
    case = Case("gated norm", n_tokens=17)
    graph = case.graph
    x = graph.rms_norm(case.rows(512), case.vector(512), eps=1e-6)
    gate, up = (graph.linear(x, case.matrix(96, 512, T.Q4_K, 512**-0.5)) for _ in range(2))
    return case.returns(graph.glu(gate, up, activation=ActivationFn.SILU))


def plan_of(case: Case) -> tuple[Plan, Bucket]:
    plan = make_plan(case.graph, api.kernels("cuda"), max_tokens=64, max_outputs=64)
    return plan, Bucket.of_step(plan, case.step(BLOCK_TOKENS))


def names(case: Case) -> list[str]:
    """Return the kernels of a case from its norm on; a norm that converts is `norm HALVES`."""
    plan, bucket = plan_of(case)
    at = NominalAddresses(FIVE_UNITS, "f16")
    found = [x.kernel for x in CUDA_KERNELS.lower_all(plan.launches, at, bucket)]
    every = [x.name + " HALVES" * (("HALVES", 1) in x.defines) for x in found]
    return every[next(i for i, name in enumerate(every) if "norm" in name) :]


@pytest.fixture(autouse=True)
def takes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm_split, "takes_split", lambda *args: 16 < args[-1] <= 64)


CASES = {
    "one format": products([T.Q4_K]),
    "two formats": products([T.Q4_K, T.Q6_K], cols=768),
    "gated": gated(),
}
NAMES = [pytest.param(x, marks=[] if x == "gated" else pytest.mark.every) for x in CASES]


@emulates
@pytest.mark.parametrize("name", NAMES)
def test_products_of_converted_norms_agree_with_the_reference(name: str) -> None:
    case = CASES[name]
    first, *others = names(case)
    assert first == "norm HALVES"
    assert "half_rows" not in others
    assert "gemm_split" in others
    backend = emulated.backend()
    backend.features = FIVE_UNITS
    got, want = run(backend, case), run(api.create("ref"), case)
    assert np.linalg.norm(got - want) <= TOLERANCE * np.linalg.norm(want)


@emulates
def test_rows_beyond_float16_are_scaled() -> None:
    """Weights of a norm from 1e-6 to 1e6 make columns that float16 cannot hold as they are."""
    case = CASES["one format"]
    (vector,) = (x for x in case.weights if x.shape == (512,))
    old = case.blocks.get(vector.name)
    case.blocks[vector.name] = np.geomspace(1e-6, 1e6, 512).astype(np.float32).view(np.uint8)
    try:
        backend = emulated.backend()
        backend.features = FIVE_UNITS
        got, want = run(backend, case), run(api.create("ref"), case)
    finally:
        case.blocks[vector.name] = old
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= TOLERANCE * np.linalg.norm(want)


def test_other_rows_are_converted_by_a_kernel() -> None:
    """Columns that are no whole slabs need zeros behind them, and 16 rows no conversion."""
    assert names(products([T.Q8_0], cols=288))[:2] == ["norm", "half_rows"]
    assert "half_rows" not in names(products([T.Q4_K], tokens=16))
    assert names(products([T.Q4_K], tokens=16))[0] == "norm"


def test_a_plan_compiles_the_norms_that_convert() -> None:
    plan, bucket = plan_of(CASES["gated"])
    found = kernels(CUDA_KERNELS, plan, FIVE_UNITS, iter([bucket]), "f16")
    assert any(("HALVES", 1) in kernel.defines for kernel in found)
