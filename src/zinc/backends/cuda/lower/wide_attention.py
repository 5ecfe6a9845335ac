"""Tiles of attention of wide heads on tensor cores (kernels/attention_wide.cu).

With latent attention all heads share keys whose last columns are the values, so a tile has rows of
many heads, even of one token, and reads each key once for all of them.
"""

from __future__ import annotations

from dataclasses import replace

from zinc.core.dataclass import dataclass
from zinc.core.rounding import ceil_div
from zinc.gpu.addresses import Addresses
from zinc.gpu.bucket import Bucket
from zinc.gpu.lower.attention import visible_keys
from zinc.ops.values import KVState

WARP_ROWS = 16
MIN_ROWS = 8  # rows of a sequence; with fewer, vector arithmetic is faster
MAX_NUMBERS = 208  # registers of a lane for sums and for pairs of query elements
SPLIT_KEYS, MIN_SPLIT_KEYS = 64, 32  # least keys of a split, and with at most FEW_SPLITS splits
FEW_SPLITS = 16
SHORT_KEYS = 512  # up to this many keys, tiles of 64 rows leave many blocks idle in the last wave
MAX_SPLITS = 256
SAVED_BYTES = 128  # shared memory for the `QueryTile` that the kernel saves


@dataclass(frozen=True, slots=True)
class WideTile:
    """A tile of 16 `row_tiles` rows, whose keys are staged `keys` at a time in `stages`.

    dim_warps, key_warps: warps that share dimensions and keys of the scores of 16 rows. blocks:
    of an SM at once. splits: blocks that share all keys of a tile.
    """

    row_tiles: int
    dim_warps: int
    key_warps: int
    keys: int
    stages: int
    blocks: int = 1
    splits: int = 1

    @property
    def kernel(self) -> str:
        return "attention_wide"

    @property
    def rows(self) -> int:
        return WARP_ROWS * self.row_tiles

    @property
    def warps(self) -> int:
        return self.row_tiles * self.dim_warps * self.key_warps

    @property
    def defines(self) -> tuple[tuple[str, int], ...]:
        return (
            ("BK", self.keys),
            ("DIM_WARPS", self.dim_warps),
            ("KEY_WARPS", self.key_warps),
            ("ROW_TILES", self.row_tiles),
            ("STAGES", self.stages),
        )

    def staged_bytes(self, state: KVState, dtype: str) -> int:
        """Return the shared memory of all stages of keys and values."""
        widths = [state.head_dim] if state.v_from_k else [state.head_dim, state.head_dim_v]
        halves = self.keys * sum(_row_bytes(width) for width in widths)
        if dtype == "f16":
            return (self.stages if state.v_from_k else self.stages - 1) * halves
        numbers = self.keys * sum(width + 2 * ceil_div(width, 32) for width in widths)
        return 2 * halves + self.stages * numbers

    def shared_bytes(self, state: KVState, dtype: str) -> int:
        """Return all shared memory of a block."""
        scores = 4 * self.rows * self.keys * self.dim_warps
        weights = self.rows * (16 * (self.keys // 8 | 1) + 4)
        return self.staged_bytes(state, dtype) + scores + weights + SAVED_BYTES

    def suits(self, state: KVState, stores_blocks: bool) -> bool:
        """Return whether heads divide evenly among warps, and sums fit into their registers."""
        columns = 32 if stores_blocks else WARP_ROWS
        numbers = self.rows * state.head_dim_v // (32 * self.warps)
        numbers += state.head_dim // (4 * self.dim_warps)
        return (
            state.head_dim % max(32, WARP_ROWS * self.dim_warps) == 0
            and state.head_dim_v % (columns * self.warps) == 0
            and numbers <= MAX_NUMBERS
        )


# Tiles by the number of their rows, best first.
TILES = {
    16: (
        WideTile(1, 4, 1, keys=16, stages=5, blocks=2),
        WideTile(1, 4, 1, keys=16, stages=4, blocks=2),
        WideTile(1, 4, 1, keys=16, stages=5),
        WideTile(1, 4, 1, keys=16, stages=3),
    ),
    32: (WideTile(2, 2, 2, keys=32, stages=3), WideTile(2, 4, 1, keys=16, stages=3)),
    64: (WideTile(4, 2, 1, keys=32, stages=3), WideTile(4, 2, 1, keys=16, stages=3)),
}
# With a Q8_0 cache, shared memory holds two converted float16 tiles besides the stages.
Q8_TILES = {
    16: (WideTile(1, 4, 1, keys=16, stages=4, blocks=2), WideTile(1, 4, 1, keys=16, stages=1)),
    32: (WideTile(2, 2, 2, keys=32, stages=2), WideTile(2, 4, 1, keys=16, stages=1)),
    64: (WideTile(4, 2, 1, keys=32, stages=1), WideTile(4, 2, 1, keys=16, stages=1)),
}


def wide_tile(
    state: KVState,
    n_heads: int,
    at: Addresses,
    bucket: Bucket,
    stores_blocks: bool,
) -> WideTile | None:
    """Return the tile for a step of `bucket`, None if heads of `state` do not suit the kernel.

    stores_blocks: the output is stored as blocks of 8-bit numbers.
    """
    cache, features, repeats = at.kv(state), at.features, n_heads // state.n_heads
    n_rows = ceil_div(bucket.tokens, bucket.sequences) * repeats
    if n_rows < MIN_ROWS:
        return None
    tiles = TILES if cache.dtype == "f16" else Q8_TILES
    size = _size(state, repeats, at, bucket, n_rows)
    for tile in (tile for n in sorted(tiles, reverse=True) if n <= size for tile in tiles[n]):
        if (
            tile.suits(state, stores_blocks)
            and tile.keys <= cache.block_tokens
            and tile.shared_bytes(state, cache.dtype) <= features.most_shared_bytes // tile.blocks
        ):
            return replace(tile, splits=_splits(tile, state, repeats, at, bucket))
    return None


def _size(state: KVState, repeats: int, at: Addresses, bucket: Bucket, n_rows: int) -> int:
    """Return the rows of a tile for a step whose sequences have up to `n_rows` rows.

    Tiles of few rows end sooner, if a device runs all their splits at once.
    """
    smallest, middle, largest = TILES
    tiles, units = bucket.tiles(smallest, repeats), at.features.compute_units
    if state.n_heads * tiles * _most_splits(visible_keys(state, bucket)) <= 2 * units:
        return smallest
    size = next((size for size in TILES if size >= n_rows), largest)
    if size == largest and bucket.keys <= SHORT_KEYS:
        fill_one_wave = state.n_heads * bucket.tiles(largest, repeats) <= units
        return middle if fill_one_wave else largest
    return size


def _splits(tile: WideTile, state: KVState, repeats: int, at: Addresses, bucket: Bucket) -> int:
    blocks = state.n_heads * bucket.tiles(tile.rows, repeats)
    wanted = tile.blocks * at.features.compute_units // blocks
    return max(1, min(wanted, _most_splits(visible_keys(state, bucket)), MAX_SPLITS))


def _most_splits(keys: int) -> int:
    """Return the most splits of `keys` keys. Shorter splits are not worth their merge."""
    return max(keys // SPLIT_KEYS, min(keys // MIN_SPLIT_KEYS, FEW_SPLITS))


def _row_bytes(head_dim: int) -> int:
    """Return the bytes of a staged position, padded to an odd multiple of 16."""
    return 16 * (head_dim // 8 | 1)
