"""GEMM by warp groups (wgmma): results on the emulator, tiles, and registers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from backends.test_cuda_compiler import needs_nvrtc
from cuda_emulator import emulated
from nvrtc import compiled

from zinc.backends import api
from zinc.backends.api import Backend
from zinc.backends.cuda import CUDA_KERNELS
from zinc.backends.cuda.tiles import gemm_mma
from zinc.engine.load.self_test import BLOCK_TOKENS, bind_case
from zinc.gpu.addresses import NominalAddresses
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import KernelVariant
from zinc.gpu.features import Features
from zinc.gpu.tuned import TileKey
from zinc.ops.cases import Case
from zinc.ops.values import ActivationFn
from zinc.plan.planner import make_plan
from zinc.quant.blocks import GGMLType

H100 = Features(
    32, warp_groups=True, shared_bytes=49152, most_shared_bytes=232448, compute_units=132
)
ONE_UNIT = replace(H100, compute_units=1)  # small matrices fill it
TOKENS = 70


def product(type: GGMLType, n_rows: int = 160, cols: int = 512, tokens: int = TOKENS) -> Case:
    case = Case(type.name, n_tokens=tokens)
    weight = case.matrix(n_rows, cols, type, cols**-0.5)
    y = case.graph.linear(case.rows(cols), weight, case.vector(n_rows))
    return case.returns(case.graph.add(y, case.rows(n_rows)))


def gemm_key(rows: int, cols: int, n_x: int, weights: int = 1) -> TileKey:
    return TileKey("gemm_mma", GGMLType.Q4_K, rows, cols, n_x, weights)


def gated_product() -> Case:
    case = Case("glu", n_tokens=TOKENS)
    graph, x = case.graph, case.rows(256)
    gate, up = (graph.linear(x, case.matrix(160, 256, GGMLType.Q4_K, 256**-0.5)) for _ in range(2))
    return case.returns(graph.glu(gate, up, activation=ActivationFn.SILU))


CASES = {
    "Q4_K": product(GGMLType.Q4_K),
    "Q6_K": product(GGMLType.Q6_K),
    "partial slab": product(GGMLType.Q8_0, n_rows=40, cols=288),
    "wide tile": product(GGMLType.Q4_0, n_rows=128, cols=640, tokens=300),
    "glu": gated_product(),
}
SLOW = ("Q4_K", "Q6_K", "wide tile")


def kernels(case: Case, features: Features) -> list[KernelVariant]:
    """Return the GEMMs of a case that multiply by warp groups."""
    plan = make_plan(case.graph, api.kernels("cuda"), max_tokens=512, max_outputs=512)
    bucket = Bucket.of_step(plan, case.step(BLOCK_TOKENS))
    at = NominalAddresses(features, "f16")
    lowered = [x.kernel for x in CUDA_KERNELS.lower_all(plan.launches, at, bucket)]
    return [x for x in lowered if x.name == "gemm_mma" and dict(x.defines)["GROUPS"]]


def run(backend: Backend, case: Case) -> np.ndarray:
    n = case.max_tokens
    plan = make_plan(case.graph, backend, max_tokens=n, max_outputs=n)
    step = case.step(BLOCK_TOKENS)
    return np.array(bind_case(backend, case, plan, step).step(step))


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.every if x in SLOW else []) for x in CASES]
)
def test_products_agree_with_those_of_single_warps(name: str) -> None:
    # The op cases compare those of single warps with ref.
    case, backend = CASES[name], emulated.backend()
    want = run(backend, case)
    backend.features = ONE_UNIT
    assert kernels(case, ONE_UNIT)
    got = run(backend, case)
    assert np.linalg.norm(got - want) <= 1e-5 * np.linalg.norm(want)


@pytest.mark.parametrize(
    ("key", "x_tiles"),
    [
        (gemm_key(12288, 4096, 512, weights=2), 16),
        (gemm_key(151936, 4096, 512), 32),
        (gemm_key(4096, 12288, 512), 16),
        (gemm_key(4096, 4096, 2048), 32),
        (gemm_key(1024, 4096, 512), 0),
        (gemm_key(4096, 4096, 64), 0),
    ],
)
def test_tiles_fill_the_device(key: TileKey, x_tiles: int) -> None:
    tile = gemm_mma.choose_tile(H100, key)
    assert (tile.x_tiles if tile.by_groups else 0) == x_tiles


def test_other_architectures_have_no_warp_groups() -> None:
    key = gemm_key(4096, 12288, 512)
    assert not gemm_mma.choose_tile(replace(H100, warp_groups=False), key).by_groups


@needs_nvrtc
@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.every if x in (*SLOW, "glu") else []) for x in CASES]
)
def test_products_stay_in_registers_and_asynchronous(name: str) -> None:
    for kernel in kernels(CASES[name], ONE_UNIT):
        _, log = compiled(kernel, "sm_90a")
        assert " 0 bytes spill stores" in log, log
        assert "serialized" not in log, log
