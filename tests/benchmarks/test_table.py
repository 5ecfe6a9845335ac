"""Tables and charts of the documentation equal the committed results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"


@pytest.mark.parametrize("name", ["table.py", "chart.py"])
def test_documentation_equals_the_results(name):
    command = [sys.executable, ROOT / "benchmarks" / name, "--check"]
    assert subprocess.run(command).returncode == 0, f"run: python benchmarks/{name}"


def test_every_result_is_cited():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("dev/kernels/*.md")]
    text = "".join(page.read_text() for page in pages)
    files = {path.name for path in RESULTS.glob("*.json") if not path.name.startswith("compare-")}
    assert {name for name in files if name not in text} == set()


@pytest.mark.parametrize("driver", ["amd"])
def test_page_of_a_driver_equals_its_data(driver, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.syspath_prepend(ROOT / "dev" / "gpu-rigs")
    import tables
    from drivers import DRIVERS

    page = DRIVERS[driver].page.read_text()
    assert tables.page(DRIVERS[driver]) == page, f"run: dev/gpu-rigs/record {driver} --page"
