"""Tiles of gemm_few.slang, which decodes weights straight into fragments of matrices.

A subgroup keeps the operands of its columns of x in registers, so a workgroup has all or a part of
the columns and goes through several tiles of weight rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field, replace

from zinc.core.dataclass import dataclass
from zinc.core.rounding import ceil_div
from zinc.gpu.features import Features
from zinc.gpu.packing import FLOATS, LAYOUTS
from zinc.gpu.tiling import Tiling
from zinc.gpu.tuned import TileKey
from zinc.ops.values import RowFormat
from zinc.quant.blocks import GGMLType

MIN_ROWS, MAX_ROWS = 5, 32  # rows of x that gemm_few.slang multiplies
MATRIX_ROWS = 16  # weight rows of a matrix
SUBGROUP_COLS = 256  # columns per subgroup
MAX_WAVES = 16  # more would leave a lane too few registers
FEW_WAVES = 8  # per workgroup, if several workgroups run at once on a compute unit
MAX_SPLITS = 8  # workgroups that split the columns
MAX_FLUSH = 8  # parts whose sums lie in shared memory at once
COLUMN_BYTES = 80  # shared memory of 16 staged sums, with padding
SHARED_BYTES = 49152  # shared memory of a workgroup; NVIDIA's Vulkan driver offers as much
OTHER_BYTES = 3584  # shared memory of results and of small tables
TABLE_BYTES = 8192  # shared memory of a codebook


@dataclass(frozen=True, slots=True)
class FragmentTile:
    """A tile of gemm_few.slang.

    waves: subgroups of a workgroup, which have 256 columns each. batch: rows of x. splits:
    workgroups that split the columns. flush: parts of 16 weight rows whose sums lie in shared
    memory at once. tiles: tiles of a workgroup, one after another; 0: as few as let all workgroups
    run at once.
    """

    waves: int
    batch: int = field(metadata={"steps": (8, 16)})
    splits: int = 1
    flush: int = 1
    tiles: int = field(default=0, metadata={"steps": (0,)})

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

    def groups(self, features: Features, key: TileKey, rows_beside: int = 0) -> int:
        """Return the number of workgroups that share these tiles.

        rows_beside: weight rows of products that run side by side with this one.
        """
        each = self.tiles or self._tiles_each(features, key, rows_beside)
        return ceil_div(self.n_tiles(key), each)

    def n_sums(self, key: TileKey) -> int:
        """Return the sums of a tile."""
        return key.weights * rows_of(key) * self.batch

    def wave_bytes(self, key: TileKey) -> int:
        """Return the shared memory of a subgroup for the sums of a part."""
        return COLUMN_BYTES * key.weights * self.batch

    def _tiles_each(self, features: Features, key: TileKey, rows_beside: int) -> int:
        resident = features.compute_units * max(1, MAX_WAVES // self.waves)
        n_tiles = ceil_div(key.rows + rows_beside, rows_of(key))
        wanted = n_tiles * self.splits * ceil_div(key.n_x, self.batch)
        return max(1, ceil_div(wanted, resident))


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


def fragment_tile(features: Features, key: TileKey) -> FragmentTile:
    """Return the tile of a product."""
    return features.tuned.choose(key, lambda: _formula(key))


def _formula(key: TileKey) -> FragmentTile:
    """Return the tile whose workgroups have all columns if they fit, measured on an H200.

    If they do not fit, or if the sums of one workgroup take all shared memory, several smaller
    workgroups run at once on a compute unit.
    """
    tile = FragmentTile(1, 8 if key.n_x <= 8 else 16)
    parts, wave_bytes = ceil_div(key.cols, SUBGROUP_COLS), tile.wave_bytes(key)
    fitting = _room(key) // (MAX_WAVES * wave_bytes)  # workgroups of MAX_WAVES that fit
    splits = ceil_div(parts, min(MAX_WAVES, _room(key) // wave_bytes))
    more = ceil_div(parts, FEW_WAVES if fitting > 1 else FEW_WAVES // 2)
    if (splits > 1 or fitting <= 1) and parts >= MAX_WAVES and key.heads == 1:
        splits = more if more <= MAX_SPLITS else splits
    waves, flush = ceil_div(parts, splits), min(_most_flush(key), max(1, fitting))
    return replace(tile, waves=waves, splits=splits, flush=flush)


def _room(key: TileKey) -> int:
    """Return the shared memory for sums."""
    table = TABLE_BYTES if LAYOUTS[key.type].has_codebook else 0
    return SHARED_BYTES - OTHER_BYTES - table


def _most_flush(key: TileKey) -> int:
    """Return the most parts of a flush, which is at most a tile if the kernel stores blocks."""
    return 2 if key.stores_blocks else MAX_FLUSH


def _refusal(features: Features, key: TileKey, tile: FragmentTile) -> str:
    """Return why gemm_few.slang cannot run a tile."""
    if not 1 <= tile.waves <= MAX_WAVES:
        return "a lane would have too few registers"
    if tile.batch not in (8, 16):
        return "matrices have 8 or 16 rows of x"
    if tile.splits > (MAX_SPLITS if key.heads == 1 else 1):  # heads share the memory of sums
        return "too many splits"
    parts = ceil_div(key.cols, SUBGROUP_COLS)
    if tile.waves != ceil_div(parts, tile.splits):
        return "the subgroups do not have all columns, or some have none"
    if not 1 <= tile.flush <= _most_flush(key):
        return "parts of several tiles cannot be summed up together"
    fits = tile.flush * tile.waves * tile.wave_bytes(key) <= _room(key)
    return "" if fits else "too much shared memory"


def _seeds(features: Features, key: TileKey) -> Iterable[FragmentTile]:
    """Yield tiles of many and of few subgroups."""
    parts = ceil_div(key.cols, SUBGROUP_COLS)
    for splits in range(1, MAX_SPLITS + 1):
        yield FragmentTile(ceil_div(parts, splits), 8 if key.n_x <= 8 else 16, splits)


FRAGMENT_TILINGS = {"gemm_few": Tiling(FragmentTile, _refusal, _seeds)}
