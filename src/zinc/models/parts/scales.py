"""Scales of the embedding, the residuals, the attention scores and the logits."""

from __future__ import annotations

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.metadata import Metadata
from zinc.models.parts.spec import ModelSpec


def scaled(file: GGUFFile, spec: ModelSpec) -> ModelSpec:
    """Return `spec` with the scales in the metadata; those of `spec` stand in for missing ones.

    `logit_scale` in a file divides the logits.
    """
    m = Metadata(file, spec.arch)

    def number(key: str, default: float) -> float:
        return m.optional_positive(key) or default

    return replace(
        spec,
        attention=tuple(
            replace(a, scale=number("attention.scale", a.scale)) for a in spec.attention
        ),
        embed_scale=number("embedding_scale", spec.embed_scale),
        residual_scale=number("residual_scale", spec.residual_scale),
        logit_scale=1 / number("logit_scale", 1 / spec.logit_scale),
    )
