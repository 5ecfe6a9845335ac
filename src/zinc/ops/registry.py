"""The op registry: one entry for each op, used by tests, `ref`, cost reports and docs.

An entry has a numpy reference, the op's operands and properties, a cost, a tolerance and a
generator of test cases. Backends provide kernels of the same names and are tested against the
reference. What an op reads, writes and may be fused with is in its entry and nowhere else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from zinc.core.dataclass import dataclass
from zinc.ops.operands import SIGNATURES, Kind, Operand, Signature

if TYPE_CHECKING:
    from zinc.ops.cases import Case
    from zinc.ops.node import Node
    from zinc.ops.step import Step
    from zinc.ops.values import AttrValue, FloatArray

Attrs: TypeAlias = "Mapping[str, AttrValue]"
# Called as reference(step, attrs, **operands). Rows arrive as float32 [rows, cols], matrices as
# [planes, rows, cols] or [rows, cols], vectors as [cols], caches and states as the views that `ref`
# has of them, absent operands as None, and repeated ones as a list.
Reference: TypeAlias = "Callable[..., Sequence[FloatArray]]"


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes moved and FLOPs of a launch, as a linear function of rows and context.

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
        """Return the bytes that a launch over `rows` rows reads and writes."""
        experts = min(rows * self.experts_per_row, self.n_experts) * self.expert_bytes
        cached = keys * self.key_bytes + sequences * self.sequence_bytes
        return self.fixed_bytes + rows * self.row_bytes + cached + experts

    def flops(self, rows: int, pairs: int = 0) -> int:
        """Return the FLOPs of a launch over `rows` rows."""
        return rows * self.row_flops + pairs * self.pair_flops


class Phase(StrEnum):
    """Parts of a step in a time report. `HEAD` turns rows into logits."""

    ATTENTION = "attention"
    RECURRENT = "recurrent"
    MOE = "MoE"
    DENSE = "dense"
    HEAD = "head"
    SAMPLING = "sampling"


@dataclass(frozen=True, slots=True)
class Alternative:
    """A chain of ops that a fused op replaces in the steps that suit it (zinc.plan.alternatives).

    ops: names of the ops, each of which reads the first output of the one before as its first
    operand. fuse: returns the fused node of the nodes of such a chain, None if there is none.
    makes: ops whose first output nodes outside the chain may read, because the fused node makes it
    too. beside: an op that also reads the first output of the chain and is replaced too; `fuse`
    gets its node last. through: the operand by which the last op reads the one before, if it is
    not its first.
    """

    ops: tuple[str, ...]
    fuse: Callable[..., Node | None]
    makes: frozenset[str] = frozenset()
    beside: str = ""
    through: str = ""


@dataclass(frozen=True, slots=True)
class Division:
    """How the output columns of a node are computed in parts (zinc.plan.tensor_split).

    n_parts: equal runs of columns. A part needs the same run of each operand: columns of rows, rows
    of a matrix, elements of a vector, heads of a cache, floats of a state. whole: operands that
    each part needs as they are. sections: sizes of the sections of an operand, or of the output
    ("out"), that consists of several; a part is the same run of each section. Operands that are not
    named have the sections of the output. by_plane: a part needs a run of the planes of a matrix,
    not of their rows. counts: attributes that are sums over the parts.
    """

    n_parts: int
    whole: frozenset[str] = frozenset()
    sections: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    by_plane: bool = False
    counts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ColumnSum:
    """The output is a sum over the columns of the operands `rows` and `matrix`.

    once: operands that are added to the sum.
    """

    rows: str
    matrix: str
    once: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Op:
    """An op of the vocabulary.

    tolerance: relative error that a float kernel may have against the reference.
    row_wise: row i of each output depends on row i of the inputs only.
    elementwise: row-wise, and each element depends on the elements of the same index only.
    stores_formats: kernels on every device can store the output in an 8-bit row format.
    prepares_heads: normalises or rotates the heads of q, k or v, and is fused with the cache write.
    optional: a backend may lack a kernel: no model needs the op, or only in long contexts.
    self_test: names of the cases that a device must pass before a model is put on it.
    alternative: the ops that it replaces, if it is only an alternative of other launches in a plan.
    rollback: called with a node of the op and a number of rows, returns the node whose recurrent
    state can be rolled back by them (zinc.ops.recurrent_state); None if the op has no such state.
    division: called with a node of the op, returns how it can be divided; None if it cannot.
    sums: the operands over whose columns it sums, if its output is a sum over columns.
    additive: linear in its rows, op(a + b) = op(a) + op(b).
    discrete: a rounding error of the operands may change the result entirely.
    """

    name: str
    reference: Reference
    signature: Signature
    cost: Callable[[Node], Cost]
    tolerance: float
    doc: str
    cases: Callable[[], Iterator[Case]]
    phase: Phase
    row_wise: bool = False
    elementwise: bool = False
    stores_formats: bool = False
    prepares_heads: bool = False
    optional: bool = False
    self_test: tuple[str, ...] = ()
    alternative: Alternative | None = None
    rollback: Callable[[Node, int], Node] | None = None
    division: Callable[[Node], Division] | None = None
    sums: ColumnSum | None = None
    additive: bool = False
    discrete: bool = False

    def division_of(self, node: Node) -> Division | None:
        """Return how `node` can be divided by its output columns; None if it cannot."""
        if self.elementwise:
            return Division(node.outputs[0].cols)
        return None if self.division is None else self.division(node)

    @property
    def writes_state(self) -> bool:
        """Whether the op changes a KV cache or a recurrent state."""
        return any(x.written for x in self.signature.operands)

    @property
    def has_matrices(self) -> bool:
        """Whether the op multiplies rows with matrices of the model."""
        return any(x.kind is Kind.ROWS for x in self.signature.operands) and any(
            x.kind is Kind.MATRIX for x in self.signature.operands
        )

    @property
    def reads_cache(self) -> bool:
        """Whether the op reads keys and values that earlier ops stored."""
        return any(x.kind is Kind.CACHE and x.read for x in self.signature.operands)

    def run(self, step: Step, inputs: Sequence[Any], attrs: Attrs) -> Sequence[FloatArray]:
        """Run the reference on `inputs`, given in the order of the signature."""
        return self.reference(step, attrs, **self.signature.named(inputs))


OPS: dict[str, Op] = {}


def op(
    *operands: Operand,
    cost: Callable[[Node], Cost],
    cases: Callable[[], Iterator[Case]],
    tolerance: float = 2e-5,
    phase: Phase = Phase.DENSE,
    self_test: tuple[str, ...] = (),
    alternative: Alternative | None = None,
    rollback: Callable[[Node, int], Node] | None = None,
    division: Callable[[Node], Division] | None = None,
    sums: ColumnSum | None = None,
    **properties: bool,
) -> Callable[[Reference], Reference]:
    """Register the decorated reference as the op of its name, with these operands.

    The reference takes the step, the attributes and the operands under their declared names.
    """

    def register(reference: Reference) -> Reference:
        name = reference.__name__.removesuffix("_")
        names = ["step", "attrs", *(x.name for x in operands)]
        assert list(inspect.signature(reference).parameters) == names, f"{name} must take {names}"
        doc = (reference.__doc__ or "").strip()
        SIGNATURES[name] = signature = Signature(operands)
        OPS[name] = Op(
            name, reference, signature, cost, tolerance, doc, cases, phase, **properties,
            self_test=self_test, alternative=alternative, rollback=rollback, division=division,
            sums=sums,
        )  # fmt: skip
        return reference

    return register
