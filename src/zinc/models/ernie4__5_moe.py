"""ERNIE 4.5 with experts: softmax scores with a bias for the choice, renormalised weights.

Leading layers are dense; the others have shared experts.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.errors import unsupported
from zinc.models.parts.moe import experts_from, leading_dense_layers
from zinc.models.parts.spec import ModelSpec
from zinc.ops.moe import SOFTMAX


def spec(file: GGUFFile) -> ModelSpec:
    if file.int("ernie4_5-moe.interleave_moe_layer_step", default=1) != 1:
        raise unsupported(file, "dense layers alternate with layers of experts")
    base = dense_spec(file, "ernie4_5-moe", neox=False)
    return replace(
        base,
        experts=experts_from(file, "ernie4_5-moe", scoring=SOFTMAX, renormalise=True),
        n_dense_layers=leading_dense_layers(file, "ernie4_5-moe", base.n_layers),
    )


build = decoder
