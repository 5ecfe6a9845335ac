"""Registers and instructions of hot kernels on an AMD GPU, as RADV compiles them without one."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DRIVERS = [*Path("/usr/share/vulkan/icd.d").glob("radeon_icd*.json")]
# Kernels of the dense decoder that no step of decode waits for.
COLD = {"embed", "rope_table", "elementwise"}


def has_compiler() -> bool:
    packages = ("slangtorch", "slangpy")
    return bool(shutil.which("slangc") or any(map(importlib.util.find_spec, packages)))


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """What a token of the 8B decoder runs, one dict a kernel."""
    if not DRIVERS:
        pytest.skip("RADV is not installed")
    if not has_compiler():
        pytest.skip("there is no Slang compiler")
    path = tmp_path_factory.mktemp("amd") / "amd.json"
    environment = {
        **os.environ,
        "RADV_FORCE_FAMILY": "gfx1100",
        "VK_ICD_FILENAMES": str(DRIVERS[0]),
        "PYTHONPATH": str(ROOT / "src"),
    }
    command = [sys.executable, ROOT / "benchmarks" / "amd.py", path]
    done = subprocess.run(
        [*command, "--shapes", "qwen3-8b", "--steps", "decode"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text())


def test_no_kernel_of_decode_spills(kernels):
    spilling = {k["kernel"]: k["spills"] for k in kernels if k["spills"]}
    assert spilling == {}


def test_products_use_the_integer_dot_and_wide_loads(kernels):
    products = [k for k in kernels if k["kernel"] == "matvec"]
    assert products
    assert all(k["dots"] >= 16 and k["wide_loads"] >= 4 for k in products)


def test_hot_kernels_leave_room_for_other_waves(kernels):
    hot = [k for k in kernels if k["kernel"] not in COLD]
    assert {k["kernel"] for k in hot} >= {"norm", "matvec", "attention", "rope_store"}
    assert all(k["waves"] >= 8 for k in hot)
