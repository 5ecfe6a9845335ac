"""SmolLM 3, dense: every fourth layer has no RoPE."""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.spec import ModelSpec

PERIOD = 4  # no key states it


def spec(file: GGUFFile) -> ModelSpec:
    base = dense_spec(file, "smollm3", neox=False, scaling_is_optional=True)
    attention = list(base.attention)
    for i in range(PERIOD - 1, base.n_layers, PERIOD):
        attention[i] = replace(attention[i], rope=None)
    return replace(base, attention=tuple(attention))


build = decoder
