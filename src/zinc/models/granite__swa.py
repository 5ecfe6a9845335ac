"""Granite with sliding layers and attention sinks; a file may list the layers without RoPE."""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.metadata import MAX_CONTEXT, Metadata
from zinc.models.parts.scales import scaled
from zinc.models.parts.spec import ModelSpec

PROBE = {"attention.sliding_window_pattern": [0, 1, 1, 1], "attention.rope_pattern": [1, 1, 1, 0]}


def spec(file: GGUFFile) -> ModelSpec:
    m = Metadata(file, "granite_swa")
    m.require("logit_scale", "attention.sliding_window_pattern")
    base = scaled(file, dense_spec(file, "granite_swa", neox=False))
    window = m.size("attention.sliding_window", MAX_CONTEXT)
    rotates = [True] * base.n_layers
    if "granite_swa.attention.rope_pattern" in file.metadata:
        rotates = m.layer_values("attention.rope_pattern", base.n_layers)
    layers = [
        replace(a, sinks=True, window=slides * window, rope=a.rope if turns else None)
        for a, slides, turns in zip(
            base.attention, m.sliding_layers(base.n_layers, period=1), rotates, strict=True
        )
    ]
    return replace(base, attention=tuple(layers))


build = decoder
