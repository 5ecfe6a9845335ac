"""Measurement of a device's read bandwidth and of its int8 operations per second.

Kernels that do nothing else measure them, so that speeds can be given as a share of the limit.
"""

from __future__ import annotations

from statistics import median
from time import perf_counter

from zinc.backends.capabilities import Roofline
from zinc.backends.vulkan.commands import Recorder
from zinc.backends.vulkan.device import Device
from zinc.backends.vulkan.memory import Memory
from zinc.backends.vulkan.shaders import Pipelines
from zinc.backends.vulkan.vk.types import CPU_DEVICE
from zinc.gpu.arguments.structs import LimitsArguments
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.memory import Buffer

READ, DOT = 0, 1
THREADS = 256  # per workgroup
GROUPS_PER_UNIT = 16
WARM_UP_S = 0.3  # time for an idle GPU to raise its clocks
CHAINS, DOT_OPS = 8, 8  # independent dot products of a thread; operations of a dot product


# A buffer far larger than any cache, so that its reads come from memory.
BUFFER_BYTES = 1 << 31
SOFTWARE_BUFFER_BYTES = 1 << 29
REPETITIONS = 5


def measure(device: Device, memory: Memory, pipelines: Pipelines) -> Roofline | None:
    """Return the limits of a device; None if it has no timestamps to measure them by."""
    if not device.timestamp_bits:
        return None
    n_bytes = SOFTWARE_BUFFER_BYTES if device.kind == CPU_DEVICE else BUFFER_BYTES
    return Roofline(
        read_bytes_per_s(device, memory, pipelines, n_bytes, REPETITIONS),
        int8_ops_per_s(device, memory, pipelines, REPETITIONS),
    )


def read_bytes_per_s(
    device: Device, memory: Memory, pipelines: Pipelines, n_bytes: int, repetitions: int = 5
) -> float:
    """Return the read bandwidth over a buffer of `n_bytes`, which is larger than any cache."""
    n_bytes = min(n_bytes, memory.available_bytes() // 4, device.max_allocation)
    buffer = memory.buffer(n_bytes // 16 * 16)
    groups = device.features.compute_units * GROUPS_PER_UNIT
    n = buffer.size // 16
    arguments = _arguments(buffer, n, groups)
    return buffer.size / _seconds(device, pipelines, READ, arguments, groups, repetitions)


def int8_ops_per_s(
    device: Device, memory: Memory, pipelines: Pipelines, repetitions: int = 5
) -> float:
    """Return the operations per second of 4-way int8 dot products."""
    rounds = 16 if device.kind == CPU_DEVICE else 4096
    groups = device.features.compute_units * GROUPS_PER_UNIT
    buffer = memory.buffer(16)
    arguments = _arguments(buffer, rounds, groups)
    n_ops = groups * THREADS * rounds * CHAINS * DOT_OPS
    return n_ops / _seconds(device, pipelines, DOT, arguments, groups, repetitions)


def _arguments(buffer: Buffer, n: int, groups: int) -> LimitsArguments:
    return LimitsArguments(
        step=0, data=buffer.address, out=buffer.address, n=n, threads=THREADS * groups
    )


def _seconds(
    device: Device,
    pipelines: Pipelines,
    kind: int,
    arguments: LimitsArguments,
    groups: int,
    repetitions: int,
) -> float:
    kernel = KernelVariant("limits", (("KIND", kind),))
    pipelines.prepare([kernel])
    recorder = Recorder(device, pipelines, repetitions + 1)
    for _ in range(repetitions + 1):
        recorder.level([Dispatch(kernel, arguments, (groups, 1, 1))])
        recorder.timestamp()
    commands = recorder.finish()
    warm = perf_counter() + (0 if device.kind == CPU_DEVICE else WARM_UP_S)
    commands.run()
    while perf_counter() < warm:
        commands.run()
    return median(commands.seconds())
