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
    "CONTAINED": "the GPU has a memory fault",
    "ECC_UNCORRECTABLE": "the GPU has a memory fault",
    "NVLINK_UNCORRECTABLE": "the NVLink connection between GPUs has a fault",
    "CONTEXT_IS_DESTROYED": "the driver reset the GPU",
    "EXTERNAL_DEVICE": "the driver reset the GPU",
    "MPS_CLIENT_TERMINATED": "the MPS server ended this process's work",
    "UNKNOWN": "the driver does not answer",
}
# Errors that a user can fix: why, and what to do next.
FIXABLE = {
    "DEVICE_UNAVAILABLE": (
        "another process uses the GPU exclusively, or its compute mode is Prohibited",
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
    returned = f"{call} returned {status}"
    if name == "OUT_OF_MEMORY":
        return out_of_memory(returned)
    if name in LOST:
        return DeviceLostError("CUDA", f"{LOST[name]} ({returned})")
    why, hint = FIXABLE.get(name, ("", f"start zinc again, or {DRIVER_HINT}"))
    what = "the GPU reported an error"
    return DeviceError(what, f"{why} ({returned})" if why else returned, hint)
