"""Jina BERT 2: an encoder without positions, whose scores fall with the distance (ALiBi)."""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.encoder import encoder, encoder_spec
from zinc.models.parts.spec import ModelSpec
from zinc.models.parts.weights import Weights
from zinc.ops.values import ActivationFn


def spec(file: GGUFFile) -> ModelSpec:
    base = encoder_spec(file, "jina-bert-v2")
    base = base.map_attention(lambda a: replace(a, rope=None, alibi=True))
    layer = Weights(file).layer(0)
    is_gated = layer.has("ffn_gate") or layer.stacks("ffn_up", 2 * base.ffn)
    return replace(base, activation=ActivationFn.GELU_ERF, gated_mlp=is_gated)


build = encoder
