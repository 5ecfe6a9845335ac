"""CUDA's GEMM of 3 to 16 rows of x, on the emulator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cuda_emulator import emulated
from ops.running import run

from zinc.backends import api
from zinc.backends.cuda.tiles import gemm_few
from zinc.backends.cuda.tiles.common import FEW_TILE_ROWS
from zinc.backends.cuda.tiles.gemm_few import BYTE_ROWS, FewTile
from zinc.core.rounding import ceil_div
from zinc.gpu.tuned import TileKey
from zinc.ops.cases import Case
from zinc.ops.values import ActivationFn
from zinc.plan.planner import make_plan
from zinc.quant.blocks import GGMLType

pytestmark = pytest.mark.skipif(emulated.COMPILER is None, reason="there is no g++")

TOLERANCE = 1e-2  # kernels round rows to 8 bits, the reference does not


def case_of(n_tokens: int, rows: int, cols: int, type: GGMLType) -> Case:
    """Return a gated product that feeds a linear with a bias and a residual."""
    case = Case("few", n_tokens=n_tokens)
    graph, residual, x = case.graph, case.rows(40), case.rows(cols)
    gate, up = (graph.linear(x, case.matrix(rows, cols, type, cols**-0.5)) for _ in range(2))
    h = graph.glu(gate, up, activation=ActivationFn.SILU)
    down = case.matrix(40, rows, type, rows**-0.5)
    return case.returns(graph.add(graph.linear(h, down, case.vector(40)), residual))


def error_of(case: Case) -> float:
    """Return the relative error of the kernels for `case`."""
    got, want = run(emulated.backend(), case), run(api.create("ref"), case)
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


@pytest.mark.parametrize(
    "type",
    [
        GGMLType.Q4_K,
        *(
            pytest.param(type, marks=pytest.mark.every)
            for type in (
                GGMLType.Q5_K,
                GGMLType.Q6_K,
                GGMLType.Q3_K,
                GGMLType.IQ3_S,
                GGMLType.MXFP4,
            )
        ),
    ],
)
@pytest.mark.parametrize(
    "n_tokens", [5, *(pytest.param(n, marks=pytest.mark.every) for n in (3, 4, 16))]
)
def test_rows_agree_with_the_reference(type: GGMLType, n_tokens: int) -> None:
    assert error_of(case_of(n_tokens, 256, 512, type)) <= TOLERANCE


def test_columns_that_are_no_whole_groups() -> None:
    assert error_of(case_of(6, 96, 544, GGMLType.Q8_0)) <= TOLERANCE


@pytest.mark.parametrize(
    ("type", "n_tokens", "stages", "buffers_x"),
    [
        pytest.param(GGMLType.Q4_K, 5, 0, False, marks=pytest.mark.every),
        (GGMLType.Q6_K, 5, 2, True),
        (GGMLType.Q4_K, 4, 0, True),
        *(
            pytest.param(type, n_tokens, stages, True, marks=pytest.mark.every)
            for type in (GGMLType.Q4_K, GGMLType.Q5_K, GGMLType.Q6_K)
            for n_tokens in (3, 5)
            for stages in (0, 2, 3)
        ),
    ],
)
def test_warps_take_several_turns_and_blocks_several_rounds(
    monkeypatch: pytest.MonkeyPatch, type: GGMLType, n_tokens: int, stages: int, buffers_x: bool
) -> None:
    features = emulated.EmulatedHost.features
    tile = FewTile(1, 2, stages, buffers_x, takes_bytes=n_tokens <= BYTE_ROWS)
    key = TileKey("gemm_few", type, 512, 1280, n_tokens, weights=2, stores_blocks=True)
    monkeypatch.setattr(gemm_few, "_formula", lambda features, key: tile)
    monkeypatch.setattr(gemm_few, "MANY_WARPS", 2)
    monkeypatch.setattr(gemm_few, "SUMS_BYTES", 2 * tile.tile_bytes(key))
    if stages:
        features = replace(features, most_shared_bytes=1 << 18)
        monkeypatch.setattr(emulated.EmulatedHost, "features", features)
    shares = tile.shares(features, key, ceil_div(key.rows, FEW_TILE_ROWS))
    assert shares.each > shares.round, "each block would have one round"
    assert error_of(case_of(n_tokens, key.rows, key.cols, key.type)) <= TOLERANCE


def test_matrices_of_several_formats_share_the_compute_units() -> None:
    case = Case("formats", n_tokens=7)
    graph, x = case.graph, case.rows(256)
    types = (GGMLType.Q4_K, GGMLType.Q6_K, GGMLType.Q4_K)
    parts = [
        graph.linear(x, case.matrix(rows, 256, type, 1 / 16))
        for rows, type in zip((64, 40, 24), types, strict=True)
    ]
    both = graph.concat_heads(parts[0], parts[1], n_heads=1)
    assert error_of(case.returns(graph.concat_heads(both, parts[2], n_heads=1))) <= TOLERANCE


@pytest.mark.parametrize("has_weights", [True, pytest.param(False, marks=pytest.mark.every)])
def test_a_product_of_normalised_rows_takes_several_turns_and_rounds(
    has_weights: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first product stores rows of several rounds, and the second scales those of 2 warps."""
    monkeypatch.setattr(gemm_few, "_formula", lambda features, key: FewTile(1, 2))
    monkeypatch.setattr(gemm_few, "MANY_WARPS", 2)
    monkeypatch.setattr(gemm_few, "SUMS_BYTES", 1 << 14)
    case = Case("normalised", n_tokens=6)
    graph, residual, x = case.graph, case.rows(1280, scale=100.0), case.rows(512)
    made = graph.linear(x, case.matrix(1280, 512, GGMLType.Q4_K, 512**-0.5), case.vector(1280))
    made = graph.add(made, residual)
    normalised = graph.rms_norm(made, case.vector(1280) if has_weights else None, eps=1e-5)
    y = graph.linear(normalised, case.matrix(64, 1280, GGMLType.Q6_K, 1280**-0.5))
    case.returns(graph.concat_heads(y, made, n_heads=1))
    backend = emulated.backend()
    plan = make_plan(case.graph, backend, max_tokens=6, max_outputs=6)
    assert "linear_norm_linear" in {launch.kernel for launch in plan.launches}
    assert error_of(case) <= TOLERANCE
