"""The CUDA driver: its devices, which of them can run zinc, and errors of its calls.

The package `cuda.bindings` is imported when it is first used, because it is optional.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from zinc.backends.cuda.errors import DRIVER_HINT, error_of
from zinc.core.dataclass import dataclass
from zinc.core.errors import DeviceError
from zinc.core.extras import CUDA, install_command
from zinc.gpu.selection import select

OLDEST_CAPABILITY = (8, 0)  # compute capability with int8 dot products, cp.async and bfloat16
# pyproject.toml allows NVRTC 13, whose code needs a driver of the same or a later major version.
OLDEST_DRIVER = 13000  # CUDA 13.0, as cuDriverGetVersion counts
MODULE_VERSION = Path("/proc/driver/nvidia/version")
PACKAGES_HINT = f"install it with: {install_command(CUDA)}"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A GPU of this machine. `missing` lists the requirements of zinc that it does not meet."""

    index: int
    handle: Any
    name: str
    capability: tuple[int, int]
    driver: str
    missing: tuple[str, ...]

    def __str__(self) -> str:
        return f"cuda:{self.index} {self.name}, {self.driver}"


@functools.cache
def driver() -> Any:
    """Return the module `cuda.bindings.driver`, initialised. Raises DeviceError."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DeviceError(
            "the CUDA backend lacks a package", f"cannot import {error.name}", PACKAGES_HINT
        ) from error
    try:
        (status,) = driver.cuInit(0)
    except Exception as error:  # the bindings have several errors for a missing library
        raise DeviceError("no NVIDIA driver was found", str(error), DRIVER_HINT) from error
    if status and status.name == "CUDA_ERROR_NO_DEVICE":
        raise DeviceError("no CUDA device was found", "the driver lists none", DRIVER_HINT)
    if status:
        cause = error_of(status.name, "cuInit")
        raise DeviceError("the NVIDIA driver does not start", cause.why, cause.hint)
    return driver


def release() -> str:
    """Return the line in which Linux names the driver's release, such as 580.159.04.

    Several releases have the same CUDA version. Returns "" on other systems.
    """
    try:
        return MODULE_VERSION.read_text().partition("\n")[0]
    except (OSError, ValueError):
        return ""


def checked(result: tuple[Any, ...], call: str) -> Any:
    """Return the value of a driver call from its `result` (status, value...).

    Several values are returned as a tuple. Raises MemoryLimitError or DeviceError, which name
    `call`.
    """
    status, *values = result
    if status:
        raise error_of(status.name, call)
    return values[0] if len(values) == 1 else tuple(values)


def candidates() -> list[Candidate]:
    """Return the GPUs of this machine, in the driver's order. Raises DeviceError."""
    cuda = driver()
    count = checked(cuda.cuDeviceGetCount(), "cuDeviceGetCount")
    version = checked(cuda.cuDriverGetVersion(), "cuDriverGetVersion")
    return [_candidate(cuda, index, version) for index in range(count)]


def choose(wanted: str = "") -> Candidate:
    """Return the GPU with the number or name `wanted`, by default the first that can run zinc.

    Raises DeviceError if there is none, or if it cannot run zinc.
    """
    found = candidates()
    if not found:
        raise DeviceError("no CUDA device was found", "the driver lists none", DRIVER_HINT)
    chosen = min(found, key=lambda c: (bool(c.missing), c.index))
    if wanted:
        chosen = select("CUDA", wanted, found)
    if chosen.missing:
        raise DeviceError(
            f"the CUDA device {chosen.name} cannot run zinc",
            f"it lacks {', '.join(chosen.missing)}",
            "update its driver, or choose another device with {device}",
        )
    return chosen


def attribute(device: Any, name: str) -> int:
    """Return the device attribute CU_DEVICE_ATTRIBUTE_`name`."""
    cuda = driver()
    key = getattr(cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    value: int = checked(cuda.cuDeviceGetAttribute(key, device), "cuDeviceGetAttribute")
    return value


def _candidate(cuda: Any, index: int, version: int) -> Candidate:
    device = checked(cuda.cuDeviceGet(index), "cuDeviceGet")
    name = checked(cuda.cuDeviceGetName(256, device), "cuDeviceGetName")
    capability = (
        attribute(device, "COMPUTE_CAPABILITY_MAJOR"),
        attribute(device, "COMPUTE_CAPABILITY_MINOR"),
    )
    return Candidate(
        index,
        device,
        name.split(b"\0")[0].decode(errors="replace"),
        capability,
        f"CUDA {version // 1000}.{version % 1000 // 10}",
        missing(capability, version),
    )


def missing(capability: tuple[int, int], version: int) -> tuple[str, ...]:
    """Return the requirements that a GPU of this compute capability and driver does not meet."""
    lacks = []
    if capability < OLDEST_CAPABILITY:
        lacks.append(f"compute capability 8.0 (it has {capability[0]}.{capability[1]})")
    if version < OLDEST_DRIVER:
        lacks.append(
            f"a driver of CUDA 13.0 or newer (it has {version // 1000}.{version % 1000 // 10})"
        )
    return tuple(lacks)
