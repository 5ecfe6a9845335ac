"""Tile sizes of CUDA's own kernels, by device and shape."""

from __future__ import annotations

from zinc.gpu.features import Features
from zinc.gpu.tiles import GemvTile

# GEMV of one row. Enough warps read at once, and each lane has a few units in flight, so that reads
# saturate memory; and two blocks fit a compute unit, so that a kernel starts while another ends.
WARPS_PER_UNIT = 14
WARPS = 8  # of a block
ROWS = 4  # of a warp
MAX_SPLIT = 8
IN_FLIGHT = 4  # units of weights of a lane
BLOCK_ROWS = 32  # rows of weights that make a block of 8-bit numbers


def gemv(
    features: Features, n_rows: int, units: int, weights: int = 1, stores_blocks: bool = False
) -> GemvTile:
    """Return the tile for one row of x and `n_rows` rows of `units` units.

    weights: matrices that are multiplied together, 2 for a gated product. stores_blocks: the output
    are blocks of 8-bit numbers.
    """
    warps = WARPS_PER_UNIT * features.compute_units
    longest = max(1, units // features.subgroup)  # splits that leave each lane a unit
    rows = ROWS if not stores_blocks else ROWS // weights
    split = 1
    while 2 * split <= min(longest, MAX_SPLIT) and n_rows * split < warps * rows:
        split *= 2
    while rows > 1 and n_rows * split < warps * rows:
        rows //= 2
    deep = max(1, min(IN_FLIGHT // (rows * weights), units // (split * features.subgroup)))
    if not stores_blocks:
        return GemvTile(max(WARPS, split), split, rows, 1, deep)
    rows = max(rows, split)  # a block has at most 32 warps
    return GemvTile(BLOCK_ROWS * split // rows, split, rows, 1, deep)
