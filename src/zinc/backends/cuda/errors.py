"""Status codes of the CUDA driver as errors that say what to do."""

from __future__ import annotations

from zinc.core.errors import DeviceError, ZincError
from zinc.gpu.errors import DeviceLostError, out_of_memory

DRIVER_HINT = "install or update NVIDIA's driver; `nvidia-smi` shows its version"

# After one of these errors every call of the process fails.
LOST = {
    "ASSERT": "a kernel failed",
    "HARDWARE_STACK_ERROR": "a kernel failed",
    "ILLEGAL_ADDRESS": "a kernel failed",
    "ILLEGAL_INSTRUCTION": "a kernel failed",
    "INVALID_ADDRESS_SPACE": "a kernel failed",
    "INVALID_PC": "a kernel failed",
    "LAUNCH_FAILED": "a kernel failed",
    "LAUNCH_TIMEOUT": "a kernel ran longer than the system allows",
    "MISALIGNED_ADDRESS": "a kernel failed",
    "TENSOR_MEMORY_LEAK": "a kernel failed",
    "CONTAINED": "the card has a memory fault",
    "ECC_UNCORRECTABLE": "the card has a memory fault",
    "NVLINK_UNCORRECTABLE": "the connection between cards has a fault",
    "CONTEXT_IS_DESTROYED": "the driver reset the card",
    "EXTERNAL_DEVICE": "the driver reset the card",
    "MPS_CLIENT_TERMINATED": "the driver's server for several processes ended it",
    "UNKNOWN": "the driver does not answer",
}
# Errors that a user can mend: why, and what to do next.
MENDABLE = {
    "DEVICE_UNAVAILABLE": (
        "another process has the card to itself, or its compute mode forbids all",
        "end that process, or set the mode with 'nvidia-smi --compute-mode=DEFAULT'",
    ),
    "NO_BINARY_FOR_GPU": ("the driver cannot run this code", DRIVER_HINT),
    "UNSUPPORTED_PTX_VERSION": ("the driver cannot run this code", DRIVER_HINT),
    "SYSTEM_DRIVER_MISMATCH": (
        "the driver was updated since the system started",
        "restart the system",
    ),
    "STUB_LIBRARY": ("the driver is a stand-in of the CUDA toolkit", DRIVER_HINT),
}


def error_of(status: str, call: str) -> ZincError:
    """Return the error for a driver call that returned `status`, such as CUDA_ERROR_UNKNOWN."""
    name = status.removeprefix("CUDA_ERROR_")
    told = f"{call} returned {status}"
    if name == "OUT_OF_MEMORY":
        return out_of_memory(told)
    if name in LOST:
        return DeviceLostError("CUDA", f"{LOST[name]} ({told})")
    why, hint = MENDABLE.get(name, ("", f"start zinc again, or {DRIVER_HINT}"))
    return DeviceError("the GPU reported an error", f"{why} ({told})" if why else told, hint)
