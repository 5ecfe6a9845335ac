"""The score scale that Gemma 2 and Gemma 3 share."""

from __future__ import annotations

from zinc.models.parts.metadata import Metadata
from zinc.models.parts.spec import ModelSpec


def query_scale(m: Metadata, spec: ModelSpec, layers_of_largest: int) -> float:
    """Return the scale of attention scores, 1 / sqrt(d) unless the file states `attention.scale`.

    d is the head size, but hidden / heads in the largest model of the family. No key tells that
    model apart, so it is recognised by its number of layers. Source: google/gemma_pytorch,
    query_pre_attn_scalar.
    """
    a = spec.attention[0]
    d = spec.hidden // a.n_heads if spec.n_layers == layers_of_largest else a.head_dim
    return m.positive("attention.scale", default=max(1, d) ** -0.5)
