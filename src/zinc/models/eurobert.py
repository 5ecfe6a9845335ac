"""EuroBERT: an encoder with the layers of Llama, whose norms come before attention and MLP."""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.spec import ModelSpec


def spec(file: GGUFFile) -> ModelSpec:
    return replace(dense_spec(file, "eurobert", neox=True), causal=False)


build = decoder
