"""A host that records dispatches and runs nothing, for tests of what a GPU backend submits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from zinc.backends.api import StepCounts
from zinc.gpu.dispatch import KernelVariant
from zinc.gpu.features import Features
from zinc.gpu.graph import DispatchGraph
from zinc.gpu.host import Download, Progress, Upload
from zinc.gpu.memory import Buffer, Bytes, MemoryKind


@dataclass(eq=False)
class LoggedRecording:
    """Dispatches that were recorded. A run fills the downloads with its ticket."""

    host: LoggingHost
    graph: DispatchGraph
    downloads: Sequence[Download]

    @property
    def counts(self) -> StepCounts:
        return StepCounts(len(self.graph.nodes), len(self.graph.levels()) - 1)

    def submit(self) -> int:
        self.host.submitted.append(self)
        return len(self.host.submitted)


class LoggingHost:
    """A `zinc.gpu.host.Host` in host memory. Nothing runs before it is waited for."""

    features = Features(32, compute_units=8, shared_bytes=49152)
    max_buffer_bytes = 1 << 30
    device_name, driver = "emulated", "none"

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.recorded: list[LoggedRecording] = []
        self.submitted: list[LoggedRecording] = []
        self.waited: list[int] = []
        self.slept: list[bool] = []  # whether each wait might sleep
        self.compiled: set[KernelVariant] = set()

    def describe(self) -> str:
        return "logging host"

    def available_bytes(self) -> int:
        return self.max_buffer_bytes

    def shared_bytes(self) -> int | None:
        return None

    def buffer(self, size: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        address = (len(self.buffers) + 1) << 32
        self.buffers.append(Buffer(len(self.buffers), address, size, np.zeros(size, np.uint8)))
        return self.buffers[-1]

    def flush(self, buffer: Buffer, offset: int, n_bytes: int) -> None:
        pass

    def at(self, address: int, n_bytes: int) -> Bytes:
        """Return the bytes at a device address."""
        buffer, start = self.buffers[(address >> 32) - 1], address & 0xFFFFFFFF
        assert buffer.bytes is not None
        return buffer.bytes[start : start + n_bytes]

    def write(self, target: Buffer, offset: int, data: Bytes) -> None:
        assert target.bytes is not None
        target.bytes[offset : offset + len(data)] = data

    def read(self, source: Buffer, offset: int, n_bytes: int) -> Bytes:
        assert source.bytes is not None
        return source.bytes[offset : offset + n_bytes].copy()

    def copy(self, source: Buffer, offset: int, target: Buffer, at: int, n_bytes: int) -> None:
        self.write(target, at, self.read(source, offset, n_bytes))

    def clear(self, target: Buffer) -> None:
        assert target.bytes is not None
        target.bytes[:] = 0

    def kernel_name(self, kernel: KernelVariant) -> str:
        return str(kernel)

    def compile(self, kernels: Iterable[KernelVariant], progress: Progress | None = None) -> None:
        self.compiled.update(kernels)

    def record(
        self,
        graph: DispatchGraph,
        downloads: Sequence[Download] = (),
        upload: Upload | None = None,
    ) -> LoggedRecording:
        assert {node.dispatch.kernel for node in graph.nodes} <= self.compiled
        self.recorded.append(LoggedRecording(self, graph, downloads))
        return self.recorded[-1]

    def wait(self, ticket: int, expected_s: float = 0.0, sleeps: bool = True) -> None:
        self.waited.append(ticket)
        self.slept.append(sleeps)
        for download in self.submitted[ticket - 1].downloads:
            assert download.target.bytes is not None
            download.target.bytes.view(np.float32)[:] = ticket

    def seconds(self, graph: DispatchGraph, repeats: int) -> float:
        return 1.0

    def level_seconds(self, graph: DispatchGraph) -> list[float]:
        return [1.0] * len(graph.levels())
