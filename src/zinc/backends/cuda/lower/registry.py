"""Registry of CUDA's own lowerings, which replace or add to those of `zinc.gpu.lower`."""

from __future__ import annotations

import importlib
import pkgutil

from zinc.backends.cuda import lower
from zinc.gpu.kernel_set import FusedCondition, Lowering, registering

LOWERINGS: dict[str, Lowering] = {}
FUSED: dict[str, FusedCondition] = {}
lowers = registering(LOWERINGS)
fuses = registering(FUSED)


def load() -> None:
    """Import every module of the package, which registers its lowerings."""
    for module in pkgutil.iter_modules(lower.__path__):
        importlib.import_module(f"{lower.__name__}.{module.name}")
