"""Tiles of gemm_few.slang: they cover all columns and rows within the limits of a device."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from zinc.gpu.features import MAX_THREADS, Features
from zinc.gpu.fragment_tiles import FragmentTile, fragment_tile, takes_fragments
from zinc.gpu.tuned import TileKey
from zinc.ops.values import RowFormat
from zinc.quant.blocks import GGMLType

NVIDIA = Features(
    32,
    cooperative_matrix=True,
    narrow_matrix=True,
    mma_fragments=True,
    shared_bytes=49152,
    compute_units=132,
)
SHAPES = [(4096, 4096), (12288, 4096), (4096, 12288), (1024, 4096), (151936, 4096), (5120, 25600)]
SHAPES += [(64, 64), (96, 2880), (2048, 1000), (8192, 28672)]


def key_of(rows: int, cols: int, n_x: int, type: GGMLType, gated: bool) -> TileKey:
    weights = 2 if gated else 1
    return TileKey("gemm_few", type, rows, cols, n_x, weights=weights, stores_blocks=gated)


@pytest.mark.parametrize("type", [GGMLType.Q4_K, GGMLType.IQ2_XXS, GGMLType.MXFP4])
def test_tiles_cover_a_product_within_the_limits(type: GGMLType) -> None:
    tables = {GGMLType.Q4_K: 0, GGMLType.IQ2_XXS: 8192, GGMLType.MXFP4: 1024}[type]
    for (rows, cols), n_x, gated in product(SHAPES, (5, 8, 9, 16, 17, 32), (False, True)):
        key = key_of(rows, cols, n_x, type, gated)
        tile = fragment_tile(NVIDIA, key)
        assert tile.waves * tile.splits * 256 >= cols
        assert tile.batch == (8 if n_x <= 8 else 16)
        tile_rows = 32 if gated else 16
        assert tile.groups(key) * tile.tiles * tile_rows >= rows
        assert tile.waves * NVIDIA.subgroup <= MAX_THREADS
        staged = 80 * tile.waves * tile.batch * key.weights * tile.flush
        results = 4 * tile.batch * tile_rows if gated else 0
        assert staged + results + tables <= NVIDIA.shared_bytes
        # A tile of two parts is complete after one flush or two.
        assert not gated or tile.flush in (1, 2)


def test_workgroups_fill_the_device_once() -> None:
    key = key_of(12288, 4096, 8, GGMLType.Q4_K, gated=True)
    assert NVIDIA.compute_units // 2 < fragment_tile(NVIDIA, key).groups(key) <= 132


def test_products_side_by_side_share_the_device() -> None:
    q, k = (key_of(rows, 4096, 8, GGMLType.Q4_K, gated=False) for rows in (4096, 1024))
    together = fragment_tile(NVIDIA, q, 2048).groups(q) + 2 * fragment_tile(NVIDIA, k, 5120).groups(
        k
    )
    assert together <= NVIDIA.compute_units


def test_kernels_do_not_depend_on_compute_units() -> None:
    """A wheel carries them for a few numbers of compute units."""
    key = key_of(4096, 12288, 16, GGMLType.Q4_K, gated=False)
    tiles: list[FragmentTile] = [
        fragment_tile(replace(NVIDIA, compute_units=n), key) for n in (20, 84, 132)
    ]
    assert len({tile.defines for tile in tiles}) == 1
    assert len({tile.groups(key) for tile in tiles}) == 3


@pytest.mark.parametrize(
    ("features", "type", "n_x", "takes"),
    [
        (NVIDIA, GGMLType.Q4_K, 5, True),
        (NVIDIA, GGMLType.Q4_K, 32, True),
        (NVIDIA, GGMLType.Q4_K, 4, False),
        (NVIDIA, GGMLType.Q4_K, 33, False),
        (NVIDIA, GGMLType.BF16, 8, False),
        (replace(NVIDIA, batch_invariant=True), GGMLType.Q4_K, 8, False),
        (replace(NVIDIA, mma_fragments=False), GGMLType.Q4_K, 8, False),
        (replace(NVIDIA, shared_bytes=32768), GGMLType.Q4_K, 8, False),
    ],
)
def test_which_products_take_fragments(features, type, n_x, takes) -> None:
    assert takes_fragments(features, type, RowFormat.Q8_32, n_x) == takes
    assert not takes_fragments(features, type, RowFormat.F32, n_x)
