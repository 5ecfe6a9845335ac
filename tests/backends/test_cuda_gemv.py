"""CUDA's GEMV beyond the op cases, on the emulator: few rows, and blocks of several tiles."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_emulator import emulated
from ops.running import run

from zinc.backends import api
from zinc.backends.cuda.tiles import gemv
from zinc.gpu.tuned import TileKey
from zinc.ops.cases import Case
from zinc.ops.values import ActivationFn
from zinc.quant.blocks import GGMLType

pytestmark = pytest.mark.skipif(emulated.COMPILER is None, reason="there is no g++")

COLS, SCALE = 512, 512**-0.5
TOLERANCE = 1e-2  # kernels round rows to 8 bits, the reference does not


def gated_case(n_tokens: int, rows: int, *, normalised: bool = False) -> Case:
    """Return a gated product of `rows` rows that feeds a linear with bias and residual."""
    case = Case("gated", n_tokens=n_tokens)
    graph, residual = case.graph, case.rows(48)
    x = case.rows(COLS)
    if normalised:
        x = graph.rms_norm(x, case.vector(COLS), eps=1e-5)
    gate, up = (graph.linear(x, case.matrix(rows, COLS, GGMLType.Q4_K, SCALE)) for _ in range(2))
    h = graph.glu(gate, up, activation=ActivationFn.SILU)
    down = case.matrix(48, rows, GGMLType.Q8_0, rows**-0.5)
    return case.returns(graph.add(graph.linear(h, down, case.vector(48)), residual))


def linear_case(n_tokens: int) -> Case:
    """Return a product of `n_tokens` rows with a bias and a residual."""
    case = Case("linear", n_tokens=n_tokens)
    graph, x, residual = case.graph, case.rows(COLS), case.rows(48)
    first = graph.linear(x, case.matrix(48, COLS, GGMLType.Q4_K, SCALE), case.vector(48))
    return case.returns(graph.add(first, residual))


def error_of(case: Case) -> float:
    """Return the relative error of the kernels for `case`."""
    got, want = run(emulated.backend(), case), run(api.create("ref"), case)
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


@pytest.mark.parametrize("n_tokens", [pytest.param(2, marks=pytest.mark.every), 3])
def test_few_rows_agree_with_the_reference(n_tokens: int) -> None:
    assert error_of(linear_case(n_tokens)) <= TOLERANCE
    assert error_of(gated_case(n_tokens, 96)) <= TOLERANCE


def test_blocks_multiply_several_tiles_and_a_part_of_one() -> None:
    features = emulated.EmulatedHost.features
    rows = 320
    key = TileKey("gemv", GGMLType.Q4_K, rows, COLS, weights=2, stores_blocks=True, normalises=True)
    tile = gemv.choose_tile(features, key)
    n_tiles = -(-rows // tile.tile)
    blocks = tile.grid(features, n_tiles)
    assert blocks < n_tiles, "each block would have one tile"
    assert n_tiles % blocks, "each block would have as many tiles"
    assert error_of(gated_case(1, rows, normalised=True)) <= TOLERANCE
