"""Devices chosen by number or name."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from zinc.core.errors import DeviceError
from zinc.gpu.selection import select


class Card(NamedTuple):
    index: int
    name: str


H100, OTHER_H100, ARC = Card(0, "NVIDIA H100"), Card(1, "NVIDIA H100"), Card(2, "Intel Arc B580")


@pytest.mark.parametrize(
    ("wanted", "device"),
    [
        ("0", H100),
        ("vulkan:1", OTHER_H100),
        ("Vulkan:2", ARC),
        ("arc", ARC),
        (" b580 ", ARC),
        ("580", ARC),
    ],
)
def test_a_number_or_a_part_of_a_name_selects_a_device(wanted: str, device: Card) -> None:
    assert select("Vulkan", wanted, [H100, OTHER_H100, ARC]) is device


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("h100", "more than one Vulkan device has 'h100' in its name"),
        ("58", "there is no Vulkan device '58'"),
        ("vulkan:", "there is no Vulkan device 'vulkan:'"),
        (
            "radeon",
            r"(?s)there is no Vulkan device 'radeon'.*0 \(NVIDIA H100\).*2 \(Intel Arc B580\)",
        ),
    ],
)
def test_a_name_that_selects_no_single_device_is_refused(wanted: str, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        select("Vulkan", wanted, [H100, OTHER_H100, ARC])
