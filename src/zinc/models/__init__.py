"""Architectures: one file each, named after `general.architecture` (dashes become underscores)."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Protocol, cast

from zinc.core.errors import UnsupportedError
from zinc.formats.gguf import GGUFFile
from zinc.models.spec import ModelSpec
from zinc.models.weights import Weights
from zinc.ops.graph import Graph

_SHARED = {"blocks", "delta_net", "latent", "moe", "rope", "spec", "weights"}


class Architecture(Protocol):
    """What a model file defines."""

    def spec(self, file: GGUFFile) -> ModelSpec: ...

    def build(self, g: Graph, spec: ModelSpec, w: Weights) -> None: ...


def architectures() -> list[str]:
    """Names of the architectures that have a file here."""
    names = (m.name for m in pkgutil.iter_modules(__path__))
    return sorted(name.replace("_", "-") for name in names if name not in _SHARED)


def load(file: GGUFFile, context: int | None = None) -> tuple[ModelSpec, Graph]:
    """Spec and graph of a model file, for sequences of up to `context` tokens.

    Raises UnsupportedError or ModelError.
    """
    arch = file.str("general.architecture")
    if arch not in architectures():
        raise UnsupportedError(
            f"cannot load {file.path}",
            f"its architecture {arch!r} is not one that zinc runs",
            f"known are {', '.join(architectures())}",
        )
    module = cast(Architecture, importlib.import_module(f"zinc.models.{arch.replace('-', '_')}"))
    spec = module.spec(file).for_context(context)
    graph = Graph()
    weights = Weights(file)
    module.build(graph, spec, weights)
    weights.check_all_used(spec.n_layers)
    return spec, graph
