"""Qwen 1.5 and 2 with experts: softmax over all experts, and a shared expert with its own gate.

The weights of the chosen experts are not renormalised.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.moe import experts_from
from zinc.models.parts.spec import ModelSpec
from zinc.ops.moe import SOFTMAX


def spec(file: GGUFFile) -> ModelSpec:
    experts = experts_from(file, "qwen2moe", scoring=SOFTMAX, renormalise=False, shared_gate=True)
    return replace(
        dense_spec(file, "qwen2moe", neox=True, scaling_is_optional=True),
        experts=experts,
        required_tensors=("attn_q.bias", "attn_k.bias", "attn_v.bias", "ffn_up_shexp.weight"),
    )


build = decoder
