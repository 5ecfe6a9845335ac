"""NVRTC compiles the kernels for every supported architecture, without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import effort
import pytest
from goldens import cuda_kernels, pins
from goldens.cuda_kernels import PAGE, TARGETS, Resources, uses

from zinc.backends import api
from zinc.backends.cuda import CUDA_KERNELS, compiler
from zinc.backends.cuda.driver import missing
from zinc.backends.cuda.upload import PACKED, pack_kernel
from zinc.core.errors import DeviceError
from zinc.gpu.addresses import NominalAddresses
from zinc.gpu.arguments.constants import ProductKind
from zinc.gpu.disk_cache import save
from zinc.gpu.dispatch import KernelVariant
from zinc.plan.planner import make_plan
from zinc.quant.blocks import GGMLType
from zinc.testing.parity import every_case

# Kernels that are no part of a step.
OTHERS = [KernelVariant("limits", (("KIND", kind),)) for kind in (0, 1)]
OTHERS += [pack_kernel(type) for type in PACKED]
SMALL = KernelVariant("concat", (("THREADS", 128),))
SPILLED_BYTES = 64  # most bytes that a kernel may store and load because of spills
# Macros of the small GEMM of up to 8 rows and Q4_K matrices after a norm. It spills sums of
# squares; without these spills it is slower (dev/kernels/cuda.md).
NORM_AND_PARTS = {"NORM_X": 1, "X_TILES": 1, "FORMAT": GGMLType.Q4_K, "PRODUCT": ProductKind.LINEAR}
NORM_SPILLED_BYTES = 16
# Kernels that take most of the time of a step. They must not spill on an H100.
HOT = {
    "gemv",
    "gemm_few",
    "gemm_mma",
    "gemm_slots",
    "gemm_split",
    "attention",
    "attention_mma",
    "attention_wide",
    "experts",
    "moe_down",
    "delta_step",
}
HOT |= {"delta_chunks", "delta_channels", "delta_scan"}
H100 = TARGETS["sm_90a"]
OUT_OF_DATE = "docs/reference/cuda-kernels.md: PYTHONPATH=src:tests python -m goldens.cuda_kernels"


def absence() -> str:
    """Return why NVRTC cannot be used, or "" if it can."""
    try:
        compiler.nvrtc()
    except DeviceError as error:
        return str(error)
    return ""


needs_nvrtc = pytest.mark.skipif(bool(absence()), reason=absence())


@needs_nvrtc
@pytest.mark.parametrize(
    "arch",
    [pytest.param(x, marks=[] if x == "sm_80" else pytest.mark.every) for x in TARGETS],
)
def test_a_sample_of_kernels_compiles(arch: str) -> None:
    for name in ("gemv", "gemm_few", "gemm_mma", "attention_mma", "attention_wide"):
        check(next(use.kernel for use in uses(TARGETS[arch]) if use.kernel.name == name), arch)


@needs_nvrtc
@pytest.mark.parametrize(
    "arch",
    [pytest.param(x, marks=[] if x == "sm_90a" else pytest.mark.every) for x in TARGETS],
)
def test_one_variant_of_each_kernel_compiles(arch: str) -> None:
    """Compile one variant of each kernel, and of GEMM with and without warp groups."""
    kernels = [*OTHERS, *(use.kernel for use in uses(TARGETS[arch]))]
    by_name = {(x.name, dict(x.defines).get("GROUPS")): x for x in kernels}
    for kernel in by_name.values():
        check(kernel, arch)


@needs_nvrtc
@pytest.mark.every
@pytest.mark.parametrize("kv_dtype", ["f16", "q8_0"])
@pytest.mark.parametrize("arch", TARGETS)
def test_every_variant_compiles(arch: str, kv_dtype: str) -> None:
    for kernel in [*OTHERS, *(use.kernel for use in uses(TARGETS[arch], kv_dtype))]:
        check(kernel, arch)


@needs_nvrtc
@pytest.mark.parametrize(
    ("op", "step"),
    [
        *((op, "streams") for op in ("layer_norm", "glu", "lora", "route")),
        pytest.param("ssm_scan", "prompt", marks=pytest.mark.every),
    ],
)
def test_the_kernels_of_an_ops_cases_compile(op: str, step: str) -> None:
    """Compile kernels that the models of `uses` do not run, by default one variant of each."""
    at, bucket = NominalAddresses(H100.features, "f16"), pins.BUCKETS[step]
    found = set()
    for case in (case for of, case in every_case() if of.name == op):
        plan = make_plan(case.graph, api.kernels("cuda"), max_tokens=8, max_outputs=8)
        for launch in plan.launches:
            found |= {dispatch.kernel for dispatch in CUDA_KERNELS.lower(launch, at, bucket)}
    for kernel in found if effort.EVERY else {kernel.name: kernel for kernel in found}.values():
        check(kernel, H100.arch)


def check(kernel: KernelVariant, arch: str) -> None:
    target, found = TARGETS[arch], Resources.of(kernel, arch)
    # Attention to selected positions keeps these in registers too, and spills 24 bytes in prompts.
    is_hot = kernel.name in HOT and ("SELECTED", 1) not in kernel.defines
    limit = 0 if target is H100 and is_hot else SPILLED_BYTES
    if kernel.name == "gemm_few" and set(NORM_AND_PARTS.items()) <= set(kernel.defines):
        limit = max(limit, NORM_SPILLED_BYTES)
    assert found.spilled_bytes <= limit, f"{kernel} on {arch}: {found}"
    if target is H100:
        wanted = dict(kernel.defines).get("MIN_BLOCKS", 1)
        assert found.blocks(target) >= wanted, f"{kernel} on {arch}: {found}"


def test_the_page_lists_the_kernels_that_run() -> None:
    lines = [x for x in PAGE.read_text("utf-8").splitlines() if x.startswith("| ")]
    listed = [x for x in lines if x not in cuda_kernels.COLUMNS]
    for line, row in zip(listed, cuda_kernels.rows(), strict=True):
        assert line.startswith(str(row)), OUT_OF_DATE


@needs_nvrtc
@pytest.mark.every
def test_the_page_has_the_numbers_of_the_compiler() -> None:
    page, version = PAGE.read_text("utf-8"), cuda_kernels.nvrtc_version()
    if f"NVRTC {version} compiled" not in page:
        pytest.skip(
            f"the page is of another NVRTC than {version}, which allocates registers itself"
        )
    assert cuda_kernels.page() == page, OUT_OF_DATE


@needs_nvrtc
@pytest.mark.parametrize("damage", [lambda x: x[:-1], lambda x: b"", lambda x: b"\0" * len(x)])
def test_a_corrupt_cache_entry_is_rebuilt(tmp_path, monkeypatch, damage) -> None:
    monkeypatch.setenv("ZINC_CACHE", str(tmp_path))
    code = compiler.cubin(SMALL, "sm_80")
    (entry,) = (tmp_path / "cubin").iterdir()
    entry.write_bytes(damage(entry.read_bytes()))
    assert compiler.cubin(SMALL, "sm_80") == code
    assert entry.read_bytes().endswith(code)


@needs_nvrtc
def test_kernels_compile_where_no_cache_can_be_written(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ZINC_CACHE", str(tmp_path))
    (tmp_path / "cubin").write_text("a file where the folder should be")
    assert compiler.cubin(SMALL, "sm_80").startswith(b"\x7fELF")


def test_a_cache_file_that_cannot_be_put_in_place_leaves_nothing(tmp_path) -> None:
    (tmp_path / "entry").mkdir()
    save(tmp_path / "entry", b"code")
    assert [path.name for path in tmp_path.iterdir()] == ["entry"]


@needs_nvrtc
def test_two_processes_fill_one_cache(tmp_path) -> None:
    program = (
        "import hashlib, sys; from zinc.backends.cuda import compiler;"
        "from zinc.gpu.dispatch import KernelVariant;"
        "made = (compiler.cubin(KernelVariant('concat', (('THREADS', n),)), 'sm_80')"
        " for n in (64, 128, 256));"
        "print(hashlib.sha256(b''.join(made)).hexdigest())"
    )
    environment = {**os.environ, "ZINC_CACHE": str(tmp_path)}
    started = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment)
        for _ in range(2)
    ]
    answers = {process.communicate(timeout=300)[0] for process in started}
    assert [process.returncode for process in started] == [0, 0]
    assert len(answers) == 1
    assert all(path.suffix == ".cubin" for path in (tmp_path / "cubin").iterdir())
    assert len(list((tmp_path / "cubin").iterdir())) == 3


@needs_nvrtc
def test_an_error_names_the_kernel_and_the_compilers_message() -> None:
    with pytest.raises(DeviceError, match=r"concat.*sm_80.*NVRTC says.*error"):
        compiler.compile(KernelVariant("concat", (("THREADS", -1), ("uint", 0))), "sm_80")


@needs_nvrtc
def test_a_newer_card_of_a_known_generation_runs_code_for_an_older_one() -> None:
    assert compiler.architecture((8, 6)) == "sm_86"
    assert compiler.architecture((9, 9)) == "sm_90"
    assert compiler.architecture((9, 0)) == "sm_90a", "a card's own architecture has wgmma"
    assert compiler.architecture((12, 0)) == "sm_120a"
    with pytest.raises(DeviceError, match=r"compute capability 19\.0"):
        compiler.architecture((19, 0))


def test_old_cards_and_drivers_are_named() -> None:
    assert missing((9, 0), 13000) == ()
    assert missing((7, 5), 13000) == ("compute capability 8.0 (it has 7.5)",)
    assert missing((8, 0), 12080) == ("a driver of CUDA 13.0 or newer (it has 12.8)",)
