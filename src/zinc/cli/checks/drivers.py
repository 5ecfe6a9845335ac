"""Drivers with known faults.

The sources are public bug reports; zinc's self-test finds wrong results, but not a driver that
crashes now and then.
"""

from __future__ import annotations

import re

from zinc.core.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class KnownDriver:
    """A driver with a fault.

    pattern: matches the driver's name and version, the numbers of the version as groups. fixed: the
    first version without the fault; empty if there is none.
    """

    pattern: str
    fault: str
    fix: str
    fixed: tuple[int, ...] = ()


KNOWN = (
    KnownDriver(
        r"^AMD open-source driver ",  # https://github.com/GPUOpen-Drivers/AMDVLK is discontinued
        "AMDVLK is discontinued and gets no more fixes",
        "install RADV and remove AMDVLK: sudo apt install mesa-vulkan-drivers",
    ),
    KnownDriver(
        r"^Intel Corporation .*\b101\.(\d+)",  # https://github.com/ggml-org/llama.cpp/issues/22034
        "it loses the device in kernels that use matrix units",
        "install version 32.0.101.8860 or later of Intel's driver",
        fixed=(8860,),
    ),
)


def known_fault(driver: str) -> KnownDriver | None:
    """Return the entry of `driver`, its name and version; None if no fault is known."""
    for known in KNOWN:
        if found := re.search(known.pattern, driver):
            version = tuple(map(int, found.groups()))
            if not known.fixed or version < known.fixed:
                return known
    return None
