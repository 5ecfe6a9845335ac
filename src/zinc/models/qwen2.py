"""Qwen 2 and 2.5, dense: biases on q, k and v."""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.spec import ModelSpec


def spec(file: GGUFFile) -> ModelSpec:
    base = dense_spec(file, "qwen2", neox=True, scaling_is_optional=True)
    return replace(base, required_tensors=("attn_q.bias", "attn_k.bias", "attn_v.bias"))


build = decoder
