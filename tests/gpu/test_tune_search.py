"""The search for tiles, with runs whose times are made up."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import pytest

from zinc.core.errors import DeviceError
from zinc.gpu.bucket import Bucket
from zinc.gpu.errors import DeviceLostError
from zinc.gpu.features import Features
from zinc.gpu.tile_table import Row
from zinc.gpu.tiles import GemvTile
from zinc.gpu.tiling import TILINGS
from zinc.gpu.tune import search
from zinc.gpu.tune.products import Product
from zinc.gpu.tune.search import MAX_TRIED, Search, neighbours
from zinc.gpu.tuned import TileKey
from zinc.quant.blocks import GGMLType

FEATURES = Features(32, shared_bytes=49152, compute_units=132)
KEY = TileKey("matvec", GGMLType.Q4_K, 4096, 4096)
DEFAULT = GemvTile(waves=8, split=2, rows=2, batch=1)
BEST = GemvTile(waves=16, split=8, rows=1, batch=1, deep=4)


class MadeUpRuns:
    """Runs that take longer the further a tile is from BEST.

    broken: tiles that do not compile. wrong: tiles with a wrong result. lost: tiles that lose the
    device.
    """

    def __init__(
        self, broken: Any = (), wrong: Any = (), lost: Any = (), scale: float = 1.0
    ) -> None:
        self.broken, self.wrong, self.lost, self.scale = broken, wrong, lost, scale
        self.ran: list[GemvTile] = []

    def compile(self, tiles: list[GemvTile]) -> None:
        if any(tile in self.broken for tile in tiles):
            raise DeviceError("it does not compile")

    def error(self, tile: GemvTile) -> str:
        if tile in self.lost:
            raise DeviceLostError("CUDA", "a kernel failed")
        self.ran.append(tile)
        return "the result is off by 1" if tile in self.wrong else ""

    def seconds(self, tile: GemvTile, repeats: int) -> float:
        steps = sum(
            abs(a.bit_length() - b.bit_length())
            for a, b in zip(astuple(tile), astuple(BEST), strict=True)
        )
        return 1e-6 * (100 + self.scale * steps)


def found(runs: MadeUpRuns, row: Row | None = None) -> Row:
    row = row or Row()
    product = Product(KEY, None, Bucket(1, 1, 1, 256), DEFAULT)  # type: ignore[arg-type]
    Search(product, TILINGS["matvec"], FEATURES, runs, row).run()
    return row


def test_a_search_finds_the_fastest_tile_and_tries_none_twice() -> None:
    runs = MadeUpRuns(scale=10)
    row = found(runs)
    assert row.tile == BEST
    assert row.us == pytest.approx(100)
    assert row.default_us == pytest.approx(160)
    assert len(runs.ran) == len(set(runs.ran)) == row.n_tried <= MAX_TRIED
    assert not row.refused


def search_for(runs: MadeUpRuns, row: Row, n_tiles: int) -> bool:
    """Search until `n_tiles` have run, and return whether the search is complete."""
    end = len(runs.ran) + n_tiles
    product = Product(KEY, None, Bucket(1, 1, 1, 256), DEFAULT)  # type: ignore[arg-type]
    return Search(
        product, TILINGS["matvec"], FEATURES, runs, row, lambda: len(runs.ran) >= end
    ).run()


@pytest.mark.parametrize("n_tiles", [1, 3, 10])
def test_a_search_continues_where_its_time_was_up(n_tiles: int) -> None:
    whole, row, runs = found(MadeUpRuns(scale=10)), Row(), MadeUpRuns(scale=10)
    n_searches = 1
    while not search_for(runs, row, n_tiles):
        assert row.tile is None
        assert len(row.timed) == len(runs.ran) == n_searches * n_tiles
        n_searches += 1
    assert (row.tile, row.us, row.timed) == (whole.tile, whole.us, {})
    assert len(runs.ran) == len(set(runs.ran)) == row.n_tried <= MAX_TRIED
    assert n_searches > 1


def test_a_search_without_time_measures_nothing() -> None:
    row, runs = Row(), MadeUpRuns()
    assert not search_for(runs, row, 0)
    assert (row, runs.ran) == (Row(), [])


def test_the_tile_of_the_formula_wins_a_tie() -> None:
    assert found(MadeUpRuns(scale=0.1)).tile == DEFAULT


def test_tiles_that_fail_or_are_wrong_are_listed_and_do_not_win() -> None:
    broken = GemvTile(waves=8, split=4, rows=2, batch=1)
    row = found(MadeUpRuns(broken=[broken], wrong=[BEST], scale=10))
    assert row.tile not in (BEST, broken, None)
    assert dict(row.refused)[BEST] == "the result is off by 1"
    assert "does not compile" in dict(row.refused)[broken]


def test_another_tile_wins_if_that_of_the_formula_is_wrong() -> None:
    row = found(MadeUpRuns(wrong=[DEFAULT], scale=10))
    assert row.tile == BEST
    assert row.default_us == 0


def test_there_is_no_tile_if_all_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MadeUpRuns, "error", lambda *_: "wrong")
    assert found(MadeUpRuns()).tile is None


def test_a_search_goes_on_without_the_tile_that_lost_the_device() -> None:
    row = Row()
    with pytest.raises(DeviceLostError):
        found(MadeUpRuns(lost=[BEST], scale=10), row)
    assert row.refused[-1][0] == BEST
    assert row.tile is None
    assert row.timed
    runs = MadeUpRuns(lost=[BEST], scale=10)
    assert found(runs, row).tile not in (BEST, None)


def test_a_tile_that_fails_when_it_is_timed_again_does_not_win(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = MadeUpRuns.seconds

    def seconds(self: MadeUpRuns, tile: GemvTile, repeats: int) -> float:
        if tile == BEST and repeats == 1:
            raise DeviceError("it failed")
        return first(self, tile, repeats)

    monkeypatch.setattr(MadeUpRuns, "seconds", seconds)
    row = found(MadeUpRuns(scale=10))
    assert row.tile not in (BEST, None)
    assert "it failed" in dict(row.refused)[BEST]


def test_sizes_change_together_where_one_alone_is_not_valid() -> None:
    def is_whole(tile: GemvTile) -> bool:
        return tile.tile == 32

    tile = GemvTile(waves=8, split=1, rows=4, batch=1)
    near = set(neighbours(tile, is_whole))
    assert GemvTile(waves=16, split=2, rows=4, batch=1) in near
    assert GemvTile(waves=16, split=1, rows=2, batch=1) in near
    assert tile not in near
    assert all(map(is_whole, near))


def test_the_search_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MAX_TRIED", 5)
    assert found(MadeUpRuns(scale=10)).n_tried == 5
