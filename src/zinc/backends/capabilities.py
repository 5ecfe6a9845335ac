"""Facts about backends and devices, by which the rest of zinc decides instead of by name."""

from __future__ import annotations

from enum import StrEnum

from zinc.core.dataclass import dataclass


class BackendKind(StrEnum):
    """The kind of device that a backend runs on, and its purpose."""

    DEVICE = "device"  # a GPU or another accelerator
    CPU = "cpu"  # the CPU and memory of this process
    REFERENCE = "reference"  # numpy; the oracle of tests and of `zinc verify`
    DRY_RUN = "dry run"  # records launches and computes nothing


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Facts about a backend that the planner, the engine and the commands decide by.

    kv_dtype: the type of keys and values that "auto" means. batch_invariant: the logits of a token
    are bit-identical whatever shares its steps, and wherever its prompt was cut into chunks.
    holds_fused_inputs: kernels of alternatives read inputs while they write outputs, so the two
    must not overlap in memory. rollback: recurrent states can be rolled back (zinc.plan.rollback).
    host_rows: programs take rows from the host and give it others at every step (`Plan.given`,
    `Plan.hidden`). parallel_uploads: weights that may be uploaded at the same time, each in a
    thread of its own. level: the SIMD level of the kernels, on which results may depend. levels:
    the levels that this machine runs, best first. threads: CPU threads in use. cores: CPU cores
    that this process may use. `levels`, `threads` and `cores` are empty or None off the CPU.
    """

    kind: BackendKind
    kv_dtype: str = "f16"
    batch_invariant: bool = False
    holds_fused_inputs: bool = False
    rollback: bool = False
    host_rows: bool = False
    parallel_uploads: int = 1
    level: str = ""
    levels: tuple[str, ...] = ()
    threads: int | None = None
    cores: int | None = None

    @property
    def is_fast(self) -> bool:
        """Whether the backend is meant for use and not for tests."""
        return self.kind in (BackendKind.DEVICE, BackendKind.CPU)


class DeviceKind(StrEnum):
    """The kind of a GPU, best first."""

    DISCRETE = "discrete GPU"
    INTEGRATED = "integrated GPU"
    VIRTUAL = "virtual GPU"
    SOFTWARE = "CPU"  # a driver that computes on the CPU, such as llvmpipe
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device that a backend can list without opening it.

    selector: the value of the option `device` that names it, such as "vulkan:0". missing: features
    that zinc needs and the device lacks. matrix_units: whether the backend's kernels run prompts on
    matrix units (tensor cores) of the device.
    """

    selector: str
    name: str
    kind: DeviceKind
    driver: str
    missing: tuple[str, ...] = ()
    matrix_units: bool = False


@dataclass(frozen=True, slots=True)
class Roofline:
    """Measured limits of a device: bytes read and int8 operations, both per second.

    A multiply-add counts as two operations.
    """

    bytes_per_s: float
    int8_ops_per_s: float
