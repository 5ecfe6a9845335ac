"""Tiles of the GEMM with float weights and float32 rows (kernels/gemm_floats.cu)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from zinc.backends.cuda.tiles.mma_tile import (
    MAX_SPLITS,
    MAX_STAGES,
    MmaTile,
    shared_refusal,
    with_splits,
)
from zinc.core.rounding import ceil_div
from zinc.gpu.features import Features
from zinc.gpu.packing import FLOATS
from zinc.gpu.tiling import is_power_of_two
from zinc.gpu.tuned import TileKey
from zinc.quant.blocks import GGMLType

FLOAT_SLAB = 32  # columns


def choose_tile(features: Features, key: TileKey) -> MmaTile:
    """Return the tile of a GEMM with float weights and float32 rows."""
    return features.tuned.choose(key, lambda: _formula(features, key))


def _formula(features: Features, key: TileKey) -> MmaTile:
    warps = next((n for n in (1, 2) if 16 * n >= key.rows), 4)
    x_tiles = next((n for n in (2, 4) if 8 * n >= key.n_x), 8)
    tile = MmaTile(1, x_tiles, warps, split=1, stages=4, blocks=2)
    return with_splits(features, tile, key)


def shared_bytes(tile: MmaTile, type: GGMLType) -> int:
    """Return the bytes of all stages of a GEMM with weights of `type`, a float type.

    Rows have eight columns more than a slab.
    """
    weight_bytes = 16 // FLOATS[type]
    return tile.stages * (FLOAT_SLAB + 8) * (tile.rows * weight_bytes + tile.batch * 4)


def refusal(features: Features, key: TileKey, tile: MmaTile) -> str:
    """Return why gemm_floats.cu cannot run a tile."""
    if not is_power_of_two(tile.x_tiles):
        return "a size is not a power of two"
    if replace(tile, split=1, deep=1, spread=1, passes=1, by_groups=False) != tile:
        return "the kernel has no such parameter"
    if not 2 <= tile.stages <= MAX_STAGES:
        return "the loop needs two stages or more"
    if tile.splits > min(MAX_SPLITS, ceil_div(key.cols, FLOAT_SLAB)):
        return "too many splits"
    return shared_refusal(features, key, tile, shared_bytes(tile, key.type), sums=2)


def seeds(features: Features, key: TileKey) -> Iterable[MmaTile]:
    """Yield tiles of small blocks whose columns are split, and of large blocks."""
    for x_tiles, warps, splits in ((2, 2, 8), (4, 2, 4), (4, 4, 1), (8, 4, 1)):
        yield MmaTile(1, x_tiles, warps, split=1, stages=3, blocks=2, splits=splits)
