"""Tile sizes of GEMV and GEMM kernels, by device and product.

A tile that `zinc tune` found for the product comes first (tuned.py), then a formula.

In a GEMV (few rows of x) each workgroup takes a tile of weight rows, and several waves may split
the columns of a row (split-K). Long rows are split among more waves. Matrices of few rows get small
tiles, so that every compute unit has work. A GEMM (many rows of x) is tiled in both dimensions, and
tiles are staged in shared memory.
"""

from __future__ import annotations

from dataclasses import replace

from zinc.core.dataclass import dataclass
from zinc.core.rounding import ceil_div
from zinc.gpu.features import FULL_REGISTERS, Features
from zinc.gpu.packing import FLOATS, UNIT
from zinc.gpu.tuned import TileKey

MAX_BATCH = 8  # rows of x that a GEMV multiplies in one pass over the weights
# Rows of x in one pass in batch-invariant mode, in steps of any size. Decode reads the weights
# once, as in the default mode; a prompt reads them once for every four tokens.
INVARIANT_BATCH = 4
# Measured on an H200:
MAX_GEMV_ROWS = 32  # up to this many rows of x, several passes of GEMV are faster than GEMM
MANY_ROWS = 1 << 15  # weight rows that keep every compute unit busy with any tile
# Waves per compute unit in a GEMV of 8 rows of x. Rows are split among more waves until there are
# as many waves as the first number. Then waves take fewer weight rows until there are as many as
# the second number.
WAVES_OF_EIGHT = (15, 4)
LONG_ROW = 8  # units per lane; rows at least that long are split among all waves
FEW_SLOTS = 32  # slots of an expert in a GEMM tile

# GEMM with few rows of x on cooperative matrices:
MAX_FEW_GEMV_ROWS = 16  # up to this many rows of x, GEMV is faster
MAX_FEW_ROWS = 64
STEP_COLS, STAGED_ROW_BYTES = 64, 144  # columns of a step, bytes of a row (gemm_matrices.slang)
# Weight rows per compute unit from which tiles of 128 and of 256 rows fill the device.
MANY_TILE_ROWS = 96
MOST_TILE_ROWS = 256
LONG_COLS = 8192  # with this many columns, workgroups split them, not teams of a workgroup
SUBGROUPS_A_UNIT = 16  # resident subgroups that hide the latency of loads
MIN_STEPS, MAX_SPLITS = 2, 8  # steps of a team, and workgroups that split the columns of a tile


@dataclass(frozen=True, slots=True)
class GemvTile:
    """A GEMV's tile.

    waves: subgroups of a workgroup. split: waves that share the columns of a row. rows: weight rows
    of a wave. batch: rows of x multiplied at once. deep: loads that a lane has in flight.
    """

    waves: int
    split: int
    rows: int
    batch: int
    deep: int = 1

    @property
    def tile(self) -> int:
        """Weight rows of a workgroup."""
        return self.rows * self.waves // self.split

    @property
    def defines(self) -> tuple[tuple[str, int], ...]:
        return (
            ("WAVES", self.waves),
            ("KSPLIT", self.split),
            ("ROWS", self.rows),
            ("BATCH", self.batch),
            ("DEEP", self.deep),
        )


def gemv(features: Features, key: TileKey) -> GemvTile:
    """Return the tile of a GEMV."""
    return features.tuned.choose(key, lambda: _gemv(features, key))


def _gemv(features: Features, key: TileKey) -> GemvTile:
    n_units = units(key)
    if key.kernel == "moe_down":
        return _gemv_slots(features, key.rows, n_units)
    if key.stores_blocks:
        return _gemv_blocks(features, n_units, key.n_x, key.weights)
    return _gemv_rows(features, key.rows, n_units, key.n_x, key.weights)


def units(key: TileKey) -> int:
    """Return the units of a row of weights, which lanes decode at once."""
    return ceil_div(key.cols, FLOATS.get(key.type, UNIT))


def _gemv_rows(features: Features, rows: int, units: int, n_x: int, weights: int = 1) -> GemvTile:
    batch = _batch(features, n_x)
    if features.subgroup < 16:  # a CPU runs waves one after another; compile one kernel for all
        return GemvTile(waves=4, split=2, rows=1, batch=2, deep=2)
    if batch == MAX_BATCH and features.narrow_matrix:
        return _gemv_eight(features, rows * ceil_div(n_x, batch), units, weights)
    waves = 8 if features.subgroup <= 32 else 4
    steps = max(1, units // features.subgroup)  # units per lane if one wave takes a whole row
    if batch == 1 and rows >= MANY_ROWS:
        return GemvTile(waves=4, split=min(2, _power_of_two(steps)), rows=4, batch=1, deep=2)
    is_long = batch == 1 and steps >= LONG_ROW and rows >= 8 * features.compute_units
    if features.narrow_matrix and weights == 1:  # measured on NVIDIA GPUs
        if batch in (2, 4) and rows >= MANY_ROWS:
            return GemvTile(waves=batch, split=1, rows=8 // batch, batch=batch)
        if is_long:
            return GemvTile(waves=32, split=4, rows=2, batch=1)
    if is_long and weights == 1:
        return GemvTile(waves, waves, 4, batch)
    # Sums stay in registers. With more rows of x there is more work a row, so fewer waves need to
    # share it, and fewer workgroups fill the device.
    per_wave = max(1, min(4, 16 // (batch * weights)))
    if batch > 1 and features.has_fewest_registers:
        per_wave = max(1, per_wave // 2)
    if batch == 1:
        split, groups_a_unit = _power_of_two(max(1, steps // 2)), 2.0
    else:
        split, groups_a_unit = min({2: 4, 4: 2}.get(batch, 1), _power_of_two(steps)), 0.75
    split = min(split, waves)
    enough = groups_a_unit * features.compute_units * waves
    while per_wave > 1 and rows * split < enough * per_wave:
        per_wave //= 2
    while split < waves and rows * split < enough and units >= 2 * split * features.subgroup:
        split *= 2
    return GemvTile(waves, split, per_wave, batch)


def _gemv_eight(features: Features, rows: int, units: int, weights: int) -> GemvTile:
    """Return the GEMV tile for 8 rows of x at once, measured on NVIDIA GPUs.

    Each wave takes several weight rows, so that it reads x seldom. rows: weight rows of all passes.
    """
    per_wave, split = 4 // weights, 1
    many, few = (n * features.compute_units for n in WAVES_OF_EIGHT)
    while split < 4 and rows * split < many * per_wave and units >= 2 * split * features.subgroup:
        split *= 2
    while per_wave > 1 and rows * split < few * per_wave:
        per_wave //= 2
    return GemvTile(8, split, per_wave, MAX_BATCH)


def stores_unscaled(features: Features) -> bool:
    """Return whether products of few rows store their rows for a product of their norm.

    It was measured on NVIDIA GPUs only. On a CPU, which runs the tests, any kernel will do.
    """
    return features.narrow_matrix or features.subgroup < 16


def within_grid(features: Features, tile: GemvTile, rows: int) -> GemvTile:
    """Return the tile with enough rows per wave that `rows` rows fit into `max_groups`."""
    while rows > tile.tile * features.max_groups:
        tile = replace(tile, rows=2 * tile.rows)
    return tile


def uses_gemv(features: Features, half: bool, n_x: int) -> bool:
    """Return whether `n_x` rows of x are multiplied by a GEMV and not by a GEMM.

    `half`: inputs may be rounded to float16.
    """
    if features.batch_invariant:
        return True
    if takes_few_rows(features, half, n_x):
        return n_x <= MAX_FEW_GEMV_ROWS
    return n_x <= (MAX_BATCH if features.subgroup < 16 else MAX_GEMV_ROWS)


def _power_of_two(n: int) -> int:
    """Return the largest power of two that is at most `n`."""
    return 1 << (n.bit_length() - 1)


def _gemv_blocks(features: Features, units: int, n_x: int, weights: int) -> GemvTile:
    """Return the GEMV tile for kernels that write blocks of 8-bit numbers.

    A workgroup makes whole blocks, which are 32 weight rows.
    """
    if features.subgroup < 16:
        return GemvTile(waves=8, split=1, rows=4, batch=1)
    batch = _batch(features, n_x)
    if features.narrow_matrix:  # measured on NVIDIA GPUs
        if batch == MAX_BATCH:
            return GemvTile(waves=8, split=1, rows=4, batch=MAX_BATCH)
        if weights == 1:
            deep = 1 if batch > 1 and units < LONG_ROW * features.subgroup else 2
            return GemvTile(waves=32, split=2, rows=2, batch=batch, deep=deep)
        if batch <= 2 and weights == 2 and units >= 4 * features.subgroup:
            rows = 2 * batch
            return GemvTile(waves=32 // rows, split=1, rows=rows, batch=batch, deep=4)
    rows = 4 if features.subgroup <= 32 else 8
    batch = min(batch, max(1, 32 // (rows * weights)))
    if batch > 1 and features.has_fewest_registers:
        rows //= 2
    split = 2 if units >= 2 * features.subgroup else 1
    return GemvTile(waves=32 * split // rows, split=split, rows=rows, batch=batch)


def _gemv_slots(features: Features, rows: int, units: int) -> GemvTile:
    """Return the GEMV tile for `moe_down`, whose rows go through all experts of a token.

    `units` counts the units of a row over those experts.
    """
    tile = _gemv_rows(features, rows, units, 1)
    deep = max(1, min(4, units // (tile.split * features.subgroup)))
    return tile if features.subgroup < 16 else replace(tile, deep=deep)


def _batch(features: Features, n_x: int) -> int:
    if features.batch_invariant:
        return INVARIANT_BATCH
    most = max(1, MAX_BATCH * features.registers // FULL_REGISTERS)
    return next((n for n in (1, 2, 4) if n >= min(n_x, most)), MAX_BATCH)


@dataclass(frozen=True, slots=True)
class GemmTile:
    """A GEMM's tile of `rows` weight rows by `batch` rows of x.

    With cooperative matrices a team of `down` x `across` subgroups shares the tile; `split` teams
    of a workgroup, and `splits` workgroups, share its columns. `rows` counts the rows of both
    matrices of a gated product. Otherwise (`sums` > 0) each thread computes 4 x `sums` outputs.
    """

    rows: int
    batch: int
    sums: int = 0
    down: int = 0
    across: int = 0
    split: int = 1
    splits: int = 1

    @property
    def subgroups(self) -> int:
        """Subgroups of a workgroup, if they multiply with cooperative matrices."""
        return self.down * self.across * self.split

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a workgroup, if it multiplies with cooperative matrices."""
        return STAGED_ROW_BYTES * (self.rows + self.batch) * self.split

    @property
    def defines(self) -> tuple[tuple[str, int], ...]:
        matrices = (("DOWN", self.down), ("ACROSS", self.across))
        cut = (("SUMS", self.sums),) if self.sums else matrices
        tile = (("ROWS", self.rows), ("BATCH", self.batch), ("KSPLIT", self.split))
        return (*tile, ("SPLITS", self.splits), ("MATRICES", int(not self.sums)), *cut)


def gemm(features: Features, key: TileKey, half: bool) -> GemmTile:
    """Return the tile of a GEMM. `half`: inputs may be rounded to float16."""
    return features.tuned.choose(key, lambda: _gemm(features, key, half))


def _gemm(features: Features, key: TileKey, half: bool) -> GemmTile:
    if key.experts:
        return _gemm_block(features, half, FEW_SLOTS)
    if takes_few_rows(features, half, key.n_x):
        return _with_splits(features, _few_rows(features, key), key)
    assert key.weights == 1, "the kernel multiplies with one matrix at a time"
    return _gemm_block(features, half, key.n_x)


def _gemm_block(features: Features, half: bool, n_x: int) -> GemmTile:
    """Return the GEMM tile for `n_x` rows of x where every workgroup takes all columns."""
    if half and features.cooperative_matrix and features.shared_bytes >= 36864:
        if n_x <= 32:
            tile = GemmTile(128, 32, down=4 * FULL_REGISTERS // features.registers, across=2)
        elif features.has_fewest_registers:
            tile = GemmTile(64, 64, down=8, across=4)
        elif n_x <= 64:
            tile = GemmTile(64, 64, down=2, across=2)
        else:
            tile = GemmTile(128, 128, down=2, across=4)
        return _within_registers(features, tile)
    if features.subgroup < 16:  # a CPU: a small kernel compiles sooner
        return GemmTile(32, 16, sums=2)
    sums = 4 if features.has_fewest_registers else 8
    return GemmTile(64, 32 if n_x <= 32 else 64, sums=sums)


def _within_registers(features: Features, tile: GemmTile) -> GemmTile:
    """Return the tile shared by enough subgroups that sums take a quarter of a lane's registers."""
    sums = tile.rows * tile.batch // features.subgroup
    while (
        4 * sums > tile.subgroups * features.registers
        and tile.rows >= 2 * tile.down * features.matrix.m
    ):
        tile = replace(tile, down=2 * tile.down)
    return tile


def takes_few_rows(features: Features, half: bool, n_x: int) -> bool:
    """Return whether the GEMM with few rows of x multiplies `n_x` rows.

    It can take both matrices of a gated product. It was tuned on NVIDIA GPUs. Others have no
    matrices of 8 columns and keep their tiles. `half`: inputs may be rounded to float16.
    """
    few = not features.batch_invariant and n_x <= MAX_FEW_ROWS
    return few and half and features.cooperative_matrix and features.narrow_matrix


def _few_rows(features: Features, key: TileKey) -> GemmTile:
    """Return the tile for up to MAX_FEW_ROWS rows of x, as if enough workgroups ran.

    Decoding limits the speed: a tile decodes its weights and its rows of x once, so it has more
    weight rows than rows of x, and two or more subgroups share decoded rows of x. A gated product
    has at least 32 rows of each matrix, because it may store blocks of 32.
    """
    if key.n_x <= 32:
        tile = GemmTile(64, 32, down=2, across=1, split=2)
    elif key.weights == 1 and key.rows >= MOST_TILE_ROWS * features.compute_units:
        tile = GemmTile(256, 64, down=2, across=2)
    elif key.weights == 1 and key.rows >= MANY_TILE_ROWS * features.compute_units:
        tile = GemmTile(128, 64, down=4, across=2)
    elif key.cols >= LONG_COLS:
        tile = GemmTile(64, 64, down=2, across=2)
    else:
        tile = GemmTile(64, 64, down=2, across=2, split=2)
    while tile.shared_bytes > features.shared_bytes:
        tile = replace(tile, split=tile.split // 2)
    return tile


def _with_splits(features: Features, tile: GemmTile, key: TileKey) -> GemmTile:
    """Return the tile with its columns split among workgroups if its grid leaves units idle."""
    if key.heads > 1:  # the kernel adds up the sums of splits of one head
        return tile
    subgroups = ceil_div(key.weights * key.rows, tile.rows) * tile.subgroups
    # More rows of x give each subgroup more products to hide the latency with.
    resident = SUBGROUPS_A_UNIT if key.n_x <= 32 else SUBGROUPS_A_UNIT // 2
    wanted = resident * features.compute_units // subgroups
    longest = key.cols // (STEP_COLS * MIN_STEPS * tile.split)
    return replace(tile, splits=_power_of_two(max(1, min(wanted, longest, MAX_SPLITS))))
