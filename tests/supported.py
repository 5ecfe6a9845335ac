"""The tables of `zinc support`, made once a process: planning all architectures takes seconds."""

from __future__ import annotations

from functools import cache

from zinc.backends import api
from zinc.cli import support
from zinc.core.errors import DeviceError


@cache
def has_portable_level() -> bool:
    """Return whether the CPU backend was built with the level of docs/reference/support.md."""
    try:
        api.kernels("cpu", support.PORTABLE)
    except DeviceError:
        return False
    return True


@cache
def tables() -> support.Support:
    """Return the tables of the page, or of this machine if the level of the page is not built."""
    return support.collect(support.PORTABLE if has_portable_level() else None)
