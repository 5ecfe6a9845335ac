"""Registry of CUDA's own lowerings, which replace or add to those of `zinc.gpu.lower`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

from zinc.backends.cuda import lower
from zinc.gpu.kernel_set import FusedCondition, Lowering

LOWERINGS: dict[str, Lowering] = {}
FUSED: dict[str, FusedCondition] = {}


def lowers(kernel: str) -> Callable[[Lowering], Lowering]:
    """Register the decorated lowering for the op `kernel`."""

    def register(lowering: Lowering) -> Lowering:
        LOWERINGS[kernel] = lowering
        return lowering

    return register


def fuses(kernel: str) -> Callable[[FusedCondition], FusedCondition]:
    """Register the decorated condition for the steps in which the fused op `kernel` runs."""

    def register(condition: FusedCondition) -> FusedCondition:
        FUSED[kernel] = condition
        return condition

    return register


def load() -> None:
    """Import every module of the package, which registers its lowerings."""
    for module in pkgutil.iter_modules(lower.__path__):
        importlib.import_module(f"{lower.__name__}.{module.name}")
