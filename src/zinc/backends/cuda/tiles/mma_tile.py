"""Tiles of the GEMMs on tensor cores: gemm_mma, gemm_experts and gemm_floats.

A warp multiplies 16 * `row_tiles` weight rows of each matrix by all 8 * `x_tiles` rows of x of the
tile. With few rows of x, many warps split the columns of a weight row (split-K), so that enough
reads of weights are in flight. With many rows of x, each warp has its own weight rows and decodes
them once for all rows of x.
"""

from __future__ import annotations

from dataclasses import field, replace

from zinc.backends.cuda.tiles.common import (
    BLOCK_ROWS,
    GROUP_THREADS,
    LANE_REGISTERS,
    OTHER_SHARED_BYTES,
    SLAB,
    SLAB_ROW_BYTES,
    SM_REGISTERS,
    SM_THREADS,
    WARP,
)
from zinc.core.dataclass import dataclass
from zinc.core.rounding import ceil_div
from zinc.gpu.features import MAX_THREADS, Features
from zinc.gpu.tiling import TABLE_BYTES, is_power_of_two
from zinc.gpu.tuned import TileKey

# Limits of the kernels. Formulas split a tile among at most MAX_FORMULA_SPLITS blocks.
MAX_SPLITS, MAX_STAGES, MAX_BLOCKS = 16, 6, 4
MAX_FORMULA_SPLITS = 8


@dataclass(frozen=True, slots=True)
class MmaTile:
    """A tile of a tensor core GEMM.

    row_tiles, x_tiles: tiles of 16 weight rows, and of 8 rows of x, per warp. warps: warps per
    block. split: warps of a block that split the columns (split-K). stages: slabs of x in shared
    memory per split; 0 if each warp converts its rows of x itself. deep: slabs of weights in flight
    per warp. blocks: resident blocks per SM. splits: blocks that split the columns of a tile.
    spread: blocks that share the slots of an expert. by_groups: warp groups multiply (wgmma), and
    one more group copies the slabs. passes: tiles of weight rows that a block of an expert
    multiplies in turn.
    """

    row_tiles: int
    x_tiles: int
    warps: int
    split: int
    stages: int = field(default=0, metadata={"steps": (0, 2, 3, 4, 5)})
    deep: int = 1
    blocks: int = field(default=1, metadata={"steps": (1, 2, 3, 4)})
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


def slab_count(key: TileKey) -> int:
    """Return the slabs of a row of quantised weights."""
    return ceil_div(key.cols, SLAB)


def n_blocks(tile: MmaTile, key: TileKey) -> int:
    """Return the number of blocks of a product whose columns are not split among blocks."""
    return ceil_div(key.rows, tile.rows) * ceil_div(key.n_x, tile.batch)


def with_splits(features: Features, tile: MmaTile, key: TileKey) -> MmaTile:
    """Return the tile with its columns split among blocks if its grid leaves the device idle."""
    wanted = tile.blocks * features.compute_units // n_blocks(tile, key)
    longest = slab_count(key) // (2 * tile.split)  # each warp has two slabs
    splits = max(1, min(wanted, longest, MAX_FORMULA_SPLITS))
    return replace(tile, splits=1 << (splits.bit_length() - 1))


def within_memory(features: Features, tile: MmaTile) -> MmaTile:
    """Return the tile with fewer stages, or less split, if its slabs exceed shared memory."""
    while tile.shared_bytes + OTHER_SHARED_BYTES > features.most_shared_bytes:
        if tile.stages > 2:
            tile = replace(tile, stages=tile.stages - 1)
        else:
            assert tile.split > 1, f"{tile} does not fit"
            tile = replace(tile, split=tile.split // 2)
    return tile


def shared_refusal(
    features: Features, key: TileKey, tile: MmaTile, shared_bytes: int, sums: int = 1
) -> str:
    """Return why no tensor core GEMM can run a tile.

    shared_bytes: shared memory of the stages. sums: accumulators of a lane for each output.
    """
    sizes = (tile.row_tiles, tile.warps, tile.split, tile.splits, tile.spread)
    if not all(map(is_power_of_two, sizes)):
        return "a size is not a power of two"
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


def loop_refusal(tile: MmaTile) -> str:
    """Return why the loop of gemm_mma.cu without warp groups cannot run a tile."""
    if not tile.stages:
        few = is_power_of_two(tile.x_tiles) and tile.deep >= 1 and tile.x_tiles * tile.deep <= 8
        return "" if few else "too many registers"
    if tile.stages < 2:
        return "the loop needs two stages or more, or none"
    if tile.x_tiles < 2 or tile.deep != 1:
        return "a stage has pairs of tiles, and weights of one slab are in flight"
    return ""
