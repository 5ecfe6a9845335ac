"""RWKV-7 (Goose): a recurrent network without attention, whose layers mix rows over time."""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import embed, head, layers
from zinc.models.parts.dense_spec import attentionless_spec
from zinc.models.parts.layer import normalise
from zinc.models.parts.metadata import Metadata
from zinc.models.parts.rwkv import TimeMix, channel_mix, rwkv7_from
from zinc.models.parts.spec import ModelSpec, Norm
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph


def spec(file: GGUFFile) -> ModelSpec:
    base = attentionless_spec(file, "rwkv7")
    return replace(
        base,
        ffn=Metadata(file, "rwkv7").dense_width(),
        norm=Norm.LAYER_WITH_BIAS,
        mlp_norm="attn_norm_2",
        recurrence=rwkv7_from(file, "rwkv7", base.n_layers),
    )


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    x = normalise(g, spec, w, embed(g, spec, w), "token_embd_norm")
    head(g, spec, w, layers(g, spec, w, x, mixer=TimeMix(), mlp=channel_mix))
