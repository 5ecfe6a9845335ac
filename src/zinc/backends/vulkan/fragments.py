"""Check of which elements of a cooperative matrix a lane has, which Vulkan leaves to the driver."""

from __future__ import annotations

import numpy as np

from zinc.backends.vulkan.commands import Recorder
from zinc.backends.vulkan.device import Device
from zinc.backends.vulkan.memory import Memory, Staging
from zinc.backends.vulkan.shaders import Pipelines
from zinc.gpu.arguments.structs import LimitsArguments
from zinc.gpu.dispatch import Dispatch, KernelVariant

KERNEL = KernelVariant("mma_fragments", ())


def has_mma_fragments(
    device: Device, memory: Memory, staging: Staging, pipelines: Pipelines
) -> bool:
    """Return whether lanes have the elements of `Features.mma_fragments`. Raises DeviceError."""
    features = device.features
    if features.subgroup != 32 or not features.narrow_matrix:
        return False
    pipelines.prepare([KERNEL])
    buffer = memory.buffer(4 * features.subgroup)
    at = buffer.address
    arguments = LimitsArguments(step=0, data=at, out=at, n=0, threads=features.subgroup)
    recorder = Recorder(device, pipelines)
    recorder.level([Dispatch(KERNEL, arguments, (1, 1, 1))])
    recorder.finish().run()
    flags = staging.read(buffer, 0, 4 * features.subgroup)
    return bool(np.all(flags.view(np.uint32) == 1))
