"""A Vulkan device as a `zinc.gpu.host.Host`: memory, compiled kernels and recorded commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from zinc.backends.vulkan.commands import Commands, Recorder
from zinc.backends.vulkan.device import Device
from zinc.backends.vulkan.fragments import has_mma_fragments
from zinc.backends.vulkan.memory import Memory, Staging
from zinc.backends.vulkan.shaders import Pipelines, for_device
from zinc.gpu.dispatch import KernelVariant
from zinc.gpu.features import Features
from zinc.gpu.graph import DispatchGraph
from zinc.gpu.host import Download, Progress, Upload
from zinc.gpu.memory import Buffer, Bytes, MemoryKind


class VulkanHost:
    """A `zinc.gpu.host.Host` for a Vulkan device. All backends on a device share its host."""

    def __init__(self, device: Device) -> None:
        self.device, self.memory = device, Memory(device)
        self.staging, self.pipelines = Staging(self.memory), Pipelines(device)
        found = has_mma_fragments(device, self.memory, self.staging, self.pipelines)
        device.features = replace(device.features, mma_fragments=found)

    @property
    def features(self) -> Features:
        return self.device.features

    @property
    def device_name(self) -> str:
        return self.device.candidate.name

    @property
    def driver(self) -> str:
        return self.device.candidate.driver

    @property
    def max_buffer_bytes(self) -> int:
        return self.memory.max_buffer_bytes

    def describe(self) -> str:
        return str(self.device.candidate)

    def available_bytes(self) -> int:
        return self.memory.available_bytes()

    def shared_bytes(self) -> int | None:
        return self.memory.shared_bytes()

    def buffer(self, size: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        return self.memory.buffer(size, kind)

    def flush(self, buffer: Buffer, offset: int, n_bytes: int) -> None:
        pass  # memory that the host writes is coherent

    def write(self, target: Buffer, offset: int, data: Bytes) -> None:
        self.staging.write(target, offset, data)

    def read(self, source: Buffer, offset: int, n_bytes: int) -> Bytes:
        return self.staging.read(source, offset, n_bytes)

    def copy(self, source: Buffer, offset: int, target: Buffer, at: int, n_bytes: int) -> None:
        self.staging.copy(source, offset, target, at, n_bytes)

    def clear(self, target: Buffer) -> None:
        self.staging.clear(target)

    def kernel_name(self, kernel: KernelVariant) -> str:
        return str(for_device(kernel, self.features))

    def compile(self, kernels: Iterable[KernelVariant], progress: Progress | None = None) -> None:
        self.pipelines.prepare(kernels, progress)

    def record(
        self,
        graph: DispatchGraph,
        downloads: Sequence[Download] = (),
        upload: Upload | None = None,  # not needed: memory that the host writes is coherent
    ) -> Commands:
        recorder = Recorder(self.device, self.pipelines)
        for level in graph.levels():
            recorder.level(node.dispatch for node in level)
        for download in downloads:
            recorder.read_back(download.source, download.offset, download.target, download.n_bytes)
        return recorder.finish()

    def wait(self, ticket: int, expected_s: float = 0.0, sleeps: bool = True) -> None:
        self.device.wait(ticket, expected_s, sleeps)

    def seconds(self, graph: DispatchGraph, repeats: int) -> float:
        recorder = Recorder(self.device, self.pipelines, max_stamps=2)
        recorder.timestamp()
        for level in graph.levels():
            recorder.level(node.dispatch for node in level)
        recorder.timestamp()
        commands = recorder.finish()
        found = []
        for _ in range(repeats):
            commands.run()
            found += commands.seconds()
        return min(found)

    def level_seconds(self, graph: DispatchGraph) -> list[float]:
        levels = graph.levels()
        recorder = Recorder(self.device, self.pipelines, len(levels) + 1)
        recorder.timestamp()
        for level in levels:
            recorder.level(node.dispatch for node in level)
            recorder.timestamp()
        commands = recorder.finish()
        commands.run()
        return commands.seconds()
