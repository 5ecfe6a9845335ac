"""Tiles of the GEMM of few slots of each expert (kernels/gemm_slots.cu)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from zinc.backends.cuda.tiles.common import (
    BLOCK_ROWS,
    FEW_TILE_ROWS,
    GROUP_COLS,
    MANY_WARPS,
    SUMS_BYTES,
    WARPS,
    RowsTile,
    slot_chunks,
)
from zinc.core.dataclass import dataclass
from zinc.core.rounding import ceil_div
from zinc.gpu.features import Features
from zinc.gpu.tiling import TABLE_BYTES
from zinc.gpu.tuned import TileKey

MOST_SLOTS = 8  # slots per expert on average
MOST_ROUND = 8  # tiles of a team whose sums are reduced together


@dataclass(frozen=True, slots=True)
class FewSlotTile(RowsTile):
    """A tile of a GEMM of few slots of each expert (kernels/gemm_slots.cu).

    x_tiles: tiles of 8 slots. team: warps that split the columns of 16 weight rows (split-K).
    teams: teams of a block, each with its own weight rows. blocks: resident blocks per SM.
    """

    team: int = field(metadata={"steps": range(1, MANY_WARPS + 1)})
    teams: int = field(metadata={"steps": range(1, MANY_WARPS + 1)})
    blocks: int = field(metadata={"steps": (1, 2, 3, 4)})

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return self.team * self.teams

    def chunk(self, key: TileKey) -> int:
        """Return the tiles of a team in a chunk, whose outputs are whole Q8 blocks if stored so."""
        return BLOCK_ROWS // FEW_TILE_ROWS if key.stores_blocks and self.teams % 2 else 1

    def round(self, key: TileKey) -> int:
        """Return the tiles of a team whose sums are in shared memory at once."""
        chunk, needed = self.chunk(key), ceil_div(key.rows, FEW_TILE_ROWS * self.teams)
        most = SUMS_BYTES // self.blocks // self._tile_bytes(key)
        return max(1, min(most, needed, MOST_ROUND) // chunk) * chunk

    def shared_bytes(self, key: TileKey) -> int:
        return self.round(key) * self._tile_bytes(key)

    def grid(self, features: Features, key: TileKey, slots: int) -> int:
        """Return the number of blocks that share `slots` slots of all experts.

        All of them can be resident on the device.
        """
        chunks = slot_chunks(key, slots, self.batch, self._chunk_rows(key))
        return min(chunks, features.compute_units * self.blocks)

    @property
    def defines(self) -> tuple[tuple[str, int], ...]:
        return (
            ("X_TILES", self.x_tiles),
            ("WARPS", self.warps),
            ("TEAM", self.team),
            ("MIN_BLOCKS", self.blocks),
        )

    def sizes(self, key: TileKey) -> tuple[tuple[str, int], ...]:
        """Return the macros that depend on the product too."""
        return (
            ("CHUNK", self.chunk(key)),
            ("ROUND", self.round(key)),
            ("WHOLE", int(key.rows % self._chunk_rows(key) == 0)),
        )

    def _chunk_rows(self, key: TileKey) -> int:
        return FEW_TILE_ROWS * self.teams * self.chunk(key)

    def _tile_bytes(self, key: TileKey) -> int:
        """Return the bytes of the sums of a tile of each team."""
        sums = key.weights * self.team * self.batch * (FEW_TILE_ROWS + 4) + 16
        return 4 * self.teams * sums


def choose_tile(features: Features, key: TileKey) -> FewSlotTile:
    """Return the tile of a GEMM of few slots of each expert."""
    return features.tuned.choose(key, lambda: _formula(key))


def _formula(key: TileKey) -> FewSlotTile:
    """Return the tile with the fewest idle warps; of several, the one with the largest teams."""
    groups = ceil_div(key.cols, GROUP_COLS)

    def busy_warps(team: int) -> tuple[float, int]:
        return groups / ceil_div(groups, team) * (WARPS // team), team

    team = max(range(1, min(groups, WARPS) + 1), key=busy_warps)
    return FewSlotTile(1, team, WARPS // team, blocks=2)


def refusal(features: Features, key: TileKey, tile: FewSlotTile) -> str:
    """Return why gemm_slots.cu cannot run a tile."""
    if not 1 <= tile.x_tiles <= 2:
        return "too many registers"
    if tile.team > ceil_div(key.cols, GROUP_COLS):
        return "more warps than groups of columns"
    if tile.blocks * tile.warps > MANY_WARPS:
        return "too many warps"
    fits = tile.blocks * (tile.shared_bytes(key) + TABLE_BYTES)
    return "" if fits <= features.most_shared_bytes else "too much shared memory"


def seeds(features: Features, key: TileKey) -> Iterable[FewSlotTile]:
    """Yield tiles of few and of many teams, in large and in small blocks."""
    groups = ceil_div(key.cols, GROUP_COLS)
    for blocks in (1, 2, 4):
        warps = MANY_WARPS // blocks
        for team in (min(groups, warps), min(groups, 2)):
            yield FewSlotTile(1, team, warps // team, blocks)
