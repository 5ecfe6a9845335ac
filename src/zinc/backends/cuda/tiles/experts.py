"""Tiles of the shared kernels experts and moe_down, for products of few tokens with experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from zinc.gpu.packing import FLOATS
from zinc.gpu.tiles import GemvTile
from zinc.gpu.tuned import T, TileKey, TunedTiles
from zinc.quant.blocks import GGMLType

# Least weight rows of all slots that fill the device.
SEVERAL_SLOT_ROWS = {"experts": 1 << 13, "moe_down": 1 << 14}
MANY_SLOT_ROWS = 1 << 14  # with at least as many, tiles have many rows
FOUR_BITS = {GGMLType.Q4_0, GGMLType.Q4_1, GGMLType.Q4_K, GGMLType.IQ4_NL, GGMLType.MXFP4}


class SlotTiles(TunedTiles):
    """Tiles for the kernels experts and moe_down: those of `table`, or else of this module.

    All GPU backends share the lowering of these kernels. On CUDA devices, the slots of a few tokens
    fill the device, so each warp takes many weight rows, which saves reads of activations.
    """

    def __init__(self, table: TunedTiles) -> None:
        self._table = table

    def choose(self, key: TileKey, formula: Callable[[], T]) -> T:
        return self._table.choose(key, lambda: cast(T, _slot_tile(key)) or formula())


def _slot_tile(key: TileKey) -> GemvTile | None:
    """Return the tile for the slots of a few tokens; None leaves it to the shared formula."""
    least = SEVERAL_SLOT_ROWS.get(key.kernel)
    if least is None or key.rows < least or key.experts or key.type in FLOATS:
        return None
    if key.rows < MANY_SLOT_ROWS:
        return GemvTile(8, split=1, rows=4, batch=1, deep=2)
    if key.kernel == "experts" or key.type in FOUR_BITS:
        return GemvTile(8, split=1, rows=8, batch=1)
    return GemvTile(16, split=1, rows=4, batch=1)
