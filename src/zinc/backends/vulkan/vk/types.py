"""Structs and constants of Vulkan for ctypes, with the names of the specification.

Each struct is one line of `name:type` members, and fills in its sType by itself. Names and numbers
are those of the Vulkan 1.3 specification (https://registry.khronos.org/vulkan/).
"""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_float, c_int32, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any, ClassVar

_TYPES: dict[str, Any] = {
    "u8": c_uint8,
    "u32": c_uint32,
    "i32": c_int32,
    "u64": c_uint64,
    "f32": c_float,
    "char": c_char,
    "size": c_size_t,
    "ptr": c_void_p,
}


class Struct(ctypes.Structure):
    """Base of all structs. `stype` is the value of sType, None for a struct without one."""

    stype: ClassVar[int | None] = None
    pNext: Any

    def __init__(self, *args: Any, **values: Any) -> None:
        super().__init__(*args, **values)
        self._kept: list[Struct] = []
        if self.stype is not None:
            self.sType = self.stype

    def chain(self, struct: Struct) -> Struct:
        """Insert `struct` at the start of this struct's pNext chain, keep it alive and return self.

        `struct` must not have a chain of its own.
        """
        assert not struct.pNext
        struct.pNext = self.pNext
        self.pNext = ctypes.addressof(struct)
        self._kept.append(struct)
        return self


def _struct(members: str, stype: int | None = None) -> Any:
    head = [] if stype is None else [("sType", c_uint32), ("pNext", c_void_p)]
    fields = [*head, *(_member(m) for m in members.split())]
    return type("VkStruct", (Struct,), {"stype": stype, "_fields_": fields})


def _member(text: str) -> tuple[str, Any]:
    name, kind = text.split(":")
    kind, _, count = kind.rstrip("]").partition("[")
    type_ = _TYPES.get(kind) or globals()[kind]
    return name, type_ * int(count) if count else type_


ApplicationInfo = _struct(
    "name:ptr version:u32 engine:ptr engineVersion:u32 apiVersion:u32",
    stype=0,
)
InstanceCreateInfo = _struct(
    "flags:u32 application:ptr nLayers:u32 layers:ptr nExtensions:u32 extensions:ptr",
    stype=1,
)
DeviceQueueCreateInfo = _struct("flags:u32 family:u32 count:u32 priorities:ptr", stype=2)
DeviceCreateInfo = _struct(
    "flags:u32 nQueues:u32 queues:ptr nLayers:u32 layers:ptr nExtensions:u32 extensions:ptr "
    "features:ptr",
    stype=3,
)
SubmitInfo = _struct(
    "nWaits:u32 waits:ptr waitStages:ptr nCommands:u32 commands:ptr nSignals:u32 signals:ptr",
    stype=4,
)
MemoryAllocateInfo = _struct("size:u64 memoryType:u32", stype=5)
SemaphoreCreateInfo = _struct("flags:u32", stype=9)
QueryPoolCreateInfo = _struct("flags:u32 queryType:u32 count:u32 statistics:u32", stype=11)
BufferCreateInfo = _struct(
    "flags:u32 size:u64 usage:u32 sharing:u32 nFamilies:u32 families:ptr",
    stype=12,
)
ShaderModuleCreateInfo = _struct("flags:u32 size:size code:ptr", stype=16)
PipelineCacheCreateInfo = _struct("flags:u32 size:size data:ptr", stype=17)
ShaderStageCreateInfo = _struct(
    "flags:u32 stage:u32 module:u64 name:ptr specialization:ptr",
    stype=18,
)
ComputePipelineCreateInfo = _struct(
    "flags:u32 stage:ShaderStageCreateInfo layout:u64 base:u64 baseIndex:i32",
    stype=29,
)
PushConstantRange = _struct("stages:u32 offset:u32 size:u32")
PipelineLayoutCreateInfo = _struct("flags:u32 nSets:u32 sets:ptr nRanges:u32 ranges:ptr", stype=30)
CommandPoolCreateInfo = _struct("flags:u32 family:u32", stype=39)
CommandBufferAllocateInfo = _struct("pool:u64 level:u32 count:u32", stype=40)
CommandBufferBeginInfo = _struct("flags:u32 inheritance:ptr", stype=42)
MemoryBarrier = _struct("source:u32 target:u32", stype=46)
BufferCopy = _struct("source:u64 target:u64 size:u64")
QueueFamilyProperties = _struct("flags:u32 count:u32 timestampBits:u32 granularity:u32[3]")
ExtensionProperties = _struct("name:char[256] version:u32")
# The booleans of VkPhysicalDeviceFeatures in order.
Features = _struct("flags:u32[55]")
Features2 = _struct("features:Features", stype=1000059000)
Features11 = _struct("flags:u32[12]", stype=49)
Features12 = _struct("flags:u32[47]", stype=51)
Features13 = _struct("flags:u32[15]", stype=53)
CooperativeMatrixFeatures = _struct("matrix:u32 robust:u32", stype=1000506000)
CooperativeMatrixProperties = _struct(
    "m:u32 n:u32 k:u32 a:u32 b:u32 c:u32 result:u32 saturating:u32 scope:u32",
    stype=1000506001,
)
ExecutableFeatures = _struct("info:u32", stype=1000269000)
PipelineInfo = _struct("pipeline:u64", stype=1000269001)
ExecutableInfo = _struct("pipeline:u64 index:u32", stype=1000269003)
ExecutableStatistic = _struct(
    "name:char[256] description:char[256] format:u32 value:u64",
    stype=1000269004,
)
ExecutableText = _struct(
    "name:char[256] description:char[256] isText:u32 size:size data:ptr",
    stype=1000269005,
)
# VkPhysicalDeviceLimits. Neighbouring members that zinc does not read are one array.
Limits = _struct(
    "images:u32[8] maxPushConstantsSize:u32 maxMemoryAllocationCount:u32 samplers:u32 "
    "granularity:u64 sparse:u64 graphics:u32[38] maxComputeSharedMemorySize:u32 "
    "maxComputeWorkGroupCount:u32[3] maxComputeWorkGroupInvocations:u32 "
    "maxComputeWorkGroupSize:u32[3] precision:u32[13] mapAlignment:size alignments:u64[3] "
    "texels:u32[21] timestamps:u32 timestampPeriod:f32 rest:u32[19]"
)
Properties = _struct(
    "apiVersion:u32 driverVersion:u32 vendor:u32 device:u32 kind:u32 name:char[256] "
    "uuid:u8[16] limits:Limits sparse:u32[5]"
)
Properties2 = _struct("properties:Properties", stype=1000059001)
Properties11 = _struct(
    "deviceUUID:u8[16] driverUUID:u8[16] luid:u8[8] nodeMask:u32 luidValid:u32 "
    "subgroupSize:u32 stages:u32 operations:u32 quad:u32 clipping:u32 views:u32[2] "
    "protected:u32 descriptors:u32 maxMemoryAllocationSize:u64",
    stype=50,
)
Properties12 = _struct(
    "driverID:u32 driverName:char[256] driverInfo:char[256] rest:u32[64]",
    stype=52,
)
Properties13 = _struct(
    "minSubgroupSize:u32 maxSubgroupSize:u32 maxSubgroups:u32 requiredStages:u32 "
    "uniform:u32[6] integerDot:u32[30] texel:u64 single:u32 uniformTexel:u64 "
    "uniformSingle:u32 maxBufferSize:u64",
    stype=54,
)
PCIBus = _struct("domain:u32 bus:u32 device:u32 function:u32", stype=1000212000)
MemoryType = _struct("flags:u32 heap:u32")
MemoryHeap = _struct("size:u64 flags:u32")
MemoryProperties = _struct("nTypes:u32 types:MemoryType[32] nHeaps:u32 heaps:MemoryHeap[16]")
MemoryProperties2 = _struct("properties:MemoryProperties", stype=1000059006)
MemoryBudget = _struct("budget:u64[16] usage:u64[16]", stype=1000237000)
MemoryAllocateFlags = _struct("flags:u32 deviceMask:u32", stype=1000060000)
MemoryRequirements = _struct("size:u64 alignment:u64 types:u32")
SemaphoreType = _struct("kind:u32 initial:u64", stype=1000207002)
TimelineSubmit = _struct("nWaits:u32 waits:ptr nSignals:u32 signals:ptr", stype=1000207003)
SemaphoreWait = _struct("flags:u32 count:u32 semaphores:ptr values:ptr", stype=1000207004)
RequiredSubgroupSize = _struct("size:u32", stype=1000225001)
BufferAddress = _struct("buffer:u64", stype=1000244001)
SMBuiltins = _struct("count:u32 warps:u32", stype=1000154001)
ShaderCores = _struct("engines:u32 arrays:u32 units:u32 rest:u32[11]", stype=1000185000)

# Indices of the features that zinc uses. storagePushConstant8 and 16 are enabled if supported,
# because validation layers ask for them: push constants hold addresses of 8 and 16 bit numbers.
FEATURES = {"shaderInt64": 40, "shaderInt16": 41}
FEATURES_11 = {"storageBuffer16BitAccess": 0, "storagePushConstant16": 2}
FEATURES_12 = {
    "storageBuffer8BitAccess": 2,
    "storagePushConstant8": 4,
    "shaderFloat16": 7,
    "shaderInt8": 8,
    "scalarBlockLayout": 31,
    "shaderSubgroupExtendedTypes": 34,
    "timelineSemaphore": 37,
    "bufferDeviceAddress": 38,
    "vulkanMemoryModel": 41,
    "vulkanMemoryModelDeviceScope": 42,
}
FEATURES_13 = {
    "subgroupSizeControl": 7,
    "computeFullSubgroups": 8,
    "shaderIntegerDotProduct": 13,
    "maintenance4": 14,
}
FEATURE_TABLES = (FEATURES, FEATURES_11, FEATURES_12, FEATURES_13)

API_1_3 = (1 << 22) | (3 << 12)

SUCCESS, NOT_READY, TIMEOUT = 0, 1, 2
INCOMPLETE = 5
OUT_OF_HOST_MEMORY, OUT_OF_DEVICE_MEMORY, INITIALIZATION_FAILED, DEVICE_LOST = -1, -2, -3, -4
RESULTS = {
    -1: "out of host memory",
    -2: "out of device memory",
    -3: "initialization failed",
    -4: "the device was lost",
    -5: "memory cannot be mapped",
    -6: "a layer is not present",
    -7: "an extension is not present",
    -8: "a feature is not present",
    -9: "the driver is incompatible",
    -10: "too many objects",
    -13: "unknown error",
    -1000257000: "invalid device address",
}

PIPELINE_KEEP_STATISTICS, PIPELINE_KEEP_TEXT = 0x40, 0x80
QUEUE_COMPUTE, QUEUE_GRAPHICS = 2, 1
MEMORY_DEVICE_LOCAL, MEMORY_HOST_VISIBLE, MEMORY_HOST_COHERENT, MEMORY_HOST_CACHED = 1, 2, 4, 8
HEAP_DEVICE_LOCAL = 1
BUFFER_TRANSFER_SOURCE, BUFFER_TRANSFER_TARGET, BUFFER_STORAGE, BUFFER_ADDRESS = 1, 2, 32, 0x20000
ALLOCATE_DEVICE_ADDRESS = 2
STAGE_TOP, STAGE_COMPUTE, STAGE_TRANSFER, STAGE_BOTTOM, STAGE_HOST = (
    1,
    0x800,
    0x1000,
    0x2000,
    0x4000,
)
ACCESS_SHADER_READ, ACCESS_SHADER_WRITE = 0x20, 0x40
ACCESS_TRANSFER_READ, ACCESS_TRANSFER_WRITE = 0x800, 0x1000
ACCESS_HOST_READ, ACCESS_HOST_WRITE = 0x2000, 0x4000
SHADER_STAGE_COMPUTE = 0x20
BIND_COMPUTE = 1
POOL_RESET = 2
USAGE_ONE_TIME, USAGE_SIMULTANEOUS = 1, 4
QUERY_TIMESTAMP = 2
QUERY_RESULT_64, QUERY_RESULT_WAIT = 1, 2
STAGE_FLAG_FULL_SUBGROUPS = 2
SEMAPHORE_TIMELINE = 1
KINDS = {0: "other", 1: "integrated GPU", 2: "discrete GPU", 3: "virtual GPU", 4: "CPU"}
INTEGRATED_DEVICE, CPU_DEVICE = 1, 4
DRIVER_RADV = 3  # VkDriverId
ENUMERATE_PORTABILITY = 1  # flag of an instance
