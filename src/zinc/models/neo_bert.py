"""NeoBERT: an encoder with the layers of Llama, whose files stack q, k and v of each head."""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.spec import ModelSpec


def spec(file: GGUFFile) -> ModelSpec:
    base = dense_spec(file, "neo-bert", neox=False)
    base = base.map_attention(lambda a: replace(a, stacked_heads=True))
    return replace(base, causal=False, head_norm="enc.output_norm")


build = decoder
