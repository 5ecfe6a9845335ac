"""GEMV of few slots of each expert: results on the emulator, the steps that have it, registers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from backends.test_cuda_compiler import SPILLED_BYTES, needs_nvrtc
from backends.test_cuda_experts import experts
from backends.test_cuda_gemm_slots import biased, dispatches, of_streams
from cuda_emulator import emulated
from goldens.cuda_kernels import TARGETS, Resources
from ops.running import run

from zinc.backends.cuda.tiles import gemv_slots
from zinc.backends.cuda.tiles.gemm_slots import MOST_SLOTS
from zinc.backends.cuda.tiles.gemv_slots import VectorSlotTile
from zinc.quant.blocks import GGMLType

TOLERANCE = 1e-6  # both kernels multiply 8-bit numbers, in another order

# 22 tokens choose 44 slots of 6 experts, so that some experts have several segments.
CASES = {
    "Q4_K": (experts(GGMLType.Q4_K, hidden=512, tokens=22), VectorSlotTile(2, 8, 4, 3)),
    "Q6_K": (experts(GGMLType.Q6_K, hidden=512, tokens=17), None),
    "two units": (experts(GGMLType.Q5_K, 2048, 256, tokens=17), VectorSlotTile(4, 2, 8, 1)),
    "partial unit": (experts(GGMLType.Q8_0, hidden=672, ff=96, tokens=18), None),
    "codebook": (
        experts(GGMLType.MXFP4, hidden=256, ff=160, tokens=18),
        VectorSlotTile(1, 2, 1, 1),
    ),
    "biases": (biased(), None),
}
SLOW = ("Q6_K", "two units", "partial unit", "codebook", "biases")
NAMES = [pytest.param(x, marks=pytest.mark.every if x in SLOW else []) for x in CASES]
FORMATS = {GGMLType.Q4_K, GGMLType.Q6_K}


@pytest.mark.parametrize("name", NAMES)
def test_products_agree_with_those_of_single_slots(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, tile = CASES[name]
    monkeypatch.setattr(gemv_slots, "MOST_VECTOR_SLOTS", MOST_SLOTS)
    if tile is not None:
        monkeypatch.setattr(gemv_slots, "choose_tile", lambda features, key, slots: tile)
    backend = emulated.backend()
    found = dispatches(case, backend.features, "gemv_slots")
    assert len(found) == (3 if name == "biases" else 2)
    got = run(backend, case)
    backend.features = replace(backend.features, batch_invariant=True)
    want = run(backend, case)
    assert np.linalg.norm(got - want) <= TOLERANCE * np.linalg.norm(want)


def test_tokens_of_up_to_32_streams_have_it() -> None:
    """With 256 experts of which a token chooses 8, an expert has one slot on average."""
    names = {n: of_streams(n, TARGETS["sm_90a"], "gemv_slots") for n in (8, 16, 32, 64)}
    assert [bool(x) for x in names.values()] == [False, True, True, False]


@needs_nvrtc
@pytest.mark.every
@pytest.mark.parametrize(("n", "blocks"), [(16, 3), (32, 4)])
def test_several_blocks_fit_a_compute_unit(n: int, blocks: int) -> None:
    kernels = of_streams(n, TARGETS["sm_90a"], "gemv_slots")
    assert {dict(x.defines)["FORMAT"] for x in kernels} == FORMATS
    for kernel in kernels:
        found = Resources.of(kernel, "sm_90a")
        assert found.spilled_bytes <= SPILLED_BYTES, f"{kernel}: {found}"
        assert found.blocks(TARGETS["sm_90a"]) == blocks
