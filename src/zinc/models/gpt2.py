"""GPT-2: learned positions, layer norms, an MLP without gate, and biases everywhere."""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.spec import ModelSpec, Norm
from zinc.ops.values import ActivationFn


def spec(file: GGUFFile) -> ModelSpec:
    base = dense_spec(file, "gpt2", neox=True, norm=Norm.LAYER_WITH_BIAS)
    attention = (replace(base.attention[0], rope=None),) * base.n_layers
    plain = replace(base, attention=attention, learned_positions=True)
    return replace(plain, activation=ActivationFn.GELU, gated_mlp=False)


build = decoder
