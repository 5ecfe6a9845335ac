"""The op registry: one entry an op, from which tests, `ref`, cost reports and docs are made.

An entry is a numpy reference, a cost, a tolerance and a generator of test cases. Backends
provide kernels under the same names and are held to the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from zinc.ops.graph import AttrValue, FloatArray, Node, Value

if TYPE_CHECKING:
    from zinc.ops.cases import Case
    from zinc.ops.step import Step

Attrs: TypeAlias = Mapping[str, AttrValue]
# Inputs arrive as float32 arrays: rows [rows, cols], matrices [planes, rows, cols] or [rows, cols],
# vectors [cols]; a state arrives as the view of it that `ref` has; absent inputs as None.
Reference: TypeAlias = Callable[["Step", Sequence[Any], Attrs], Sequence[FloatArray]]


@dataclass(frozen=True, slots=True)
class Cost:
    """What a launch moves and computes, as a linear function of rows and context.

    bytes = fixed_bytes + rows * row_bytes + keys * key_bytes
            + min(rows * experts_per_row, n_experts) * expert_bytes
            + sequences * sequence_bytes
    flops = rows * row_flops + pairs * pair_flops
    where `keys` are the cached positions that a step reads (summed over its sequences) and `pairs`
    the (query, key) pairs that it scores.
    """

    fixed_bytes: int = 0
    row_bytes: int = 0
    key_bytes: int = 0
    row_flops: int = 0
    pair_flops: int = 0
    expert_bytes: int = field(default=0, repr=False)
    experts_per_row: int = field(default=0, repr=False)
    n_experts: int = field(default=0, repr=False)
    sequence_bytes: int = field(default=0, repr=False)

    def bytes(self, rows: int, keys: int = 0, sequences: int = 1) -> int:
        experts = min(rows * self.experts_per_row, self.n_experts) * self.expert_bytes
        cached = keys * self.key_bytes + sequences * self.sequence_bytes
        return self.fixed_bytes + rows * self.row_bytes + cached + experts

    def flops(self, rows: int, pairs: int = 0) -> int:
        return rows * self.row_flops + pairs * self.pair_flops


class Phase(StrEnum):
    """Parts of a step that its time is told by. `HEAD` is what makes logits of rows."""

    ATTENTION = "attention"
    GDN = "GDN"
    MOE = "MoE"
    DENSE = "dense"
    HEAD = "head"
    SAMPLING = "sampling"


@dataclass(frozen=True, slots=True)
class Op:
    """An op: its reference, its cost, and how far (relative error) a float kernel may depart."""

    name: str
    reference: Reference
    cost: Callable[[Node], Cost]
    tolerance: float
    doc: str
    cases: Callable[[], Iterator[Case]]
    phase: Phase


OPS: dict[str, Op] = {}


def op(
    *,
    cost: Callable[[Node], Cost],
    cases: Callable[[], Iterator[Case]],
    tolerance: float = 2e-5,
    phase: Phase = Phase.DENSE,
) -> Callable[[Reference], Reference]:
    """Registers the decorated reference as the op of its name."""

    def register(reference: Reference) -> Reference:
        name = reference.__name__.removesuffix("_")
        doc = (reference.__doc__ or "").strip()
        OPS[name] = Op(name, reference, cost, tolerance, doc, cases, phase)
        return reference

    return register


def elementwise_cost(node: Node) -> Cost:
    """Reads every row input, writes every output, a few operations an element."""
    read = sum(v.cols for v in node.inputs if isinstance(v, Value))
    written = sum(v.cols for v in node.outputs)
    return Cost(row_bytes=4 * (read + written), row_flops=4 * written)
