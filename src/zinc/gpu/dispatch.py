"""Dispatches: kernels with the arguments and the grid they run with.

Nothing here names a handle of a host API, so dispatches are made and tested without a device.
"""

from __future__ import annotations

from zinc.core.dataclass import dataclass
from zinc.gpu.arguments.layout import Struct


@dataclass(frozen=True, slots=True)
class KernelVariant:
    """A kernel and the macros it is compiled with, as (name, value).

    shared_bytes: shared memory of a workgroup that the host allocates when it starts the kernel.
    """

    name: str
    defines: tuple[tuple[str, int], ...] = ()
    shared_bytes: int = 0

    def __str__(self) -> str:
        return " ".join([f"{self.name}.slang", *(f"-D{k}={v}" for k, v in self.defines)])


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One run of a kernel over `groups` workgroups.

    With `waits` it starts after the earlier dispatches of its launch have ended, because it reads
    what they wrote. Without, it may run beside them.
    """

    kernel: KernelVariant
    arguments: Struct
    groups: tuple[int, int, int]
    waits: bool = False
