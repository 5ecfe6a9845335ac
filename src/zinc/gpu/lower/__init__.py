"""Lowerings, one module a group of ops: each registers what its ops become on the device."""

from __future__ import annotations

import importlib
import pkgutil


def load() -> None:
    """Imports every module here, so that its lowerings are known."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
