"""Plans as data: a frozen list of launches over one arena.

A launch names a kernel; its meaning is the entry of that name in `zinc.ops`, and a backend's kernel
of that name must agree with it. `zinc.plan` makes plans, backends run them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

from zinc.ops.registry import OPS, Cost, Phase
from zinc.ops.step import StepCondition
from zinc.ops.values import (
    AttrValue,
    Constant,
    Dim,
    KVState,
    RecurrentState,
    RowFormat,
    State,
    Weight,
)


@dataclass(frozen=True, slots=True)
class Ref:
    """Rows of the value `id` in the arena: `cols` columns in `format`, `stride` bytes a row.

    `offset` is the first byte. A view of some columns has the id of its base and starts at its
    column `first`. In other formats than F32, a row of several `runs` is stored as that many rows
    of cols / runs columns.
    """

    id: int
    dim: Dim
    cols: int
    format: RowFormat
    offset: int
    stride: int
    first: int = field(default=0, repr=False)  # `offset` has it for all but `ref`
    runs: int = field(default=1, repr=False)  # `stride` has it for those who know the op


T = TypeVar("T")
Operand: TypeAlias = Ref | Weight | Constant | State | None


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel over the rows of `dim`. `label` names the part of the model (`blk.3`).

    when: the steps in which it runs; None for every step. A plan has alternatives for some
    launches: in each step either the alternative runs, or the launches that it replaces.
    """

    kernel: str
    dim: Dim
    inputs: tuple[Operand, ...]
    outputs: tuple[Ref, ...]
    attrs: tuple[tuple[str, AttrValue], ...]
    cost: Cost
    label: str
    when: StepCondition | None = None

    def runs(self, tokens: int, keys: int) -> bool:
        """Return whether it runs in a step with `tokens` tokens and `keys` keys (StepCondition)."""
        return self.when is None or self.when.holds(tokens, keys)

    def input(self, name: str, part: int = 0) -> Operand:
        """Return the operand `name` of the op, of part `part` if it is repeated."""
        return self.inputs[OPS[self.kernel].signature.index(name, part)]

    @property
    def attributes(self) -> dict[str, AttrValue]:
        return dict(self.attrs)

    @property
    def phase(self) -> Phase:
        """The part of a step that it belongs to: products and norms have what they are part of."""
        phase = OPS[self.kernel].phase
        return Phase.HEAD if self.label == "head" and phase is Phase.DENSE else phase


@dataclass(frozen=True, slots=True)
class Plan:
    """A program for steps of at most `max_tokens` tokens and `max_outputs` output rows.

    sampled: the tokens that a step with `sample_params` samples, float32 [outputs, 2] as
    `zinc.ops.sampling` returns them; no other launch writes there. None if the host samples.
    """

    launches: tuple[Launch, ...]
    output: Ref
    arena_bytes: int
    max_tokens: int
    max_outputs: int
    sampled: Ref | None = None

    def without_alternatives(self) -> Plan:
        """Return the plan whose launches all run in every step."""
        kept = [x for x in self.launches if x.when is None or x.when.negated]
        return replace(self, launches=tuple(replace(x, when=None) for x in kept))

    @property
    def weights(self) -> tuple[Weight, ...]:
        return self._operands((Weight,))

    @property
    def states(self) -> tuple[State, ...]:
        return self._operands((KVState, RecurrentState))

    def _operands(self, kinds: tuple[type[T], ...]) -> tuple[T, ...]:
        found = (x for launch in self.launches for x in launch.inputs if isinstance(x, kinds))
        return tuple(dict.fromkeys(found))

    @property
    def hash(self) -> str:
        """Changes exactly when something that is run changes."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]


# The output of a part of a plan that does not make the plan's: it has no columns.
NO_OUTPUT = Ref(0, Dim.OUTPUTS, 0, RowFormat.F32, 0, 0)


@dataclass(frozen=True, slots=True)
class Segment:
    """Launches `first` up to but not including `last` of the part of a device."""

    device: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Transfer:
    """A float32 value that one device makes and another reads, in the arena of each."""

    source: int
    target: int
    sent: Ref
    received: Ref


@dataclass(frozen=True, slots=True)
class SplitPlan(Plan):
    """A plan over several devices: a part with an arena of its own for each, and how they take
    turns.

    `launches` are those of all parts, in the order in which they run. Ids name the same value in
    every part.
    """

    parts: tuple[Plan, ...] = ()
    schedule: tuple[Segment | Transfer, ...] = ()
