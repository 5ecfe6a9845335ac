"""Costs that several ops share."""

from __future__ import annotations

from zinc.ops.node import Node
from zinc.ops.registry import Cost
from zinc.ops.values import Value, Weight
from zinc.quant.blocks import row_bytes


def elementwise_cost(node: Node) -> Cost:
    """Return the cost of reading every row input, writing every output and a few FLOPs each."""
    read = sum(v.cols for v in node.inputs if isinstance(v, Value))
    written = sum(v.cols for v in node.outputs)
    return Cost(row_bytes=4 * (read + written), row_flops=4 * written)


def weight_bytes(weight: Weight) -> int:
    """Return the bytes of the weight as the file stores it."""
    return weight.planes * weight.rows * row_bytes(weight.type, weight.cols)
