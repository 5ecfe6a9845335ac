"""Tuning of a device: a search for each product of some plans, and the table that it fills."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from time import monotonic
from typing import Any

from zinc.backends.plans import Plan
from zinc.backends.tuning import TunedProduct, TuneReport
from zinc.core.errors import DeviceError, MemoryLimitError, RequestError
from zinc.gpu.errors import DeviceLostError
from zinc.gpu.features import Features
from zinc.gpu.host import Host
from zinc.gpu.kernel_set import KernelSet
from zinc.gpu.tile_table import Origin, Row, TileTable
from zinc.gpu.tiling import Tiling
from zinc.gpu.tune.clocks import SteadyClocks
from zinc.gpu.tune.products import Product, products
from zinc.gpu.tune.search import Search
from zinc.gpu.tune.trial import Trial
from zinc.gpu.tune.weights import LaunchWeights
from zinc.gpu.tuned import NO_TILES, TileKey

log = logging.getLogger("zinc.tiles")


def tune(
    tuner: Tuner,
    plans: Iterable[Plan],
    budget_s: float | None,
    progress: Callable[[int, int], None],
) -> TuneReport:
    """Fill the table of `tuner` for `plans`; see `zinc.backends.tuning.Tunable.tune`."""
    found = products(tuner.kernels, plans, tuner.features)
    until = math.inf if budget_s is None else monotonic() + budget_s
    left: set[TileKey] = set()
    skipped = {}
    for number, product in enumerate(found):
        progress(number, len(found))
        if tuner.has(product.key):
            continue
        try:
            if monotonic() >= until or not tuner.search(product, until):
                left.add(product.key)
        except MemoryLimitError as error:
            skipped[str(product.key)] = error.why or error.what
    rows = tuner.table.rows
    reported = [_reported(x.key, rows[x.key]) for x in found if x.key in rows.keys() - left]
    return TuneReport(tuner.path, tuple(reported), len(left), tuple(skipped.items()))


class Tuner:
    """Searches for the tiles of `kernels` on the device of `host`.

    The results go to the table in `path`, by default the one that backends of this origin read.
    """

    def __init__(
        self,
        kernels: KernelSet,
        host: Host,
        features: Features,
        origin: Origin,
        path: Path | None = None,
    ) -> None:
        self.kernels, self._host = kernels, host
        self.path = path or origin.path
        self.table = _opened(self.path, origin, kernels.tilings)
        self.features = replace(features, tuned=NO_TILES)
        self._weights: LaunchWeights | None = None
        self._clocks = SteadyClocks(host)

    def has(self, key: TileKey) -> bool:
        """Return whether the table has a tile for `key`."""
        return key in self.table.rows and self.table.rows[key].tile is not None

    def search(self, product: Product, until: float = math.inf) -> bool:
        """Search for the tile of a product, and write the table.

        until: a time of `monotonic`, after which the search stops. Returns whether it is complete;
        otherwise the table has the times of the tiles that were tried, and a later search continues
        from there. Raises MemoryLimitError, RequestError, or DeviceError if the device was lost.
        """
        if self._weights is None or self._weights.launch != product.launch:
            self._weights = None  # frees its memory first
            self._weights = LaunchWeights(self.kernels, self._host, product.launch)
        trial = Trial(self.kernels, self._host, self.features, product, self._weights, self._clocks)
        row = self.table.rows.setdefault(product.key, Row())
        tiling = self.kernels.tilings[product.key.kernel]
        try:
            return Search(
                product, tiling, self.features, trial, row, lambda: monotonic() >= until
            ).run()
        except DeviceLostError as error:
            raise DeviceError(
                f"the device was lost in the search for the tile of {product.key}",
                error.why,
                "run the command again: it continues without the tile that failed",
            ) from error
        finally:
            self.table.write(self.path)


def _opened(path: Path, origin: Origin, tilings: Mapping[str, Tiling]) -> TileTable:
    """Return the table in `path` if it was measured on `origin`, else an empty one.

    Raises RequestError if `path` is another file than the device's own table and cannot be opened,
    or has no table: it would be overwritten.
    """
    try:
        if path.exists() and not path.is_file():  # a device may have no end
            raise ValueError("it is not a regular file")
        table = TileTable.read(path, tilings)
    except FileNotFoundError:
        return TileTable(origin)
    except (OSError, ValueError) as error:
        if path != origin.path and isinstance(error, OSError):
            why = error.strerror or str(error)
            raise RequestError(
                f"cannot write {path}", why, "choose another file with {output}"
            ) from error
        if path != origin.path:
            raise RequestError(
                f"{path} is not a table of tiles", str(error), "choose another file with {output}"
            ) from error
        log.warning("%s is damaged and is replaced: %s", path, error)
        return TileTable(origin)
    if table.origin != origin:
        log.warning("%s belongs to another device, driver or version and is replaced", path)
        return TileTable(origin)
    return table


def tile_text(tile: Any) -> str:
    """Return the sizes of a tile, without those at their default."""
    given = ((x.name, getattr(tile, x.name), x.default) for x in fields(tile))
    return " ".join(f"{name}={value:d}" for name, value, default in given if value != default)


def _reported(key: TileKey, row: Row) -> TunedProduct:
    return TunedProduct(
        str(key),
        "" if row.tile is None else tile_text(row.tile),
        row.us,
        row.default_us,
        row.n_tried,
        tuple((tile_text(tile), why) for tile, why in row.refused),
    )
