"""Nomic BERT: an encoder with RoPE and a gated MLP."""

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.encoder import encoder, encoder_spec
from zinc.models.parts.spec import ModelSpec


def spec(file: GGUFFile) -> ModelSpec:
    return encoder_spec(file, "nomic-bert")


build = encoder
