"""Tile sizes of CUDA's own kernels, by device and shape.

In a GEMM on tensor cores (kernels/gemm_mma.cu) a warp takes 16 `row_tiles` weight rows of each
matrix by all 8 `x_tiles` rows of x of the tile. With few rows of x, many warps split the columns of
a row, so that enough reads of weights are in flight. With many, each warp has weight rows of its
own, and decodes them once for all rows of x.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from zinc.gpu.features import Features
from zinc.gpu.lower.operands import ceil_div
from zinc.gpu.tiles import GemvTile

# GEMV of one row. Enough warps read at once, and each lane has a few units in flight, so that reads
# saturate memory; and two blocks fit a compute unit, so that a kernel starts while another ends.
WARPS_PER_UNIT = 14
WARPS = 8  # of a block
ROWS = 4  # of a warp
WARPS_OF_BATCH = 16  # of a compute unit if x has several rows, for registers
MAX_SPLIT = 8
IN_FLIGHT = 8  # units of weights of a lane; half as many if it multiplies two matrices
LANE_UNITS = 2  # units of a row that a lane reads; longer rows are split among warps
# Blocks that normalise x are large and few, and multiply several tiles, so that x is normalised
# seldom. A gated product leaves room for blocks of the next kernel.
NORM_WARPS, NORM_BLOCKS = 16, 2  # of a block; of a compute unit
BLOCK_ROWS = 32  # rows of weights that make a block of 8-bit numbers

# GEMM on tensor cores.
SLAB_ROW_BYTES = 256  # of a row in a slab of 128 columns (half_rows.cuh)
DIRECT_ROWS = 16  # most rows of x that warps convert themselves
MANY_ROWS = 8192  # weight rows that fill the device with any tile
SLAB = 128  # columns
MAX_SPLITS = 8
MAX_PASSES = 8
WAVES = 3  # of blocks of experts, so that the last wave matters little
OTHER_SHARED_BYTES = 20 << 10  # of a block, besides slabs of x
# With fewer blocks for each compute unit, tiles of half as many rows of x or a split are faster.
GROUP_BLOCKS, FEW_GROUP_BLOCKS = 1.0, 0.4


def gemv(
    features: Features,
    n_rows: int,
    units: int,
    weights: int = 1,
    stores_blocks: bool = False,
    normalises: bool = False,
    batch: int = 1,
) -> GemvTile:
    """Return the tile for `batch` rows of x and `n_rows` rows of `units` units.

    weights: matrices that are multiplied together, 2 for a gated product. stores_blocks: the output
    are blocks of 8-bit numbers. normalises: each block normalises x.
    """
    tile = _gemv(features, n_rows, units, weights, stores_blocks, normalises)
    return tile if batch == 1 else replace(tile, batch=batch, deep=1)


def _gemv(
    features: Features,
    n_rows: int,
    units: int,
    weights: int,
    stores_blocks: bool,
    normalises: bool,
) -> GemvTile:
    if normalises and n_rows >= NORM_WARPS * features.compute_units // 2:
        rows = 2 if n_rows >= 2 * NORM_WARPS * features.compute_units or stores_blocks else 1
        deep = 2 if weights == 2 or rows == 1 else 1
        return GemvTile(NORM_WARPS, 1, rows, 1, min(deep, max(1, units // features.subgroup)))
    warps = WARPS_PER_UNIT * features.compute_units
    longest = max(1, units // features.subgroup)  # splits that leave each lane a unit
    rows = ROWS if not stores_blocks else ROWS // weights
    split = 1
    while 2 * split <= min(longest, MAX_SPLIT) and (
        n_rows * split < warps * rows or (weights == 1 and longest > LANE_UNITS * split)
    ):
        split *= 2
    while rows > 1 and n_rows * split < warps * rows:
        rows //= 2
    deep = max(1, min(IN_FLIGHT // (rows * weights**2), units // (split * features.subgroup)))
    if not stores_blocks:
        return GemvTile(max(WARPS, split), split, rows, 1, deep)
    rows = max(rows, split)  # a block has at most 32 warps
    return GemvTile(BLOCK_ROWS * split // rows, split, rows, 1, deep)


def gemv_blocks(features: Features, n_tiles: int, weights: int, normalises: bool) -> int:
    """Return the blocks that share `n_tiles` tiles, none of which has many more than another.

    weights, normalises: as for `gemv`.
    """
    if not normalises:
        return n_tiles
    each = ceil_div(n_tiles, features.compute_units * (NORM_BLOCKS // weights))
    return ceil_div(n_tiles, each)


@dataclass(frozen=True, slots=True)
class MmaTile:
    """A tile of a tensor core GEMM.

    row_tiles, x_tiles: tiles of 16 weight rows and of 8 rows of x, of each warp. warps: of a block.
    split: warps that share the columns of the same weight rows. stages: slabs of x in shared memory
    for each of them; 0 if warps convert rows themselves. deep: slabs of weights in flight.
    blocks: of an SM at once. splits: blocks that share the columns of a tile. spread: blocks that
    share the slots of an expert. by_groups: warps multiply in groups (wgmma), and another group
    copies the slabs. passes: tiles of weight rows that a block of an expert multiplies.
    """

    row_tiles: int
    x_tiles: int
    warps: int
    split: int
    stages: int = 0
    deep: int = 1
    blocks: int = 1
    splits: int = 1
    spread: int = 1
    by_groups: bool = False
    passes: int = 1

    @property
    def rows(self) -> int:
        """Weight rows of a block."""
        return 16 * self.row_tiles * self.warps // self.split

    @property
    def batch(self) -> int:
        """Rows of x of a block."""
        return 8 * self.x_tiles

    @property
    def shared_bytes(self) -> int:
        return self.stages * self.split * self.batch * SLAB_ROW_BYTES

    @property
    def defines(self) -> tuple[tuple[str, int], ...]:
        return (
            ("ROW_TILES", self.row_tiles),
            ("X_TILES", self.x_tiles),
            ("WARPS", self.warps),
            ("KSPLIT", self.split),
            ("STAGES", self.stages),
            ("DEEP", self.deep),
            ("MIN_BLOCKS", self.blocks),
            ("SPLITS", self.splits),
            ("GROUPS", int(self.by_groups)),
            ("PASSES", self.passes),
        )


@dataclass(frozen=True, slots=True)
class GemmShape:
    """Sizes of a GEMM: weight rows and columns, rows of x, and weights multiplied at once."""

    rows: int
    cols: int
    n_x: int
    weights: int = 1


def gemm(features: Features, shape: GemmShape, stores_blocks: bool) -> MmaTile:
    """Return the tile of a GEMM.

    stores_blocks: results become 8-bit blocks, so a tile has whole blocks of weight rows.
    """
    by_groups = _group_tile(features, shape)
    if by_groups is not None:
        return by_groups
    tile = _gemm_tile(shape, shape.rows >= MANY_ROWS or stores_blocks)
    assert not stores_blocks or tile.rows % BLOCK_ROWS == 0
    return _with_splits(features, _within_memory(features, tile), shape)


def _group_tile(features: Features, shape: GemmShape) -> MmaTile | None:
    """Return the tile of a GEMM by warp groups, None if the shape does not fill the device."""
    if not features.warp_groups or shape.n_x <= 64:
        return None
    wide = MmaTile(1, 32, warps=8, split=1, stages=3, by_groups=True)
    narrow = MmaTile(1, 16, warps=8, split=1, stages=4, by_groups=True)
    enough = GROUP_BLOCKS * features.compute_units
    if shape.weights == 1 and _blocks(wide, shape) >= enough:
        return wide
    return narrow if _blocks(narrow, shape) >= enough * FEW_GROUP_BLOCKS else None


def _blocks(tile: MmaTile, shape: GemmShape) -> int:
    return ceil_div(shape.rows, tile.rows) * ceil_div(shape.n_x, tile.batch)


def _gemm_tile(shape: GemmShape, is_tall: bool) -> MmaTile:
    """Return the tile for the shape. is_tall: a block may take many weight rows."""
    row_tiles = 2 // shape.weights
    if shape.n_x <= 8:
        if is_tall:
            return MmaTile(row_tiles, 1, warps=8, split=8 // shape.weights, blocks=2)
        return MmaTile(1, 1, warps=8, split=8, blocks=3 if shape.weights == 1 else 2)
    if shape.n_x <= DIRECT_ROWS:
        if is_tall:
            return MmaTile(row_tiles, 2, warps=4, split=4 // shape.weights, blocks=3)
        return MmaTile(1, 2, warps=8, split=8, blocks=2)
    if shape.n_x <= 32:
        return MmaTile(row_tiles, 4, warps=4, split=2, stages=2, blocks=3)
    if shape.n_x <= 64:
        return MmaTile(row_tiles, 8, warps=4, split=1, stages=3, blocks=2)
    if shape.weights == 2:
        return MmaTile(1, 16, warps=4, split=1, stages=2, blocks=2)
    return MmaTile(2, 8, warps=8, split=1, stages=3)


def _with_splits(features: Features, tile: MmaTile, shape: GemmShape) -> MmaTile:
    """Return the tile with its columns split among blocks if its grid leaves the device idle."""
    wanted = tile.blocks * features.compute_units // _blocks(tile, shape)
    longest = ceil_div(shape.cols, SLAB) // (2 * tile.split)  # each warp has two slabs
    splits = max(1, min(wanted, longest, MAX_SPLITS))
    return replace(tile, splits=1 << (splits.bit_length() - 1))


def _within_memory(features: Features, tile: MmaTile) -> MmaTile:
    """Return the tile with fewer stages, or less split, if its slabs exceed shared memory."""
    while tile.shared_bytes + OTHER_SHARED_BYTES > features.most_shared_bytes:
        if tile.stages > 2:
            tile = replace(tile, stages=tile.stages - 1)
        else:
            assert tile.split > 1, f"{tile} does not fit"
            tile = replace(tile, split=tile.split // 2)
    return tile


def float_gemm(features: Features, shape: GemmShape) -> MmaTile:
    """Return the tile of a GEMM with float weights and float32 rows (kernels/gemm_floats.cu)."""
    warps = next((n for n in (1, 2) if 16 * n >= shape.rows), 4)
    x_tiles = next((n for n in (2, 4) if 8 * n >= shape.n_x), 8)
    tile = MmaTile(1, x_tiles, warps, split=1, stages=4, blocks=2)
    return _with_splits(features, tile, shape)


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """Sizes of products with experts.

    rows, cols: of the weights of each of `count` experts. n_slots: slots of an expert on average.
    weights: matrices of an expert that are multiplied at once.
    """

    count: int
    rows: int
    cols: int
    n_slots: int
    weights: int = 1


def experts(features: Features, shape: ExpertShape) -> MmaTile:
    """Return the tile of products with experts."""
    row_tiles = 2 // shape.weights
    if shape.n_slots <= 4:
        return MmaTile(row_tiles, 1, warps=8, split=4, blocks=2)
    if shape.n_slots <= 8:
        return MmaTile(row_tiles, 2, warps=4, split=2, blocks=3)
    if shape.n_slots <= 16:  # limited by reads of weights
        tile = MmaTile(1, 4, warps=4, split=1, stages=3, deep=2 // shape.weights, blocks=4)
    elif shape.n_slots <= 32:
        tile = MmaTile(row_tiles, 8, warps=4, split=1, stages=3, blocks=2)
    else:
        spread = 1 if shape.n_slots <= 96 else 2
        tile = MmaTile(row_tiles, 12, warps=4, split=1, stages=3, blocks=2, spread=spread)
    return _with_passes(features, _within_memory(features, tile), shape)


def _with_passes(features: Features, tile: MmaTile, shape: ExpertShape) -> MmaTile:
    """Return the tile with several passes over slots that are copied once, if they are short."""
    slabs = ceil_div(shape.cols, SLAB)
    resident = replace(tile, stages=max(2, slabs))
    if resident.shared_bytes + OTHER_SHARED_BYTES > features.most_shared_bytes // tile.blocks:
        return tile
    blocks = ceil_div(shape.rows, tile.rows) * shape.count * tile.spread
    passes = max(1, min(MAX_PASSES, blocks // (WAVES * tile.blocks * features.compute_units)))
    return replace(resident, passes=1 << (passes.bit_length() - 1))
