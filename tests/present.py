"""Backends that tests run on."""

from __future__ import annotations

from functools import cache

from zinc.backends import api
from zinc.core.errors import ZincError


@cache
def absent() -> dict[str, str]:
    """Return the backends that do not work on this machine, with the reason."""
    found = {}
    for name in api.discover():
        try:
            api.create(name)
            if name == "vulkan":
                _check_compiler()
        except ZincError as error:
            found[name] = str(error)
    return found


def computing() -> list[str]:
    """Return the names of the backends that work on this machine and are not the reference."""
    return [name for name in api.discover() if name not in ("ref", "null", *absent())]


def _check_compiler() -> None:
    """Raise DeviceError if shaders cannot be compiled: a checkout has no compiled ones."""
    from zinc.backends.vulkan.shaders import spirv
    from zinc.gpu.dispatch import KernelVariant

    spirv(KernelVariant("limits", (("KIND", 0), ("SUBGROUP", 32))))
