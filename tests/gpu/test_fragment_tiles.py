"""Tiles of gemm_few.slang: they cover all columns and rows within the limits of a device."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from zinc.gpu.features import MAX_THREADS, Features
from zinc.gpu.fragment_tiles import (
    FRAGMENT_TILINGS,
    FragmentTile,
    fragment_tile,
    takes_fragments,
)
from zinc.gpu.tuned import TileKey, TunedTiles
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
        assert tile.n_tiles(key) * tile_rows >= rows
        assert not FRAGMENT_TILINGS["gemm_few"].refusal(NVIDIA, key, tile)
        assert tile.waves * NVIDIA.subgroup <= MAX_THREADS
        staged = 80 * tile.waves * tile.batch * key.weights * tile.flush
        results = 4 * tile.batch * tile_rows if gated else 0
        assert staged + results + tables <= NVIDIA.shared_bytes
        # A tile of two parts is complete after one flush or two.
        assert not gated or tile.flush in (1, 2)


def test_workgroups_fill_the_device_once() -> None:
    key = key_of(12288, 4096, 8, GGMLType.Q4_K, gated=True)
    assert NVIDIA.compute_units // 2 < fragment_tile(NVIDIA, key).groups(NVIDIA, key) <= 132


def test_products_side_by_side_share_the_device() -> None:
    q, k = (key_of(rows, 4096, 8, GGMLType.Q4_K, gated=False) for rows in (4096, 1024))
    q_groups = fragment_tile(NVIDIA, q).groups(NVIDIA, q, rows_beside=2048)
    k_groups = fragment_tile(NVIDIA, k).groups(NVIDIA, k, rows_beside=5120)
    assert q_groups + 2 * k_groups <= NVIDIA.compute_units


def test_kernels_do_not_depend_on_compute_units() -> None:
    """A wheel carries them for a few numbers of compute units."""
    key = key_of(4096, 12288, 16, GGMLType.Q4_K, gated=False)
    devices = [replace(NVIDIA, compute_units=n) for n in (20, 84, 132)]
    assert len({fragment_tile(device, key).defines for device in devices}) == 1
    assert len({fragment_tile(device, key).groups(device, key) for device in devices}) == 3


def test_seeds_of_a_search_include_tiles_that_the_kernel_can_run() -> None:
    tiling = FRAGMENT_TILINGS["gemm_few"]
    for (rows, cols), gated in product(SHAPES, (False, True)):
        key = key_of(rows, cols, 16, GGMLType.Q4_K, gated)
        assert any(not tiling.refusal(NVIDIA, key, tile) for tile in tiling.seeds(NVIDIA, key))


@pytest.mark.parametrize(
    ("tile", "why"),
    [
        (FragmentTile(16, 8), ""),
        (FragmentTile(8, 16, 2, 2), ""),
        (FragmentTile(32, 8), "registers"),
        (FragmentTile(16, 4), "rows of x"),
        (FragmentTile(16, 8, 2), "columns"),
        (FragmentTile(8, 8), "columns"),
        (FragmentTile(16, 8, flush=4), "several tiles"),
        (FragmentTile(16, 16, flush=2), "shared memory"),
        (FragmentTile(1, 8, 16), "splits"),
    ],
)
def test_tiles_that_the_kernel_cannot_run_are_refused(tile: FragmentTile, why: str) -> None:
    key = key_of(12288, 4096, 16, GGMLType.Q4_K, gated=True)
    refusal = FRAGMENT_TILINGS["gemm_few"].refusal(NVIDIA, key, tile)
    assert why in refusal
    assert bool(refusal) == bool(why)


def test_heads_do_not_split_their_columns() -> None:
    """Workgroups of all heads would add up their sums in the same memory."""
    key = replace(key_of(1024, 4096, 8, GGMLType.Q4_K, gated=False), heads=4)
    tile = FragmentTile(8, 8, splits=2)
    assert "splits" in FRAGMENT_TILINGS["gemm_few"].refusal(NVIDIA, key, tile)


def test_a_table_replaces_the_tile_of_the_formula() -> None:
    key, tile = key_of(4096, 4096, 16, GGMLType.Q4_K, gated=False), FragmentTile(8, 16, 2)
    tuned = replace(NVIDIA, tuned=TunedTiles({key: tile}))
    assert fragment_tile(tuned, key) == tile != fragment_tile(NVIDIA, key)


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
