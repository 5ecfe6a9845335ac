"""Tile parameters of CUDA's own kernels: which tiles they can run, and where a search starts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product

from zinc.backends.cuda.tiles import (
    BLOCK_ROWS,
    FEW_TILE_ROWS,
    FLOAT_SLAB,
    GROUP_BYTES,
    GROUP_COLS,
    MANY_WARPS,
    CudaGemvTile,
    FewSlotTile,
    FewTile,
    MmaTile,
    StreamTile,
    VectorSlotTile,
    float_shared_bytes,
    slab_count,
    takes_bytes,
)
from zinc.gpu.features import MAX_THREADS, Features
from zinc.gpu.lower.operands import ceil_div
from zinc.gpu.tiles import units
from zinc.gpu.tiling import TABLE_BYTES, TILINGS, Tiling, is_power_of_two
from zinc.gpu.tuned import TileKey

MAX_LANE_UNITS = 32  # per lane: units of weights in flight, or sums
WARP = 32
SM_REGISTERS, LANE_REGISTERS = 65536, 255
MAX_SPLITS, MAX_STAGES, MAX_DEEP, MAX_BLOCKS, MAX_PASSES = 16, 6, 4, 4, 16
SM_THREADS = 2048
MAX_VECTOR_SLOTS = 4  # of an expert that gemv_slots.cu multiplies at once
GROUP_WARPS = 8  # of both multiplying groups (group_rows.cuh states their registers)
GROUP_THREADS = 128  # of a warp group, such as the one that copies slabs


def gemv_refusal(features: Features, key: TileKey, tile: CudaGemvTile) -> str:
    """Return why gemv.cu cannot run a tile."""
    if not all(map(is_power_of_two, (tile.waves, tile.split, tile.rows))):
        return "a size is no power of two"
    if tile.batch != key.rounded.n_x:
        return "it multiplies all rows of x at once"
    if tile.waves * features.subgroup > MAX_THREADS:
        return f"more than {MAX_THREADS} threads"
    if tile.split > tile.waves:
        return "more splits than warps"
    if tile.rows > features.subgroup * tile.split:
        return "more rows than threads"
    if not 1 <= tile.deep <= ceil_div(units(key), tile.split * features.subgroup):
        return "more units in flight than a lane has"
    if tile.rows * key.weights * max(tile.deep, tile.batch) > MAX_LANE_UNITS:
        return "too many registers"
    if key.stores_blocks and tile.tile % BLOCK_ROWS:
        return f"a block stores blocks of {BLOCK_ROWS} rows"
    n_tiles = ceil_div(key.rows, tile.tile) + 3  # at most, of up to four matrices
    blocks = tile.grid(features, n_tiles)
    if blocks > features.max_groups:
        return "too many blocks"
    row = key.cols * 5 // 4 if key.normalises else 0
    sums = ceil_div(n_tiles, blocks) * tile.batch * key.weights * tile.split * tile.tile
    shared = 4 * sums + row + TABLE_BYTES
    return "" if shared <= features.shared_bytes else "too much shared memory"


def gemv_seeds(features: Features, key: TileKey) -> Iterable[CudaGemvTile]:
    """Yield tiles without split-K, and tiles whose rows several warps split."""
    batch = key.rounded.n_x
    for waves, split, rows, deep in ((8, 1, 4, 2), (8, 4, 4, 2), (8, 8, 2, 2), (4, 1, 1, 4)):
        most = ceil_div(units(key), split * features.subgroup)
        yield CudaGemvTile(waves, split, rows, batch, min(deep, most))
    if key.stores_blocks:
        yield CudaGemvTile(BLOCK_ROWS // 2, 1, 2, batch, 2)
    if key.normalises:
        yield CudaGemvTile(16, 1, 2, batch, 2, blocks=2)
        yield CudaGemvTile(32, 1, 1, batch, 1, blocks=1)


def gemm_refusal(features: Features, key: TileKey, tile: MmaTile) -> str:
    """Return why gemm_mma.cu cannot run a tile for a linear or linear_glu."""
    if not is_power_of_two(tile.x_tiles):
        return "a size is no power of two"
    if tile.spread > 1 or tile.passes > 1:
        return "only slots of experts are spread or multiplied in several passes"
    if tile.stages > MAX_STAGES:
        return "too many stages"
    if tile.splits > min(MAX_SPLITS, slab_count(key)):
        return "too many splits"
    loop = _group_refusal(features, key, tile) if tile.by_groups else _warp_refusal(tile)
    return loop or _refusal(features, key, tile, tile.shared_bytes)


def expert_refusal(features: Features, key: TileKey, tile: MmaTile) -> str:
    """Return why gemm_experts.cu, or gemm_mma.cu without stages, cannot run a tile."""
    if tile.by_groups or tile.splits > 1:
        return "products with experts have neither warp groups nor splits"
    if not is_power_of_two(tile.passes) or tile.passes > MAX_PASSES:
        return "too many passes, or no power of two"
    if tile.passes > 1 and tile.stages < slab_count(key):
        return "several passes need a stage for each slab"
    loop = _slots_refusal(key, tile) if tile.stages else _warp_refusal(tile)
    return loop or _refusal(features, key, tile, tile.shared_bytes)


def float_refusal(features: Features, key: TileKey, tile: MmaTile) -> str:
    """Return why gemm_floats.cu cannot run a tile."""
    if not is_power_of_two(tile.x_tiles):
        return "a size is no power of two"
    if replace(tile, split=1, deep=1, spread=1, passes=1, by_groups=False) != tile:
        return "the kernel has no such parameter"
    if not 2 <= tile.stages <= MAX_STAGES:
        return "the loop needs two stages or more"
    if tile.splits > min(MAX_SPLITS, ceil_div(key.cols, FLOAT_SLAB)):
        return "too many splits"
    return _refusal(features, key, tile, float_shared_bytes(tile, key.type), sums=2)


def _refusal(
    features: Features, key: TileKey, tile: MmaTile, shared_bytes: int, sums: int = 1
) -> str:
    """Return why no tensor core GEMM can run a tile.

    shared_bytes: shared memory of the stages. sums: accumulators of a lane for each output.
    """
    sizes = (tile.row_tiles, tile.warps, tile.split, tile.splits, tile.spread)
    if not all(map(is_power_of_two, sizes)):
        return "a size is no power of two"
    threads = tile.warps * features.subgroup + GROUP_THREADS * tile.by_groups
    if threads > MAX_THREADS or tile.blocks * threads > SM_THREADS:
        return "too many threads"
    if not 1 <= tile.blocks <= MAX_BLOCKS:
        return "too many blocks of an SM"
    if tile.split > tile.warps:
        return "more splits than warps"
    if key.stores_blocks and tile.rows % BLOCK_ROWS:
        return f"a block stores blocks of {BLOCK_ROWS} rows"
    if not _sums_fit(key, tile, sums):
        return "too many registers"
    stored = 8 if tile.split > 1 else 8 * min(tile.x_tiles, 4)  # rows stored at once
    fixed = 4 * key.weights * tile.split * stored * (tile.rows + 4) + 8 * tile.batch + TABLE_BYTES
    if fixed > features.shared_bytes:
        return "too much static shared memory"
    fits = fixed + shared_bytes <= features.most_shared_bytes
    return "" if fits else "too much shared memory"


def _sums_fit(key: TileKey, tile: MmaTile, sums: int) -> bool:
    """Return whether accumulators take at most three quarters of a lane's registers."""
    used = 4 * sums * key.weights * tile.row_tiles * tile.x_tiles
    registers = min(LANE_REGISTERS, SM_REGISTERS // (tile.blocks * tile.warps * WARP))
    return used <= registers * 3 // 4


def _group_refusal(features: Features, key: TileKey, tile: MmaTile) -> str:
    if not features.warp_groups:
        return "no warp groups"
    if tile.warps != GROUP_WARPS or (tile.row_tiles, tile.split, tile.splits) != (1, 1, 1):
        return "it needs two warp groups, without a split"
    if tile.x_tiles not in (8, 16, 32) or 4 * key.weights * tile.x_tiles > 128:
        return "a warp group cannot multiply this number of rows"
    return "" if tile.stages > 1 and tile.blocks == tile.deep == 1 else "it needs stages"


def _warp_refusal(tile: MmaTile) -> str:
    if not tile.stages:
        few = is_power_of_two(tile.x_tiles) and tile.deep >= 1 and tile.x_tiles * tile.deep <= 8
        return "" if few else "too many registers"
    if tile.stages < 2:
        return "the loop needs two stages or more, or none"
    if tile.x_tiles < 2 or tile.deep != 1:
        return "a stage has pairs of tiles, and weights of one slab are in flight"
    return ""


def _slots_refusal(key: TileKey, tile: MmaTile) -> str:
    """Return why gemm_experts.cu cannot run a tile."""
    if not 2 <= tile.stages <= max(MAX_STAGES, slab_count(key)):
        return "the loop needs two stages or more, and at most one for each slab"
    if tile.split > 1 or tile.batch > tile.warps * WARP:
        return "each warp multiplies all columns, and each row of x has a thread"
    if tile.x_tiles != 2 and (tile.x_tiles < 4 or tile.x_tiles % 4):
        return "the tiles of x must be 2 or a multiple of 4"
    return "" if 1 <= tile.deep <= MAX_DEEP else "too many registers"


def gemm_seeds(features: Features, key: TileKey) -> Iterable[MmaTile]:
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


def expert_seeds(features: Features, key: TileKey) -> Iterable[MmaTile]:
    """Yield tiles for few slots, tiles with few stages, and tiles with all slabs and passes."""
    row_tiles, slabs = 2 // key.weights, slab_count(key)
    if key.n_x <= 16:
        yield MmaTile(row_tiles, 1, warps=8, split=4, blocks=2)
        yield MmaTile(row_tiles, 2, warps=4, split=2, blocks=3)
    for x_tiles in (2, 4, 8, 12):
        yield MmaTile(1, x_tiles, warps=4, split=1, stages=3, deep=2 // key.weights, blocks=2)
        yield MmaTile(row_tiles, x_tiles, warps=4, split=1, stages=3, blocks=2)
        yield MmaTile(1, x_tiles, 4, split=1, stages=max(2, slabs), blocks=2, passes=4)


def float_seeds(features: Features, key: TileKey) -> Iterable[MmaTile]:
    """Yield tiles of small blocks whose columns are split, and of large blocks."""
    for x_tiles, warps, splits in ((2, 2, 8), (4, 2, 4), (4, 4, 1), (8, 4, 1)):
        yield MmaTile(1, x_tiles, warps, split=1, stages=3, blocks=2, splits=splits)


def few_refusal(features: Features, key: TileKey, tile: FewTile) -> str:
    """Return why gemm_few.cu cannot run a tile."""
    if not 8 * tile.x_tiles >= key.n_x > 8 * (tile.x_tiles - 1):
        return "it multiplies all rows of x at once"
    if not 1 <= tile.warps <= MANY_WARPS:
        return "too many warps"
    if tile.takes_bytes and not takes_bytes(key):
        return "it does not multiply these rows of x as 8-bit integers"
    if tile.stages and key.type not in GROUP_BYTES:
        return "the format has no stages in shared memory"
    if tile.buffers_x and (tile.warps >= ceil_div(key.cols, GROUP_COLS) or key.cols % GROUP_COLS):
        return "warps do not take several whole groups of columns"
    pair = BLOCK_ROWS // FEW_TILE_ROWS
    fits = pair * tile.tile_bytes(key) <= tile.most_sums_bytes(features, key.type)
    return "" if fits else "too much shared memory"


def few_seeds(features: Features, key: TileKey) -> Iterable[FewTile]:
    """Yield tiles of many and of few warps."""
    x_tiles, as_bytes = ceil_div(key.n_x, 8), takes_bytes(key)
    for warps, stages in product((8, 12, 16), (0, 3)):
        yield FewTile(x_tiles, warps, stages, warps < key.cols // GROUP_COLS, as_bytes)


def few_slot_refusal(features: Features, key: TileKey, tile: FewSlotTile) -> str:
    """Return why gemm_slots.cu cannot run a tile."""
    if not 1 <= tile.x_tiles <= 2:
        return "too many registers"
    if tile.team > ceil_div(key.cols, GROUP_COLS):
        return "more warps than groups of columns"
    if tile.blocks * tile.warps > MANY_WARPS:
        return "too many warps"
    fits = tile.blocks * (tile.shared_bytes(key) + TABLE_BYTES)
    return "" if fits <= features.most_shared_bytes else "too much shared memory"


def few_slot_seeds(features: Features, key: TileKey) -> Iterable[FewSlotTile]:
    """Yield tiles of few and of many teams, in large and in small blocks."""
    groups = ceil_div(key.cols, GROUP_COLS)
    for blocks in (1, 2, 4):
        warps = MANY_WARPS // blocks
        for team in (min(groups, warps), min(groups, 2)):
            yield FewSlotTile(1, team, warps // team, blocks)


def vector_slot_refusal(features: Features, key: TileKey, tile: VectorSlotTile) -> str:
    """Return why gemv_slots.cu cannot run a tile."""
    if not all(map(is_power_of_two, (tile.batch, tile.warps, tile.units))):
        return "a size is no power of two"
    if tile.batch > MAX_VECTOR_SLOTS or tile.rows(key) * key.weights > 8:
        return "too many registers"
    if tile.blocks * tile.warps > 3 * MANY_WARPS // 2:
        return "too many warps"
    x = tile.batch * (key.cols + units(key) * 8)
    results = 2 * 4 * key.weights * tile.batch * tile.chunk(key)
    fits = x + results + TABLE_BYTES <= features.shared_bytes
    return "" if fits else "too much shared memory"


def vector_slot_seeds(features: Features, key: TileKey) -> Iterable[VectorSlotTile]:
    """Yield tiles with many and with few units in flight, and with small blocks."""
    for warps, blocks, n_units in ((8, 2, 8), (8, 2, 4), (8, 3, 4), (4, 4, 8)):
        yield VectorSlotTile(4, warps, n_units, blocks)


def stream_refusal(features: Features, key: TileKey, tile: StreamTile) -> str:
    """Return why gemm_stream.cu cannot run a tile."""
    if not features.warp_groups:
        return "no warp groups"
    if tile.x_tiles not in (4, 8) or tile.batch < key.n_x:
        return "it multiplies all rows of x at once"
    if min(tile.row_groups, tile.col_groups, tile.blocks) < 1 or tile.stages < 2:
        return "the loop needs a group and two stages or more"
    threads = GROUP_THREADS * tile.row_groups * tile.col_groups
    if threads > MAX_THREADS or tile.blocks * threads > SM_THREADS:
        return "too many threads"
    sums = 4 * key.weights * tile.x_tiles
    if sums > min(LANE_REGISTERS, SM_REGISTERS // (tile.blocks * threads)) // 2:
        return "too many registers"
    shared = tile.blocks * (tile.shared_bytes(key.weights) + TABLE_BYTES)
    return "" if shared <= features.most_shared_bytes else "too much shared memory"


def stream_seeds(features: Features, key: TileKey) -> Iterable[StreamTile]:
    """Yield tiles of few and of many weight rows."""
    x_tiles = 4 if key.n_x <= 32 else 8
    for row_groups, col_groups in ((1, 2), (1, 3), (2, 1), (2, 2), (3, 1)):
        yield StreamTile(x_tiles, row_groups, col_groups, stages=2)


CUDA_TILINGS = {
    **TILINGS,
    "gemv": Tiling(CudaGemvTile, gemv_refusal, gemv_seeds),
    "gemm_mma": Tiling(MmaTile, gemm_refusal, gemm_seeds),
    "gemm_few": Tiling(FewTile, few_refusal, few_seeds),
    "gemm_slots": Tiling(FewSlotTile, few_slot_refusal, few_slot_seeds),
    "gemv_slots": Tiling(VectorSlotTile, vector_slot_refusal, vector_slot_seeds),
    "gemm_stream": Tiling(StreamTile, stream_refusal, stream_seeds),
    "gemm_experts": Tiling(MmaTile, expert_refusal, expert_seeds),
    "gemm_floats": Tiling(MmaTile, float_refusal, float_seeds),
}
