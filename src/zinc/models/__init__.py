"""Model architectures, one file each, named after `general.architecture`.

In the name of a file, `_` stands for a hyphen and `__` for an underscore.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from dataclasses import replace
from functools import cache
from typing import Any, Protocol, cast

from zinc.core.errors import ModelError, RequestError, UnsupportedError
from zinc.formats.gguf import GGUFArray, GGUFFile
from zinc.models.parts.context import RopeScaling, specs
from zinc.models.parts.encoder import without_mask
from zinc.models.parts.errors import damaged, unsupported
from zinc.models.parts.nextn import (
    NextNBlock,
    check_nextn,
    frequent_tokens,
    nextn_depths,
    nextn_tensors,
)
from zinc.models.parts.projection import projection_weights
from zinc.models.parts.ranking import head_weights, is_reranker
from zinc.models.parts.selection import keep_hidden, select_early
from zinc.models.parts.spec import ModelSpec, NextNInput
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph


class Architecture(Protocol):
    """Interface of an architecture file.

    One whose files may have NextN blocks also has `build_draft`, which adds the nodes of one of
    them (`NextNBlock`) to an empty graph.
    """

    def spec(self, file: GGUFFile) -> ModelSpec:
        """Return the spec of a model file. Raises ModelError or UnsupportedError."""
        ...

    def build(self, g: Graph, spec: ModelSpec, w: Weights) -> None:
        """Add the nodes of the model to an empty graph."""
        ...


@cache
def architectures() -> tuple[str, ...]:
    """Return the names of all supported architectures, sorted."""
    files = (m.name for m in pkgutil.iter_modules(__path__) if not m.ispkg)
    names = (name.replace("__", "*").replace("_", "-").replace("*", "_") for name in files)
    return tuple(sorted(names))


def architecture(name: str) -> Architecture:
    """Return an architecture by name. Raises KeyError if zinc does not support it."""
    if name not in architectures():
        raise KeyError(name)
    file = name.replace("_", "__").replace("-", "_")
    return cast(Architecture, importlib.import_module(f"zinc.models.{file}"))


def load(
    file: GGUFFile,
    *,
    rope: RopeScaling | None = None,
    context: int | None = None,
    extended: bool = False,
    hidden: bool = False,
) -> tuple[ModelSpec, Graph]:
    """Return the spec and the graph of a model file.

    The output of a decoder is logits, that of an encoder its hidden rows.

    rope: scaling to use in place of the file's. context: length of the longest sequence, which can
    determine the scaling factor. Attention is dense if it is at most the `dense_context` of the
    spec.
    extended: return the graph for sequences longer than the `plain_context` of the spec. hidden:
    keep the rows of all tokens that NextN blocks read, as `graph.hidden`.

    Raises UnsupportedError, ModelError, or RequestError for an impossible scaling.
    """
    module, spec = _described(file, rope, context, extended)
    arch, graph = spec.arch, Graph()
    weights = Weights(file)
    module.build(graph, spec, weights)
    if spec.ranks:
        head_weights(weights, spec)
    if spec.is_encoder:
        projection_weights(weights, spec)
    weights.check(spec.n_layers, spec.n_nextn)
    n_experts = file.int(f"{arch}.expert_count", default=0)
    is_dense = spec.n_dense_layers == spec.n_layers
    if n_experts and not is_dense and not any(node.op == "route" for node in graph.nodes):
        raise unsupported(
            file, f"it has {n_experts} experts, and zinc runs {arch} models without experts only"
        )
    if not spec.is_encoder:
        if hidden:
            keep_hidden(graph, raw=spec.raw_nextn)
        else:
            select_early(graph)
    return spec, graph


def load_drafts(
    file: GGUFFile,
    *,
    rope: RopeScaling | None = None,
    context: int | None = None,
    extended: bool = False,
    n_tokens: int = 0,
) -> tuple[tuple[Graph, ...], tuple[int, ...]]:
    """Return the graphs of the NextN blocks that draft tokens (parts/nextn.py), in their order.

    Also returns the token of each logit; () if they are those of the vocabulary. The graphs share
    weights with the one that `load` returns for the same arguments and `hidden`. n_tokens: draft
    about this many frequent tokens only, 0 for all. Raises ModelError or UnsupportedError if the
    file has no such block, or one that zinc cannot run.
    """
    module, spec = _described(file, rope, context, extended)
    try:
        if not nextn_tensors(file, spec):
            raise unsupported(file, "neither it nor a file mtp-*.gguf beside it has one")
        build: Any = getattr(module, "build_draft", None)
        if build is None:
            raise unsupported(file, f"zinc does not run the NextN block of {spec.arch} models")
        tokens = frequent_tokens(file, spec, n_tokens) if n_tokens else ()
        n_depths = nextn_depths(file, spec)
        graphs = tuple(Graph() for _ in range(n_depths))
        for depth, graph in enumerate(graphs):
            feeds_next = spec.nextn_input is NextNInput.PREVIOUS and depth + 1 < n_depths
            build(graph, spec, Weights(file), NextNBlock(depth, tokens, feeds_next))
    except (ModelError, UnsupportedError) as error:
        raise type(error)(
            f"cannot draft tokens with the NextN block of {file.path}",
            error.why,
            "choose another way to draft, or another file of the model",
        ) from error
    return graphs, tokens


def is_encoder(file: GGUFFile) -> bool:
    """Return whether a file is an encoder; its metadata decides if zinc cannot load it."""
    try:
        return _described(file, None, None, False)[1].is_encoder
    except (ModelError, UnsupportedError, RequestError):
        arch = file.metadata.get("general.architecture")
        return file.metadata.get(f"{arch}.attention.causal") is False


def _described(
    file: GGUFFile, rope: RopeScaling | None, context: int | None, extended: bool
) -> tuple[Architecture, ModelSpec]:
    """Return the architecture and the spec of a model file, for the arguments of `load`."""
    if file.metadata.get("general.type") == "adapter":
        raise RequestError(
            f"{file.path} is not a model",
            "it is an adapter",
            "load the model that it was made for, and the adapter with {lora}",
        )
    arch = file.str("general.architecture")
    if arch not in architectures():
        close = difflib.get_close_matches(arch, architectures(), n=1)
        nearest = f"; the nearest that it supports is {close[0]!r}" if close else ""
        raise unsupported(
            file,
            f"zinc does not support its architecture {arch!r}{nearest}",
            f"use a model of one of these: {', '.join(architectures())}",
        )
    module = architecture(arch)
    spec, beyond = specs(module.spec, file, arch, rope, context)
    if extended:
        if beyond is None:
            raise ValueError("all sequences of the model run with the same frequencies")
        spec = beyond
    if (context or spec.context) <= spec.dense_context:
        spec = spec.with_dense_attention()
    spec = replace(without_mask(file, spec), ranks=is_reranker(file, arch))
    check_file(file)
    check_nextn(file, spec)
    if nextn_depths(file, spec) == 1:
        spec = replace(spec, nextn_input=NextNInput.OWN)
    return module, spec


def check_file(file: GGUFFile) -> None:
    """Raise ModelError if the tokenizer has more tokens than the embedding has rows."""
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    table = file.tensors.get("token_embd.weight")
    if isinstance(tokens, GGUFArray) and table is not None and len(tokens) > table.shape[0]:
        raise damaged(
            file,
            f"its tokenizer has {len(tokens):,} tokens, "
            f"and token_embd.weight rows for {table.shape[0]:,}",
        )
