"""zinc: a local LLM inference engine. docs/layout.md is the map of the package.

The public names are loaded when they are first used, so that `import zinc` costs nothing. It
imports no other module, because the program `zinc` cannot handle Ctrl-C before.
"""

from __future__ import annotations

TYPE_CHECKING = False  # without the import of `typing`; type checkers know the name
if TYPE_CHECKING:
    from typing import Any

    from zinc.core.errors import ZincError
    from zinc.engine.sampling import SamplingParams
    from zinc.llm import LLM, Chunk, Completion
    from zinc.models.parts.context import RopeScaling
    from zinc.plan.device_map import DeviceMap
    from zinc.tokenizer import Tokenizer

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "Chunk",
    "Completion",
    "DeviceMap",
    "RopeScaling",
    "SamplingParams",
    "Tokenizer",
    "ZincError",
    "__version__",
]

_HOMES = {
    "LLM": "zinc.llm",
    "Chunk": "zinc.llm",
    "Completion": "zinc.llm",
    "DeviceMap": "zinc.plan.device_map",
    "RopeScaling": "zinc.models.parts.context",
    "SamplingParams": "zinc.engine.sampling",
    "Tokenizer": "zinc.tokenizer",
    "ZincError": "zinc.core.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'zinc' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
