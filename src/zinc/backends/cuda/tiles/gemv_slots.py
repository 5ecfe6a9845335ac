"""Tiles of the GEMV of few slots of each expert (kernels/gemv_slots.cu)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from zinc.backends.cuda.tiles.common import BLOCK_ROWS, MANY_WARPS, WARPS, slot_chunks
from zinc.core.dataclass import dataclass
from zinc.core.rounding import ceil_div
from zinc.gpu.features import Features
from zinc.gpu.tiles import units
from zinc.gpu.tiling import TABLE_BYTES, is_power_of_two
from zinc.gpu.tuned import TileKey

MOST_VECTOR_SLOTS = 1  # slots per expert on average
MOST_VECTOR_COLS = 2048  # two units for each lane of a warp
MAX_VECTOR_SLOTS = 4  # slots of an expert that are multiplied at once


@dataclass(frozen=True, slots=True)
class VectorSlotTile:
    """A tile of a GEMV of few slots of each expert (kernels/gemv_slots.cu).

    batch: slots that are multiplied at once. warps: warps per block. units: units of weights in
    flight per lane. blocks: resident blocks per SM.
    """

    batch: int
    warps: int
    units: int
    blocks: int = field(metadata={"steps": (1, 2, 3, 4)})

    def rows(self, key: TileKey) -> int:
        """Return the weight rows that a lane multiplies in one pass."""
        return max(1, self.units // (key.weights * self._deep(key)))

    def chunk(self, key: TileKey) -> int:
        """Return the weight rows of a chunk: those of a pass, at least one Q8 block."""
        return max(self._pass_rows(key), BLOCK_ROWS)

    def grid(self, features: Features, key: TileKey, slots: int) -> int:
        """Return the number of blocks that share `slots` slots of all experts.

        All of them can be resident on the device.
        """
        chunks = slot_chunks(key, slots, self.batch, self.chunk(key))
        return min(chunks, features.compute_units * self.blocks)

    @property
    def defines(self) -> tuple[tuple[str, int], ...]:
        return ("SEGMENT", self.batch), ("WARPS", self.warps), ("MIN_BLOCKS", self.blocks)

    def sizes(self, key: TileKey) -> tuple[tuple[str, int], ...]:
        """Return the macros that depend on the product too."""
        return (
            ("ROWS", self.rows(key)),
            ("CHUNK", self.chunk(key)),
            ("WHOLE", int(key.rows % self.chunk(key) == 0)),
        )

    def _lanes(self, key: TileKey) -> int:
        """Return the lanes that share a row."""
        return 32 if units(key) > 16 else 16 if units(key) > 8 else 8

    def _deep(self, key: TileKey) -> int:
        """Return the units of a row for one lane."""
        return ceil_div(units(key), self._lanes(key))

    def _pass_rows(self, key: TileKey) -> int:
        return self.warps * (32 // self._lanes(key)) * self.rows(key)


def choose_tile(features: Features, key: TileKey, slots: int) -> VectorSlotTile:
    """Return the tile of a GEMV of few slots of each expert, of `slots` slots in all."""
    return features.tuned.choose(key, lambda: _formula(features, key, slots))


def _formula(features: Features, key: TileKey, slots: int) -> VectorSlotTile:
    """Return a tile for several slots of many experts, or a smaller one for few slots.

    The former needs all registers, and spills more on architectures other than Hopper.
    """
    if features.warp_groups and 2 * slots > key.experts:
        return VectorSlotTile(4, WARPS // 2, 8, blocks=4)
    return VectorSlotTile(2, WARPS, 4, blocks=3)


def refusal(features: Features, key: TileKey, tile: VectorSlotTile) -> str:
    """Return why gemv_slots.cu cannot run a tile."""
    if not all(map(is_power_of_two, (tile.batch, tile.warps, tile.units))):
        return "a size is not a power of two"
    if tile.batch > MAX_VECTOR_SLOTS or tile.rows(key) * key.weights > 8:
        return "too many registers"
    if tile.blocks * tile.warps > 3 * MANY_WARPS // 2:
        return "too many warps"
    x = tile.batch * (key.cols + units(key) * 8)
    results = 2 * 4 * key.weights * tile.batch * tile.chunk(key)
    fits = x + results + TABLE_BYTES <= features.shared_bytes
    return "" if fits else "too much shared memory"


def seeds(features: Features, key: TileKey) -> Iterable[VectorSlotTile]:
    """Yield tiles with many and with few units in flight, and with small blocks."""
    for warps, blocks, n_units in ((8, 2, 8), (8, 2, 4), (8, 3, 4), (4, 4, 8)):
        yield VectorSlotTile(4, warps, n_units, blocks)
