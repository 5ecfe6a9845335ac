"""Selection of a GPU by its number or name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from zinc.core.errors import DeviceError


class Candidate(Protocol):
    @property
    def index(self) -> int: ...

    @property
    def name(self) -> str: ...


INDEX_DIGITS = 2  # digits of the largest number of a device

C = TypeVar("C", bound=Candidate)


def select(api: str, wanted: str, found: Sequence[C]) -> C:
    """Return the device of `found` that `wanted` names: "1", "vulkan:1", or a part of its name.

    api: the name of the GPU API, such as "Vulkan". "0" is the first device, although "NVIDIA H200"
    contains it too; longer numbers such as "4090" are parts of names. Raises DeviceError unless one
    device matches.
    """
    key = wanted.strip().lower().removeprefix(f"{api.lower()}:").strip()
    if key.isdigit() and len(key) <= INDEX_DIGITS:
        named = [device for device in found if device.index == int(key)]
    else:
        named = [device for device in found if key and key in device.name.lower()]
    if len(named) == 1:
        return named[0]
    raise DeviceError(
        f"more than one {api} device has {wanted!r} in its name"
        if named
        else f"there is no {api} device {wanted!r}",
        "",
        "choose one of " + ", ".join(f"{device.index} ({device.name})" for device in found),
    )
