"""GEMM of few slots of each expert: results on the emulator, tiles, and registers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from backends.test_cuda_compiler import needs_nvrtc
from backends.test_cuda_experts import TOLERANCE, experts
from backends.test_cuda_warp_groups import H100
from cuda_emulator import emulated
from goldens import cuda_kernels
from goldens.cuda_kernels import TARGETS, Resources, Target
from ops.running import run

from zinc.backends import api
from zinc.backends.cuda import CUDA_KERNELS
from zinc.backends.cuda.tiles import gemm_slots
from zinc.backends.cuda.tiles.gemm_slots import FewSlotTile
from zinc.engine.load.self_test import BLOCK_TOKENS
from zinc.gpu.addresses import NominalAddresses
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.features import Features
from zinc.gpu.tuned import TileKey
from zinc.ops.cases import Case
from zinc.ops.moe import SOFTMAX
from zinc.ops.values import ActivationFn
from zinc.plan.planner import make_plan
from zinc.quant.blocks import GGMLType


def biased() -> Case:
    """Return experts with biases, whose gate and up have different formats."""
    n_experts, hidden, ff = 6, 256, 96
    case = Case("biases", n_tokens=17)
    g, x = case.graph, case.rows(hidden)
    routes = g.route(case.rows(n_experts), None, top_k=2, scoring=SOFTMAX, renormalise=True)
    order, starts = g.group_experts(routes, n_experts=n_experts)
    gate = case.experts(n_experts, ff, hidden, GGMLType.Q4_0, hidden**-0.5)
    up = case.experts(n_experts, ff, hidden, GGMLType.Q8_0, hidden**-0.5)
    biases = [case.vector(n_experts * ff) for _ in range(2)]
    clamped = {"activation": ActivationFn.CLAMPED_SWIGLU, "alpha": 1.702, "limit": 7.0}
    h = g.moe_glu(x, order, starts, gate, up, *biases, **clamped)
    down = case.experts(n_experts, hidden, ff, GGMLType.Q8_0, ff**-0.5)
    bias = case.vector(n_experts * hidden)
    return case.returns(g.moe_down(h, order, starts, routes, down, bias, None))


# 22 tokens choose 44 slots of 6 experts, so that some experts have more than the 8 of a segment.
CASES = {
    "Q4_K": (experts(GGMLType.Q4_K, hidden=512, tokens=22), None),
    "Q6_K": (experts(GGMLType.Q6_K, hidden=512, tokens=17), FewSlotTile(1, 1, 3, 1)),
    "partial group": (experts(GGMLType.Q8_0, hidden=672, ff=96, tokens=18), None),
    "odd teams": (experts(GGMLType.Q4_0, ff=160, tokens=22), FewSlotTile(1, 1, 3, 2)),
    "turns": (experts(GGMLType.Q5_K, 768, 768, tokens=18), FewSlotTile(1, 2, 2, 1)),
    "16 slots": (experts(GGMLType.Q4_K, tokens=22), FewSlotTile(2, 1, 4, 1)),
    "biases": (biased(), None),
}
FORMATS = {GGMLType.Q4_K, GGMLType.Q6_K, GGMLType.MXFP4}
SLOW = ("Q6_K", "partial group", "odd teams", "turns", "16 slots", "biases")
NAMES = [pytest.param(x, marks=pytest.mark.every if x in SLOW else []) for x in CASES]


def dispatches(case: Case, features: Features, kernel: str = "gemm_slots") -> list[Dispatch]:
    """Return the dispatches of a case with `kernel`."""
    n = case.max_tokens
    plan = make_plan(case.graph, api.kernels("cuda"), max_tokens=n, max_outputs=n)
    bucket = Bucket.of_step(plan, case.step(BLOCK_TOKENS))
    lowered = CUDA_KERNELS.lower_all(plan.launches, NominalAddresses(features, "f16"), bucket)
    return [x for x in lowered if x.kernel.name == kernel]


@pytest.mark.parametrize("name", NAMES)
def test_products_agree_with_vector_arithmetic(name: str, monkeypatch) -> None:
    case, tile = CASES[name]
    if tile is not None:
        monkeypatch.setattr(gemm_slots, "choose_tile", lambda features, key: tile)
    backend = emulated.backend()
    assert len(dispatches(case, backend.features)) == (3 if name == "biases" else 2)
    got = run(backend, case)
    backend.features = replace(backend.features, batch_invariant=True)
    want = run(backend, case)
    assert np.linalg.norm(got - want) <= TOLERANCE * np.linalg.norm(want)


def of_streams(n: int, target: Target, kernel: str = "gemm_slots") -> set[KernelVariant]:
    """Return the variants of `kernel` in decode of `n` streams, with `cuda_kernels.plans`."""
    at = NominalAddresses(target.features, "f16")
    bucket = Bucket(tokens=n, outputs=n, sequences=n, keys=4096, is_decode=True)
    launches = {x for plan in cuda_kernels.plans() for x in plan.launches}
    lowered = [
        dispatch.kernel
        for launch in launches
        if launch.kernel in ("moe_glu", "moe_down")
        for dispatch in CUDA_KERNELS.lower(launch, at, bucket)
    ]
    return {x for x in lowered if x.name == kernel}


@pytest.mark.parametrize("is_decode", [False, True])
def test_16_tokens_share_experts_evenly(is_decode: bool) -> None:
    """Tokens of one sequence and of several choose different experts."""
    plan = next(x for x in cuda_kernels.plans() if "moe_glu" in {y.kernel for y in x.launches})
    launch = next(x for x in plan.launches if x.kernel == "moe_glu")
    bucket = Bucket(tokens=16, outputs=16, sequences=16, keys=4096, is_decode=is_decode)
    lowered = CUDA_KERNELS.lower(launch, NominalAddresses(H100, "f16"), bucket)
    assert lowered[0].kernel.name == "gemv_slots"


@needs_nvrtc
@pytest.mark.every
@pytest.mark.parametrize("arch", ["sm_90a", "sm_80", "sm_120a"])
def test_kernels_of_64_streams_do_not_spill(arch: str) -> None:
    kernels = of_streams(64, TARGETS[arch])
    assert {dict(x.defines)["FORMAT"] for x in kernels} == FORMATS
    for kernel in kernels:
        found = Resources.of(kernel, arch)
        assert not found.spilled_bytes, f"{kernel} on {arch}: {found}"


@needs_nvrtc
def test_two_blocks_fit_a_compute_unit() -> None:
    kernel = min(of_streams(64, TARGETS["sm_90a"]), key=lambda x: x.defines)
    found = Resources.of(kernel, "sm_90a")
    assert (found.spilled_bytes, found.blocks(TARGETS["sm_90a"])) == (0, 2)


def test_the_most_warps_are_at_work() -> None:
    """Give all warps columns, and a row to as many of them as possible."""
    teams = {2048: (8, 1), 512: (2, 4), 1536: (2, 4), 4096: (8, 1), 2880: (4, 2), 7168: (4, 2)}
    for cols, team in teams.items():
        key = TileKey("gemm_slots", GGMLType.Q4_K, 512, cols, 1, experts=256)
        tile = gemm_slots.choose_tile(H100, key)
        assert (tile.team, tile.teams) == team
