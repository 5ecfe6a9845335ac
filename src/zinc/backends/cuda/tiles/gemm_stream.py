"""Tiles of the stream-K GEMM by warp groups (kernels/gemm_stream.cu)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from zinc.backends.cuda.tiles.common import (
    GROUP_COLS,
    GROUP_THREADS,
    LANE_REGISTERS,
    SLAB_ROW_BYTES,
    SM_REGISTERS,
    SM_THREADS,
    RowsTile,
)
from zinc.core.rounding import ceil_div
from zinc.gpu.features import MAX_THREADS, Features
from zinc.gpu.tiling import TABLE_BYTES
from zinc.gpu.tuned import TileKey

MIN_STREAM_X, MAX_STREAM_X = 17, 64  # rows of x
STREAM_ROWS = 64  # weight rows of a warp group
STREAM_GROUPS = 4  # warp groups of an SM


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


def choose_tile(features: Features, key: TileKey) -> StreamTile:
    """Return the tile of a stream-K GEMM."""
    return features.tuned.choose(key, lambda: _formula(key))


def _formula(key: TileKey) -> StreamTile:
    if key.n_x <= 32:
        return StreamTile(4, 3, 1, 4) if key.weights == 2 else StreamTile(4, 1, 4, 2)
    return StreamTile(8, 2, 1, 3) if key.weights == 2 else StreamTile(8, 2, 2, 2)


def refusal(features: Features, key: TileKey, tile: StreamTile) -> str:
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


def seeds(features: Features, key: TileKey) -> Iterable[StreamTile]:
    """Yield tiles of few and of many weight rows."""
    x_tiles = 4 if key.n_x <= 32 else 8
    for row_groups, col_groups in ((1, 2), (1, 3), (2, 1), (2, 2), (3, 1)):
        yield StreamTile(x_tiles, row_groups, col_groups, stages=2)
