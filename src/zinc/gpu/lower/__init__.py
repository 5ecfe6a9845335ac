"""Lowerings for the Slang kernels, one module for each group of ops.

Each module registers functions that turn a launch of an op into dispatches
(`zinc.gpu.kernel_set.lowers`).
"""

from __future__ import annotations

import importlib
import pkgutil


def load() -> None:
    """Import every module of this package, which registers its lowerings."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
