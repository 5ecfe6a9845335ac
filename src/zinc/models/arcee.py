"""Arcee AFM, dense: a Llama whose MLP has no gate and squares a ReLU."""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.spec import ModelSpec
from zinc.ops.values import ActivationFn


def spec(file: GGUFFile) -> ModelSpec:
    base = dense_spec(file, "arcee", neox=False)
    return replace(base, activation=ActivationFn.RELU_SQUARED, gated_mlp=False)


build = decoder
