"""NVRTC compiles the kernels for every supported architecture, without a GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache

import pytest
from goldens import pins

from zinc.backends import api
from zinc.backends.cuda import CUDA_KERNELS, compiler
from zinc.backends.cuda.driver import missing
from zinc.core.errors import DeviceError
from zinc.gpu.addresses import NominalAddresses
from zinc.gpu.disk_cache import save
from zinc.gpu.dispatch import KernelVariant
from zinc.gpu.features import Features
from zinc.plan.planner import make_plan

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
DEVICE = Features(32, shared_bytes=49152, compute_units=132)
SHAPES = ("shape-qwen3-8b", "shape-qwen36-35b-a3b")
SMALL = KernelVariant("concat", (("THREADS", 128),))
SPILLED_BYTES = 64  # most bytes that a kernel may spill


def absence() -> str:
    """Return why NVRTC cannot be used, or "" if it can."""
    try:
        compiler.nvrtc()
    except DeviceError as error:
        return str(error)
    return ""


needs_nvrtc = pytest.mark.skipif(bool(absence()), reason=absence())


@cache
def kernels() -> list[KernelVariant]:
    """Return the kernels of decode, streams and prompts of the benchmark shapes."""
    found = {KernelVariant("limits", (("KIND", kind),)): None for kind in (0, 1)}
    for name in SHAPES:
        plan = make_plan(
            pins._graph(name), api.kernels("cuda"), max_tokens=512, max_outputs=8, samples=True
        )
        for kv_dtype in ("f16", "q8_0"):
            at = NominalAddresses(DEVICE, kv_dtype)
            for bucket in pins.BUCKETS.values():
                lowered = CUDA_KERNELS.lower_all(plan.launches, at, bucket)
                found |= {dispatch.kernel: None for dispatch in lowered}
    return list(found)


@needs_nvrtc
@pytest.mark.parametrize(
    "arch",
    [pytest.param(x, marks=[] if x == "sm_80" else pytest.mark.every) for x in ARCHITECTURES],
)
def test_one_variant_of_each_kernel_compiles(arch: str) -> None:
    for kernel in {kernel.name: kernel for kernel in kernels()}.values():
        check(kernel, arch)


@needs_nvrtc
@pytest.mark.every
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_variant_compiles(arch: str) -> None:
    for kernel in kernels():
        check(kernel, arch)


def check(kernel: KernelVariant, arch: str) -> None:
    code, log = compiler.compile(kernel, arch)
    assert code.startswith(b"\x7fELF")
    spilled = [int(x) for x in re.findall(r"(\d+) bytes spill", log)]
    assert spilled, log
    assert max(spilled) <= SPILLED_BYTES, f"{kernel}: {log}"


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
    answers = {process.communicate(timeout=120)[0] for process in started}
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
