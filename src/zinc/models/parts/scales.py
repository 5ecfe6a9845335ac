"""Scales of the embedding, the residuals, the attention scores and the logits.

A model that adds scale * h to the rows x of each layer gives the same logits as one that adds h to
rows x / scale: the embedding is divided by the scale, and RMS norm removes it again with
eps / scale^2. So scaled residuals need no op.
"""

from __future__ import annotations

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.metadata import Metadata
from zinc.models.parts.spec import ModelSpec


def scaled(file: GGUFFile, spec: ModelSpec, *, residual: float = 1.0) -> ModelSpec:
    """Return `spec` with the scales in the metadata.

    Missing scales are taken from `spec` and `residual`. Every norm of the model must read the rows
    between layers. `logit_scale` in a file divides the logits.
    """
    m = Metadata(file, spec.arch)

    def number(key: str, default: float) -> float:
        return m.optional_positive(key) or default

    residual = number("residual_scale", residual)
    return replace(
        spec.map_attention(lambda a: replace(a, scale=number("attention.scale", a.scale))),
        eps=spec.eps / residual**2,
        embed_scale=number("embedding_scale", spec.embed_scale) / residual,
        logit_scale=1 / number("logit_scale", 1 / spec.logit_scale),
    )
