"""Backends that tests run on: every one present that computes."""

from __future__ import annotations

from functools import cache

from zinc.backends import api
from zinc.core.errors import ZincError


@cache
def absent() -> dict[str, str]:
    """Backends that do not work here, with the reason."""
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
    """Names of the backends that are installed and work here, without the oracle."""
    return [name for name in api.discover() if name not in ("ref", "null", *absent())]


def _check_compiler() -> None:
    """A device alone runs no kernel of a source checkout. Raises DeviceError."""
    from zinc.backends.vulkan.shaders import spirv
    from zinc.gpu.dispatch import KernelVariant

    spirv(KernelVariant("limits", (("KIND", 0), ("SUBGROUP", 32))))
