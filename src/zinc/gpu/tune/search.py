"""The search for the fastest tile of a product.

It starts at the formula's tile and the seeds of the kernel, and looks at the neighbours of the best
two tiles until these are no faster: tiles in which one size is doubled or halved. Where that alone
gives a tile that the kernel cannot run, a second size changes too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from typing import Any, Protocol

from zinc.core.errors import ZincError
from zinc.gpu.errors import DeviceLostError
from zinc.gpu.features import Features
from zinc.gpu.tile_table import Row
from zinc.gpu.tiling import Tiling
from zinc.gpu.tune.products import Product

MAX_TRIED = 64  # tiles of a product
SURVIVORS = 2  # tiles whose neighbours are tried
FINALISTS = 4
REPEATS, FINAL_ROUNDS = 3, 6
TIE = 0.98  # a tile must take less than this share of the formula's time


class Runs(Protocol):
    """Runs of a product with any tile (`zinc.gpu.tune.trial.Trial`)."""

    def compile(self, tiles: list[Any]) -> None: ...

    def error(self, tile: Any) -> str: ...

    def seconds(self, tile: Any, repeats: int) -> float: ...


class Search:
    """The search for a tile of `product`, which fills `row`.

    Tiles that `row` refuses or has timed already are not tried. is_over: returns whether the time
    for the search is up.
    """

    def __init__(
        self,
        product: Product,
        tiling: Tiling,
        features: Features,
        runs: Runs,
        row: Row,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._product, self._tiling, self._features = product, tiling, features
        self._runs, self._row, self._is_over = runs, row, is_over
        self._us = row.timed
        self._seen = {*self._us, *(tile for tile, _ in row.refused)}
        self._left = max(0, MAX_TRIED - len(self._us))
        self._is_cut = False  # tiles were left out because the time is up

    def run(self) -> bool:
        """Search until no neighbour is faster, and return True.

        Returns False if the time is up before that. `row` then has no tile, but the times so far.
        Raises DeviceLostError after the tile that caused it was refused.
        """
        default = self._product.default
        seeds = self._tiling.seeds(self._features, self._product.key)
        self._try([default, *(tile for tile in seeds if self._is_valid(tile))])
        grown: set[Any] = set()
        while self._left and not self._is_cut:
            best = sorted(self._us, key=lambda tile: self._us[tile])[:SURVIVORS]
            growing = [tile for tile in best if tile not in grown]
            if not growing:
                break
            grown.update(growing)
            self._try(near for tile in growing for near in neighbours(tile, self._is_valid))
        if self._is_cut:
            return False
        self._finish(default)
        return True

    def _is_valid(self, tile: Any) -> bool:
        return not self._tiling.refusal(self._features, self._product.key, tile)

    def _try(self, tiles: Iterable[Any]) -> None:
        """Time tiles that were not tried yet, as many as are left to try."""
        new = [tile for tile in dict.fromkeys(tiles) if tile not in self._seen][: self._left]
        if not new:
            return
        self._is_cut = self._is_over()  # compiling takes seconds
        self._seen.update(new)
        self._left -= len(new)
        for tile in [] if self._is_cut else self._compiled(new):
            self._is_cut = self._is_cut or self._is_over()
            if not self._is_cut:
                self._guarded(tile, self._measure)

    def _compiled(self, tiles: list[Any]) -> list[Any]:
        """Return the tiles whose kernels compile."""
        try:
            self._runs.compile(tiles)
        except DeviceLostError:
            raise
        except ZincError:  # compile them one by one to find the one that fails
            return [tile for tile in tiles if self._guarded(tile, self._compile)]
        return tiles

    def _compile(self, tile: Any) -> None:
        self._runs.compile([tile])

    def _measure(self, tile: Any) -> None:
        if wrong := self._runs.error(tile):
            self._row.refused.append((tile, wrong))
        else:
            self._us[tile] = 1e6 * self._runs.seconds(tile, REPEATS)

    def _guarded(self, tile: Any, act: Callable[[Any], None]) -> bool:
        """Call `act(tile)` and return True; if it raises ZincError, refuse the tile."""
        try:
            act(tile)
        except ZincError as error:
            self._row.refused.append((tile, str(error)))
            self._us.pop(tile, None)
            if isinstance(error, DeviceLostError):
                raise
            return False
        return True

    def _finish(self, default: Any) -> None:
        """Time the best tiles and the formula's alternately, and put the fastest into the row."""
        best = sorted(self._us, key=lambda tile: self._us[tile])[:FINALISTS]
        final = dict.fromkeys([*([default] if default in self._us else []), *best], float("inf"))

        def time_again(tile: Any) -> None:
            final[tile] = min(final[tile], 1e6 * self._runs.seconds(tile, 1))

        for _ in range(FINAL_ROUNDS):
            for tile in [x for x in final if not self._guarded(x, time_again)]:
                del final[tile]
        if not final:
            return
        winner = min(final, key=lambda tile: final[tile])
        if default in final and final[winner] > TIE * final[default]:
            winner = default
        row = self._row
        row.tile, row.us, row.default_us = winner, final[winner], final.get(default, 0.0)
        row.n_tried = len(self._us)
        row.timed.clear()


def neighbours(tile: Any, is_valid: Callable[[Any], bool]) -> Iterator[Any]:
    """Yield the valid tiles near `tile`."""
    for near in _steps(tile):
        if is_valid(near):
            yield near
        else:
            yield from (x for x in _steps(near) if x != tile and is_valid(x))


def _steps(tile: Any) -> Iterator[Any]:
    """Yield the tiles in which one size differs.

    A size is doubled or halved, or takes one of the values that its field names as `steps`.
    """
    for each in fields(tile):
        value = getattr(tile, each.name)
        if isinstance(value, bool):
            continue
        halved = (value // 2,) if value > 1 else ()
        steps = each.metadata.get("steps") or (2 * value, *halved)
        yield from (replace(tile, **{each.name: x}) for x in steps if x != value)
