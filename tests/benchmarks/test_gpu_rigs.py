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
INTEL_GPUS = ("dg2", "mtl", "lnl", "bmg")
GPUS = ("navi21", "navi31", "navi33", "strix1", "gfx1201")
USUAL_GPUS = ("gfx1201",)
# Kernels that take a negligible part of a step.
COLD = {"embed", "rope_table", "elementwise", "group_experts"}


def needs_rig() -> None:
    if not (RIG / "mesa-version").exists():
        pytest.skip("there is no GPU rig: dev/gpu-rigs/make")
    needs_compiler()


def needs_intel_rig() -> None:
    if not (RIG / "usr/lib/x86_64-linux-gnu/libintel_noop_drm_shim.so").exists():
        pytest.skip("the GPU rig has no shim of Intel: dev/gpu-rigs/make-intel")
    needs_compiler()


def needs_compiler() -> None:
    packages = ("slangtorch", "slangpy")
    if not (shutil.which("slangc") or any(map(importlib.util.find_spec, packages))):
        pytest.skip("there is no Slang compiler")


def run(*command: str | Path, **variables: str) -> str:
    paths = {"PYTHONPATH": str(ROOT / "src"), "PYTHON": sys.executable}
    environment = {**os.environ, **paths, **variables}
    done = subprocess.run(
        [*map(str, command)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Results of `dev/gpu-rigs/record amd`: a model on a GPU, or everything with --every."""
    needs_rig()
    path = tmp_path_factory.mktemp("amd") / "amd.json"
    part = ("--gpus", *USUAL_GPUS, "--shapes", "qwen3-8b", "--steps", "decode", "prefill")
    run(sys.executable, RIGS / "record", "amd", "--json", path, *(() if effort.EVERY else part))
    return json.loads(path.read_text())


@pytest.fixture(params=GPUS)
def gpu(request):
    if request.param not in USUAL_GPUS and not effort.EVERY:
        pytest.skip("compiled with --every")
    return request.param


@pytest.fixture
def kernels(gpu, recorded):
    return [k for k in recorded["kernels"] if k["gpu"] == gpu]


def spilling(kernels):
    return {(k["model"], k["kernel"], k["macros"]): k["spills"] for k in kernels if k["spills"]}


def test_no_kernel_spills(kernels):
    assert {k["step"] for k in kernels} >= {"decode", "prefill"}
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


# -- Intel ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded_intel(tmp_path_factory):
    """Results of `dev/gpu-rigs/record intel`: decode on Arc A, or everything with --every."""
    needs_intel_rig()
    path = tmp_path_factory.mktemp("intel") / "intel.json"
    models = ("qwen3-8b", "qwen35moe-64x") if effort.EVERY else ("qwen3-8b",)
    gpus = INTEL_GPUS if effort.EVERY else ("dg2",)
    part = ("--gpus", *gpus, "--shapes", *models, *(() if effort.EVERY else ("--steps", "decode")))
    run(sys.executable, RIGS / "record", "intel", "--json", path, *part)
    return json.loads(path.read_text())["kernels"]


def test_no_hot_decode_kernel_spills_on_intel(recorded_intel):
    """Arc A and Meteor Lake have the fewest registers: 64 a lane."""
    hot = [
        k
        for k in recorded_intel
        if (k["model"], k["step"]) == ("qwen3-8b", "decode") and k["kernel"] not in COLD
    ]
    assert {k["kernel"] for k in hot} >= {"norm", "matvec", "attention"}
    assert {k["gpu"] for k in hot} == set(INTEL_GPUS if effort.EVERY else ("dg2",))
    assert spilling(hot) == {}
    assert all(k["dots"] >= 16 for k in hot if k["kernel"] == "matvec")


def test_wide_attention_of_decode_spills_nothing_on_arc_b(tmp_path):
    """Its 256-wide heads leave the fewest registers of the kernels of decode."""
    needs_intel_rig()
    path = tmp_path / "bmg.json"
    part = ("--gpus", "bmg", "--shapes", "qwen35moe-64x", "--steps", "decode")
    only = ("--kernels", "attention", "--json", path)
    run(sys.executable, RIGS / "record", "intel", *part, *only)
    found = json.loads(path.read_text())["kernels"]
    assert len(found) == 2  # with both types of the cache
    assert spilling(found) == {}


@pytest.mark.every
def test_few_registers_of_any_kernel_are_spilled_on_intel(recorded_intel):
    spills = dict.fromkeys(INTEL_GPUS, 0)
    for k in recorded_intel:
        spills[k["gpu"]] += k["spills"]
    assert spills["bmg"] == spills["lnl"] == 0
    assert spills["dg2"] <= 110


# -- barriers -------------------------------------------------------------------------------------


def test_no_barrier_of_a_decode_step_acts_on_a_cache(gpu, recorded):
    usual, coherent = (recorded["steps"][gpu][kernels] for kernels in ("usual", "coherent"))
    assert coherent["waits"] == usual["waits"] > 50
    assert coherent["cache_actions"] == {}
    assert usual["l2_flushes"] == usual["waits"]  # what coherent kernels are for


DUMP = """
------------------ Preamble IB begin - GFX ------------------
c0004600 \033[1;32mEVENT_WRITE\033[0m:
00000407         VGT_EVENT_INITIATOR <- 0x407
------------------- Preamble IB end - GFX -------------------
------------------ Main IB begin - GFX ------------------
c0031502 \033[1;36mDISPATCH_DIRECT\033[0m:
00000001         DIM_X <- 1
00000001         DIM_Y <- 1
00000001         DIM_Z <- 1
0000a045         COMPUTE_DISPATCH_INITIATOR <- 0xa045
                             CS_W32_EN = 1
c0004600 \033[1;32mEVENT_WRITE\033[0m:
00000407         VGT_EVENT_INITIATOR <- 0x407
ffff1000 NOP
c0065800 \033[1;32mACQUIRE_MEM\033[0m:
00000000         0x301f0 <- 0
ffffffff         COHER_SIZE <- 0xffffffff
00ffffff         COHER_SIZE_HI <- 0xffffff
00000000         COHER_BASE_LO <- 0
00000000         COHER_BASE_HI <- 0
0000000a         POLL_INTERVAL <- 10
{actions}         GCR_CNTL <- 0x0000c180
                             GLI_INV = GLI_NOP
c0031502 \033[1;36mDISPATCH_DIRECT\033[0m:
00000002         DIM_X <- 2
00000001         DIM_Y <- 1
00000001         DIM_Z <- 1
0000a045         COMPUTE_DISPATCH_INITIATOR <- 0xa045
c0004600 \033[1;32mEVENT_WRITE\033[0m:
00000407         VGT_EVENT_INITIATOR <- 0x407
------------------- Main IB end - GFX -------------------
"""


@pytest.mark.parametrize(
    ("actions", "names", "flushes"),
    [("0000c180", "GLK_INV, GLV_INV, GL2_INV, GL2_WB", 1), ("00000180", "GLK_INV, GLV_INV", 0)],
)
def test_packets_of_a_dump_are_read(actions, names, flushes, monkeypatch):
    monkeypatch.syspath_prepend(RIGS)
    import packets

    step = packets.decode_step(DUMP.format(actions=actions))
    assert step["dispatches"] == 2
    assert step["waits"] == 1  # those after the last dispatch and of the preamble do not count
    assert step["dwords"] == 23
    assert step["l2_flushes"] == flushes
    assert [packets.named(int(bits, 16)) for bits in step["cache_actions"]] == [names]
    assert step["packets"]["NOP"] == 1


# -- coherent kernels on a newer driver for CPUs --------------------------------------------------


def test_coherent_kernels_agree_with_published_models():
    """The driver for CPUs of Debian 12 miscompiles available stores in branches."""
    needs_rig()
    names = ["fixture qwen3", *(["fixture gemma3"] if effort.EVERY else [])]
    command = [RIGS / "run", "lavapipe", ROOT / "dev" / "check-cuda", "--worker"]
    cached = {"MESA_SHADER_CACHE_DISABLE": "false"}  # Mesa's cache is named by driver and kernel
    text = run(*command, "--backend", "vulkan", *names, ZINC_VULKAN_COHERENT="on", **cached)
    results = [json.loads(line) for line in text.splitlines()]
    assert [x["name"] for x in results] == names
    assert all(x["error"] <= x["tolerance"] for x in results)


# -- spills ---------------------------------------------------------------------------------------

# Keeps more sums than a thread has registers, each of which needs all the others.
SPILLS = """
#define SUMS COUNT
struct Arguments { float* x; };

[[vk::push_constant]] Arguments args;

[shader("compute")][numthreads(32, 1, 1)]
void main(uint thread : SV_GroupIndex)
{
    float sums[SUMS];
    [ForceUnroll] for (uint i = 0; i < SUMS; i++) sums[i] = args.x[thread * SUMS + i];
    for (uint k = 0; k < 9; k++)
        [ForceUnroll] for (uint i = 0; i < SUMS; i++) sums[i] += sums[(i * 7 + 1) % SUMS] * sums[i];
    [ForceUnroll] for (uint i = 0; i < SUMS; i++) args.x[thread * SUMS + i] = sums[i];
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
from drivers import DRIVERS
shaders.KERNELS = Path(sys.argv[2])
device = open_explaining(library(), candidates()[0])
pipelines, kernel = shaders.Pipelines(device), KernelVariant("spills", ())
pipelines.prepare([kernel])
numbers = DRIVERS[sys.argv[3]].numbers
print(json.dumps(numbers(explain(library(), device, pipelines.get(kernel)))))
"""


@pytest.mark.parametrize(
    ("driver", "gpu", "sums"), [("amd", "gfx1201", 400), ("intel", "dg2", 100)]
)
def test_a_planted_spill_is_seen(driver, gpu, sums, tmp_path):
    (needs_rig if driver == "amd" else needs_intel_rig)()
    (tmp_path / "spills.slang").write_text(SPILLS.replace("COUNT", str(sums)))
    text = run(RIGS / "run", gpu, "-c", COMPILE_ONE, RIGS, tmp_path, driver)
    numbers = json.loads(text)
    assert spilling([{"model": "", "kernel": "spills", "macros": "", **numbers}])
