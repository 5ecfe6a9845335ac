"""The devices that the option `device` names, such as "vulkan:0,vulkan:1"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from zinc.backends import api
from zinc.backends.api import Backend
from zinc.backends.capabilities import BackendKind, DeviceInfo, DeviceKind
from zinc.core.errors import DeviceError, RequestError
from zinc.engine.load.auto import find_gpus
from zinc.engine.load.options import LoadOptions


def named_devices(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names in the option `device` if there are several, else ().

    Raises RequestError for an empty name.
    """
    given = options.get("device", "")
    names = tuple(name.strip() for name in given.split(","))
    if len(names) == 1:
        return ()
    if "" in names:
        raise RequestError(
            f"the list of devices {given!r} has an empty name",
            "",
            "separate the names by one comma each, such as {device=vulkan:0,vulkan:1}",
        )
    return names


def find_device(name: str, backend: str) -> tuple[str, str]:
    """Return the backend and the selector of the device called `name`.

    backend: used for a name without one. Raises DeviceError if there is no such device.
    """
    prefix = name.partition(":")[0]
    if name in api.discover() and api.kernels(name).capabilities.kind is not BackendKind.DEVICE:
        return name, name  # a backend without devices, such as the CPU
    owner = prefix if ":" in name and prefix in api.discover() else backend
    found: list[tuple[str, DeviceInfo]] = (
        list(find_gpus()) if owner == "auto" else [(owner, info) for info in api.devices(owner)]
    )
    key = name.lower()
    named = [x for x in found if key in (x[1].selector, x[1].selector.partition(":")[2])]
    named = named or [x for x in found if key in x[1].name.lower()]
    if len(named) != 1:
        known_devices = ", ".join(f"{info.selector} ({info.name})" for _, info in found)
        raise DeviceError(
            f"more than one device is called {name!r}" if named else f"there is no device {name!r}",
            f"this machine has {known_devices}" if found else "no GPU was found",
            "choose devices that `zinc check` lists, or cpu",
        )
    return named[0][0], named[0][1].selector


def open_devices(selectors: Sequence[tuple[str, str]], options: LoadOptions) -> list[Backend]:
    """Open the devices, each with its own queue and memory.

    Raises DeviceError if one is named twice and is not emulated on the CPU: its memory and its work
    could not be divided.
    """
    seen: Counter[str] = Counter()
    devices = []
    for backend, selector in selectors:
        if seen[selector] and not _is_emulated(backend, selector):
            raise DeviceError(
                f"the device {selector} is named twice",
                "two parts of the model would share its memory and speed",
                "name each device once",
            )
        own = {"device": selector, "instance": str(seen[selector])}
        devices.append(api.create(backend, options.threads, {**options.backend_options, **own}))
        seen[selector] += 1
    return devices


def _is_emulated(backend: str, selector: str) -> bool:
    """Return whether a device computes on the CPU, so that it may have several parts of a model."""
    if api.kernels(backend).capabilities.kind is not BackendKind.DEVICE:
        return True
    return any(
        info.selector == selector and info.kind is DeviceKind.SOFTWARE
        for info in api.devices(backend)
    )
