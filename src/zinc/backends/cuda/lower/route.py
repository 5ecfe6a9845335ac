"""Condition of norm_route, whose kernel keeps the row in shared memory. Its lowering is shared."""

from __future__ import annotations

from zinc.backends.cuda.lower.registry import fuses
from zinc.gpu.lower import route
from zinc.ops.node import Node
from zinc.ops.step import StepCondition

MAX_COLS = 8192  # columns of a row that fit into shared memory


@fuses("norm_route")
def norm_route_steps(node: Node) -> StepCondition | None:
    """Return the steps of one token, if the router is float32 and its rows suit the kernel."""
    return route.norm_route_steps(node) if node.rows("x").cols <= MAX_COLS else None
