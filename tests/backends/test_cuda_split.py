"""CUDA's split-K GEMM of 17 to 64 rows of x, on the emulator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from backends.test_cuda_compiler import needs_nvrtc
from backends.test_cuda_warp_groups import H100
from cuda_emulator import emulated
from nvrtc import compiled
from ops.running import run

from zinc.backends import api
from zinc.backends.cuda import CUDA_KERNELS
from zinc.backends.cuda.tiles import gemm_split
from zinc.backends.cuda.tiles.gemm_split import SplitTile
from zinc.engine.load.self_test import BLOCK_TOKENS
from zinc.gpu.addresses import NominalAddresses
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch
from zinc.ops.cases import Case
from zinc.ops.values import ActivationFn
from zinc.plan.planner import make_plan
from zinc.quant.blocks import GGMLType

emulates = pytest.mark.skipif(emulated.COMPILER is None, reason="there is no g++")

TOLERANCE = 1e-2  # kernels round rows to 8 bits, the reference does not
FIVE_UNITS = replace(H100, compute_units=5)  # whose shares end within tiles


def linear(types: list[GGMLType], rows: list[int], cols: int, tokens: int) -> Case:
    """Return matrices with biases that multiply the same rows; a single one has a residual."""
    case = Case("linear", n_tokens=tokens)
    graph, residual, x = case.graph, case.rows(rows[0]), case.rows(cols)
    y, *others = (
        graph.linear(x, case.matrix(n, cols, type, cols**-0.5), case.vector(n))
        for type, n in zip(types, rows, strict=True)
    )
    if not others:
        y = graph.add(y, residual)
    for other in others:
        y = graph.concat_heads(y, other, n_heads=1)
    return case.returns(y)


def gated(type: GGMLType, rows: int, cols: int, tokens: int) -> Case:
    """Return a gated product, which stores 8-bit blocks for a linear with a residual."""
    case = Case("gated", n_tokens=tokens)
    graph, residual, x = case.graph, case.rows(40), case.rows(cols)
    gate, up = (graph.linear(x, case.matrix(rows, cols, type, cols**-0.5)) for _ in range(2))
    h = graph.glu(gate, up, activation=ActivationFn.SILU)
    down = case.matrix(40, rows, GGMLType.Q8_0, rows**-0.5)
    return case.returns(graph.add(graph.linear(h, down), residual))


def dispatches(case: Case) -> list[Dispatch]:
    """Return the dispatches of gemm_split for a case."""
    plan = make_plan(case.graph, api.kernels("cuda"), max_tokens=64, max_outputs=64)
    bucket = Bucket.of_step(plan, case.step(BLOCK_TOKENS))
    at = NominalAddresses(FIVE_UNITS, "f16")
    lowered = CUDA_KERNELS.lower_all(plan.launches, at, bucket)
    return [x for x in lowered if x.kernel.name == "gemm_split"]


def error_of(case: Case) -> float:
    """Return the relative error of the kernels for `case`."""
    backend = emulated.backend()
    backend.features = FIVE_UNITS
    got, want = run(backend, case), run(api.create("ref"), case)
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


@pytest.fixture(autouse=True)
def takes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm_split, "takes_split", lambda *args: 16 < args[-1] <= 64)


T = GGMLType
CASES = {
    "parts of several formats": linear([T.Q4_K, T.Q6_K, T.Q4_K], [128, 96, 192], 512, 20),
    "shares of three blocks": linear([T.Q4_K], [60], 1536, 32),
    "gated": gated(T.Q4_K, 288, 512, 17),
    "a slab is missing": linear([T.Q8_0], [40], 288, 20),
    "64 rows": linear([T.Q6_K], [300], 768, 50),
    "64 rows, gated": gated(T.MXFP4, 256, 256, 64),
}
FAST = "shares of three blocks"
NAMES = [pytest.param(x, marks=[] if x == FAST else pytest.mark.every) for x in CASES]


@emulates
@pytest.mark.parametrize("name", NAMES)
def test_products_agree_with_the_reference(name: str) -> None:
    case = CASES[name]
    assert dispatches(case)
    assert error_of(case) <= TOLERANCE


@emulates
@pytest.mark.parametrize(
    "tile",
    [
        pytest.param(SplitTile(4, *sizes), marks=pytest.mark.every)
        for sizes in ((2, 1, 2), (1, 4, 3), (3, 2, 2))
    ],
)
def test_products_of_other_tiles(tile: SplitTile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give blocks more units than stages, and whole tiles besides the ones they share."""
    monkeypatch.setattr(gemm_split, "_formula", lambda *args: tile)
    assert error_of(linear([T.Q4_K], [520], 1024, 18)) <= TOLERANCE


@emulates
def test_blocks_whose_scale_is_zero() -> None:
    """Weights of a block with d = 0 are minus their minimums, and 0 if e is 0 too."""
    case = linear([T.Q4_K], [60], 1536, 32)
    (weight,) = (x for x in case.weights if x.type is GGMLType.Q4_K)
    blocks = case.data(weight).reshape(-1, 144).copy()
    blocks[::3, :2] = 0  # d
    blocks[::6, 2:4] = 0  # e
    case.blocks[weight.name] = blocks.reshape(-1)
    assert error_of(case) <= TOLERANCE


def test_blocks_share_the_compute_units() -> None:
    first, second = dispatches(CASES["parts of several formats"])
    assert first.groups[0] + second.groups[0] <= FIVE_UNITS.compute_units + 1
    assert first.waits
    assert not second.waits


@needs_nvrtc
@pytest.mark.parametrize("name", NAMES)
def test_kernels_stay_in_registers_and_asynchronous(name: str) -> None:
    for dispatch in dispatches(CASES[name]):
        _, log = compiled(dispatch.kernel, "sm_90a")
        assert " 0 bytes spill stores" in log, log
        assert "serialized" not in log, log
