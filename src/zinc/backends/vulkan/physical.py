"""The Vulkan devices of this machine: which features each one lacks, and which one to choose."""

from __future__ import annotations

import threading
from ctypes import byref, c_uint32, c_uint64
from typing import Any

from zinc.backends.vulkan.vk import types as vk
from zinc.backends.vulkan.vk.library import DRIVER_HINT, Library
from zinc.core.dataclass import dataclass
from zinc.core.errors import DeviceError
from zinc.gpu.features import MAX_SHARED_BYTES, MAX_THREADS
from zinc.gpu.selection import select

MAX_PUSH_BYTES = 128  # push constants that every Vulkan device has
# Features that kernels require. Others of vk.types.FEATURES* are used if they are supported.
NEEDED = frozenset(
    {
        "shaderInt64",
        "shaderInt16",
        "storageBuffer16BitAccess",
        "storageBuffer8BitAccess",
        "shaderFloat16",
        "shaderInt8",
        "scalarBlockLayout",
        "timelineSemaphore",
        "bufferDeviceAddress",
        "vulkanMemoryModel",
        "shaderIntegerDotProduct",
    }
)
DEVICE_SCOPE = "vulkanMemoryModelDeviceScope"  # needed by kernels with coherent stores
COOPERATIVE_MATRIX = "VK_KHR_cooperative_matrix"
MEMORY_BUDGET = "VK_EXT_memory_budget"
PCI_BUS = "VK_EXT_pci_bus_info"
EXECUTABLES = "VK_KHR_pipeline_executable_properties"
SM_BUILTINS, SHADER_CORES = "VK_NV_shader_sm_builtins", "VK_AMD_shader_core_properties"
PORTABILITY = "VK_KHR_portability_subset"  # must be enabled if a device has it
WAVE = 32  # requested subgroup size, if the device supports several
INTEL = 0x8086  # vendor
INTEL_WAVE = 16  # with 32 lanes, a thread of Intel's GPUs has too few registers, and kernels spill
INTEL_REGISTERS = 128  # per thread; each has 32 bits per lane of the smallest subgroup
SUBGROUPS = (8, 16, 32, 64)  # subgroup sizes that kernels are written for
SUBGROUP_BASIC_OPERATIONS = 0b11111  # basic, vote, arithmetic, ballot, shuffle


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device of this machine.

    missing: features that zinc needs and the device lacks. cooperative_matrix: whether its driver
    has the extension.
    """

    index: int
    handle: int
    name: str
    kind: str
    driver: str
    missing: tuple[str, ...]
    cooperative_matrix: bool

    def __str__(self) -> str:
        return f"vulkan:{self.index} {self.name}, {self.kind}, {self.driver}"


_lock = threading.Lock()
_library: Library | None = None


def library() -> Library:
    """Return the Vulkan loader, loaded once per process. Raises DeviceError if there is none."""
    global _library
    with _lock:
        _library = _library or Library()
        return _library


def candidates() -> list[Candidate]:
    """Return all devices of this machine, in the order of the loader."""
    lib = library()
    count = c_uint32()
    lib.vkEnumeratePhysicalDevices(lib.instance, byref(count), None)
    handles = (c_uint64 * count.value)()
    lib.vkEnumeratePhysicalDevices(lib.instance, byref(count), byref(handles))
    return [_candidate(lib, i, handle) for i, handle in enumerate(handles)]


def choose(wanted: str = "") -> Candidate:
    """Return the device with the number or name `wanted`.

    By default this is the first discrete GPU, else the first integrated one.

    Raises DeviceError when there is none, or it lacks what zinc needs.
    """
    found = candidates()
    if not found:
        raise DeviceError(
            "no Vulkan device was found",
            "the Vulkan loader found no driver",
            DRIVER_HINT,
        )
    if wanted:
        chosen = select("Vulkan", wanted, found)
    else:
        order = ["discrete GPU", "integrated GPU", "virtual GPU", "CPU", "other"]
        chosen = min(found, key=lambda c: (bool(c.missing), order.index(c.kind), c.index))
    if chosen.missing:
        raise DeviceError(
            f"the Vulkan device {chosen.name} cannot run zinc",
            f"it lacks {', '.join(chosen.missing)}",
            "update its driver, or choose another device with {device}",
        )
    return chosen


def _candidate(lib: Library, index: int, handle: int) -> Candidate:
    properties, p12 = vk.Properties2(), vk.Properties12()
    properties.chain(p12)
    lib.vkGetPhysicalDeviceProperties2(handle, byref(properties))
    p = properties.properties
    if p.apiVersion < vk.API_1_3:
        missing = [f"Vulkan 1.3 (it has 1.{p.apiVersion >> 12 & 0x3FF})"]
    else:
        p11, p13 = vk.Properties11(), vk.Properties13()
        properties.chain(p11).chain(p13)
        lib.vkGetPhysicalDeviceProperties2(handle, byref(properties))
        missing = _missing(supported_features(lib, handle), p, p11, p13)
    return Candidate(
        index,
        handle,
        p.name.decode(errors="replace"),
        vk.KINDS.get(p.kind, "other"),
        f"{p12.driverName.decode(errors='replace')} {p12.driverInfo.decode(errors='replace')}",
        tuple(missing),
        COOPERATIVE_MATRIX in extensions(lib, handle),
    )


def _missing(has: set[str], p: Any, p11: Any, p13: Any) -> list[str]:
    """Return the required features and limits that a device with these properties lacks."""
    limits = p.limits
    lanes, chosen = subgroup_of(has, p.vendor, p11, p13)
    threads = min(limits.maxComputeWorkGroupInvocations, limits.maxComputeWorkGroupSize[0])
    if chosen:
        threads = min(threads, lanes * p13.maxSubgroups)
    operations = p11.operations & SUBGROUP_BASIC_OPERATIONS
    wanted = {
        "arithmetic and shuffles within a subgroup": operations == SUBGROUP_BASIC_OPERATIONS,
        f"subgroups of 8, 16, 32 or 64 lanes (it has {lanes})": lanes in SUBGROUPS,
        f"workgroups of {MAX_THREADS} threads (it has {threads})": threads >= MAX_THREADS,
        f"{MAX_SHARED_BYTES} bytes of shared memory": (
            limits.maxComputeSharedMemorySize >= MAX_SHARED_BYTES
        ),
        f"{MAX_PUSH_BYTES} bytes of push constants": (
            limits.maxPushConstantsSize >= MAX_PUSH_BYTES
        ),
    }
    return [*sorted(NEEDED - has), *(what for what, given in wanted.items() if not given)]


def subgroup_of(has: set[str], vendor: int, p11: Any, p13: Any) -> tuple[int, bool]:
    """Return the subgroup size, and whether pipelines must ask for it."""
    if "subgroupSizeControl" in has and p13.requiredStages & vk.SHADER_STAGE_COMPUTE:
        wanted = INTEL_WAVE if vendor == INTEL else WAVE
        lanes = min(max(wanted, p13.minSubgroupSize), p13.maxSubgroupSize)
        return lanes, p13.minSubgroupSize < p13.maxSubgroupSize
    return p11.subgroupSize, False


def registers_of(vendor: int, lanes: int, p13: Any) -> int:
    """Return the 32-bit registers of a lane in subgroups of `lanes`."""
    if vendor == INTEL and lanes and p13.minSubgroupSize:
        return INTEL_REGISTERS * int(p13.minSubgroupSize) // lanes
    return 256


def supported_features(lib: Library, handle: int) -> set[str]:
    """Return the names of the features that a physical device supports."""
    structs = vk.Features2(), vk.Features11(), vk.Features12(), vk.Features13()
    head = structs[0]
    for other in structs[1:]:
        head.chain(other)
    lib.vkGetPhysicalDeviceFeatures2(handle, byref(head))
    flags = [head.features.flags, *(s.flags for s in structs[1:])]
    return {
        name
        for table, flag in zip(vk.FEATURE_TABLES, flags, strict=True)
        for name, at in table.items()
        if flag[at]
    }


def extensions(lib: Library, physical: int) -> frozenset[str]:
    """Return the names of the extensions that a physical device supports."""
    count = c_uint32()
    lib.vkEnumerateDeviceExtensionProperties(physical, None, byref(count), None)
    found = (vk.ExtensionProperties * count.value)()
    lib.vkEnumerateDeviceExtensionProperties(physical, None, byref(count), byref(found))
    return frozenset(e.name.decode() for e in found)
