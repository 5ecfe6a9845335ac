"""Tiles of the split-K GEMM by warp groups (kernels/gemm_split.cu)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

from zinc.backends.cuda.tiles.common import (
    GROUP_COLS,
    GROUP_THREADS,
    SLAB_ROW_BYTES,
    SM_REGISTERS,
    RowsTile,
)
from zinc.core.dataclass import dataclass
from zinc.core.rounding import ceil_div
from zinc.gpu.features import MAX_THREADS, Features
from zinc.gpu.tiling import TABLE_BYTES
from zinc.gpu.tuned import TileKey

MIN_SPLIT_X, MAX_SPLIT_X = 17, 64  # rows of x
GROUP_ROWS = 64  # weight rows per warp group
MOST_GROUPS = 4  # warp groups per block
MOST_BLOCKS = 8  # per cluster
OTHER_REGISTERS = 80  # registers of a lane besides its sums
# Fixed costs of a block, for a group of columns and for a tile, in products of a warp group with a
# group of columns.
STEP_COST, TILE_COST = 2, 8


@dataclass(frozen=True, slots=True)
class SplitTile(RowsTile):
    """A tile of a split-K GEMM by warp groups (kernels/gemm_split.cu).

    row_groups: warp groups of a block, each with 64 weight rows. cluster: blocks that split the
    columns of a tile. stages: groups of 256 columns of x in shared memory.
    """

    row_groups: int
    cluster: int
    stages: int

    def rows(self, weights: int) -> int:
        """Return the rows of each of `weights` matrices in a tile."""
        return GROUP_ROWS // weights * self.row_groups

    @property
    def defines(self) -> tuple[tuple[str, int], ...]:
        cluster = (("CLUSTER", self.cluster),) if self.cluster > 1 else ()
        return (
            ("X_TILES", self.x_tiles),
            ("ROW_GROUPS", self.row_groups),
            ("STAGES", self.stages),
            *cluster,
        )

    def tiles(self, weights: int, rows: Sequence[int]) -> int:
        """Return the number of tiles of matrices with these rows, or of pairs if `weights` is 2."""
        return sum(ceil_div(n, self.rows(weights)) for n in rows)

    def blocks(self, weights: int, rows: Sequence[int], units: int) -> int:
        """Return the number of blocks that multiply such matrices on `units` compute units."""
        return self.cluster * min(self.tiles(weights, rows), clusters_of(units, self.cluster))

    def shared_bytes(self, weights: int) -> int:
        """Return the shared memory of slabs of x, and of the sums of `weights` matrices."""
        sums = weights * self.batch * (self.rows(weights) + 4)
        return 2 * self.stages * self.batch * SLAB_ROW_BYTES + 4 * sums


def takes_split(features: Features, rows: int, cols: int, n_x: int) -> bool:
    """Return whether a split-K GEMM is faster than gemm_mma for `n_x` rows of x.

    rows: weight rows of all matrices, of `cols` columns. A device full of warp groups must have
    enough groups of columns for each. With up to 32 rows of x, rows must also be long.
    """
    if not features.warp_groups or not MIN_SPLIT_X <= n_x <= MAX_SPLIT_X:
        return False
    groups = ceil_div(cols, GROUP_COLS)
    each = ceil_div(rows, GROUP_ROWS) * groups / (MOST_GROUPS * features.compute_units)
    least, short = (2.5, 8) if n_x <= 32 else (1, 0)
    return each >= least and groups > short


def clusters_of(units: int, cluster: int) -> int:
    """Return how many clusters of `cluster` blocks can run at once on `units` compute units.

    The blocks of a cluster run in one graphics processing cluster of the card. Clusters of more
    than two blocks leave some of its compute units unused: on an H200 up to a quarter.
    """
    return max(1, (units if cluster <= 2 else units * 3 // 4) // cluster)


def _x_tiles(key: TileKey) -> int:
    """Return the tiles of 8 rows of x. Products that run side by side read the same rows."""
    return 4 if key.n_x <= 32 else 8


def choose_tile(
    features: Features, key: TileKey, rows: Sequence[int], units: int, most_blocks: int
) -> SplitTile:
    """Return the tile of a split-K GEMM.

    rows: of each matrix, or of each pair of a gated product. units: compute units for the product.
    most_blocks: the most blocks of a cluster.
    """
    return features.tuned.choose(key, lambda: _formula(key, rows, units, most_blocks))


def _formula(key: TileKey, rows: Sequence[int], units: int, most_blocks: int) -> SplitTile:
    """Return the tile with the lowest cost of a block, which is fitted to times on an H200."""
    x_tiles, stages = _x_tiles(key), 4 if key.n_x <= 32 else 3
    groups = ceil_div(key.cols, GROUP_COLS)

    def cost(tile: SplitTile) -> int:
        rounds = ceil_div(tile.tiles(key.weights, rows), clusters_of(units, tile.cluster))
        return rounds * (ceil_div(groups, tile.cluster) * (tile.row_groups + STEP_COST) + TILE_COST)

    clusters = [n for n in range(1, most_blocks + 1) if ceil_div(groups, n) * (n - 1) < groups]
    sizes = product(range(MOST_GROUPS, 1, -1), clusters)
    return min((SplitTile(x_tiles, *x, stages) for x in sizes), key=cost)


def refusal(features: Features, key: TileKey, tile: SplitTile) -> str:
    """Return why gemm_split.cu cannot run a tile."""
    if not features.warp_groups:
        return "no warp groups"
    if tile.x_tiles != _x_tiles(key):
        return "it multiplies all rows of x at once, in the fewest tiles"
    if min(tile.row_groups, tile.cluster) < 1 or tile.stages < 2:
        return "the loop needs a group and two stages or more"
    threads = GROUP_THREADS * tile.row_groups
    if threads > MAX_THREADS:
        return "too many threads"
    if 4 * tile.x_tiles + OTHER_REGISTERS > SM_REGISTERS // threads:
        return "too many registers"
    groups = ceil_div(key.cols, GROUP_COLS)
    if tile.cluster > MOST_BLOCKS or ceil_div(groups, tile.cluster) * (tile.cluster - 1) >= groups:
        return "a block without columns"
    shared = tile.shared_bytes(key.weights) + TABLE_BYTES
    return "" if shared <= features.most_shared_bytes else "too much shared memory"


def seeds(features: Features, key: TileKey) -> Iterable[SplitTile]:
    """Yield tiles of few and of many weight rows."""
    for row_groups, cluster in ((2, 2), (2, 4), (3, 2), (3, 4), (4, 4), (4, 8)):
        yield SplitTile(_x_tiles(key), row_groups, cluster, stages=3)
