"""Tuning on devices: the CUDA emulator and Vulkan. Times do not matter here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cuda_emulator import emulated
from present import computing

from zinc.backends import api
from zinc.core.errors import DeviceError, RequestError
from zinc.engine.load.self_test import plan_case
from zinc.gpu.backend import GpuBackend
from zinc.gpu.errors import DeviceLostError
from zinc.gpu.graph import DispatchGraph
from zinc.gpu.tile_table import TileTable
from zinc.gpu.tune import clocks, placed, run, search, trial, weights
from zinc.gpu.tune.clocks import SteadyClocks
from zinc.gpu.tune.placed import PlacedLaunch
from zinc.gpu.tune.products import Product, products
from zinc.gpu.tune.run import Tuner
from zinc.gpu.tune.search import Search
from zinc.gpu.tune.trial import MAX_LAUNCHES, Trial
from zinc.gpu.tune.weights import LaunchWeights
from zinc.ops import OPS
from zinc.ops.values import FloatArray

DEVICES = [
    pytest.param(
        "emulated", marks=pytest.mark.skipif(emulated.COMPILER is None, reason="there is no g++")
    ),
    pytest.param(
        "vulkan", marks=pytest.mark.skipif("vulkan" not in computing(), reason="no Vulkan device")
    ),
]
VULKAN = DEVICES[1]
# Devices for tests that compile several kernels, which takes seconds on the emulator.
COMPILING = [pytest.param("emulated", marks=[*DEVICES[0].marks, pytest.mark.every]), VULKAN]
# Cases whose products cover the operands: parts, bias, residual, norm, routes, blocks and heads.
# Some launches have several products.
CASES = (
    ("linear", "Q4_K-40x512-5"),
    ("linear", "F32-17x512-33"),
    ("linear_glu", "Q4_K"),
    ("norm_linear", "mixed"),
    ("norm_linear_glu", "Q4_K"),
    ("linear_glu_gate", "Q4_K"),
    ("moe_glu", "Q4_K-29"),
    ("moe_down", "clamped"),
    ("moe_down_linear", "wide"),
    ("linear_norm_linear", "Q4_K-Q6_K-1"),
    ("linear_norm_linear_glu", "Q8_0-2"),
    ("head_linear", "Q8_0-4x96x32"),
)
QUICK = CASES[0]  # on Vulkan
SLOW_RUNS = [
    pytest.param(device.values[0], *case, marks=[*device.marks, pytest.mark.every])
    for device in DEVICES
    for case in CASES
    if (device, case) != (VULKAN, QUICK)
]
SEEDS = 4  # of a product


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make searches small and runs short."""
    for module in (weights, placed):
        monkeypatch.setattr(module, "ROTATE_BYTES", 1 << 16)
    monkeypatch.setattr(trial, "RUN_S", 1e-6)
    monkeypatch.setattr(search, "MAX_TRIED", 2)
    monkeypatch.setattr(search, "REPEATS", 1)
    monkeypatch.setattr(search, "FINAL_ROUNDS", 1)
    monkeypatch.setattr(clocks, "STEADY_S", 0)


def device(name: str) -> GpuBackend:
    return emulated.backend() if name == "emulated" else api.create(name)  # type: ignore


def tuner(backend: GpuBackend, path: Path) -> Tuner:
    return Tuner(backend.kernel_set, backend.host, backend.features, backend.origin, path)


def trial_of(backend: GpuBackend, product: Product) -> Trial:
    kernels, host = backend.kernel_set, backend.host
    made = LaunchWeights(kernels, host, product.launch)
    return Trial(kernels, host, backend.features, product, made, SteadyClocks(host))


def plans(backend: GpuBackend, op: str, name: str):
    case = next(x for x in OPS[op].cases() if x.name.startswith(name))
    return [plan_case(case, backend)]


def one_row(backend: GpuBackend):
    """Return a plan with one product of one row."""
    return [plan_case(next(OPS["linear"].cases()), backend)]


def no_progress(done: int, total: int) -> None:
    assert 0 <= done < total


@pytest.mark.parametrize(
    ("name", "op", "case"),
    [pytest.param(*VULKAN.values, *QUICK, marks=VULKAN.marks), *SLOW_RUNS],
)
def test_results_of_the_formulas_tiles_agree_with_the_reference(
    name: str, op: str, case: str
) -> None:
    backend = device(name)
    found = products(backend.kernel_set, plans(backend, op, case), backend.features)
    assert found
    for product in found:
        runs = trial_of(backend, product)
        assert runs.error(product.default) == "", product


@pytest.mark.parametrize("op", [name for name, op in OPS.items() if op.has_matrices])
@pytest.mark.parametrize("name", [VULKAN])
def test_the_products_of_each_op_can_be_placed(name: str, op: str) -> None:
    backend = device(name)
    case = next(iter(OPS[op].cases()))
    for product in products(backend.kernel_set, [plan_case(case, backend)], backend.features):
        runs = trial_of(backend, product)
        rows = product.bucket.rows(product.launch.outputs[0].dim)
        sizes = [(rows, y.cols) for y in product.launch.outputs]
        assert [y.shape for y in runs._placed.wanted] == sizes


@pytest.mark.parametrize(("name", "op", "case"), SLOW_RUNS)
def test_results_of_seeds_agree_with_the_reference(name: str, op: str, case: str) -> None:
    backend = device(name)
    kernels, features = backend.kernel_set, backend.features
    for product in products(kernels, plans(backend, op, case), features):
        tiling, key = kernels.tilings[product.key.kernel], product.key
        runs = trial_of(backend, product)
        seeds = [x for x in tiling.seeds(features, key) if not tiling.refusal(features, key, x)]
        for tile in seeds[:SEEDS]:
            assert runs.error(tile) == "", (product, tile)


@pytest.mark.parametrize("name", DEVICES)
def test_a_run_takes_the_devices_seconds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a wait would contain the host's sleep and its submission."""
    backend = device(name)
    (product,) = products(backend.kernel_set, one_row(backend), backend.features)
    runs = trial_of(backend, product)
    launches: list[int] = []

    def seconds(graph: DispatchGraph, repeats: int) -> float:
        launches.append(len(graph.nodes))
        return 1e-6 * launches[-1]

    monkeypatch.setattr(trial, "RUN_S", 1e-4)
    monkeypatch.setattr(backend.host, "seconds", seconds)
    assert runs.seconds(product.default, 1) == pytest.approx(1e-6)
    assert 1 < launches[-1] <= MAX_LAUNCHES


class SlowlyStarting:
    """A host whose runs take less time until `ramp_s` after its first run."""

    def __init__(self, ramp_s: float) -> None:
        self.ramp_s, self.now, self.runs = ramp_s, 100.0, 0
        self.started: float | None = None

    def perf_counter(self) -> float:
        return self.now

    def seconds(self, graph: DispatchGraph, repeats: int) -> float:
        self.started = self.now if self.started is None else self.started
        step = min(4, int(4 * (self.now - self.started) / self.ramp_s))
        seconds = 1e-2 / (1 + step)
        self.now += repeats * seconds
        self.runs += 1
        return seconds


def test_clocks_are_raised_before_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "STEADY_S", 0.4)
    host = SlowlyStarting(ramp_s=1.2)
    monkeypatch.setattr(clocks, "perf_counter", host.perf_counter)
    steady, graph = SteadyClocks(host), DispatchGraph(())  # type: ignore[arg-type]
    assert steady.seconds(graph, 3) == pytest.approx(2e-3)
    runs = host.runs
    assert steady.seconds(graph, 3) == pytest.approx(2e-3)
    assert host.runs == runs + 1, "the device was busy just now"
    host.now, host.started = host.now + 2, None
    assert steady.seconds(graph, 3) == pytest.approx(2e-3), "the device was idle"


def test_a_device_that_never_becomes_steady_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "STEADY_S", 0.4)
    host = SlowlyStarting(ramp_s=1e9)
    monkeypatch.setattr(clocks, "perf_counter", host.perf_counter)
    monkeypatch.setattr(clocks, "FASTER", 2.0)  # every run counts as faster
    SteadyClocks(host).seconds(DispatchGraph(()), 1)  # type: ignore[arg-type]
    assert host.now - 100 == pytest.approx(clocks.MAX_WARM_UP_S, abs=0.1)


@pytest.mark.parametrize("name", DEVICES)
def test_a_wrong_number_is_noticed(name: str) -> None:
    backend = device(name)
    (product,) = products(backend.kernel_set, one_row(backend), backend.features)
    runs = trial_of(backend, product)
    assert runs.error(product.default) == ""
    runs._placed.wanted[0][0, -1] += 1
    assert "off by" in runs.error(product.default)


@pytest.mark.parametrize("name", COMPILING)
def test_a_table_is_written_and_used_and_not_made_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, path = device(name), tmp_path / "tiles.json"
    report = backend.tune(one_row(backend), path, None, no_progress)
    (product,) = report.products
    assert product.tile
    assert product.n_tried == 2
    assert (report.n_left, report.skipped) == (0, ())
    table = TileTable.read(path, backend.kernel_set.tilings)
    assert len(table.tuned(backend.features, backend.kernel_set.tilings)) == 1

    def searched(self: Search) -> None:
        raise AssertionError

    monkeypatch.setattr(Search, "run", searched)
    assert backend.tune(one_row(backend), path, None, no_progress) == report


@pytest.mark.parametrize("name", COMPILING)
def test_a_wrong_tile_is_listed_and_does_not_win(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, path = device(name), tmp_path / "tiles.json"
    (product,) = products(backend.kernel_set, one_row(backend), backend.features)
    results = PlacedLaunch.read

    def wrong(self: PlacedLaunch) -> list[FloatArray]:
        """Return results of which a number is wrong, except for the first tile."""
        found = results(self)
        if path in seen:
            found[0][0, -1] = 0
        seen.add(path)
        return found

    seen: set[Path] = set()
    monkeypatch.setattr(PlacedLaunch, "read", wrong)
    (tuned,) = backend.tune(one_row(backend), path, None, no_progress).products
    assert tuned.tile == run.tile_text(product.default)
    ((refused, why),) = tuned.refused
    assert refused != tuned.tile
    assert "off by" in why
    ((tile, why),) = next(iter(tuner(backend, path).table.rows.values())).refused
    assert run.tile_text(tile) == refused


def test_a_budget_leaves_products_for_the_next_run(tmp_path: Path) -> None:
    backend = emulated.backend()
    path = tmp_path / "tiles.json"
    report = backend.tune(plans(backend, *QUICK), path, 0, no_progress)
    assert not report.products
    assert report.n_left == 4
    assert not path.exists()


def test_a_budget_ends_within_a_product_and_the_next_run_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, path = emulated.backend(), tmp_path / "tiles.json"
    given, clock, ran = one_row(backend), [0.0], []

    class Runs:
        """Runs of a second each."""

        def compile(self, tiles: list[object]) -> None:
            pass

        def error(self, tile: object) -> str:
            clock[0] += 1
            ran.append(tile)
            return ""

        def seconds(self, tile: object, repeats: int) -> float:
            return 1.0

    monkeypatch.setattr(search, "MAX_TRIED", 8)
    monkeypatch.setattr(run, "Trial", lambda *_: Runs())
    monkeypatch.setattr(run, "monotonic", lambda: clock[0])
    first = backend.tune(given, path, 3, no_progress)
    assert (first.products, first.n_left, len(ran)) == ((), 1, 3)
    (row,) = TileTable.read(path, backend.kernel_set.tilings).rows.values()
    assert list(row.timed) == ran
    second = backend.tune(given, path, 100, no_progress)
    assert (second.products[0].n_tried, second.n_left) == (8, 0)
    assert len(ran) == len(set(ran)) == 8


def test_what_was_found_before_the_device_was_lost_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, path = emulated.backend(), tmp_path / "tiles.json"
    given = plans(backend, *QUICK)
    ran: list[object] = []

    def made_up(self: Search) -> bool:
        ran.append(self._product.key)
        if len(ran) == 2:
            self._row.refused.append((self._product.default, "a kernel failed"))
            raise DeviceLostError("CUDA", "a kernel failed")
        self._row.tile = self._product.default
        return True

    monkeypatch.setattr(Search, "run", made_up)
    monkeypatch.setattr(run, "Trial", lambda *_: None)
    with pytest.raises(DeviceError, match="Run the command again"):
        backend.tune(given, path, None, no_progress)
    rows = TileTable.read(path, backend.kernel_set.tilings).rows
    assert [row.tile is not None for row in rows.values()] == [True, False]
    assert len(backend.tune(given, path, None, no_progress).products) == 4
    assert ran.count(ran[0]) == 1
    assert ran.count(ran[1]) == 2


@pytest.mark.parametrize("text", ["{", None])
def test_a_table_that_is_damaged_or_of_another_driver_is_written_anew(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    text: str | None,
) -> None:
    monkeypatch.setenv("ZINC_CACHE", str(tmp_path))
    backend = emulated.backend()
    path = backend.origin.path
    path.parent.mkdir()
    if text is None:
        TileTable(backend.origin).write(path)
        path.write_text(path.read_text().replace('"driver": "none"', '"driver": "older"'))
    else:
        path.write_text(text)
    assert not tuner(backend, path).table.rows
    assert "is replaced" in caplog.text


@pytest.mark.parametrize("text", ["GGUF", '{"version": 1}', "[]"])
def test_a_file_that_is_no_table_is_not_overwritten(tmp_path: Path, text: str) -> None:
    backend, path = emulated.backend(), tmp_path / "model.gguf"
    path.write_text(text)
    for wrong in (path, tmp_path, Path(os.devnull)):
        with pytest.raises(RequestError, match="is not a table of tiles"):
            backend.tune(one_row(backend), wrong, 0, no_progress)
    assert path.read_text() == text
