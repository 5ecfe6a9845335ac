"""Llama 4, text: RoPE and attention in chunks, but every fourth layer has neither.

Queries of layers without RoPE grow with the logarithm of their position. Layers with RoPE normalise
queries and keys without weights. This norm can precede RoPE, because a rotation does not change the
length of a vector. The weight of an expert scales its input.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.errors import unsupported
from zinc.models.parts.metadata import MAX_CONTEXT, MAX_LAYERS, Metadata
from zinc.models.parts.moe import experts_from
from zinc.models.parts.rope import Rope
from zinc.models.parts.spec import Attention, ModelSpec, QKNorm
from zinc.ops.moe import SIGMOID

PROBE = {"expert_used_count": 1, "interleave_moe_layer_step": 2}
CHUNK, GROWTH, PERIOD = 8192, 0.1, 4  # in models whose files do not state them
WITHOUT_NORM = 128  # experts of Maverick, whose files do not say that queries have no norm


def spec(file: GGUFFile) -> ModelSpec:
    m = Metadata(file, "llama4")
    base = dense_spec(file, "llama4", neox=False)
    experts = experts_from(file, "llama4", scoring=SIGMOID, renormalise=False)
    if experts.top_k != 1:
        raise unsupported(
            file, f"its {experts.top_k} experts scale the input of a token, and zinc scales it once"
        )
    chunk = m.size("attention.sliding_window", MAX_CONTEXT, default=CHUNK)
    steps = m.size("attention.temperature_length", MAX_CONTEXT, default=CHUNK)
    growth = m.positive("attention.temperature_scale", default=GROWTH)
    norm = None if experts.count == WITHOUT_NORM else QKNorm(weighted=False)

    def near(a: Attention) -> Attention:
        return replace(a, window=chunk, chunked=True, qk_norm=norm)

    def far(a: Attention) -> Attention:
        grown = Rope(0, 1.0, neox=False, original_context=steps, log_scale=growth, offset=1)
        return replace(a, rope=None, query_rope=replace(grown, unrotated=a.head_dim))

    is_near = m.sliding_layers(base.n_layers, PERIOD)
    period = m.size("interleave_moe_layer_step", MAX_LAYERS)
    return replace(
        base,
        attention=tuple(map(lambda a, n: (near if n else far)(a), base.attention, is_near)),
        experts=replace(experts, period=period, scales_input=True),
    )


build = decoder
