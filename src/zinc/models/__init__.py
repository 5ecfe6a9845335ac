"""Architectures: one file each, named after `general.architecture` (dashes become underscores)."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Protocol, cast

from zinc.core.errors import ModelError, UnsupportedError
from zinc.formats.gguf import GGUFArray, GGUFFile
from zinc.models.parts.context import RopeScaling, specs
from zinc.models.parts.nextn import check_nextn
from zinc.models.parts.selection import select_early
from zinc.models.parts.spec import ModelSpec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph


class Architecture(Protocol):
    """What a model file defines."""

    def spec(self, file: GGUFFile) -> ModelSpec: ...

    def build(self, g: Graph, spec: ModelSpec, w: Weights) -> None: ...


def architectures() -> list[str]:
    """Names of the architectures that have a file here."""
    files = (m.name for m in pkgutil.iter_modules(__path__) if not m.ispkg)
    return sorted(name.replace("_", "-") for name in files)


def architecture(name: str) -> Architecture:
    """The model file of that name. Raises KeyError when there is none."""
    if name not in architectures():
        raise KeyError(name)
    module = importlib.import_module(f"zinc.models.{name.replace('-', '_')}")
    return cast(Architecture, module)


def load(
    file: GGUFFile,
    *,
    rope: RopeScaling | None = None,
    context: int | None = None,
    extended: bool = False,
) -> tuple[ModelSpec, Graph]:
    """Spec and graph of a model file.

    rope: how positions are to be scaled, other than the file says; context: the longest sequence
    that is wanted, which the scaling may follow from. extended: for sequences longer than the
    `plain_context` of the spec, which must have one.

    Raises UnsupportedError, ModelError or, for a scaling that cannot be, RequestError.
    """
    arch = file.str("general.architecture")
    if arch not in architectures():
        raise UnsupportedError(
            f"cannot load {file.path}",
            f"its architecture {arch!r} is not one that zinc runs",
            f"known are {', '.join(architectures())}",
        )
    module = architecture(arch)
    spec, beyond = specs(module.spec, file, arch, rope, context)
    if extended:
        if beyond is None:
            raise ValueError("all sequences of the model run with the same frequencies")
        spec = beyond
    check_file(file, arch)
    check_nextn(file, spec)
    graph = Graph()
    weights = Weights(file)
    module.build(graph, spec, weights)
    weights.check(spec.n_layers, spec.n_nextn)
    n_experts = file.int(f"{arch}.expert_count", default=0)
    is_dense = spec.n_dense_layers == spec.n_layers
    if n_experts and not is_dense and not any(node.op == "route" for node in graph.nodes):
        raise UnsupportedError(
            f"cannot load {file.path}",
            f"it counts {n_experts} experts, and the {arch} models that zinc runs have none",
            "use another model, or a newer zinc",
        )
    select_early(graph)
    return spec, graph


def check_file(file: GGUFFile, arch: str) -> None:
    """Raises an error for what no model file asks about, and what would change the result."""
    if not file.bool(f"{arch}.attention.causal", default=True):
        raise UnsupportedError(
            f"cannot load {file.path}",
            "its tokens attend to those behind them, and zinc runs causal models only",
            "use another model",
        )
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    table = file.tensors.get("token_embd.weight")
    if isinstance(tokens, GGUFArray) and table is not None and len(tokens) > table.shape[0]:
        raise ModelError(
            f"cannot load {file.path}",
            f"its tokenizer has {len(tokens):,} tokens, "
            f"and token_embd.weight rows for {table.shape[0]:,}",
            "the file is damaged or converted wrongly; convert or download it again",
        )
