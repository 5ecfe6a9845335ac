"""Granite 4 H and Bamba: Mamba-2, and attention in every few layers, most without RoPE.

MLPs are dense, or experts beside a shared one. Scales are those of Granite.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.mamba import mamba2_from, mamba2_or_attention
from zinc.models.parts.moe import experts_from
from zinc.models.parts.scales import scaled
from zinc.models.parts.spec import ModelSpec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph
from zinc.ops.moe import SOFTMAX_CHOSEN


def spec(file: GGUFFile) -> ModelSpec:
    base = dense_spec(file, "granitehybrid", neox=False, hybrid=True)
    base = replace(base, recurrence=mamba2_from(file, "granitehybrid", base.n_layers))
    if not file.bool("granitehybrid.rope.scaling.finetuned", default=True):
        base = base.map_attention(lambda a: replace(a, rope=None))
    if file.int("granitehybrid.expert_count", default=0):
        experts = experts_from(file, "granitehybrid", scoring=SOFTMAX_CHOSEN, renormalise=False)
        base = replace(base, experts=experts)
    return scaled(file, base)


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    decoder(g, spec, w, mixer=mamba2_or_attention)
