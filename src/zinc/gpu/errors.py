"""Errors that every GPU API reports: out of memory, and a lost device."""

from __future__ import annotations

from zinc.core.errors import DeviceError, MemoryLimitError


class DeviceLostError(DeviceError):
    """The driver reset the device or a kernel failed, so this process cannot use it any more."""

    def __init__(self, api: str, why: str) -> None:
        """Describe the loss. api: the name of the GPU API, such as "CUDA"."""
        super().__init__(
            f"the {api} device was lost",
            why,
            f"see the system log, run 'zinc verify --backend {api.lower()}', and start zinc again",
        )


def out_of_memory(why: str) -> MemoryLimitError:
    """Return the error for device memory that ran out. why: what could not be allocated."""
    return MemoryLimitError(
        "the device has no memory left",
        why,
        "use a smaller {context}, {kv_dtype=q8_0}, fewer {gpu_layers}, or a smaller model or "
        "quantisation, or close other programs that use the device",
    )
