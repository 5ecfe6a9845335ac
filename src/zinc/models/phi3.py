"""Phi 3, 3.5 and 4, dense: q, k and v in one tensor, gate and up in one.

If there is a sliding window, every layer has it. Files for long contexts carry LongRoPE's two sets
of frequency divisors.
"""

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.metadata import MAX_CONTEXT, Metadata
from zinc.models.parts.spec import ModelSpec


def spec(file: GGUFFile) -> ModelSpec:
    base = dense_spec(file, "phi3", neox=True)
    window = Metadata(file, "phi3").optional_size("attention.sliding_window", MAX_CONTEXT)
    return base.with_window(window)


build = decoder
