"""A driver's statistics and instructions of compiled kernels: registers, spills, occupancy.

They come from VK_KHR_pipeline_executable_properties, on a device opened with `explains`. Names of
statistics are the driver's own. dev/gpu-rigs has drivers that compile for GPUs without the
hardware.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import addressof, byref, c_double, c_int64, c_uint32, c_uint64
from typing import Any

from zinc.backends.vulkan.device import Device
from zinc.backends.vulkan.physical import EXECUTABLES, Candidate, extensions
from zinc.backends.vulkan.vk import types as vk
from zinc.backends.vulkan.vk.library import Library
from zinc.core.dataclass import dataclass
from zinc.core.errors import DeviceError

# C types of the values of statistics, by VkPipelineExecutableStatisticFormatKHR.
_VALUES = (c_uint32, c_int64, c_uint64, c_double)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Statistics of a pipeline by name, and the text of its instructions."""

    statistics: Mapping[str, float]
    text: str


def open_explaining(lib: Library, candidate: Candidate) -> Device:
    """Open a device whose pipelines report the driver's statistics. Raises DeviceError."""
    if EXECUTABLES not in extensions(lib, candidate.handle):
        raise DeviceError(
            f"the driver of {candidate.name} does not explain its pipelines",
            f"it lacks {EXECUTABLES}",
        )
    return Device(lib, candidate, explains=True)


def explain(lib: Library, device: Device, pipeline: int) -> Explanation:
    """Return statistics and instructions of a compute pipeline, which has one executable."""
    info = vk.ExecutableInfo(pipeline=pipeline, index=0)
    statistics = {
        found.name.decode(): _value(found.format, found.value)
        for found in _several(lib, device, info, "Statistics", vk.ExecutableStatistic)
    }
    texts = _several(lib, device, info, "InternalRepresentations", vk.ExecutableText)
    buffers = [ctypes.create_string_buffer(text.size) for text in texts]
    for text, buffer in zip(texts, buffers, strict=True):
        text.data = addressof(buffer)
    if buffers:
        _call(lib, device, info, "InternalRepresentations", c_uint32(len(buffers)), texts)
    last = buffers[-1].value.decode(errors="replace") if buffers else ""
    return Explanation(statistics, last)


def _value(format: int, bits: int) -> float:
    """Return the value of a statistic. `bits` holds it as the C type that `format` selects."""
    return float(_VALUES[format].from_buffer(c_uint64(bits)).value)


def _several(lib: Library, device: Device, info: vk.Struct, of: str, kind: Any) -> Any:
    """Return the array that vkGetPipelineExecutable<of>KHR fills.

    The function is called twice, as usual in Vulkan: first for the length, then for the elements.
    """
    count = c_uint32()
    _call(lib, device, info, of, count, None)
    found = (kind * count.value)()
    for one in found:
        one.sType = kind.stype
    _call(lib, device, info, of, count, found)
    return found


def _call(
    lib: Library, device: Device, info: vk.Struct, of: str, count: c_uint32, found: Any
) -> None:
    get = lib.function(f"vkGetPipelineExecutable{of}KHR", "!hppp")
    where = None if found is None else byref(found)
    get(device.handle, byref(info), byref(count), where)
