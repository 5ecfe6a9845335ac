"""The table of tiles that `zinc tune` measured on a device: a JSON file in the cache folder.

A table belongs to a device and to the code of its kernels (code_digest.py). A table of other code
is ignored, and so is a tile that its kernel cannot run. Rows are written as they are found, so that
an interrupted search continues where it stopped.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, field, fields, replace
from pathlib import Path
from typing import Any

from zinc.core.dataclass import dataclass
from zinc.core.env import cache_folder
from zinc.core.errors import RequestError
from zinc.gpu.features import Features
from zinc.gpu.tiling import Tiling
from zinc.gpu.tuned import NO_TILES, TileKey, TunedTiles
from zinc.quant.blocks import GGMLType

log = logging.getLogger("zinc.tiles")

VERSION = 1


@dataclass(frozen=True, slots=True)
class Origin:
    """Backend, device, driver and digest of the kernels' code that a table was measured with."""

    backend: str
    device: str
    driver: str
    sources: str

    @property
    def path(self) -> Path:
        """The file of the device's table in the cache folder."""
        return table_path(self.backend, self.device)


@dataclass(slots=True)
class Row:
    """The result of a search for a product.

    tile: the fastest tile, None if the search is not complete. us, default_us: microseconds of the
    product with it, and with the formula's tile. n_tried: tiles that ran. refused: tiles that
    did not, or whose results were wrong, each with the reason. timed: microseconds with each tile
    that an incomplete search has timed, from which it continues.
    """

    tile: Any = None
    us: float = 0.0
    default_us: float = 0.0
    n_tried: int = 0
    refused: list[tuple[Any, str]] = field(default_factory=list)
    timed: dict[Any, float] = field(default_factory=dict)


class TileTable:
    """The rows of a table by key."""

    def __init__(self, origin: Origin, rows: Mapping[TileKey, Row] | None = None) -> None:
        self.origin, self.rows = origin, dict(rows or {})

    @classmethod
    def read(cls, path: Path, tilings: Mapping[str, Tiling]) -> TileTable:
        """Return the table of a file. Raises OSError, or ValueError if it is damaged."""
        found = json.loads(path.read_text(encoding="utf-8"))
        try:
            if found["version"] != VERSION:
                raise ValueError(f"it has version {found['version']}")
            origin = Origin(*(str(found[name]) for name in _names(Origin)))
            rows = dict(_row(each, tilings) for each in found["products"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        return cls(origin, rows)

    def write(self, path: Path) -> None:
        """Write the table atomically. Raises RequestError if it cannot be written."""
        data = {"version": VERSION, **asdict(self.origin)}
        data["products"] = [_product(key, row) for key, row in self.rows.items()]
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
            partial.replace(path)
        except OSError as error:
            why = error.strerror or str(error)
            raise RequestError(
                f"cannot write {path}", why, "choose a file with {output}"
            ) from error

    def tuned(self, features: Features, tilings: Mapping[str, Tiling]) -> TunedTiles:
        """Return the tiles that kernels can run on a device with `features`."""
        tiles = {
            key: row.tile
            for key, row in self.rows.items()
            if row.tile is not None and not tilings[key.kernel].refusal(features, key, row.tile)
        }
        return TunedTiles(tiles)


def table_path(backend: str, device: str) -> Path:
    """Return the file of a device's table in the cache folder."""
    name = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    return cache_folder() / "tiles" / f"{backend}-{name}.json"


def tuned_tiles(
    path: Path,
    make_origin: Callable[[], Origin],
    features: Features,
    tilings: Mapping[str, Tiling],
) -> TunedTiles:
    """Return the tiles of a device's table, the file `path`; none if it cannot be used.

    make_origin: returns the origin of a new table. It hashes the code of all kernels, so it is
    called only if the file exists.
    """
    try:
        table = TileTable.read(path, tilings)
    except FileNotFoundError:
        return NO_TILES
    except (OSError, ValueError) as error:
        _warn_once(f"{path} is damaged and not used: {error}. Run `zinc tune` to write it anew.")
        return NO_TILES
    origin = make_origin()
    if replace(table.origin, driver=origin.driver) != origin:
        _warn_once(f"{path} is from another zinc version and not used. Run `zinc tune` again.")
        return NO_TILES
    return table.tuned(features, tilings)


@functools.cache
def _warn_once(message: str) -> None:
    """Log a warning, which several backends of a process would repeat."""
    log.warning("%s", message)


def _names(kind: type[Any]) -> list[str]:
    return [each.name for each in fields(kind)]


def _product(key: TileKey, row: Row) -> dict[str, Any]:
    """Return a row as JSON values."""
    return {
        **asdict(key),
        "type": key.type.name,
        "tile": None if row.tile is None else asdict(row.tile),
        "us": row.us,
        "default_us": row.default_us,
        "tried": row.n_tried,
        "refused": [{"tile": asdict(tile), "why": why} for tile, why in row.refused],
        "timed": [{"tile": asdict(tile), "us": us} for tile, us in row.timed.items()],
    }


def _row(given: Mapping[str, Any], tilings: Mapping[str, Tiling]) -> tuple[TileKey, Row]:
    """Return a row from JSON values. Raises KeyError, TypeError or ValueError."""
    values = {name: given[name] for name in _names(TileKey)}
    key = TileKey(**{**values, "type": GGMLType[values["type"]]})
    kind = tilings[key.kernel].tile
    row = Row(
        None if given["tile"] is None else _tile(kind, given["tile"]),
        float(given["us"]),
        float(given["default_us"]),
        int(given["tried"]),
        [(_tile(kind, each["tile"]), str(each["why"])) for each in given["refused"]],
        # Tables of older versions have none.
        {_tile(kind, each["tile"]): float(each["us"]) for each in given.get("timed", ())},
    )
    return key, row


def _tile(kind: type[Any], given: Mapping[str, Any]) -> Any:
    """Return a tile of class `kind`, whose fields are integers or booleans."""
    tile = kind(**given)
    if not all(isinstance(value, int) for value in given.values()):
        raise ValueError(f"{tile} is not a tile: its sizes must be integers")
    return tile
