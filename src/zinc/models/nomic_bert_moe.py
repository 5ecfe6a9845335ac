"""Nomic BERT with experts: every second layer has experts without gate in place of its MLP."""

from __future__ import annotations

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.nomic_bert import TASK_PROMPTS
from zinc.models.parts.encoder import encoder, encoder_spec
from zinc.models.parts.layer import Layer
from zinc.models.parts.metadata import MAX_LAYERS, Metadata
from zinc.models.parts.mlp import plain_mlp
from zinc.models.parts.moe import expert_mlp, experts_from
from zinc.models.parts.spec import ModelSpec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph
from zinc.ops.moe import SOFTMAX
from zinc.ops.values import ActivationFn, Value

ARCH = "nomic-bert-moe"


def spec(file: GGUFFile) -> ModelSpec:
    experts = experts_from(file, ARCH, scoring=SOFTMAX, renormalise=False)
    return replace(
        encoder_spec(file, ARCH),
        ffn=Metadata(file, ARCH).size("feed_forward_length", 1 << 20),
        experts=replace(experts, gated=False),
        activation=ActivationFn.GELU_ERF,
        gated_mlp=False,
        task_prompts=TASK_PROMPTS,
    )


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    every = Metadata(w.file, ARCH).optional_size("moe_every_n_layers", MAX_LAYERS)

    def mlp(layer: Layer, x: Value, residual: Value) -> Value:
        if every and layer.index % every == 1:
            assert layer.spec.experts is not None
            return expert_mlp(layer, layer.spec.experts, x, residual)
        return layer.g.add(plain_mlp(layer, x, layer.spec.ffn), residual)

    encoder(g, spec, w, mlp=mlp)
