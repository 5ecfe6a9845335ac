"""Features and limits of the Vulkan drivers for Apple GPUs, for tests and docs/apple.md.

The values are read from the sources of the drivers, which docs/apple.md links.

To write the table of the page anew:

    PYTHONPATH=tests python -m backends.apple
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, TypeAlias

from zinc.backends.vulkan import physical
from zinc.backends.vulkan.vk import types as vk
from zinc.gpu.features import MAX_SHARED_BYTES, MAX_THREADS

PAGE = Path(__file__).parents[2] / "docs" / "apple.md"
BEGIN, END = "<!-- table:begin -->\n", "<!-- table:end -->"

Value: TypeAlias = bool | int | str
SUBGROUP_OPERATIONS = 0b11111  # basic, vote, arithmetic, ballot, shuffle


class Row(NamedTuple):
    """A feature, limit or extension.

    moltenvk, kosmickrisp: what the drivers report on an Apple GPU. where: the function of
    MVKDevice.mm that says so; those of KosmicKrisp are kk_get_device_features and
    kk_get_device_properties.
    """

    name: str
    moltenvk: Value
    where: str
    kosmickrisp: Value


FEATURES = (
    Row("shaderInt64", True, "initFeatures, family Apple3", True),
    Row("shaderInt16", True, "initFeatures", True),
    Row("storageBuffer16BitAccess", True, "getFeatures", True),
    Row("storagePushConstant16", True, "getFeatures", True),
    Row("storageBuffer8BitAccess", True, "getFeatures", True),
    Row("storagePushConstant8", True, "getFeatures", True),
    Row("shaderFloat16", True, "getFeatures", True),
    Row("shaderInt8", True, "getFeatures", True),
    Row("scalarBlockLayout", True, "getFeatures", True),
    Row("shaderSubgroupExtendedTypes", True, "getFeatures, family Apple6", True),
    Row("timelineSemaphore", True, "getFeatures", True),
    Row("bufferDeviceAddress", True, "getFeatures, macOS 13", True),
    Row("vulkanMemoryModel", True, "getFeatures", True),
    Row("vulkanMemoryModelDeviceScope", True, "getFeatures", True),
    Row("subgroupSizeControl", True, "getFeatures, family Apple6", True),
    Row("computeFullSubgroups", True, "getFeatures, family Apple6", True),
    Row("shaderIntegerDotProduct", True, "getFeatures", True),
    Row("maintenance4", True, "getFeatures", True),
)
LIMITS = (
    Row("apiVersion", "1.4", "initProperties, of the instance", "1.4"),
    Row("subgroupSize", 32, "initMetalFeatures, family Apple6", 32),
    Row("minSubgroupSize", 4, "initMetalFeatures", 32),
    Row("maxSubgroupSize", 32, "initMetalFeatures", 32),
    Row("requiredSubgroupSizeStages", 0, "getProperties", 0),
    # Of Metal's device: both drivers pass on maxThreadsPerThreadgroup and
    # maxThreadgroupMemoryLength, which Apple's Metal Feature Set Tables state for each family.
    Row("maxComputeWorkGroupInvocations", 1024, "initLimits", 1024),
    Row("maxComputeSharedMemorySize", 32768, "initLimits", 32768),
    Row("maxPushConstantsSize", 4096, "initLimits", 128),
)
OPERATIONS = (
    Row("basic", True, "populateSubgroupProperties", True),
    Row("vote", True, "populateSubgroupProperties, family Apple4", True),
    Row("arithmetic", True, "populateSubgroupProperties, family Apple7", True),
    Row("ballot", True, "populateSubgroupProperties, family Apple4", True),
    Row("shuffle", True, "populateSubgroupProperties, family Apple4", True),
)
EXTENSIONS = (
    Row(physical.PORTABILITY, True, "MVKExtensions.def", False),
    Row(physical.MEMORY_BUDGET, True, "getMemoryProperties", True),
    Row(physical.COOPERATIVE_MATRIX, False, "MVKExtensions.def", False),
)
NEEDS = {
    "apiVersion": "1.3",
    "subgroupSize": "8, 16, 32 or 64",
    "maxComputeWorkGroupInvocations": str(MAX_THREADS),
    "maxComputeSharedMemorySize": str(MAX_SHARED_BYTES),
    "maxPushConstantsSize": str(physical.MAX_PUSH_BYTES),
}

# Heaps in bytes of a machine with 64 GB, and memory types as (flags, heap).
LOCAL, VISIBLE, COHERENT, CACHED = (
    vk.MEMORY_DEVICE_LOCAL,
    vk.MEMORY_HOST_VISIBLE,
    vk.MEMORY_HOST_COHERENT,
    vk.MEMORY_HOST_CACHED,
)
LAZY = 16  # VK_MEMORY_PROPERTY_LAZILY_ALLOCATED_BIT
_SHARED = LOCAL | VISIBLE | COHERENT | CACHED
# MVKPhysicalDevice::initMemoryProperties: private, shared and memoryless storage of one heap.
MOLTENVK_MEMORY = ([64 << 30], [(LOCAL, 0), (_SHARED, 0), (LOCAL | LAZY, 0)])
# kk_enumerate_physical_devices: one type of one heap, as large as Metal's recommended working set.
KOSMICKRISP_MEMORY = ([48 << 30], [(_SHARED, 0)])


def table() -> str:
    """Return what zinc asks for and what the drivers report, as Markdown."""
    lines = ["| | zinc | MoltenVK | in MVKDevice.mm | KosmicKrisp |", "|---|---|---|---|---|"]
    for row in (*LIMITS, *FEATURES, *OPERATIONS, *EXTENSIONS):
        name = f"subgroup operations: {row.name}" if row in OPERATIONS else f"`{row.name}`"
        is_needed = row.name in physical.NEEDED or row in OPERATIONS
        needs = NEEDS.get(row.name) or ("needs it" if is_needed else "uses it")
        cells = (name, needs, _cell(row.moltenvk), row.where, _cell(row.kosmickrisp))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(value: Value) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def page() -> str:
    """Return the page with the table as it should be."""
    head, rest = PAGE.read_text().split(BEGIN)
    return f"{head}{BEGIN}{table()}{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page())
