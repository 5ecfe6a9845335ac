"""How products with weights are cut into workgroups: constants by device class and shape.

A workgroup of `waves` subgroups takes `tile` rows of weights; `split` waves share the columns of a
row, and each wave has `rows` of them. Short rows leave nothing to share, and few rows want small
tiles, so that every compute unit of the device gets some. Products with many rows of x are cut
both ways, into tiles that meet in a workgroup's shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from zinc.gpu.features import Features

FEW = 8  # rows of x that one pass over the weights serves
# The same in every step of a batch-invariant backend: a decoded token takes no more reads of the
# weights than otherwise, a prompt takes a quarter of one for each of its tokens.
INVARIANT_BATCH = 4
# Measured on an H200 with benchmarks/vulkan_tiles.py.
FEW_PASSES = 32  # rows of x up to which passes over the weights are faster than tiles
MANY_ROWS = 1 << 15  # of weights, so many that every unit is busy whatever the tile
LONG_ROW = 8  # units of a lane, from which on all waves of a workgroup share a row


@dataclass(frozen=True, slots=True)
class Tile:
    """Waves of a workgroup, waves that share a row's columns, rows a wave, rows of x at once, and
    units that a lane has in flight."""

    waves: int
    split: int
    rows: int
    batch: int
    deep: int = 1

    @property
    def tile(self) -> int:
        """Rows of weights a workgroup."""
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


def mat_vec(features: Features, rows: int, units: int, n_x: int, weights: int = 1) -> Tile:
    """For a product of `rows` rows of `units` units, of one or two weights, with n_x rows of x."""
    batch = _batch(features, n_x)
    if features.subgroup < 16:  # a CPU: waves follow one another
        return Tile(waves=4, split=2, rows=1, batch=2, deep=2)  # one pipeline for all
    waves = 8 if features.subgroup <= 32 else 4
    steps = max(1, units // features.subgroup)  # units of a lane if a wave had the row alone
    if batch == 1 and rows >= MANY_ROWS:
        return Tile(waves=4, split=min(2, _power_of_two(steps)), rows=4, batch=1, deep=2)
    if batch == 1 and steps >= LONG_ROW and rows >= 8 * features.compute_units and weights == 1:
        return Tile(waves, waves, 4, batch)
    # Sums stay in registers; the more rows of x, the fewer waves need to share a row of weights,
    # and the fewer groups there need to be.
    per_wave = max(1, min(4, 16 // (batch * weights)))
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
    return Tile(waves, split, per_wave, batch)


def within_grid(features: Features, tile: Tile, rows: int) -> Tile:
    """Return the tile with enough rows a wave that `rows` rows need no more than `max_groups`."""
    while rows > tile.tile * features.max_groups:
        tile = replace(tile, rows=2 * tile.rows)
    return tile


def are_few(features: Features, n_x: int) -> bool:
    """Whether `mat_vec` is to be used for n_x rows of x, and not `mat_mat`."""
    return features.batch_invariant or n_x <= (FEW if features.subgroup < 16 else FEW_PASSES)


def _power_of_two(n: int) -> int:
    """The largest one that is not above n."""
    return 1 << (n.bit_length() - 1)


def blocks(features: Features, units: int, n_x: int, weights: int = 2) -> Tile:
    """For products that write 8-bit blocks: a workgroup has whole blocks of 32 rows."""
    if features.subgroup < 16:
        return Tile(waves=8, split=1, rows=4, batch=1)
    rows = 4 if features.subgroup <= 32 else 8
    batch = min(_batch(features, n_x), max(1, 32 // (rows * weights)))
    split = 2 if units >= 2 * features.subgroup else 1
    return Tile(waves=32 * split // rows, split=split, rows=rows, batch=batch)


def slots(features: Features, rows: int, units: int) -> Tile:
    """For sums of a token's slots, `rows` of so many units over all its experts."""
    tile = mat_vec(features, rows, units, 1)
    deep = max(1, min(4, units // (tile.split * features.subgroup)))
    return tile if features.subgroup < 16 else replace(tile, deep=deep)


def _batch(features: Features, n_x: int) -> int:
    if features.batch_invariant:
        return INVARIANT_BATCH
    return next((n for n in (1, 2, 4) if n >= n_x), FEW)


@dataclass(frozen=True, slots=True)
class Block:
    """A tile of `rows` rows of weights by `batch` rows of x. With matrices `down` by `across`
    subgroups share it, else threads that make 4 by `sums` sums."""

    rows: int
    batch: int
    sums: int = 0
    down: int = 0
    across: int = 0

    @property
    def defines(self) -> tuple[tuple[str, int], ...]:
        matrices = (("DOWN", self.down), ("ACROSS", self.across))
        cut = (("SUMS", self.sums),) if self.sums else matrices
        tile = (("ROWS", self.rows), ("BATCH", self.batch))
        return (*tile, ("MATRICES", int(not self.sums)), *cut)


def mat_mat(features: Features, half: bool, n_x: int) -> Block:
    """For a product with n_x rows of x. `half`: float16 is close enough for its inputs."""
    if half and features.cooperative_matrix and features.shared_bytes >= 36864:
        if n_x <= 32:
            return Block(128, 32, down=4, across=2)
        if n_x <= 64:
            return Block(64, 64, down=2, across=2)
        return Block(128, 128, down=2, across=4)
    if features.subgroup < 16:  # little code is soon compiled
        return Block(32, 16, sums=2)
    if n_x <= 32:
        return Block(64, 32, sums=8)
    return Block(64, 64, sums=8)
