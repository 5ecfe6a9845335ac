"""Every benchmark can be imported: what it takes from zinc is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_benchmarks_find_what_they_import() -> None:
    names = sorted(path.stem for path in BENCHMARKS.glob("*.py"))
    assert "sampling" in names
    code = f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r}); import {', '.join(names)}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
