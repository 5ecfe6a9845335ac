"""Tiles of the GEMM on tensor cores (kernels/gemm_mma.cu)."""

from __future__ import annotations

from collections.abc import Iterable

from zinc.backends.cuda.tiles.common import BLOCK_ROWS
from zinc.backends.cuda.tiles.mma_tile import (
    MAX_SPLITS,
    MAX_STAGES,
    MmaTile,
    loop_refusal,
    n_blocks,
    shared_refusal,
    slab_count,
    with_splits,
    within_memory,
)
from zinc.core.rounding import ceil_div
from zinc.gpu.features import Features
from zinc.gpu.tiling import is_power_of_two
from zinc.gpu.tuned import TileKey

SHORT_SLABS = 4  # with at most this many slabs per row, a separate conversion of x does not pay
FULL = 0.9  # blocks for each compute unit from which a grid counts as a full wave
LARGE_GRID = 2.2  # blocks for each compute unit from which wide tiles pay
GROUP_WARPS = 8  # warps of both multiplying groups (group_rows.cuh states their registers)


def choose_tile(features: Features, key: TileKey) -> MmaTile:
    """Return the tile of a GEMM."""
    return features.tuned.choose(key, lambda: _formula(features, key))


def _formula(features: Features, key: TileKey) -> MmaTile:
    by_groups = _group_tile(features, key)
    if by_groups is not None:
        return by_groups
    tile = _gemm_tile(features, key)
    assert not key.stores_blocks or tile.rows % BLOCK_ROWS == 0
    return with_splits(features, within_memory(features, tile), key)


def _group_tile(features: Features, key: TileKey) -> MmaTile | None:
    """Return the largest tile of a GEMM by warp groups whose blocks fill the device.

    Returns None if there is none, or if x has so few rows that other tiles are faster.
    """
    if not features.warp_groups or key.n_x <= (64 if key.weights == 1 else 32):
        return None
    widths = ((32, 3), (16, 4), (8, 5)) if key.weights == 1 else ((16, 4), (8, 3))
    for x_tiles, stages in widths:
        tile = MmaTile(1, x_tiles, warps=8, split=1, stages=stages, by_groups=True)
        fills = key.weights * n_blocks(tile, key) >= FULL * features.compute_units
        if fills and tile.batch < 2 * key.n_x:
            return tile
    return None


def _gemm_tile(features: Features, key: TileKey) -> MmaTile:
    """Return the tile of a GEMM without warp groups and without splits among blocks."""
    row_tiles = 2 // key.weights
    if key.n_x <= 16:  # gate and up have different formats; gemm_few.cu multiplies all others
        return MmaTile(2, ceil_div(key.n_x, 8), warps=8, split=8, blocks=2)
    if key.n_x <= 32 and key.weights == 1 and slab_count(key) <= SHORT_SLABS:
        return MmaTile(2, 1, warps=8, split=4, blocks=2)
    if key.n_x <= 32:
        once = _gemm_32(features, key)
        return once or MmaTile(row_tiles, 4, warps=4, split=2, stages=2, blocks=3)
    if key.weights == 2:
        x_tiles, stages = (8, 3) if key.n_x <= 64 else (16, 2)
        return MmaTile(1, x_tiles, warps=4, split=1, stages=stages, blocks=2)
    if _is_short(features, key):
        x_tiles, split = (4, 8) if key.n_x <= 128 else (8, 4)
        return MmaTile(2, x_tiles, warps=8, split=split, stages=2)
    tile = MmaTile(2, 8, warps=4, split=2, stages=2, blocks=2)
    if key.n_x <= 128 and n_blocks(tile, key) < LARGE_GRID * features.compute_units:
        return tile
    if key.n_x <= 64:
        return MmaTile(2, 8, warps=4, split=1, stages=3, blocks=2)
    return MmaTile(2, 8, warps=8, split=1, stages=3)


def _is_short(features: Features, key: TileKey) -> bool:
    """Return whether tiles of 32 weight rows leave more than half of the device idle."""
    return 2 * ceil_div(key.rows, BLOCK_ROWS) < features.compute_units


def _gemm_32(features: Features, key: TileKey) -> MmaTile | None:
    """Return the tile for up to 32 rows of x whose blocks fill the device once, None if none does.

    Warps that share the columns of a tile convert the rows of x themselves.
    """
    if key.weights == 2:
        return None
    if _is_short(features, key):
        return MmaTile(2, 2, warps=8, split=8)
    for split in (4, 8):
        tile = MmaTile(2, 4, warps=8, split=split)
        if FULL <= n_blocks(tile, key) / features.compute_units < LARGE_GRID:
            return tile
    return None


def refusal(features: Features, key: TileKey, tile: MmaTile) -> str:
    """Return why gemm_mma.cu cannot run a tile for a linear or linear_glu."""
    if not is_power_of_two(tile.x_tiles):
        return "a size is not a power of two"
    if tile.spread > 1 or tile.passes > 1:
        return "only slots of experts are spread or multiplied in several passes"
    if tile.stages > MAX_STAGES:
        return "too many stages"
    if tile.splits > min(MAX_SPLITS, slab_count(key)):
        return "too many splits"
    loop = _group_refusal(features, key, tile) if tile.by_groups else loop_refusal(tile)
    return loop or shared_refusal(features, key, tile, tile.shared_bytes)


def _group_refusal(features: Features, key: TileKey, tile: MmaTile) -> str:
    if not features.warp_groups:
        return "no warp groups"
    if tile.warps != GROUP_WARPS or (tile.row_tiles, tile.split, tile.splits) != (1, 1, 1):
        return "it needs two warp groups, without a split"
    if tile.x_tiles not in (8, 16, 32) or 4 * key.weights * tile.x_tiles > 128:
        return "a warp group cannot multiply this number of rows"
    return "" if tile.stages > 1 and tile.blocks == tile.deep == 1 else "it needs stages"


def seeds(features: Features, key: TileKey) -> Iterable[MmaTile]:
    """Yield tiles for the rows of x: direct, in stages, and by warp groups."""
    x_tiles, row_tiles = max(1, min(key.rounded.n_x // 8, 16)), 2 // key.weights
    for warps, split in ((4, 1), (8, 1), (8, 4)):
        if x_tiles <= 2:
            yield MmaTile(row_tiles, x_tiles, warps, split, blocks=2)
            yield MmaTile(1, x_tiles, warps, split, blocks=2)
        yield MmaTile(row_tiles, max(2, min(x_tiles, 8)), warps, split, stages=2, blocks=2)
    for tiles, stages in ((32, 3), (16, 4), (8, 4)):
        if 4 * tiles <= key.n_x:
            yield MmaTile(1, tiles, warps=8, split=1, stages=stages, by_groups=True)
