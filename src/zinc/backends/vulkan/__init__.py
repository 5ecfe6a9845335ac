"""The Vulkan backend: compute shaders written in Slang, recorded into command buffers.

It needs a driver of Vulkan 1.3 and nothing from a GPU's vendor. SPIR-V comes from the wheel, from
the user's cache or from a Slang compiler (shaders.py); the API is called through ctypes (vk/).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping

from zinc.backends.api import wants_batch_invariance
from zinc.backends.capabilities import BackendKind, Capabilities, DeviceInfo, DeviceKind, Roofline
from zinc.backends.vulkan import limits, shaders
from zinc.backends.vulkan.device import Device, open_device
from zinc.backends.vulkan.host import VulkanHost
from zinc.backends.vulkan.physical import MAX_PUSH_BYTES, candidates
from zinc.gpu import lower
from zinc.gpu.backend import GpuBackend, GpuKernels
from zinc.gpu.fragment_tiles import FRAGMENT_TILINGS
from zinc.gpu.kernel_set import FUSED, LOWERINGS, KernelSet
from zinc.gpu.packing import StreamWeights
from zinc.gpu.tiling import TILINGS

lower.load()

SLANG_KERNELS = KernelSet(
    backend="Vulkan",
    lowerings=LOWERINGS,
    fused=FUSED,
    tilings=TILINGS | FRAGMENT_TILINGS,
    sources=shaders.sources_digest,
    weights=StreamWeights(),
    max_argument_bytes=MAX_PUSH_BYTES,
    stores_blocks=frozenset({"linear_glu"}),
)


_lock = threading.Lock()  # `functools.cache` does not lock


@functools.cache
def host_of(device: Device) -> VulkanHost:
    """Return the host that all backends on `device` share."""
    return VulkanHost(device)


class VulkanKernels(GpuKernels):
    name = "vulkan"
    kernel_set = SLANG_KERNELS
    capabilities = Capabilities(
        BackendKind.DEVICE, holds_fused_inputs=True, rollback=True, host_rows=True
    )


class VulkanBackend(VulkanKernels, GpuBackend):
    """A backend on an open device."""

    host: VulkanHost

    def __init__(self, device: Device, batch_invariant: bool = False) -> None:
        with _lock:
            host = host_of(device)
        super().__init__(host, batch_invariant)
        self.device = device

    def identity(self) -> str:
        stores = "coherent" if self.device.coherent else "plain"  # ZINC_VULKAN_COHERENT
        return f"{super().identity()}, {stores} stores"

    def measure(self) -> Roofline | None:
        return limits.measure(self.device, self.host.memory, self.host.pipelines)


def create(threads: int | None = None, options: Mapping[str, str] | None = None) -> VulkanBackend:
    options = options or {}
    device = open_device(options.get("device", ""), options.get("instance", "0"))
    return VulkanBackend(device, wants_batch_invariance(options))


def kernels(options: Mapping[str, str] | None = None) -> VulkanKernels:
    return VulkanKernels()


def devices() -> list[DeviceInfo]:
    return [
        DeviceInfo(
            f"vulkan:{c.index}",
            c.name,
            DeviceKind(c.kind),
            c.driver,
            c.missing,
            matrix_units=c.cooperative_matrix,
        )
        for c in candidates()
    ]
