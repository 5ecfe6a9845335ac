"""Memory of this machine, on Linux, macOS and Windows."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX of Windows; sizes in bytes."""

    _fields_ = (
        ("length", ctypes.c_uint32),
        ("percent_used", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in (
            "total", "available", "total_pagefile", "available_pagefile", "total_virtual",
            "available_virtual", "available_extended",
        )),
    )  # fmt: skip


def total_memory_bytes() -> int:
    """Return the bytes of physical memory."""
    if sys.platform == "win32":
        return _windows_status().total
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def available_memory_bytes() -> int:
    """Return the bytes that programs can allocate without swapping.

    Returns all physical memory on systems that do not report this, such as macOS.
    """
    if sys.platform == "win32":
        return _windows_status().available
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return total_memory_bytes()


def _windows_status() -> _MemoryStatus:
    status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
    if sys.platform == "win32" and not ctypes.windll.kernel32.GlobalMemoryStatusEx(
        ctypes.byref(status)
    ):
        raise ctypes.WinError()
    return status
