"""README's numbers are those of the committed results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_readme_says_what_the_results_say():
    command = [sys.executable, ROOT / "benchmarks" / "table.py", "--check"]
    assert subprocess.run(command).returncode == 0, "run: python benchmarks/table.py"
