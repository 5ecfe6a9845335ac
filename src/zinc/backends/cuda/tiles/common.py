"""Constants of the tiles of several kernels, and code that their modules share."""

from __future__ import annotations

from zinc.core.dataclass import dataclass
from zinc.core.rounding import ceil_div
from zinc.gpu.tuned import TileKey

WARPS, MANY_WARPS = 8, 16  # per block
BLOCK_ROWS = 32  # weight rows whose outputs form one Q8 block
FEW_TILE_ROWS = 16  # weight rows of a tile of few rows of x, or of few slots
GROUP_COLS = 256  # columns that a warp multiplies at once (column_groups.cuh)
SLAB = 128  # columns of a slab
SLAB_ROW_BYTES = 256  # bytes of a row in a slab (half_rows.cuh)
SUMS_BYTES = 100 << 10  # sums of a block; the rest of an SM's L1 is for loads in flight
OTHER_SHARED_BYTES = 20 << 10  # shared memory of a block besides slabs of x

WARP, GROUP_THREADS = 32, 128  # threads of a warp, and of a warp group
SM_REGISTERS, LANE_REGISTERS = 65536, 255
SM_THREADS = 2048


@dataclass(frozen=True, slots=True)
class RowsTile:
    """A tile of a tensor core GEMM; `x_tiles` tiles of 8 rows of x."""

    x_tiles: int

    @property
    def batch(self) -> int:
        """Rows of x, or slots, that a block multiplies at once."""
        return 8 * self.x_tiles


def slot_chunks(key: TileKey, slots: int, batch: int, chunk_rows: int) -> int:
    """Return the number of chunks: `chunk_rows` weight rows by a segment of the `slots` slots.

    A segment has up to `batch` slots of one expert. The number of segments is an upper bound.
    """
    segments = min(key.experts, slots) + slots // batch
    return ceil_div(key.rows, chunk_rows) * segments
