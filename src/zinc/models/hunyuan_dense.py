"""Hunyuan, dense: RMS norm on every q and k head after RoPE."""

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.spec import ModelSpec, QKNorm


def spec(file: GGUFFile) -> ModelSpec:
    return dense_spec(file, "hunyuan-dense", neox=True, qk_norm=QKNorm(after_rope=True))


build = decoder
