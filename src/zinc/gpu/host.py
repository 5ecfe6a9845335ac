"""The protocol between a program and a device API: memory, recording, submitting and waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

from zinc.backends.api import StepCounts
from zinc.core.dataclass import dataclass
from zinc.gpu.dispatch import KernelVariant
from zinc.gpu.features import Features
from zinc.gpu.graph import DispatchGraph
from zinc.gpu.memory import Allocator, Buffer, Bytes

Progress: TypeAlias = Callable[[int, int], None]  # called with (done, total)


@dataclass(frozen=True, slots=True)
class Download:
    """A copy of `n_bytes` to the start of a buffer that the host reads, after all dispatches."""

    source: Buffer
    offset: int
    target: Buffer
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Upload:
    """A copy of the first `n_bytes` of a STEP buffer to the device, before all dispatches.

    It replaces a `flush` before each submission, and so saves a call of the device's API.
    """

    source: Buffer
    n_bytes: int


class Recording(Protocol):
    """Recorded dispatches, which may be submitted any number of times."""

    @property
    def counts(self) -> StepCounts:
        """Counts of dispatches, and of barriers between levels of dispatches."""
        ...

    def submit(self) -> int:
        """Queue one run after all earlier submissions. Return a ticket for `Host.wait`.

        Raises DeviceError.
        """
        ...


class Host(Allocator, Protocol):
    """A device and the API that drives it.

    Copies and runs take effect in the order of the calls.
    """

    @property
    def features(self) -> Features: ...

    @property
    def device_name(self) -> str: ...

    @property
    def driver(self) -> str:
        """Name and version of the device's driver."""
        ...

    def describe(self) -> str:
        """Return one line for people: name, kind and driver of the device."""
        ...

    def available_bytes(self) -> int:
        """Return the device memory that can still be allocated."""
        ...

    def shared_bytes(self) -> int | None:
        """Return the free bytes of the memory that the device shares with the CPU, None if none."""
        ...

    def write(self, target: Buffer, offset: int, data: Bytes) -> None:
        """Copy `data` into a buffer."""
        ...

    def read(self, source: Buffer, offset: int, n_bytes: int) -> Bytes:
        """Wait for everything submitted, and return a copy of bytes of a buffer."""
        ...

    def copy(self, source: Buffer, offset: int, target: Buffer, at: int, n_bytes: int) -> None:
        """Copy bytes between buffers on the device."""
        ...

    def clear(self, target: Buffer) -> None:
        """Fill a buffer with zeros."""
        ...

    def kernel_name(self, kernel: KernelVariant) -> str:
        """Return a kernel's name with all macros that it is compiled with on this device."""
        ...

    def compile(self, kernels: Iterable[KernelVariant], progress: Progress | None = None) -> None:
        """Make kernels ready to be recorded. Raises DeviceError."""
        ...

    def record(
        self,
        graph: DispatchGraph,
        downloads: Sequence[Download] = (),
        upload: Upload | None = None,
    ) -> Recording:
        """Record compiled kernels between copies to and from the device. Raises DeviceError."""
        ...

    def wait(self, ticket: int, expected_s: float = 0.0, sleeps: bool = True) -> None:
        """Wait for a submission that will take about `expected_s` seconds. Raises DeviceError.

        sleeps: leave the CPU core to others until shortly before the expected end. The code that
        runs next is slower then, because the core's caches are cold.
        """
        ...

    def seconds(self, graph: DispatchGraph, repeats: int) -> float:
        """Run the graph `repeats` times. Return the device's seconds of the fastest run."""
        ...

    def level_seconds(self, graph: DispatchGraph) -> list[float]:
        """Run the graph level by level and return the seconds of each level."""
        ...
