"""Gemma 2: every other layer attends to a window, scores and logits are capped by tanh, and what a
block adds is normalised first. Norm weights in GGUF already hold the 1 that the model adds."""

from dataclasses import replace
from math import sqrt

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.blocks import dense_decoder
from zinc.models.parts.spec import Metadata, ModelSpec, dense_spec
from zinc.models.parts.weights import Weights
from zinc.ops.elementwise import GELU
from zinc.ops.graph import Graph

LAYERS_27B = 46


def spec(file: GGUFFile) -> ModelSpec:
    m = Metadata(file, "gemma2")
    base = dense_spec(file, "gemma2", neox=True)
    full = replace(
        base.attention[0],
        scale=m.query_scale(base, LAYERS_27B),
        softcap=m.positive("attn_logit_softcapping", default=50.0),
    )
    local = replace(full, window=m.size("attention.sliding_window", 1 << 30, default=4096))
    return replace(
        base,
        attention=tuple(local if s else full for s in m.sliding_layers(base.n_layers, period=2)),
        activation=GELU,
        embed_scale=sqrt(base.hidden),
        logit_softcap=m.positive("final_logit_softcapping", default=30.0),
        post_norms=True,
    )


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    dense_decoder(g, spec, w)
