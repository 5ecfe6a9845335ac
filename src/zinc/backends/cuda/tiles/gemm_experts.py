"""Tiles of products with experts (kernels/gemm_experts.cu; gemm_mma.cu without stages)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from zinc.backends.cuda.tiles.common import OTHER_SHARED_BYTES, WARP
from zinc.backends.cuda.tiles.mma_tile import (
    MAX_STAGES,
    MmaTile,
    loop_refusal,
    shared_refusal,
    slab_count,
    within_memory,
)
from zinc.core.rounding import ceil_div
from zinc.gpu.features import Features
from zinc.gpu.tiling import is_power_of_two
from zinc.gpu.tuned import TileKey

WAVES = 3  # least waves of blocks, to limit the share of the partly filled last wave
# Limits of the kernel. Formulas choose at most MAX_FORMULA_PASSES.
MAX_DEEP, MAX_PASSES = 4, 16
MAX_FORMULA_PASSES = 8


def choose_tile(features: Features, key: TileKey) -> MmaTile:
    """Return the tile of products with experts."""
    return features.tuned.choose(key, lambda: _formula(features, key))


def _formula(features: Features, key: TileKey) -> MmaTile:
    row_tiles, n_slots = 2 // key.weights, key.n_x
    if n_slots <= 4:
        return MmaTile(row_tiles, 1, warps=8, split=4 // key.weights, blocks=2)
    if n_slots <= 8:
        return MmaTile(row_tiles, 2, warps=4, split=2, blocks=3)
    if n_slots <= 16:  # limited by reads of weights
        tile = MmaTile(1, 4, warps=4, split=1, stages=3, deep=2 // key.weights, blocks=4)
    elif n_slots <= 32:
        tile = MmaTile(row_tiles, 8, warps=4, split=1, stages=3, blocks=2)
    else:
        spread = 1 if n_slots <= 96 else 2
        tile = MmaTile(row_tiles, 12, warps=4, split=1, stages=3, blocks=2, spread=spread)
    return _with_passes(features, within_memory(features, tile), key)


def _with_passes(features: Features, tile: MmaTile, key: TileKey) -> MmaTile:
    """Return the tile with several passes over slots kept in shared memory, if those fit there."""
    resident = replace(tile, stages=max(2, slab_count(key)))
    if resident.shared_bytes + OTHER_SHARED_BYTES > features.most_shared_bytes // tile.blocks:
        return tile
    blocks = ceil_div(key.rows, tile.rows) * key.experts * tile.spread
    passes = max(
        1, min(MAX_FORMULA_PASSES, blocks // (WAVES * tile.blocks * features.compute_units))
    )
    return replace(resident, passes=1 << (passes.bit_length() - 1))


def refusal(features: Features, key: TileKey, tile: MmaTile) -> str:
    """Return why gemm_experts.cu, or gemm_mma.cu without stages, cannot run a tile."""
    if tile.by_groups or tile.splits > 1:
        return "products with experts have neither warp groups nor splits"
    if not is_power_of_two(tile.passes) or tile.passes > MAX_PASSES:
        return "too many passes, or no power of two"
    if tile.passes > 1 and tile.stages < slab_count(key):
        return "several passes need a stage for each slab"
    loop = _slots_refusal(key, tile) if tile.stages else loop_refusal(tile)
    return loop or shared_refusal(features, key, tile, tile.shared_bytes)


def _slots_refusal(key: TileKey, tile: MmaTile) -> str:
    """Return why gemm_experts.cu cannot run a tile."""
    if not 2 <= tile.stages <= max(MAX_STAGES, slab_count(key)):
        return "the loop needs two stages or more, and at most one for each slab"
    if tile.split > 1 or tile.batch > tile.warps * WARP:
        return "each warp multiplies all columns, and each row of x has a thread"
    if tile.x_tiles != 2 and (tile.x_tiles < 4 or tile.x_tiles % 4):
        return "the tiles of x must be 2 or a multiple of 4"
    return "" if 1 <= tile.deep <= MAX_DEEP else "too many registers"


def seeds(features: Features, key: TileKey) -> Iterable[MmaTile]:
    """Yield tiles for few slots, tiles with few stages, and tiles with all slabs and passes."""
    row_tiles, slabs = 2 // key.weights, slab_count(key)
    if key.n_x <= 16:
        yield MmaTile(row_tiles, 1, warps=8, split=4, blocks=2)
        yield MmaTile(row_tiles, 2, warps=4, split=2, blocks=3)
    for x_tiles in (2, 4, 8, 12):
        yield MmaTile(1, x_tiles, warps=4, split=1, stages=3, deep=2 // key.weights, blocks=2)
        yield MmaTile(row_tiles, x_tiles, warps=4, split=1, stages=3, blocks=2)
        yield MmaTile(1, x_tiles, 4, split=1, stages=max(2, slabs), blocks=2, passes=4)
