"""Tile sizes of CUDA's own kernels, by device and product.

A tile that `zinc tune` found for the product comes first (gpu/tuned.py), then a formula.

In a GEMM on tensor cores (kernels/gemm_mma.cu) a warp multiplies 16 * `row_tiles` weight rows of
each matrix by all 8 * `x_tiles` rows of x of the tile. With few rows of x, many warps split the
columns of a weight row (split-K), so that enough reads of weights are in flight. With many rows of
x, each warp has its own weight rows and decodes them once for all rows of x.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import cast

from zinc.gpu.features import Features
from zinc.gpu.lower.operands import ceil_div
from zinc.gpu.packing import FLOATS
from zinc.gpu.tiles import GemvTile, units
from zinc.gpu.tuned import T, TileKey, TunedTiles
from zinc.quant.blocks import GGMLType

# GEMV of one row. Enough warps with a few units in flight per lane saturate the read bandwidth. Two
# blocks fit on a compute unit, so that a kernel starts while the one before it ends.
WARPS_PER_UNIT = 14
WARPS = 8  # of a block
ROWS = 4  # of a warp
MAX_SPLIT = 8
IN_FLIGHT = 8  # units of weights of a lane; half as many if it multiplies two matrices
LANE_UNITS = 2  # units of a row that a lane reads; longer rows are split among warps
# GEMV of several rows. Registers limit the warps of a compute unit. Blocks are small, because a
# small block starts as soon as another one ends.
WARPS_OF_BATCH, SMALL_WARPS = 16, 4  # of a compute unit; of a block
LONG_ROW = 8  # units of a row for each lane of a warp, from which two warps share it
# GEMV with a fused norm. Each block repeats the norm, so there are few, large blocks, which share
# all tiles.
MANY_WARPS = 16  # of a block
BLOCK_ROWS = 32  # weight rows whose outputs form one Q8 block
MAX_TILES = 40  # of a block; their sums fit into shared memory
HUGE_ROWS = 1 << 15  # weight rows that give the device many waves of blocks

# Products of few tokens with experts: least weight rows of all slots that fill the device.
SEVERAL_SLOT_ROWS = {"experts": 1 << 13, "moe_down": 1 << 14}
MANY_SLOT_ROWS = 1 << 14  # from here on with tiles of many rows
FOUR_BITS = {GGMLType.Q4_0, GGMLType.Q4_1, GGMLType.Q4_K, GGMLType.IQ4_NL, GGMLType.MXFP4}

# GEMM on tensor cores.
SLAB_ROW_BYTES = 256  # of a row in a slab of 128 columns (half_rows.cuh)
SHORT_SLABS = 4  # of a row, up to which converting x in a separate pass does not pay
SLAB = 128  # columns
FLOAT_SLAB = 32  # columns (gemm_floats.cu)
MAX_SPLITS = 8
MAX_PASSES = 8
FEW_TILE_ROWS = 16  # weight rows of a tile of few rows of x (gemm_few.cu)
MIN_STREAM_X, MAX_STREAM_X = 17, 64  # rows of x of gemm_stream.cu
STREAM_ROWS = 64  # weight rows of one of its warp groups
STREAM_GROUPS = 4  # of an SM
GROUP_COLS = 256  # that a warp multiplies at once (column_groups.cuh)
SUMS_BYTES = 100 << 10  # of a block; the rest of an SM's shared memory is for loads in flight
GROUP_BYTES = {  # of a group of a warp in shared memory (whole_scales.cuh)
    GGMLType.Q4_K: 2304,
    GGMLType.Q5_K: 2816,
    GGMLType.Q6_K: 3072,
}
BYTE_ROWS = 4  # most rows of x that are multiplied as 8-bit integers (byte_groups.cuh)
FEW_STAGES = 2  # of the groups of a warp with 9 to 16 rows of x (gemm_few.cu)
MOST_ROUND = 8  # tiles of a team whose sums are reduced together (gemm_slots.cu)
MOST_SLOTS = 8  # of an expert on average (gemm_slots.cu)
MOST_VECTOR_SLOTS = 1  # of an expert on average (gemv_slots.cu)
MOST_VECTOR_COLS = 2048  # two units for each lane of a warp
WAVES = 3  # least waves of expert blocks, to limit the share of the partly filled last wave
OTHER_SHARED_BYTES = 20 << 10  # of a block, besides slabs of x
FULL = 0.9  # blocks for each compute unit from which a grid counts as a full wave
LARGE_GRID = 2.2  # blocks for each compute unit from which wide tiles pay


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


def gemv(features: Features, key: TileKey) -> CudaGemvTile:
    """Return the tile of a GEMV."""
    return features.tuned.choose(key, lambda: _gemv(features, key))


def _gemv(features: Features, key: TileKey) -> CudaGemvTile:
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


@dataclass(frozen=True, slots=True)
class RowsTile:
    """A tile of a tensor core GEMM; `x_tiles` tiles of 8 rows of x."""

    x_tiles: int

    @property
    def batch(self) -> int:
        """Rows of x, or slots, that a block multiplies at once."""
        return 8 * self.x_tiles


@dataclass(frozen=True, slots=True)
class FewTile(RowsTile):
    """A tile of a GEMM of few rows of x (kernels/gemm_few.cu): 16 weight rows by `batch` rows.

    warps: warps of a block, which split the columns (split-K). stages: groups of weights per warp
    in shared memory, of which all but one are in flight; 0 loads weights to registers. buffers_x:
    prefetch the next group of x of each warp to shared memory. takes_bytes: multiply up to 4 rows
    of x as 8-bit integers (kernels/byte_groups.cuh), not as float16.
    """

    warps: int
    stages: int = field(default=0, metadata={"steps": (0, 2, 3)})
    buffers_x: bool = False
    takes_bytes: bool = False

    @property
    def batch(self) -> int:
        return BYTE_ROWS if self.takes_bytes else 8 * self.x_tiles

    @property
    def blocks(self) -> int:
        """Resident blocks per SM."""
        return max(1, MANY_WARPS // self.warps)

    @property
    def defines(self) -> tuple[tuple[str, int], ...]:
        return (
            ("X_TILES", self.x_tiles),
            ("WARPS", self.warps),
            ("MIN_BLOCKS", self.blocks),
            ("STAGES", self.stages),
            ("BUFFER_X", int(self.buffers_x)),
            ("BYTES", int(self.takes_bytes)),
        )

    def group_bytes(self, type: GGMLType) -> int:
        """Return the shared memory of a block's groups of weights and of x."""
        x_bytes = self.batch * ceil_div(GROUP_COLS * 5, 4) if self.buffers_x else 0
        return self.warps * (self.stages * GROUP_BYTES.get(type, 0) + x_bytes)

    def most_sums_bytes(self, features: Features, type: GGMLType) -> int:
        """Return the shared memory that a block has for sums."""
        group_bytes = self.group_bytes(type)
        blocks = self.blocks if group_bytes else 1
        most = features.most_shared_bytes // blocks - group_bytes - OTHER_SHARED_BYTES
        return min(SUMS_BYTES, most)

    def tile_bytes(self, key: TileKey) -> int:
        """Return the shared memory of a tile: the partial sums of each warp, and residuals."""
        slots = 2 * self.warps if key.weights == 2 else self.warps + 1
        return slots * FEW_TILE_ROWS * self.batch * 4

    def shares(
        self, features: Features, key: TileKey, n_tiles: int, stores_norm: bool = False
    ) -> Shares:
        """Return how blocks share `n_tiles` tiles of all products of a launch.

        stores_norm: the output is also stored as Q8 blocks, for the product after the next norm.
        """
        stripe = BLOCK_ROWS // FEW_TILE_ROWS if key.stores_blocks or stores_norm else 1
        blocks = features.compute_units * self.blocks
        each = ceil_div(ceil_div(n_tiles, stripe), blocks)
        most_bytes = self.most_sums_bytes(features, key.type)
        most = max(1, most_bytes // (self.tile_bytes(key) * stripe))
        return Shares(stripe, each, ceil_div(each, ceil_div(each, most)))


@dataclass(frozen=True, slots=True)
class Shares:
    """How blocks share tiles: a block has `each` stripes of `stripe` neighbouring tiles.

    round: stripes of a block whose sums are in shared memory at once.
    """

    stripe: int
    each: int
    round: int

    def blocks(self, n_tiles: int) -> int:
        """Return the number of blocks for `n_tiles` tiles."""
        return ceil_div(ceil_div(n_tiles, self.stripe), self.each)


def gemm_few(features: Features, key: TileKey) -> FewTile:
    """Return the tile of a GEMM of few rows of x."""
    return features.tuned.choose(key, lambda: _gemm_few(features, key))


def takes_bytes(key: TileKey) -> bool:
    """Return whether gemm_few.cu can multiply the rows of x as 8-bit integers."""
    return key.n_x <= BYTE_ROWS and key.type in GROUP_BYTES


def _gemm_few(features: Features, key: TileKey) -> FewTile:
    """Return the tile whose warps have as equal shares of the columns as possible."""
    groups = ceil_div(key.cols, GROUP_COLS)
    most = min(groups, MANY_WARPS)
    shares = {n: ceil_div(groups, n) * n for n in range(ceil_div(most, 2), most + 1)}
    tile = FewTile(
        ceil_div(key.n_x, 8),
        min(shares, key=lambda n: (shares[n], -n)),
        takes_bytes=takes_bytes(key),
    )
    pair = BLOCK_ROWS // FEW_TILE_ROWS * tile.tile_bytes(key)
    buffers_x = groups > tile.warps and key.cols % GROUP_COLS == 0
    stages = FEW_STAGES if tile.x_tiles > 1 and key.type in GROUP_BYTES else 0
    choices = (
        replace(tile, stages=s, buffers_x=b) for s in (stages, 0) for b in (buffers_x, False)
    )
    return next((c for c in choices if c.most_sums_bytes(features, key.type) >= pair), tile)


@dataclass(frozen=True, slots=True)
class FewSlotTile(RowsTile):
    """A tile of a GEMM of few slots of each expert (kernels/gemm_slots.cu).

    x_tiles: tiles of 8 slots. team: warps that split the columns of 16 weight rows (split-K).
    teams: teams of a block, each with its own weight rows. blocks: resident blocks per SM.
    """

    team: int = field(metadata={"steps": range(1, MANY_WARPS + 1)})
    teams: int = field(metadata={"steps": range(1, MANY_WARPS + 1)})
    blocks: int = field(metadata={"steps": (1, 2, 3, 4)})

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return self.team * self.teams

    def chunk(self, key: TileKey) -> int:
        """Return the tiles of a team in a chunk, whose outputs are whole Q8 blocks if stored so."""
        return BLOCK_ROWS // FEW_TILE_ROWS if key.stores_blocks and self.teams % 2 else 1

    def round(self, key: TileKey) -> int:
        """Return the tiles of a team whose sums are in shared memory at once."""
        chunk, needed = self.chunk(key), ceil_div(key.rows, FEW_TILE_ROWS * self.teams)
        most = SUMS_BYTES // self.blocks // self._tile_bytes(key)
        return max(1, min(most, needed, MOST_ROUND) // chunk) * chunk

    def shared_bytes(self, key: TileKey) -> int:
        return self.round(key) * self._tile_bytes(key)

    def grid(self, features: Features, key: TileKey, slots: int) -> int:
        """Return the number of blocks that share `slots` slots of all experts."""
        return _slot_grid(self, features, key, slots, self._chunk_rows(key))

    @property
    def defines(self) -> tuple[tuple[str, int], ...]:
        return (
            ("X_TILES", self.x_tiles),
            ("WARPS", self.warps),
            ("TEAM", self.team),
            ("MIN_BLOCKS", self.blocks),
        )

    def sizes(self, key: TileKey) -> tuple[tuple[str, int], ...]:
        """Return the macros that depend on the product too."""
        return (
            ("CHUNK", self.chunk(key)),
            ("ROUND", self.round(key)),
            ("WHOLE", int(key.rows % self._chunk_rows(key) == 0)),
        )

    def _chunk_rows(self, key: TileKey) -> int:
        return FEW_TILE_ROWS * self.teams * self.chunk(key)

    def _tile_bytes(self, key: TileKey) -> int:
        """Return the bytes of the sums of a tile of each team."""
        sums = key.weights * self.team * self.batch * (FEW_TILE_ROWS + 4) + 16
        return 4 * self.teams * sums


def _slot_grid(
    tile: FewSlotTile | VectorSlotTile,
    features: Features,
    key: TileKey,
    slots: int,
    chunk_rows: int,
) -> int:
    """Return the number of blocks that share `slots` slots and chunks of `chunk_rows` rows.

    A segment has up to `tile.batch` slots of one expert. The number of segments is an upper bound.
    The grid has no more blocks than can be resident on the device.
    """
    segments = min(key.experts, slots) + slots // tile.batch
    chunks = ceil_div(key.rows, chunk_rows)
    return min(chunks * segments, features.compute_units * tile.blocks)


def few_slots(features: Features, key: TileKey) -> FewSlotTile:
    """Return the tile of a GEMM of few slots of each expert."""
    return features.tuned.choose(key, lambda: _few_slots(key))


def _few_slots(key: TileKey) -> FewSlotTile:
    """Return the tile with the fewest idle warps; of several, the one with the largest teams."""
    groups = ceil_div(key.cols, GROUP_COLS)

    def busy_warps(team: int) -> tuple[float, int]:
        return groups / ceil_div(groups, team) * (WARPS // team), team

    team = max(range(1, min(groups, WARPS) + 1), key=busy_warps)
    return FewSlotTile(1, team, WARPS // team, blocks=2)


@dataclass(frozen=True, slots=True)
class VectorSlotTile:
    """A tile of a GEMV of few slots of each expert (kernels/gemv_slots.cu).

    batch: slots that are multiplied at once. warps: warps per block. units: units of weights in
    flight per lane. blocks: resident blocks per SM.
    """

    batch: int
    warps: int
    units: int
    blocks: int = field(metadata={"steps": (1, 2, 3, 4)})

    def rows(self, key: TileKey) -> int:
        """Return the weight rows that a lane multiplies in one pass."""
        return max(1, self.units // (key.weights * self._deep(key)))

    def chunk(self, key: TileKey) -> int:
        """Return the weight rows of a chunk: those of a pass, at least one Q8 block."""
        return max(self._pass_rows(key), BLOCK_ROWS)

    def grid(self, features: Features, key: TileKey, slots: int) -> int:
        """Return the number of blocks that share `slots` slots of all experts."""
        return _slot_grid(self, features, key, slots, self.chunk(key))

    @property
    def defines(self) -> tuple[tuple[str, int], ...]:
        return ("SEGMENT", self.batch), ("WARPS", self.warps), ("MIN_BLOCKS", self.blocks)

    def sizes(self, key: TileKey) -> tuple[tuple[str, int], ...]:
        """Return the macros that depend on the product too."""
        return (
            ("ROWS", self.rows(key)),
            ("CHUNK", self.chunk(key)),
            ("WHOLE", int(key.rows % self.chunk(key) == 0)),
        )

    def _lanes(self, key: TileKey) -> int:
        """Return the lanes that share a row."""
        return 32 if units(key) > 16 else 16 if units(key) > 8 else 8

    def _deep(self, key: TileKey) -> int:
        """Return the units of a row for one lane."""
        return ceil_div(units(key), self._lanes(key))

    def _pass_rows(self, key: TileKey) -> int:
        return self.warps * (32 // self._lanes(key)) * self.rows(key)


def vector_slots(features: Features, key: TileKey, slots: int) -> VectorSlotTile:
    """Return the tile of a GEMV of few slots of each expert, of `slots` slots in all."""
    return features.tuned.choose(key, lambda: _vector_slots(features, key, slots))


def _vector_slots(features: Features, key: TileKey, slots: int) -> VectorSlotTile:
    """Return a tile for several slots of many experts, or a smaller one for few slots.

    The former needs all registers, and spills more on architectures other than Hopper.
    """
    if features.warp_groups and 2 * slots > key.experts:
        return VectorSlotTile(4, WARPS // 2, 8, blocks=4)
    return VectorSlotTile(2, WARPS, 4, blocks=3)


@dataclass(frozen=True, slots=True)
class StreamTile(RowsTile):
    """A tile of a stream-K GEMM by warp groups (kernels/gemm_stream.cu).

    row_groups: warp groups with 64 weight rows of each matrix. col_groups: warp groups that split
    the columns of the same weight rows. stages: groups of 256 columns of x in shared memory per
    warp group. blocks: resident blocks per SM.
    """

    row_groups: int
    col_groups: int
    stages: int
    blocks: int = field(default=1, metadata={"steps": (1, 2)})

    @property
    def rows(self) -> int:
        """Weight rows of a tile."""
        return STREAM_ROWS * self.row_groups

    @property
    def defines(self) -> tuple[tuple[str, int], ...]:
        return (
            ("X_TILES", self.x_tiles),
            ("ROW_GROUPS", self.row_groups),
            ("COL_GROUPS", self.col_groups),
            ("STAGES", self.stages),
            ("MIN_BLOCKS", self.blocks),
        )

    def shared_bytes(self, weights: int) -> int:
        """Return the shared memory of slabs of x, and of the sums of `weights` matrices."""
        sums = weights * self.col_groups * self.batch * (self.rows + 4)
        return 2 * self.col_groups * self.stages * self.batch * SLAB_ROW_BYTES + 4 * sums


def takes_stream(features: Features, rows: int, cols: int, n_x: int) -> bool:
    """Return whether a stream-K GEMM is faster than gemm_mma for `n_x` rows of x.

    rows: weight rows of all matrices, of `cols` columns. Up to 32 rows of x, each warp group must
    have several groups of columns, and rows must be long.
    """
    if not features.warp_groups or not MIN_STREAM_X <= n_x <= MAX_STREAM_X:
        return False
    groups = ceil_div(cols, GROUP_COLS)
    each = ceil_div(rows, STREAM_ROWS) * groups / (STREAM_GROUPS * features.compute_units)
    least, short = (2.5, 8) if n_x <= 32 else (1, 0)
    return each >= least and groups > short


def gemm_stream(features: Features, key: TileKey) -> StreamTile:
    """Return the tile of a stream-K GEMM."""
    return features.tuned.choose(key, lambda: _gemm_stream(key))


def _gemm_stream(key: TileKey) -> StreamTile:
    if key.n_x <= 32:
        return StreamTile(4, 3, 1, 4) if key.weights == 2 else StreamTile(4, 1, 4, 2)
    return StreamTile(8, 2, 1, 3) if key.weights == 2 else StreamTile(8, 2, 2, 2)


class SlotTiles(TunedTiles):
    """Tiles for the kernels experts and moe_down: those of `table`, or else of this module.

    All GPU backends share the lowering of these kernels. On CUDA devices, the slots of a few tokens
    fill the device, so each warp takes many weight rows, which saves reads of activations.
    """

    def __init__(self, table: TunedTiles) -> None:
        self._table = table

    def choose(self, key: TileKey, formula: Callable[[], T]) -> T:
        return self._table.choose(key, lambda: cast(T, _slot_tile(key)) or formula())


def _slot_tile(key: TileKey) -> GemvTile | None:
    """Return the tile for the slots of a few tokens; None leaves it to the shared formula."""
    least = SEVERAL_SLOT_ROWS.get(key.kernel)
    if least is None or key.rows < least or key.experts or key.type in FLOATS:
        return None
    if key.rows < MANY_SLOT_ROWS:
        return GemvTile(8, split=1, rows=4, batch=1, deep=2)
    if key.kernel == "experts" or key.type in FOUR_BITS:
        return GemvTile(8, split=1, rows=8, batch=1)
    return GemvTile(16, split=1, rows=4, batch=1)


def gemm(features: Features, key: TileKey) -> MmaTile:
    """Return the tile of a GEMM."""
    return features.tuned.choose(key, lambda: _gemm(features, key))


def _gemm(features: Features, key: TileKey) -> MmaTile:
    by_groups = _group_tile(features, key)
    if by_groups is not None:
        return by_groups
    tile = _gemm_tile(features, key)
    assert not key.stores_blocks or tile.rows % BLOCK_ROWS == 0
    return _with_splits(features, _within_memory(features, tile), key)


def _group_tile(features: Features, key: TileKey) -> MmaTile | None:
    """Return the largest tile of a GEMM by warp groups whose blocks fill the device.

    None if there is none, or if x has so few rows that other tiles are faster.
    """
    if not features.warp_groups or key.n_x <= (64 if key.weights == 1 else 32):
        return None
    widths = ((32, 3), (16, 4), (8, 5)) if key.weights == 1 else ((16, 4), (8, 3))
    for x_tiles, stages in widths:
        tile = MmaTile(1, x_tiles, warps=8, split=1, stages=stages, by_groups=True)
        fills = key.weights * _blocks(tile, key) >= FULL * features.compute_units
        if fills and tile.batch < 2 * key.n_x:
            return tile
    return None


def _blocks(tile: MmaTile, key: TileKey) -> int:
    return ceil_div(key.rows, tile.rows) * ceil_div(key.n_x, tile.batch)


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
    if key.n_x <= 128 and _blocks(tile, key) < LARGE_GRID * features.compute_units:
        return tile
    if key.n_x <= 64:
        return MmaTile(2, 8, warps=4, split=1, stages=3, blocks=2)
    return MmaTile(2, 8, warps=8, split=1, stages=3)


def _is_short(features: Features, key: TileKey) -> bool:
    """Return whether tiles of 32 weight rows leave more than half of the device idle."""
    return 2 * ceil_div(key.rows, BLOCK_ROWS) < features.compute_units


def _gemm_32(features: Features, key: TileKey) -> MmaTile | None:
    """Return the tile for up to 32 rows of x whose blocks fill the device once, None without one.

    Warps that share the columns of a tile convert the rows of x themselves.
    """
    if key.weights == 2:
        return None
    if _is_short(features, key):
        return MmaTile(2, 2, warps=8, split=8)
    for split in (4, 8):
        tile = MmaTile(2, 4, warps=8, split=split)
        if FULL <= _blocks(tile, key) / features.compute_units < LARGE_GRID:
            return tile
    return None


def _with_splits(features: Features, tile: MmaTile, key: TileKey) -> MmaTile:
    """Return the tile with its columns split among blocks if its grid leaves the device idle."""
    wanted = tile.blocks * features.compute_units // _blocks(tile, key)
    longest = slab_count(key) // (2 * tile.split)  # each warp has two slabs
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


def float_gemm(features: Features, key: TileKey) -> MmaTile:
    """Return the tile of a GEMM with float weights and float32 rows (kernels/gemm_floats.cu)."""
    return features.tuned.choose(key, lambda: _float_gemm(features, key))


def _float_gemm(features: Features, key: TileKey) -> MmaTile:
    warps = next((n for n in (1, 2) if 16 * n >= key.rows), 4)
    x_tiles = next((n for n in (2, 4) if 8 * n >= key.n_x), 8)
    tile = MmaTile(1, x_tiles, warps, split=1, stages=4, blocks=2)
    return _with_splits(features, tile, key)


def float_shared_bytes(tile: MmaTile, type: GGMLType) -> int:
    """Return the bytes of all stages of a GEMM with weights of `type`, a float type.

    Rows have eight columns more than a slab.
    """
    weight_bytes = 16 // FLOATS[type]
    return tile.stages * (FLOAT_SLAB + 8) * (tile.rows * weight_bytes + tile.batch * 4)


def experts(features: Features, key: TileKey) -> MmaTile:
    """Return the tile of products with experts (gemm_experts.cu; gemm_mma.cu without stages)."""
    return features.tuned.choose(key, lambda: _experts(features, key))


def _experts(features: Features, key: TileKey) -> MmaTile:
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
    return _with_passes(features, _within_memory(features, tile), key)


def _with_passes(features: Features, tile: MmaTile, key: TileKey) -> MmaTile:
    """Return the tile with several passes over slots kept in shared memory, if those fit there."""
    resident = replace(tile, stages=max(2, slab_count(key)))
    if resident.shared_bytes + OTHER_SHARED_BYTES > features.most_shared_bytes // tile.blocks:
        return tile
    blocks = ceil_div(key.rows, tile.rows) * key.experts * tile.spread
    passes = max(1, min(MAX_PASSES, blocks // (WAVES * tile.blocks * features.compute_units)))
    return replace(resident, passes=1 << (passes.bit_length() - 1))


def slab_count(key: TileKey) -> int:
    """Return the slabs of a row of quantised weights."""
    return ceil_div(key.cols, SLAB)
