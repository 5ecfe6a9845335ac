"""Tiles of gemm_few.slang, which decodes weights straight into fragments of matrices.

A subgroup keeps the operands of its columns of x in registers, so a workgroup has all or a part of
the columns and goes through several tiles of weight rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from zinc.gpu.features import Features
from zinc.gpu.packing import FLOATS, LAYOUTS
from zinc.gpu.tiles import ceil_div
from zinc.gpu.tuned import TileKey
from zinc.ops.values import RowFormat
from zinc.quant.blocks import GGMLType

MIN_ROWS, MAX_ROWS = 5, 32  # of x, multiplied by gemm_few.slang
MATRIX_ROWS = 16  # weight rows of a matrix
SUBGROUP_COLS = 256  # columns of a subgroup
MAX_WAVES = 16  # more would leave a lane too few registers
COLUMN_BYTES = 80  # shared memory of 16 staged sums, with padding
SHARED_BYTES = 49152  # shared memory of a workgroup; NVIDIA's Vulkan driver offers as much
OTHER_BYTES = 3584  # shared memory of results and of small tables
TABLE_BYTES = 8192  # shared memory of a codebook


@dataclass(frozen=True, slots=True)
class FragmentTile:
    """A tile of gemm_few.slang.

    waves: subgroups of a workgroup, which have 256 columns each. batch: rows of x. tiles: tiles of
    a workgroup, one after another. splits: workgroups that split the columns. flush: parts of 16
    weight rows whose sums lie in shared memory at once.
    """

    waves: int
    batch: int
    tiles: int
    splits: int = 1
    flush: int = 1

    @property
    def defines(self) -> tuple[tuple[str, int], ...]:
        return (
            ("WAVES", self.waves),
            ("BATCH", self.batch),
            ("SPLITS", self.splits),
            ("FLUSH", self.flush),
        )

    def n_tiles(self, key: TileKey) -> int:
        """Return the number of tiles of weight rows of a head."""
        return ceil_div(key.rows // key.heads, rows_of(key))

    def groups(self, key: TileKey) -> int:
        """Return the number of workgroups that share these tiles."""
        return ceil_div(self.n_tiles(key), self.tiles)

    def n_sums(self, key: TileKey) -> int:
        """Return the sums of a tile."""
        return key.weights * rows_of(key) * self.batch


def rows_of(key: TileKey) -> int:
    """Return the weight rows of a tile, which makes whole blocks if the kernel stores blocks."""
    return MATRIX_ROWS * (2 if key.stores_blocks else 1)


def takes_fragments(
    features: Features, weight_type: GGMLType, x_format: RowFormat, n_x: int
) -> bool:
    """Return whether gemm_few.slang multiplies `n_x` rows of x with a weight."""
    return (
        features.mma_fragments
        and features.shared_bytes >= SHARED_BYTES
        and not features.batch_invariant
        and MIN_ROWS <= n_x <= MAX_ROWS
        and x_format is RowFormat.Q8_32
        and weight_type not in FLOATS
    )


def fragment_tile(features: Features, key: TileKey, rows_beside: int = 0) -> FragmentTile:
    """Return the tile of a product, beside which others of `rows_beside` weight rows run."""
    batch = 8 if key.n_x <= 8 else 16
    parts = ceil_div(key.cols, SUBGROUP_COLS)
    room = SHARED_BYTES - OTHER_BYTES - (TABLE_BYTES if LAYOUTS[key.type].has_codebook else 0)
    wave_bytes = COLUMN_BYTES * key.weights * batch
    splits = ceil_div(parts, min(MAX_WAVES, room // wave_bytes))
    waves = ceil_div(parts, splits)
    most = 2 if key.stores_blocks else 8
    flush = min(most, room // (waves * wave_bytes))
    across = ceil_div(key.n_x, batch)
    one = FragmentTile(waves, batch, 1, splits, flush)
    resident = features.compute_units * max(1, MAX_WAVES // waves)
    rows = key.rows + rows_beside
    wanted = ceil_div(rows, rows_of(key)) * splits * across
    return replace(one, tiles=max(1, ceil_div(wanted, resident)))
