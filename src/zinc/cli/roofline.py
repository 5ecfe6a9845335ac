"""This machine's limits, measured where the backend runs: read bandwidth and int8 arithmetic.

Decode cannot be faster than its weights can be read; prefill cannot be faster than its products
can be computed. A speed means something only beside these.
"""

from __future__ import annotations

from dataclasses import dataclass

from zinc.backends.api import Backend
from zinc.core.progress import ProgressBar

# Far past any last-level cache, so that memory is what is measured.
BUFFER_BYTES = 1 << 29
DEVICE_BUFFER_BYTES = 1 << 31
REPETITIONS = 5


@dataclass(frozen=True, slots=True)
class Roofline:
    """Bytes read a second, and 8-bit integer operations (a multiply-add is two) a second."""

    bytes_per_s: float
    int8_ops_per_s: float


def measure(backend: Backend) -> Roofline | None:
    """Return the limits of the backend's device; None for a backend without any."""
    if backend.name == "vulkan":
        return _vulkan(backend)
    if backend.name != "cpu":
        return None
    import zinc.backends.cpu._cpu as _cpu
    from zinc.backends.cpu import CpuBackend

    assert isinstance(backend, CpuBackend)
    return Roofline(
        bytes_per_s=_cpu.bandwidth(backend.pool, BUFFER_BYTES, REPETITIONS) * 1e9,
        int8_ops_per_s=_cpu.int8_peak(backend.pool, backend.level) * 1e9,
    )


def measure_visibly(backend: Backend) -> Roofline | None:
    """Return the limits as `measure` does, with a line on a terminal meanwhile."""
    with ProgressBar("measuring memory and arithmetic", delay_s=0) as progress:
        progress(0, 0)
        return measure(backend)


def _vulkan(backend: Backend) -> Roofline | None:
    from zinc.backends.vulkan import VulkanBackend, limits
    from zinc.backends.vulkan.vk.types import CPU_DEVICE

    assert isinstance(backend, VulkanBackend)
    host = backend.host
    device, memory, pipelines = host.device, host.memory, host.pipelines
    if not device.timestamp_bits:
        return None
    n_bytes = BUFFER_BYTES if device.kind == CPU_DEVICE else DEVICE_BUFFER_BYTES
    return Roofline(
        limits.read_bytes_per_s(device, memory, pipelines, n_bytes, REPETITIONS),
        limits.int8_ops_per_s(device, memory, pipelines, REPETITIONS),
    )
