"""Vulkan kernels as current drivers compile them for GPUs that are not there (dev/gpu-rigs).

`dev/gpu-rigs/make` makes what these tests need; without it they are skipped.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import effort
import pytest

ROOT = Path(__file__).parents[2]
RIGS = ROOT / "dev" / "gpu-rigs"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
RIG = Path(os.environ.get("GPU_RIG") or CACHE / "zinc-gpu-rig")
GPUS = ("navi21", "navi31", "navi33", "strix1", "gfx1201")
USUAL_GPUS = ("navi21", "gfx1201")
# Kernels that take a negligible part of a step.
COLD = {"embed", "rope_table", "elementwise", "group_experts"}


def needs_rig() -> None:
    if not (RIG / "mesa-version").exists():
        pytest.skip("there is no GPU rig: dev/gpu-rigs/make")
    packages = ("slangtorch", "slangpy")
    if not (shutil.which("slangc") or any(map(importlib.util.find_spec, packages))):
        pytest.skip("there is no Slang compiler")


def run(*command: str | Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHON": sys.executable}
    done = subprocess.run(
        [*map(str, command)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def record(path: Path, *options: str) -> list[dict]:
    """Run `dev/gpu-rigs/record amd` with `options`; return a dict for each kernel and GPU."""
    needs_rig()
    run(sys.executable, RIGS / "record", "amd", "--json", path, *options)
    return json.loads(path.read_text())["kernels"]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """All kernels of two models, on two GPUs; of all models and GPUs with --every."""
    path = tmp_path_factory.mktemp("amd") / "amd.json"
    if effort.EVERY:
        return record(path)
    return record(path, "--gpus", *USUAL_GPUS, "--shapes", "qwen3-8b", "qwen35moe-64x")


@pytest.fixture(params=GPUS)
def kernels(request, compiled):
    found = [k for k in compiled if k["gpu"] == request.param]
    if not found:
        pytest.skip("compiled with --every")
    return found


def spilling(kernels):
    return {(k["model"], k["kernel"], k["macros"]): k["spills"] for k in kernels if k["spills"]}


def test_no_kernel_spills(kernels):
    assert {k["step"] for k in kernels} == {"decode", "batch", "draft", "prefill"}
    assert spilling(kernels) == {}


def test_decode_products_use_integer_dots_and_wide_loads(kernels):
    products = [k for k in kernels if k["kernel"] == "matvec" and k["model"] == "qwen3-8b"]
    assert products
    assert all(k["dots"] >= 16 and k["wide_loads"] >= 4 for k in products)


def test_prefill_products_use_matrices_or_integer_dots(kernels):
    products = [
        k
        for k in kernels
        if (k["kernel"], k["step"], k["model"]) == ("gemm", "prefill", "qwen3-8b")
    ]
    assert products
    assert all(k["matrices"] >= 32 or k["dots"] >= 256 for k in products)


def test_prefill_attention_uses_matrices(kernels):
    attention = [
        k
        for k in kernels
        if k["kernel"].startswith("attention_")
        and k["step"] == "prefill"
        and k["model"] != "deepseek2-lite"  # latent attention, whose heads are too wide
    ]
    assert len(attention) >= 2
    for k in attention:
        assert (k["kernel"] == "attention_matrices") == (k["gpu"] != "navi21")
        assert (k["matrices"] > 0) == (k["kernel"] == "attention_matrices")


def test_hot_decode_kernels_fit_eight_waves(kernels):
    hot = [
        k
        for k in kernels
        if (k["model"], k["step"]) == ("qwen3-8b", "decode") and k["kernel"] not in COLD
    ]
    assert {k["kernel"] for k in hot} >= {"norm", "matvec", "attention"}
    assert all(k["waves"] >= 8 for k in hot)


# Keeps more sums than a thread has registers, each of which needs all the others.
SPILLS = """
struct Arguments { float* x; };

[[vk::push_constant]] Arguments args;

[shader("compute")][numthreads(32, 1, 1)]
void main(uint thread : SV_GroupIndex)
{
    float sums[400];
    [ForceUnroll] for (uint i = 0; i < 400; i++) sums[i] = args.x[thread * 400 + i];
    for (uint k = 0; k < 9; k++)
        [ForceUnroll] for (uint i = 0; i < 400; i++) sums[i] += sums[(i * 7 + 1) % 400] * sums[i];
    [ForceUnroll] for (uint i = 0; i < 400; i++) args.x[thread * 400 + i] = sums[i];
}
"""
COMPILE_ONE = """
import json, sys
from pathlib import Path
from zinc.backends.vulkan import shaders
from zinc.backends.vulkan.explain import explain, open_explaining
from zinc.backends.vulkan.physical import candidates, library
from zinc.gpu.dispatch import KernelVariant
sys.path.insert(0, sys.argv[1])
from drivers import AMD
shaders.KERNELS = Path(sys.argv[2])
device = open_explaining(library(), candidates()[0])
pipelines, kernel = shaders.Pipelines(device), KernelVariant("spills", ())
pipelines.prepare([kernel])
print(json.dumps(AMD.numbers(explain(library(), device, pipelines.get(kernel)))))
"""


def test_a_planted_spill_is_seen(tmp_path):
    needs_rig()
    (tmp_path / "spills.slang").write_text(SPILLS)
    text = run(RIGS / "run", "gfx1201", "-c", COMPILE_ONE, RIGS, tmp_path)
    numbers = json.loads(text)
    assert spilling([{"model": "", "kernel": "spills", "macros": "", **numbers}])
