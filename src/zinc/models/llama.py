"""Llama 1 to 3, Mistral and their fine-tunes.

RoPE pairs adjacent dimensions (2i, 2i + 1); converters permute the rows of q and k for it.
"""

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.spec import ModelSpec


def spec(file: GGUFFile) -> ModelSpec:
    return dense_spec(file, "llama", neox=False)


build = decoder
