"""GEMM of experts with many slots: results on the emulator, tiles, and registers."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from backends.test_cuda_compiler import SPILLED_BYTES, needs_nvrtc
from backends.test_cuda_warp_groups import H100
from cuda_emulator import emulated
from nvrtc import compiled
from ops.running import run

from zinc.backends import api
from zinc.backends.cuda import CUDA_KERNELS
from zinc.backends.cuda.tiles import gemm_experts
from zinc.backends.cuda.tiles.mma_tile import MmaTile
from zinc.engine.load.self_test import BLOCK_TOKENS
from zinc.gpu.addresses import NominalAddresses
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch
from zinc.gpu.features import Features
from zinc.gpu.tuned import TileKey
from zinc.ops.cases import Case
from zinc.ops.moe import SOFTMAX
from zinc.ops.values import ActivationFn
from zinc.plan.planner import make_plan
from zinc.quant.blocks import GGMLType

TOLERANCE = 8e-3  # float16 weights change how a few numbers of h are rounded to 8 bits


def experts(type: GGMLType, hidden: int = 256, ff: int = 256, tokens: int = 29) -> Case:
    n_experts, top_k = 6, 2
    case = Case(type.name, n_tokens=tokens)
    g, x = case.graph, case.rows(hidden)
    routes = g.route(case.rows(n_experts), None, top_k=top_k, scoring=SOFTMAX, renormalise=True)
    order, starts = g.group_experts(routes, n_experts=n_experts)
    gate, up = (case.experts(n_experts, ff, hidden, type, hidden**-0.5) for _ in range(2))
    h = g.moe_glu(x, order, starts, gate, up, None, None, activation=ActivationFn.SILU)
    down = case.experts(n_experts, hidden, ff, type, ff**-0.5)
    return case.returns(g.moe_down(h, order, starts, routes, down, None, None))


# Tiles of x of 16 rows, so that experts need several batches of slots.
NARROW = MmaTile(1, 2, warps=4, split=1, stages=2, deep=2)
CASES = {
    "Q4_K": (experts(GGMLType.Q4_K), None),
    "partial slab": (experts(GGMLType.Q8_0, hidden=672, ff=96), None),
    "batches": (experts(GGMLType.Q4_0, tokens=60), replace(NARROW, stages=3)),
    "passes": (experts(GGMLType.Q4_0, hidden=160, tokens=60), replace(NARROW, passes=2)),
    "spread": (experts(GGMLType.Q6_K, tokens=60), replace(NARROW, spread=2)),
    "many slots": (experts(GGMLType.Q4_0, ff=64, tokens=160), None),
}
SLOW = ("Q4_K", "partial slab", "passes", "spread", "many slots")
NAMES = [pytest.param(x, marks=pytest.mark.every if x in SLOW else []) for x in CASES]


def dispatches(case: Case, features: Features) -> list[Dispatch]:
    """Return the dispatches of a case that are GEMMs of experts."""
    plan = make_plan(case.graph, api.kernels("cuda"), max_tokens=512, max_outputs=512)
    bucket = Bucket.of_step(plan, case.step(BLOCK_TOKENS))
    lowered = CUDA_KERNELS.lower_all(plan.launches, NominalAddresses(features, "f16"), bucket)
    return [x for x in lowered if x.kernel.name == "gemm_experts"]


@pytest.mark.parametrize("name", NAMES)
def test_products_agree_with_vector_arithmetic(name: str, monkeypatch) -> None:
    case, tile = CASES[name]
    if tile is not None:
        monkeypatch.setattr(gemm_experts, "choose_tile", lambda features, key: tile)
    assert len(dispatches(case, H100)) == 2
    backend = emulated.backend()
    got = run(backend, case)
    backend.features = replace(backend.features, batch_invariant=True)
    want = run(backend, case)
    assert np.linalg.norm(got - want) <= TOLERANCE * np.linalg.norm(want)


@pytest.mark.parametrize(
    ("tokens", "batch", "passes"), [(64, 8, 1), (512, 32, 4), (1024, 64, 4), (2048, 96, 1)]
)
def test_tiles_take_most_experts_slots_at_once(tokens: int, batch: int, passes: int) -> None:
    n_slots = tokens * 8 // 256
    key = TileKey("gemm_experts", GGMLType.Q4_K, 2048, 512, n_slots, experts=256)
    tile = gemm_experts.choose_tile(H100, key)
    assert (tile.batch, tile.passes) == (batch, passes)


@needs_nvrtc
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(x, marks=[] if x == "Q4_K" else pytest.mark.every)
        for x in CASES
        if CASES[x][1] is None
    ],
)
def test_products_do_not_spill(name: str) -> None:
    for x in dispatches(CASES[name][0], H100):
        _, log = compiled(x.kernel, "sm_90a")
        # Those of gate and up spill addresses that are constant in their loop.
        assert max(map(int, re.findall(r"(\d+) bytes spill", log))) <= SPILLED_BYTES, log
