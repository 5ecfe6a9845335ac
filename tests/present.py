"""Backends that tests run on."""

from __future__ import annotations

from functools import cache

from zinc.backends import api
from zinc.core.errors import ZincError
from zinc.quant.blocks import GGMLType


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


@cache
def of_embedded_model() -> str:
    """Return "cpu" if it has all kernels of the embedded model, else "ref"."""
    try:
        cpu = api.create("cpu")
        cpu.row_format(GGMLType.Q4_K)
        cpu.row_format(GGMLType.Q6_K)
    except ZincError:
        return "ref"
    return "cpu"


def _check_compiler() -> None:
    """Raise DeviceError if shaders cannot be compiled: a checkout has no compiled ones."""
    from zinc.backends.vulkan.shaders import spirv
    from zinc.gpu.dispatch import KernelVariant

    spirv(KernelVariant("limits", (("KIND", 0), ("SUBGROUP", 32))))
