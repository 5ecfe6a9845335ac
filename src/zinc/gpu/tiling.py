"""Tile parameters of kernels: which tiles a kernel can run, and the seeds of a search.

`TILINGS` has the kernels that exist in Slang and in CUDA C++. A backend adds those of its own
kernels. The rules are those of the kernels' sources; a tile that breaks one is never run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from zinc.core.dataclass import dataclass
from zinc.gpu.features import FULL_REGISTERS, MAX_THREADS, NARROW, SQUARE, Features
from zinc.gpu.packing import FLOATS
from zinc.gpu.tiles import STEP_COLS, GemmTile, GemvTile
from zinc.gpu.tuned import TileKey
from zinc.quant.blocks import GGMLType

BLOCK_ROWS = 32  # weight rows that make a block of 8-bit numbers
MAX_SUMS = 64  # sums of a lane of a GEMV, in registers
MAX_SPLITS = 8  # workgroups that share the columns of a GEMM tile
MAX_MATRICES = 32  # cooperative matrices of sums of a subgroup
TABLE_BYTES = 8192  # shared memory of a format's codebook and of small arrays


@dataclass(frozen=True, slots=True)
class Tiling:
    """The tiles of a kernel.

    tile: class of the tiles. refusal: returns why the kernel cannot run a tile, "" if it can.
    seeds: returns tiles from which a search starts, besides that of the formula.
    """

    tile: type[Any]
    refusal: Callable[[Features, TileKey, Any], str]
    seeds: Callable[[Features, TileKey], Iterable[Any]]


def is_power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


def gemv_refusal(features: Features, key: TileKey, tile: GemvTile) -> str:
    """Return why a kernel with the loop of tile.slang, or moe_down, cannot run a tile."""
    if not all(map(is_power_of_two, (tile.waves, tile.split, tile.rows, tile.batch))):
        return "a size is not a power of two"
    if tile.waves * features.subgroup > MAX_THREADS:
        return f"more than {MAX_THREADS} threads"
    if tile.split > tile.waves:
        return "more splits than waves"
    if tile.deep < 1 or tile.rows * tile.batch * key.weights * tile.deep > MAX_SUMS:
        return "too many registers"
    # A CPU has one kernel for all rows of x.
    if tile.batch > key.rounded.n_x and features.subgroup >= 16:
        return "more rows of x than there are"
    if key.kernel == "moe_down" and tile.rows > features.subgroup:
        return "a wave has more rows than lanes"
    if key.stores_blocks and tile.tile % BLOCK_ROWS:
        return f"a workgroup stores blocks of {BLOCK_ROWS} rows"
    if may_store_unscaled(key) and tile.tile * tile.batch > 4 * tile.waves * features.subgroup:
        return "a thread would store more than four results"
    sums = 4 * key.weights * tile.split * tile.tile * tile.batch
    return "" if sums + TABLE_BYTES <= features.shared_bytes else "too much shared memory"


def may_store_unscaled(key: TileKey) -> bool:
    """Return whether the kernel may store its results as unscaled rows too, without a loop.

    A key does not record this option (NORM_Y of matvec.slang), so every kernel that stores blocks
    counts.
    """
    return key.kernel == "matvec" and key.stores_blocks and key.weights == 1


def gemv_seeds(features: Features, key: TileKey) -> Iterable[GemvTile]:
    """Yield a tile of many small rows and one of few long rows, for each way to share x."""
    for batch in sorted({1, min(8, key.rounded.n_x)}):
        yield GemvTile(waves=8, split=1, rows=4, batch=batch)
        yield GemvTile(waves=8, split=8, rows=4, batch=batch)


def gemm_refusal(features: Features, key: TileKey, tile: GemmTile) -> str:
    """Return why the kernel gemm cannot run a tile."""
    cut = (tile.sums,) if tile.sums else (tile.down, tile.across)
    if not all(map(is_power_of_two, (tile.rows, tile.batch, tile.split, tile.splits, *cut))):
        return "a size is not a power of two"
    if key.stores_blocks and tile.rows // key.weights % BLOCK_ROWS:
        return f"a workgroup stores blocks of {BLOCK_ROWS} rows"
    if tile.shared_bytes > features.shared_bytes:
        return "too much shared memory"
    if tile.splits > (MAX_SPLITS if key.experts == 0 and key.heads == 1 else 1):
        return "too many splits"
    if tile.splits > 1 and key.cols < STEP_COLS * tile.split * tile.splits:
        return "more splits than columns"
    cut_refusal = _sums_refusal if tile.sums else _matrix_refusal
    return cut_refusal(features, key, tile)


def _sums_refusal(features: Features, key: TileKey, tile: GemmTile) -> str:
    threads = tile.rows // 4 * (tile.batch // tile.sums)
    if tile.down or tile.across:
        return "a tile has either sums or matrices"
    if tile.split > 1 or tile.splits > 1:
        return "only with matrices the columns of a tile are split"
    if key.weights > 1:
        return "without matrices the kernel multiplies with one weight at a time"
    if 4 * tile.sums > MAX_SUMS:
        return "too many registers"
    whole = tile.rows % 4 == 0 and threads > 0 and threads % features.subgroup == 0
    if not whole:
        return "its threads do not fill subgroups"
    return "" if threads <= MAX_THREADS else f"more than {MAX_THREADS} threads"


def _matrix_refusal(features: Features, key: TileKey, tile: GemmTile) -> str:
    if not features.cooperative_matrix:
        return "the device has no cooperative matrices"
    if key.type in FLOATS and key.type is not GGMLType.BF16:
        return "float16 is not precise enough"
    if tile.subgroups * features.subgroup > MAX_THREADS:
        return f"more than {MAX_THREADS} threads"
    height, width = tile.rows // tile.down, tile.batch // tile.across
    m, n, _ = features.matrix
    if height < m or width < (NARROW.n if features.narrow_matrix else n):
        return "subgroups without a whole matrix"
    if height * width > MAX_MATRICES * SQUARE.m * SQUARE.n * features.registers // FULL_REGISTERS:
        return "too many registers"
    staged = 4 * tile.subgroups * height * min(width, n)
    fits = staged <= tile.shared_bytes
    return "" if fits else "a column of matrices does not fit in shared memory"


def gemm_seeds(features: Features, key: TileKey) -> Iterable[GemmTile]:
    """Yield tiles of several proportions, with matrices and without, and tiles for few rows."""
    for rows, batch, down, across in (
        (128, 128, 2, 4), (128, 64, 4, 2), (64, 64, 2, 2), (128, 32, 4, 2), (64, 16, 4, 1),
    ):  # fmt: skip
        yield GemmTile(rows, batch, down=down, across=across)
    yield GemmTile(64, 64, sums=8)
    yield GemmTile(64, 32, sums=4)
    batch = max(NARROW.n, min(64, key.rounded.n_x))
    for down, across, split in ((1, 1, 8), (2, 1, 2), (2, 2, 2), (4, 2, 1)):
        yield GemmTile(64, batch, down=down, across=across, split=split)


_GEMV = Tiling(GemvTile, gemv_refusal, gemv_seeds)

TILINGS = {
    "matvec": _GEMV,
    "experts": _GEMV,
    "moe_down": _GEMV,
    "gemm": Tiling(GemmTile, gemm_refusal, gemm_seeds),
}
