"""Seed-OSS, dense: biases on q, k and v."""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.spec import ModelSpec


def spec(file: GGUFFile) -> ModelSpec:
    return replace(
        dense_spec(file, "seed_oss", neox=True),
        mlp_norm="post_attention_norm",
        required_tensors=("attn_q.bias", "attn_k.bias", "attn_v.bias"),
    )


build = decoder
