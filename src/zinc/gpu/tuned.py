"""Tiles that `zinc tune` has found for a device.

Lowerings ask for the tile of a product by its `TileKey`. A `TunedTiles` answers with the tile of
the device's table (tile_table.py), or else with that of a formula (tiles.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from zinc.core.dataclass import dataclass
from zinc.quant.blocks import GGMLType


class Tile(Protocol):
    """Tile sizes of a kernel: a frozen dataclass of integers and booleans."""

    @property
    def defines(self) -> tuple[tuple[str, int], ...]:
        """The macros with which the kernel is compiled."""
        ...


T = TypeVar("T", bound=Tile)


@dataclass(frozen=True, slots=True)
class TileKey:
    """A kernel and the product that it computes, for which a tile is chosen.

    rows, cols: of all weights that the kernel multiplies in one pass. n_x: rows of x; with
    `experts` the slots of an expert on average. weights: matrices that are multiplied together, 2
    for a gated product. stores_blocks: the output is rows of 8-bit blocks. normalises: the kernel
    normalises x. experts: experts of a product that reads one expert after another, else 0. heads:
    groups of weight rows, each with columns of x of its own.
    """

    kernel: str
    type: GGMLType
    rows: int
    cols: int
    n_x: int = 1
    weights: int = 1
    stores_blocks: bool = False
    normalises: bool = False
    experts: int = 0
    heads: int = 1

    def __str__(self) -> str:
        notes = [
            *(["gated"] if self.weights > 1 else []),
            *([f"{self.experts} experts"] if self.experts else []),
            *([f"{self.heads} heads"] if self.heads > 1 else []),
            *(["norm"] if self.normalises else []),
            *(["to 8 bits"] if self.stores_blocks else []),
        ]
        size = f"{self.kernel} {self.type.name} {self.rows}x{self.cols} by {self.n_x}"
        return ", ".join([size, *notes])

    @property
    def rounded(self) -> TileKey:
        """The key with rows of x rounded up to a power of two, as tables have it."""
        return replace(self, n_x=1 << (self.n_x - 1).bit_length())


class TunedTiles:
    """The tiles of a table by key."""

    def __init__(self, tiles: Mapping[TileKey, Any] = MappingProxyType({})) -> None:
        self._tiles = tiles

    def __len__(self) -> int:
        return len(self._tiles)

    def choose(self, key: TileKey, formula: Callable[[], T]) -> T:
        """Return the table's tile for `key`, or that of `formula` if the table has none."""
        found: T | None = self._tiles.get(key.rounded)
        return formula() if found is None else found


NO_TILES = TunedTiles()


class RecordedTiles(TunedTiles):
    """A recorder of the keys that lowerings look up, with the formula's tile for each key."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded: dict[TileKey, Any] = {}

    def choose(self, key: TileKey, formula: Callable[[], T]) -> T:
        tile = formula()
        self.recorded.setdefault(key.rounded, tile)
        return tile
