"""BERT: an encoder with learned positions, an MLP without gate, and biases everywhere."""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.encoder import encoder, encoder_spec
from zinc.models.parts.spec import ModelSpec
from zinc.ops.values import ActivationFn


def spec(file: GGUFFile) -> ModelSpec:
    base = encoder_spec(file, "bert")
    attention = tuple(replace(a, rope=None) for a in base.attention)
    plain = replace(base, attention=attention, learned_positions=True)
    return replace(plain, activation=ActivationFn.GELU_ERF, gated_mlp=False)


build = encoder
