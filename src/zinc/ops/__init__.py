"""The ops of graphs: for each op its operands, reference, cost, tolerance and test cases."""

from zinc.ops import (
    attention,
    convolution,
    elementwise,
    heads,
    linear,
    lora,
    moe,
    norm,
    norm_linear,
    recurrent,
    recurrent_step,
    rope,
    rope_attention,
    routed_experts,
    sampling,
    ssm,
)
from zinc.ops.registry import OPS, Cost, Op

__all__ = [
    "OPS",
    "Cost",
    "Op",
    "attention",
    "convolution",
    "elementwise",
    "heads",
    "linear",
    "lora",
    "moe",
    "norm",
    "norm_linear",
    "recurrent",
    "recurrent_step",
    "rope",
    "rope_attention",
    "routed_experts",
    "sampling",
    "ssm",
]
