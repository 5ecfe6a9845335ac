"""Maincoder, dense: RMS norm on every q and k head after RoPE, which rotates adjacent pairs."""

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.spec import ModelSpec, QKNorm


def spec(file: GGUFFile) -> ModelSpec:
    return dense_spec(file, "maincoder", neox=False, qk_norm=QKNorm(after_rope=True))


build = decoder
