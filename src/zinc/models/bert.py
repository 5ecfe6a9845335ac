"""BERT: an encoder with learned positions, an MLP without gate, and biases everywhere."""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.encoder import encoder, encoder_spec
from zinc.models.parts.spec import ModelSpec
from zinc.ops.values import ActivationFn


def spec(file: GGUFFile) -> ModelSpec:
    base = encoder_spec(file, "bert").map_attention(lambda a: replace(a, rope=None))
    return replace(base, learned_positions=True, activation=ActivationFn.GELU_ERF, gated_mlp=False)


build = encoder
