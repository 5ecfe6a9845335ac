"""Tiles of the GEMV (kernels/gemv.cu)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field, replace

from zinc.backends.cuda.tiles.common import BLOCK_ROWS, MANY_WARPS, WARPS
from zinc.core.dataclass import dataclass
from zinc.core.rounding import ceil_div
from zinc.gpu.features import MAX_THREADS, Features
from zinc.gpu.tiles import GemvTile, units
from zinc.gpu.tiling import TABLE_BYTES, is_power_of_two
from zinc.gpu.tuned import TileKey

# One row of x. Enough warps with a few units in flight per lane saturate the read bandwidth. Two
# blocks fit on a compute unit, so that a kernel starts while the one before it ends.
WARPS_PER_UNIT = 14
ROWS = 4  # weight rows per warp
MAX_SPLIT = 8
IN_FLIGHT = 8  # units of weights per lane; half as many for two matrices
LANE_UNITS = 2  # units of a row that a lane reads; longer rows are split among warps
# Several rows of x. Registers limit the warps of a compute unit. Blocks are small, because a small
# block starts as soon as another one ends.
WARPS_OF_BATCH, SMALL_WARPS = 16, 4  # warps per compute unit; warps per block
LONG_ROW = 8  # units of a row for each lane of a warp, from which two warps share it
# With a fused norm, each block repeats the norm, so there are few, large blocks, which share all
# tiles.
MAX_TILES = 40  # per block; their sums fit into shared memory
HUGE_ROWS = 1 << 15  # weight rows that give the device many waves of blocks

MAX_LANE_UNITS = 32  # per lane: units of weights in flight, or sums


@dataclass(frozen=True, slots=True)
class CudaGemvTile(GemvTile):
    """A tile of gemv.cu.

    blocks: blocks per SM that share all tiles; 0 if each tile has a block of its own.
    """

    blocks: int = field(default=0, metadata={"steps": (0, 1, 2, 3, 4)})

    def grid(self, features: Features, n_tiles: int) -> int:
        """Return the number of blocks, each with about the same share of `n_tiles` tiles."""
        if not self.blocks:
            return n_tiles
        each = min(MAX_TILES, ceil_div(n_tiles, features.compute_units * self.blocks))
        return ceil_div(n_tiles, each)


def choose_tile(features: Features, key: TileKey) -> CudaGemvTile:
    """Return the tile of a GEMV."""
    return features.tuned.choose(key, lambda: _formula(features, key))


def _formula(features: Features, key: TileKey) -> CudaGemvTile:
    batch = key.rounded.n_x
    if key.normalises:
        return _norm_tile(features, key) or replace(_row_tile(features, key), blocks=2)
    if batch == 1:
        return _row_tile(features, key)
    if key.weights == batch == 2 and key.rows >= MANY_WARPS * features.compute_units:
        return CudaGemvTile(2 * MANY_WARPS, 1, 1, batch, blocks=1)
    if key.stores_blocks:
        tile = replace(_row_tile(features, key), batch=batch, deep=1)
        return replace(tile, blocks=WARPS_OF_BATCH // tile.waves)
    return _batch_tile(features, key, batch)


def _batch_tile(features: Features, key: TileKey, batch: int) -> CudaGemvTile:
    """Return the tile for `batch` rows of x.

    A product that fits one wave of warps with two rows each has no split-K. Others split the
    columns; with more rows than a wave, the blocks of a compute unit share all tiles.
    """
    longest = max(1, units(key) // features.subgroup)  # most splits with a unit per lane
    wave = WARPS_OF_BATCH * features.compute_units
    if key.rows >= HUGE_ROWS:
        return CudaGemvTile(SMALL_WARPS, min(2, longest), ROWS, batch, blocks=4)
    if wave < key.rows <= 2 * wave:
        if batch == 2 and longest >= MAX_SPLIT:
            return CudaGemvTile(SMALL_WARPS, 2, ROWS, batch, blocks=4)
        return CudaGemvTile(SMALL_WARPS, 1, 2, batch)
    split = min(SMALL_WARPS, 1 << (longest.bit_length() - 1))
    return CudaGemvTile(SMALL_WARPS, split, ROWS, batch, blocks=4 if key.rows > wave else 0)


def _norm_tile(features: Features, key: TileKey) -> CudaGemvTile | None:
    """Return the tile of blocks that normalise x, None if the product does not fill the device."""
    fill = MANY_WARPS * features.compute_units  # weight rows
    longest = max(1, units(key) // features.subgroup)  # most splits with a unit per lane
    if key.weights == 2:
        return CudaGemvTile(2 * MANY_WARPS, 1, 1, 1, blocks=1) if key.rows >= fill // 2 else None
    if key.rows <= 2 * fill:  # each block has one tile, of 16 or 32 rows
        split = min(4 if key.rows <= fill else 2, 1 << (longest.bit_length() - 1))
        return CudaGemvTile(MANY_WARPS, split, split if key.rows <= fill else 2 * split, 1)
    if key.rows >= HUGE_ROWS or longest == 1:
        return CudaGemvTile(MANY_WARPS, 1, 2, 1, blocks=2)
    if longest < 4:
        return CudaGemvTile(MANY_WARPS, 2, 2, 1, blocks=2)
    return CudaGemvTile(2 * MANY_WARPS, 1, 2, 1, blocks=1)


def _row_tile(features: Features, key: TileKey) -> CudaGemvTile:
    """Return the tile for one row of x."""
    weights, n_units = key.weights, units(key)
    warps = WARPS_PER_UNIT * features.compute_units
    longest = max(1, n_units // features.subgroup)  # most splits with a unit per lane
    if weights == 1 and longest >= LONG_ROW and key.rows >= warps:
        return CudaGemvTile(MANY_WARPS, 2, 2, 1)
    fill = BLOCK_ROWS * features.compute_units  # a block of 32 rows for each compute unit
    if weights == 1 and longest >= 4 and fill // 2 < key.rows <= fill:
        return CudaGemvTile(MANY_WARPS, 2, ROWS, 1, deep=2)
    rows = ROWS if not key.stores_blocks else ROWS // weights
    split = 1
    while 2 * split <= min(longest, MAX_SPLIT) and (
        key.rows * split < warps * rows or (weights == 1 and longest > LANE_UNITS * split)
    ):
        split *= 2
    while rows > 1 and key.rows * split < warps * rows:
        rows //= 2
    deep = max(1, min(IN_FLIGHT // (rows * weights**2), n_units // (split * features.subgroup)))
    if not key.stores_blocks:
        return CudaGemvTile(max(WARPS, split), split, rows, 1, deep)
    rows = max(rows, split)  # a block has at most 32 warps
    return CudaGemvTile(BLOCK_ROWS * split // rows, split, rows, 1, deep)


def refusal(features: Features, key: TileKey, tile: CudaGemvTile) -> str:
    """Return why gemv.cu cannot run a tile."""
    if not all(map(is_power_of_two, (tile.waves, tile.split, tile.rows))):
        return "a size is not a power of two"
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


def seeds(features: Features, key: TileKey) -> Iterable[CudaGemvTile]:
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
