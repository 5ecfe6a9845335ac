"""Tiles of the GEMM of few rows of x (kernels/gemm_few.cu)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field, replace
from itertools import product

from zinc.backends.cuda.tiles.common import (
    BLOCK_ROWS,
    FEW_TILE_ROWS,
    GROUP_COLS,
    MANY_WARPS,
    OTHER_SHARED_BYTES,
    SUMS_BYTES,
    RowsTile,
)
from zinc.core.dataclass import dataclass
from zinc.core.rounding import ceil_div
from zinc.gpu.features import Features
from zinc.gpu.tuned import TileKey
from zinc.quant.blocks import GGMLType

GROUP_BYTES = {  # bytes of a warp's group of weights in shared memory (whole_scales.cuh)
    GGMLType.Q4_K: 2304,
    GGMLType.Q5_K: 2816,
    GGMLType.Q6_K: 3072,
}
BYTE_ROWS = 4  # most rows of x that are multiplied as 8-bit integers (byte_groups.cuh)
FEW_STAGES = 2  # stages of a warp's groups of weights with 9 to 16 rows of x


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


def choose_tile(features: Features, key: TileKey) -> FewTile:
    """Return the tile of a GEMM of few rows of x."""
    return features.tuned.choose(key, lambda: _formula(features, key))


def takes_bytes(key: TileKey) -> bool:
    """Return whether gemm_few.cu can multiply the rows of x as 8-bit integers."""
    return key.n_x <= BYTE_ROWS and key.type in GROUP_BYTES


def _formula(features: Features, key: TileKey) -> FewTile:
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


def refusal(features: Features, key: TileKey, tile: FewTile) -> str:
    """Return why gemm_few.cu cannot run a tile."""
    if not 8 * tile.x_tiles >= key.n_x > 8 * (tile.x_tiles - 1):
        return "it multiplies all rows of x at once"
    if not 1 <= tile.warps <= MANY_WARPS:
        return "too many warps"
    if tile.takes_bytes and not takes_bytes(key):
        return "it does not multiply these rows of x as 8-bit integers"
    if tile.stages and key.type not in GROUP_BYTES:
        return "the format has no stages in shared memory"
    if tile.buffers_x and (tile.warps >= ceil_div(key.cols, GROUP_COLS) or key.cols % GROUP_COLS):
        return "warps do not take several whole groups of columns"
    pair = BLOCK_ROWS // FEW_TILE_ROWS
    fits = pair * tile.tile_bytes(key) <= tile.most_sums_bytes(features, key.type)
    return "" if fits else "too much shared memory"


def seeds(features: Features, key: TileKey) -> Iterable[FewTile]:
    """Yield tiles of many and of few warps."""
    x_tiles, as_bytes = ceil_div(key.n_x, 8), takes_bytes(key)
    for warps, stages in product((8, 12, 16), (0, 3)):
        yield FewTile(x_tiles, warps, stages, warps < key.cols // GROUP_COLS, as_bytes)
