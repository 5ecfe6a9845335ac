"""Registers and instructions of the Vulkan kernels, as RADV compiles them for AMD GPUs."""

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
# Kernels that take a negligible part of a step.
COLD = {"embed", "rope_table", "elementwise", "group_experts"}
ATTENTION = ("attention_tiles", "attention_matrices")


def has_compiler() -> bool:
    packages = ("slangtorch", "slangpy")
    return bool(shutil.which("slangc") or any(map(importlib.util.find_spec, packages)))


def compile_kernels(path: Path, *options: str) -> list[dict]:
    """Run amd.py with `options`; return a dict for each kernel and family."""
    if not DRIVERS:
        pytest.skip("RADV is not installed")
    if not has_compiler():
        pytest.skip("there is no Slang compiler")
    environment = {
        "VK_DRIVER_FILES": str(DRIVERS[0]),  # a value from outside wins
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
    }
    command = [sys.executable, ROOT / "benchmarks" / "amd.py", "--json", path]
    done = subprocess.run(
        [*command, *options],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    data = json.loads(path.read_text())
    return [{**kernel, "mesa": data["mesa"]} for kernel in data["kernels"]]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """All kernels of two models."""
    path = tmp_path_factory.mktemp("amd") / "amd.json"
    return compile_kernels(path, "--shapes", "qwen3-8b", "deepseek2-lite")


@pytest.fixture(scope="module")
def compiled_attention(tmp_path_factory):
    """Prefill attention with heads of 64, 128 and 256 dimensions."""
    path = tmp_path_factory.mktemp("attention") / "amd.json"
    shapes = ("--shapes", "gptoss-6l", "qwen3-8b", "gemma3-1b")
    return compile_kernels(path, *shapes, "--steps", "prefill", "--kernels", *ATTENTION)


@pytest.fixture(params=["rdna2", "rdna3", "rdna4"])
def family(request):
    return request.param


def of_family(compiled, family):
    found = [k for k in compiled if k["family"] == family]
    if not found:
        pytest.skip(f"this Mesa does not compile for {family} without such a GPU")
    return found


@pytest.fixture
def kernels(family, compiled):
    return of_family(compiled, family)


def spilling(kernels):
    return {(k["model"], k["kernel"]): k["spills"] for k in kernels if k["spills"]}


def doubles_registers(kernel):
    """Return whether Mesa takes a register for each half of an F16 matrix (before 25.2)."""
    version = tuple(map(int, kernel["mesa"].split(".")[:2]))
    return kernel["matrices"] > 0 and version < (25, 2)


@pytest.mark.parametrize("step", ["decode", "prefill"])
def test_no_kernel_spills(kernels, step):
    hot = [k for k in kernels if k["step"] == step and not doubles_registers(k)]
    assert hot
    assert spilling(hot) == {}


def test_prefill_attention_does_not_spill(family, compiled_attention):
    kernels = of_family(compiled_attention, family)
    assert len(kernels) >= 3
    assert spilling(k for k in kernels if not doubles_registers(k)) == {}


def test_kernels_of_a_batch_hardly_spill(kernels):
    batch = [k["spills"] for k in kernels if k["step"] == "batch"]
    assert max(batch) <= 6  # Mesa 22.3; newer versions spill nothing


def test_decode_products_use_integer_dots_and_wide_loads(kernels):
    products = [k for k in kernels if k["kernel"] == "matvec" and k["model"] == "qwen3-8b"]
    assert products
    assert all(k["dots"] >= 16 and k["wide_loads"] >= 4 for k in products)


def test_prefill_products_use_matrices_or_integer_dots(kernels):
    products = [k for k in kernels if k["kernel"] == "gemm" and k["model"] == "qwen3-8b"]
    assert products
    assert all(k["matrices"] >= 32 or k["dots"] >= 256 for k in products)


def test_hot_decode_kernels_fit_eight_waves(kernels):
    hot = [k for k in kernels if k["step"] == "decode" and k["kernel"] not in COLD]
    assert {k["kernel"] for k in hot} >= {"norm", "matvec", "attention", "rope_store"}
    assert all(k["waves"] >= 8 for k in hot)
