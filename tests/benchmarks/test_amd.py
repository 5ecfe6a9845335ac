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
ATTENTION = ("attention_tiles", "attention_matrices")


def has_compiler() -> bool:
    packages = ("slangtorch", "slangpy")
    return bool(shutil.which("slangc") or any(map(importlib.util.find_spec, packages)))


def tabulate(path: Path, *options: str) -> list[dict]:
    """One dict for every kernel and family."""
    if not DRIVERS:
        pytest.skip("RADV is not installed")
    if not has_compiler():
        pytest.skip("there is no Slang compiler")
    environment = {
        "VK_DRIVER_FILES": str(DRIVERS[0]),  # or the one of a Mesa elsewhere
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
    }
    command = [sys.executable, ROOT / "benchmarks" / "amd.py", path]
    done = subprocess.run(
        [*command, *options],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def tabulated(tmp_path_factory):
    """What two models run for a token, a few and a prompt."""
    path = tmp_path_factory.mktemp("amd") / "amd.json"
    return tabulate(path, "--shapes", "qwen3-8b", "deepseek2-lite")


@pytest.fixture(scope="module")
def tabulated_attention(tmp_path_factory):
    """Attention of a prompt with heads of 64, 128 and 256."""
    path = tmp_path_factory.mktemp("attention") / "amd.json"
    shapes = ("--shapes", "gptoss-6l", "qwen3-8b", "gemma3-1b")
    return tabulate(path, *shapes, "--steps", "prompt", "--kernels", *ATTENTION)


@pytest.fixture(params=["rdna2", "rdna3", "rdna4"])
def family(request):
    return request.param


def of_family(tabulated, family):
    found = [k for k in tabulated if k["family"] == family]
    if not found:
        pytest.skip(f"this Mesa does not compile for {family} without one")
    return found


@pytest.fixture
def kernels(family, tabulated):
    return of_family(tabulated, family)


def spilling(kernels):
    return {(k["model"], k["kernel"]): k["spills"] for k in kernels if k["spills"]}


def counts_halves_twice(kernel):
    """Whether Mesa sets a register aside for each half of a matrix, as 25.0 does, 25.2 does not."""
    version = tuple(map(int, kernel["mesa"].split(".")[:2]))
    return kernel["matrices"] > 0 and version < (25, 2)


@pytest.mark.parametrize("step", ["decode", "prompt"])
def test_no_kernel_spills(kernels, step):
    hot = [k for k in kernels if k["step"] == step and not counts_halves_twice(k)]
    assert hot
    assert spilling(hot) == {}


def test_attention_of_a_prompt_spills_nothing(family, tabulated_attention):
    kernels = of_family(tabulated_attention, family)
    assert len(kernels) >= 3
    assert spilling(k for k in kernels if not counts_halves_twice(k)) == {}


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
