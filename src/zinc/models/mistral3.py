"""Ministral 3, Mistral Small 3.1 and Devstral Small 2, text: as Llama.

In Ministral 3, queries grow with the logarithm of their position. Their RoPE is YaRN, without its
temperature.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.metadata import MAX_CONTEXT, Metadata
from zinc.models.parts.spec import Attention, ModelSpec


def spec(file: GGUFFile) -> ModelSpec:
    m = Metadata(file, "mistral3")
    growth = m.optional_positive("attention.temperature_scale")
    log_multiplier = m.optional_positive("rope.scaling.yarn_log_multiplier")
    if growth:
        m.size("rope.scaling.original_context_length", MAX_CONTEXT)

    def prepared(a: Attention) -> Attention:
        assert a.rope is not None
        rope = a.rope.without_temperature() if log_multiplier else a.rope
        grows = replace(rope, log_scale=growth) if growth else None
        return replace(a, rope=rope, query_rope=grows)

    return dense_spec(file, "mistral3", neox=False).map_attention(prepared)


build = decoder
