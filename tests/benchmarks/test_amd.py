"""Registers and instructions of hot kernels on AMD GPUs, as RADV compiles them without one."""

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
# Kernels that no step waits for.
COLD = {"embed", "rope_table", "elementwise", "group_experts"}


def has_compiler() -> bool:
    packages = ("slangtorch", "slangpy")
    return bool(shutil.which("slangc") or any(map(importlib.util.find_spec, packages)))


@pytest.fixture(scope="module")
def tabulated(tmp_path_factory):
    """What two models run for a token, a few and a prompt, for all families, one dict a kernel."""
    if not DRIVERS:
        pytest.skip("RADV is not installed")
    if not has_compiler():
        pytest.skip("there is no Slang compiler")
    path = tmp_path_factory.mktemp("amd") / "amd.json"
    environment = {
        "VK_DRIVER_FILES": str(DRIVERS[0]),  # or the one of a Mesa elsewhere
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
    }
    command = [sys.executable, ROOT / "benchmarks" / "amd.py", path]
    done = subprocess.run(
        [*command, "--shapes", "qwen3-8b", "deepseek2-lite"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text())


@pytest.fixture(params=["rdna2", "rdna3", "rdna4"])
def kernels(request, tabulated):
    found = [k for k in tabulated if k["family"] == request.param]
    if not found:
        pytest.skip(f"this Mesa does not compile for {request.param} without one")
    return found


def test_no_kernel_of_decode_spills(kernels):
    spilling = {k["kernel"]: k["spills"] for k in kernels if k["spills"] and k["step"] == "decode"}
    assert spilling == {}


def test_kernels_of_a_few_tokens_hardly_spill(kernels):
    few = [k["spills"] for k in kernels if k["step"] == "few"]
    assert max(few) <= 6  # Mesa 22.3; newer ones spill nothing


def test_products_use_the_integer_dot_and_wide_loads(kernels):
    products = [k for k in kernels if k["kernel"] == "matvec" and k["model"] == "qwen3-8b"]
    assert products
    assert all(k["dots"] >= 16 and k["wide_loads"] >= 4 for k in products)


def test_products_of_a_prompt_use_matrices_or_the_integer_dot(kernels):
    products = [k for k in kernels if k["kernel"] == "gemm" and k["model"] == "qwen3-8b"]
    assert products
    assert all(k["matrices"] >= 32 or k["dots"] >= 256 for k in products)


def test_hot_kernels_of_decode_leave_room_for_other_waves(kernels):
    hot = [k for k in kernels if k["step"] == "decode" and k["kernel"] not in COLD]
    assert {k["kernel"] for k in hot} >= {"norm", "matvec", "attention", "rope_store"}
    assert all(k["waves"] >= 8 for k in hot)
