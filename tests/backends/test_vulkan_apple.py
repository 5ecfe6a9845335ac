"""Apple GPUs through Vulkan, without a Mac.

MoltenVK and KosmicKrisp are stood in for by the tables of their sources (apple.py). SPIRV-Cross,
which MoltenVK contains, translates the kernels with --every; `dev/gpu-rigs/make` gets it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_char_p, c_uint32
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from backends import apple
from backends.apple import EXTENSIONS, FEATURES, LIMITS, OPERATIONS
from models.harness import FIXTURES

from zinc.backends.vulkan import VulkanKernels, physical, prebuild, shaders
from zinc.backends.vulkan.device import Device
from zinc.backends.vulkan.vk import types as vk
from zinc.backends.vulkan.vk.library import library_names
from zinc.core.env import cache_folder
from zinc.engine.load.files import EMBEDDED_MODEL
from zinc.formats.gguf import GGUFFile
from zinc.gpu.dispatch import KernelVariant
from zinc.gpu.features import Features
from zinc.models import load
from zinc.plan.planner import make_plan

# -- drivers --------------------------------------------------------------------------------------

STRUCTS = {
    struct.stype: struct
    for struct in (
        *(vk.Features11, vk.Features12, vk.Features13),
        *(vk.Properties11, vk.Properties12, vk.Properties13),
    )
}
INTEGRATED, APPLE = 1, 0x106B


class FakeDriver:
    """A Vulkan library with one device, which reports what a driver's column of apple.py says.

    asked: names of the extensions and features that were enabled on the device.
    """

    def __init__(self, driver: str) -> None:
        rows = (*FEATURES, *LIMITS, *OPERATIONS, *EXTENSIONS)
        self.reports: dict[str, Any] = {row.name: getattr(row, driver) for row in rows}
        self.asked: set[str] = set()
        self.vkEnumerateDeviceExtensionProperties = self._extensions
        self.vkGetPhysicalDeviceFeatures2 = self._features
        self.vkGetPhysicalDeviceProperties2 = self._properties
        self.vkGetPhysicalDeviceQueueFamilyProperties = self._families
        self.vkCreateDevice = self._create

    def _extensions(self, device: int, layer: None, count: Any, found: Any) -> None:
        names = [row.name for row in EXTENSIONS if self.reports[row.name]]
        if found is not None:
            for each, name in zip(found._obj, names, strict=True):
                each.name = name.encode()
        count._obj.value = len(names)

    def _features(self, device: int, head: Any) -> None:
        for table, flags in feature_flags(head._obj):
            for name, at in table.items():
                flags[at] = self.reports[name]

    def _properties(self, device: int, head: Any) -> None:
        r = self.reports
        p = head._obj.properties
        major, minor = map(int, r["apiVersion"].split("."))
        p.apiVersion = major << 22 | minor << 12
        p.kind, p.vendor, p.name = INTEGRATED, APPLE, b"Apple M1"
        limits, threads = p.limits, r["maxComputeWorkGroupInvocations"]
        limits.maxPushConstantsSize = r["maxPushConstantsSize"]
        limits.maxComputeSharedMemorySize = r["maxComputeSharedMemorySize"]
        limits.maxComputeWorkGroupInvocations = limits.maxComputeWorkGroupSize[0] = threads
        for struct in chained(head._obj):
            if isinstance(struct, vk.Properties11):
                struct.subgroupSize = r["subgroupSize"]
                struct.operations = sum(r[row.name] << i for i, row in enumerate(OPERATIONS))
            if isinstance(struct, vk.Properties13):
                struct.minSubgroupSize = r["minSubgroupSize"]
                struct.maxSubgroupSize = r["maxSubgroupSize"]
                struct.maxSubgroups = threads // r["minSubgroupSize"]
                struct.requiredStages = r["requiredSubgroupSizeStages"]

    def _families(self, device: int, count: Any, families: Any) -> None:
        count._obj.value = 1
        if families is not None:
            families._obj[0].flags = vk.QUEUE_COMPUTE | vk.QUEUE_GRAPHICS

    def _create(self, device: int, info: Any, allocator: None, handle: Any) -> None:
        info = info._obj
        if info.nExtensions:
            names = (c_char_p * info.nExtensions).from_address(info.extensions)
            self.asked = {name.decode() for name in names}
        for table, flags in feature_flags(info):
            self.asked |= {name for name, at in table.items() if flags[at]}

    def functions(self, device: int) -> SimpleNamespace:
        return SimpleNamespace()


def chained(head: Any) -> list[Any]:
    """Return the known structs that follow `head` in its chain."""
    found, at = [], head.pNext
    while at:
        struct = STRUCTS.get(c_uint32.from_address(at).value, vk.Features2).from_address(at)
        found.append(struct)
        at = struct.pNext
    return found


def feature_flags(head: Any) -> list[tuple[dict[str, int], Any]]:
    """Return the tables of features that the chain of `head` has, each with its flags."""
    found = []
    for struct in (head, *chained(head)):
        if isinstance(struct, vk.Features2):
            found.append((vk.FEATURES, struct.features.flags))
        for kind, table in (
            (vk.Features11, vk.FEATURES_11),
            (vk.Features12, vk.FEATURES_12),
            (vk.Features13, vk.FEATURES_13),
        ):
            if isinstance(struct, kind):
                found.append((table, struct.flags))
    return found


@pytest.fixture(params=["moltenvk", "kosmickrisp"])
def driver(request: pytest.FixtureRequest) -> FakeDriver:
    return FakeDriver(request.param)


def missing(driver: FakeDriver) -> tuple[str, ...]:
    return physical._candidate(driver, 0, 1).missing


def test_the_table_has_every_feature_that_zinc_knows() -> None:
    known = {name for table in vk.FEATURE_TABLES for name in table}
    assert {row.name for row in FEATURES} == known
    assert len(OPERATIONS) == physical.SUBGROUP_BASIC_OPERATIONS.bit_count()


def test_drivers_have_everything_that_zinc_needs(driver: FakeDriver) -> None:
    assert missing(driver) == ()


@pytest.mark.parametrize(
    "name",
    [*sorted(physical.NEEDED), *(row.name for row in OPERATIONS), *apple.NEEDS],
)
def test_what_a_driver_lacks_is_found(driver: FakeDriver, name: str) -> None:
    driver.reports[name] = "1.2" if name == "apiVersion" else 1
    if name in physical.NEEDED or any(row.name == name for row in OPERATIONS):
        driver.reports[name] = False
    assert missing(driver)


def test_devices_are_opened_with_the_portability_subset(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Device, "_open_queue", lambda device: None)
    device = Device(driver, physical._candidate(driver, 0, 1))  # type: ignore[arg-type]
    assert (physical.PORTABILITY in driver.asked) == driver.reports[physical.PORTABILITY]
    assert driver.asked >= physical.NEEDED
    assert device.unified
    assert not device.coherent
    assert not device.sets_subgroup_size
    assert device.features == features()


def test_the_page_has_the_table() -> None:
    assert apple.page() == apple.PAGE.read_text(), "run: PYTHONPATH=tests python -m backends.apple"


def test_homebrew_folders_are_searched() -> None:
    names = library_names("darwin")
    assert names[0] == "libvulkan.1.dylib"  # a loader that the user's settings name comes first
    assert "/opt/homebrew/lib/libvulkan.1.dylib" in names
    assert "/opt/homebrew/lib/libMoltenVK.dylib" in names
    assert library_names("linux") == ["libvulkan.so.1"]


# -- kernels --------------------------------------------------------------------------------------

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
RIG = Path(os.environ.get("GPU_RIG") or CACHE / "zinc-gpu-rig")
LIBRARIES = RIG / "usr/lib/x86_64-linux-gnu"
SPIRV_CROSS = RIG / "usr/bin/spirv-cross"
MSL = "30000"  # Metal 3.0, of macOS 13
FAMILIES = (
    "qwen35moe",
    "gemma4e",
    "gptoss",
    "deepseek2v3",
    "falconh1",
    "lfm2moe",
    "jamba",
    "kimilinear",
)


def features(**others: Any) -> Features:
    """Return the features of an Apple GPU. Drivers do not tell how many cores it has."""
    return Features(32, shared_bytes=32768, compute_units=16, **others)


@pytest.fixture
def translator() -> list[Path]:
    """The command of SPIRV-Cross, which runs with the C library of the rig."""
    if not SPIRV_CROSS.is_file():
        pytest.skip("there is no SPIRV-Cross: dev/gpu-rigs/make")
    if shaders.compiler() is None:
        pytest.skip("there is no Slang compiler")
    loader = LIBRARIES / "ld-linux-x86-64.so.2"
    return [loader, Path("--library-path"), LIBRARIES, SPIRV_CROSS]


def translated(translator: list[Path], kernels: Iterable[KernelVariant]) -> dict[str, str]:
    """Return the Metal source of each kernel, or the error of SPIRV-Cross, by the kernel's name."""
    folder = cache_folder() / "spirv"
    wanted = sorted(kernels, key=str)
    prebuild.build(wanted, folder)

    def translate(kernel: KernelVariant) -> str:
        path = folder / f"{shaders.key(kernel)}.spv"
        command = [*translator, path, "--msl", "--msl-version", MSL]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stderr if done.returncode else done.stdout

    with ThreadPoolExecutor(2) as threads:
        return dict(zip(map(str, wanted), threads.map(translate, wanted), strict=True))


def untranslated(found: dict[str, str]) -> dict[str, str]:
    """Return the kernels that did not become Metal source. Metal has no double."""
    return {
        kernel: text
        for kernel, text in found.items()
        if "kernel void main0(" not in text or "double" in text
    }


def embedded_kernels(device: Features) -> set[KernelVariant]:
    """Return the kernels of the embedded model on a device, with every KV cache type."""
    with GGUFFile.open(EMBEDDED_MODEL) as file:
        spec, graph = load(file)
    plan = make_plan(graph, VulkanKernels(), max_tokens=512, max_outputs=64, samples=True)
    return prebuild.shipped(plan, [device], spec.context)


@pytest.mark.every
def test_all_kernels_of_the_embedded_model_become_metal(translator: list[Path]) -> None:
    found = translated(translator, embedded_kernels(features()))
    assert len(found) > 40
    assert untranslated(found) == {}


@pytest.mark.every
@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_of_other_models_become_metal(translator: list[Path], family: str) -> None:
    with GGUFFile.open(FIXTURES / f"{family}.gguf") as file:
        spec, graph = load(file)
    plan = make_plan(graph, VulkanKernels(), max_tokens=512, max_outputs=8, samples=True)
    found = translated(translator, prebuild.shipped(plan, [features()], spec.context))
    assert found
    assert untranslated(found) == {}


@pytest.mark.every
def test_a_kernel_that_metal_cannot_have_is_found(translator: list[Path]) -> None:
    """Metal has matrices of 8 x 8, and no driver offers others."""
    kernels = embedded_kernels(features(cooperative_matrix=True))
    matrices = next(k for k in kernels if k.name == "attention_matrices")
    found = translated(translator, [matrices])
    assert untranslated(found) == found
    assert "SPIRV-Cross threw an exception" in next(iter(found.values()))
