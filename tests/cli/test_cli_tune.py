"""`zinc tune`: the table that it writes, its report, and what cannot be tuned."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from cuda_emulator import emulated
from cuda_emulator.emulated import COMPILER
from cuda_emulator.fake_driver import FakeDriver, install

from zinc.backends import api
from zinc.backends.tuning import TunedProduct, TuneReport
from zinc.cli import tune
from zinc.cli.checks import self_test
from zinc.cli.checks.finding import Status
from zinc.engine.load.self_test import plan_case
from zinc.gpu.tune import clocks, placed, search, trial, weights
from zinc.gpu.tuned import TileKey, TunedTiles
from zinc.ops import OPS
from zinc.quant.blocks import GGMLType


@pytest.mark.skipif(COMPILER is None, reason="there is no g++")
def test_a_tuned_table_is_reported(zinc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeDriver())
    for module in (weights, placed):
        monkeypatch.setattr(module, "ROTATE_BYTES", 1)
    monkeypatch.setattr(trial, "RUN_S", 1e-9)
    monkeypatch.setattr(search, "MAX_TRIED", 1)
    monkeypatch.setattr(clocks, "STEADY_S", 0)
    case = next(OPS["linear"].cases())
    monkeypatch.setattr(tune, "common_plans", lambda backend: [plan_case(case, backend)])
    path = tmp_path / "tiles.json"
    done = zinc("tune", "--backend", "cuda", "--output", path, "--json")
    assert (done.status, done.err) == (0, "")
    report = json.loads(done.out)
    (product,) = report["products"]
    assert product["tile"].startswith("waves=")
    assert (report["table"], report["left"], report["skipped"]) == (str(path), 0, {})
    done = zinc("tune", "--backend", "cuda", "--output", path)
    assert "gemv F32 48x512 by 1" in done.out
    assert done.out.endswith(f"the table is {path}\n")


def test_a_backend_without_tiles_is_an_error(zinc) -> None:
    done = zinc("tune", "--backend", "ref")
    assert done.status == 1
    assert done.err.startswith(
        "zinc: the backend ref has no tiles to tune: only GPU backends have tiles."
    )


def test_a_table_that_cannot_be_written_is_an_error(
    zinc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, FakeDriver(idle=True))
    case = next(OPS["linear"].cases())
    monkeypatch.setattr(tune, "common_plans", lambda backend: [plan_case(case, backend)])
    monkeypatch.setattr(search, "MAX_TRIED", 1)
    monkeypatch.setattr(clocks, "STEADY_S", 0)
    (tmp_path / "file").write_text("")
    done = zinc("tune", "--backend", "cuda", "--output", tmp_path / "file" / "tiles.json")
    assert done.status == 1
    assert "cannot write" in done.err
    assert "--output" in done.err


def test_the_report_names_what_is_left_and_what_was_refused() -> None:
    fast = TunedProduct("gemv A", "waves=8", 5.0, 10.0, 12, (("waves=4", "it was wrong"),))
    none = TunedProduct("gemv B", "", 0.0, 0.0, 0, ())
    report = TuneReport(Path("t.json"), (fast, none), 3, (("gemm C", "no memory"),))
    shown = tune.text(report)
    assert "100%" in shown
    assert "none ran" in shown
    assert "1 tiles were refused" not in shown
    assert "1 tile was refused" in shown
    assert "gemm C: not tuned, no memory" in shown
    assert "3 products are left" in shown


def test_common_products_and_those_of_a_model_can_be_planned(zinc, fixture_model: Path) -> None:
    backend = api.create("null")
    assert len(tune.common_plans(backend)) == 4
    args = tune.argparse.Namespace(model=str(fixture_model))
    assert tune._plan(args, backend).max_tokens >= 256


def test_a_check_says_whether_tuned_tiles_are_in_use() -> None:
    backend = emulated.backend()
    (found,) = self_test._tiles(backend, "cuda:0")
    assert (found.status, found.fix) == (Status.SKIP, "zinc tune --device cuda:0")
    key = TileKey("gemv", GGMLType.Q4_K, 64, 512)
    backend.features = replace(backend.features, tuned=TunedTiles({key: None}))
    (found,) = self_test._tiles(backend, "cuda:0")
    assert (found.status, found.text) == (Status.OK, "cuda:0 uses tuned tiles for 1 product")
    assert not list(self_test._tiles(api.create("ref"), "ref"))
