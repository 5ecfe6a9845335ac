"""Specs of decoders with latent attention and experts, as DeepSeek V2 and its successors are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.indexer import indexers_from
from zinc.models.parts.latent import LatentAttention, latent_from
from zinc.models.parts.metadata import MAX_CONTEXT, Metadata
from zinc.models.parts.moe import experts_from, leading_dense_layers
from zinc.models.parts.spec import ModelSpec


def latent_spec(file: GGUFFile, arch: str, *, scoring: int | None = None) -> ModelSpec:
    """Return the spec of a decoder with latent attention, leading dense layers and experts.

    scoring: that of the experts; None reads it from the file. Raises ModelError for missing or
    impossible sizes.
    """
    base = dense_spec(file, arch, neox=False)
    n_dense = leading_dense_layers(file, arch, base.n_layers)
    has_experts = n_dense < base.n_layers and file.int(f"{arch}.expert_count", default=0) > 0
    if has_experts:
        Metadata(file, arch).require("expert_weights_scale")
    return replace(
        base,
        attention=(latent_from(file, arch),) * base.n_layers,
        experts=experts_from(file, arch, scoring=scoring) if has_experts else None,
        n_dense_layers=n_dense,
    )


def sparse_spec(
    file: GGUFFile,
    arch: str,
    *,
    neox: bool,
    has_own: Sequence[bool] | None = None,
    scoring: int | None = None,
) -> ModelSpec:
    """Return the spec of a decoder whose latent attention is sparse (zinc.models.parts.indexer).

    neox: how the RoPE of index heads pairs dimensions. has_own: the layers with an indexer of their
    own, for files that do not list them; None for all. scoring: as in `latent_spec`.
    """
    spec = latent_spec(file, arch, scoring=scoring)
    top_k = Metadata(file, arch).size("attention.indexer.top_k", MAX_CONTEXT)
    a = spec.attention[0]
    assert isinstance(a, LatentAttention)
    own = (True,) * spec.n_layers if has_own is None else has_own
    indexers = indexers_from(file, arch, own, a.q_rank, a.rope_dim, neox=neox)
    layers = tuple(replace(a, top_k=top_k, index=index) for index in indexers)
    return replace(spec, attention=layers)
