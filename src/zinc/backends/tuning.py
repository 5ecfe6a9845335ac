"""Tuning as data: what `zinc tune` asks of a backend, and what a search reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from zinc.backends.plans import Plan
from zinc.core.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class TunedProduct:
    """A product and its fastest tile.

    tile: empty if no tile ran. us, default_us: microseconds of the product with it and with the
    tile of zinc's formula; default_us is 0 if that did not run. n_tried: tiles that were timed.
    refused: tiles that failed or gave a wrong result, each with the reason.
    """

    name: str
    tile: str
    us: float
    default_us: float
    n_tried: int
    refused: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class TuneReport:
    """The products of a search, and the file of their tiles.

    n_left: products that are not complete because the time was up. skipped: products that do not
    fit in the memory of the device, each with the reason.
    """

    path: Path
    products: tuple[TunedProduct, ...]
    n_left: int
    skipped: tuple[tuple[str, str], ...]


@runtime_checkable
class Tunable(Protocol):
    """A backend whose kernels have tiles to choose."""

    @property
    def n_tuned(self) -> int:
        """Number of products whose tiles come from a table."""
        ...

    def tune(
        self,
        plans: Sequence[Plan],
        path: Path | None,
        budget_s: float | None,
        progress: Callable[[int, int], None],
    ) -> TuneReport:
        """Search for the fastest tiles of the products of `plans`, and write them to a table.

        path: the table, by default the device's in the cache folder. Products that it has are not
        searched again. budget_s: seconds after which the search stops, at most a few seconds later.
        progress: called with the number of finished products and the number of all. The table is
        written after each product, and when the search stops or fails; the next search continues
        with the tiles that were not measured. Raises DeviceError or RequestError.
        """
        ...
