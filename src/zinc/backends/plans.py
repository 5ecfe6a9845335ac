"""Plans as data: a frozen list of launches over one arena.

A launch names a kernel; its meaning is the entry of that name in `zinc.ops`, and a backend's kernel
of that name must agree with it. `zinc.plan` makes plans, backends run them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import field, replace
from typing import TypeAlias, TypeVar

from zinc.core.dataclass import dataclass
from zinc.ops.registry import OPS, Cost, Phase
from zinc.ops.step import Otherwise, Step, StepCondition
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
    """Rows of the value `id` in the arena: `cols` columns in `format`, `stride` bytes per row.

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
    first: int = field(default=0, repr=False)  # already part of `offset`
    runs: int = field(default=1, repr=False)  # already part of `stride`


T = TypeVar("T")
Operand: TypeAlias = Ref | Weight | Constant | State | None


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel over the rows of `dim`. label: the part of the model, such as "blk.3".

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
    when: StepCondition | Otherwise | None = None

    def runs(self, tokens: int, keys: int, is_decode: bool) -> bool:
        """Return whether it runs in a step with these sizes (`StepCondition`)."""
        return self.when is None or self.when.holds(tokens, keys, is_decode)

    def runs_in(self, step: Step) -> bool:
        """Return whether it runs in `step`."""
        return self.when is None or self.when.holds(step.n_tokens, step.n_keys, step.is_decode)

    def input(self, name: str, part: int = 0) -> Operand:
        """Return the operand `name` of the op, of part `part` if it is repeated."""
        return self.inputs[OPS[self.kernel].signature.index(name, part)]

    @property
    def attributes(self) -> dict[str, AttrValue]:
        """The attributes of the op by name."""
        return dict(self.attrs)

    @property
    def phase(self) -> Phase:
        """The phase of a step to which its time counts."""
        phase = OPS[self.kernel].phase
        return Phase.HEAD if self.label == "head" and phase is Phase.DENSE else phase


@dataclass(frozen=True, slots=True)
class Plan:
    """A program for steps of at most `max_tokens` tokens and `max_outputs` output rows.

    given: rows that no launch makes: the host writes them before a step (`Program.write`). hidden:
    rows that the host may read after a step, until the next one (`Program.read`). sampled: the
    tokens that a step with `sample_params` samples, float32 [outputs, 2] as `zinc.ops.sampling`
    returns them; no other launch writes there. None if the host samples.
    """

    launches: tuple[Launch, ...]
    output: Ref
    arena_bytes: int
    max_tokens: int
    max_outputs: int
    sampled: Ref | None = None
    # Not in the hash: it changes with the launches that read and make these rows.
    given: Ref | None = field(default=None, repr=False)
    hidden: Ref | None = field(default=None, repr=False)

    def without_alternatives(self) -> Plan:
        """Return the plan whose launches all run in every step."""
        kept = [x for x in self.launches if not isinstance(x.when, StepCondition)]
        return replace(self, launches=tuple(replace(x, when=None) for x in kept))

    @property
    def weights(self) -> tuple[Weight, ...]:
        """The weights that the launches read, each once."""
        return self._operands((Weight,))

    @property
    def states(self) -> tuple[State, ...]:
        """The caches and recurrent states that the launches use, each once."""
        return self._operands((KVState, RecurrentState))

    def _operands(self, kinds: tuple[type[T], ...]) -> tuple[T, ...]:
        found = (x for launch in self.launches for x in launch.inputs if isinstance(x, kinds))
        return tuple(dict.fromkeys(found))

    @property
    def hash(self) -> str:
        """A digest that changes exactly when the launches or the arena change."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]


# The kernel of a launch in which devices exchange rows. It is not an op. Its input is the rows that
# the device sends, or None. Its output is the rows that the device receives, if it receives any.
EXCHANGE = "exchange"
# The output of a part that does not compute the output of the whole plan.
NO_OUTPUT = Ref(0, Dim.OUTPUTS, 0, RowFormat.F32, 0, 0)


def weights_of(plans: Iterable[Plan]) -> tuple[Weight, ...]:
    """Return the weights of all plans, each once."""
    return tuple(dict.fromkeys(weight for plan in plans for weight in plan.weights))


def states_of(plans: Iterable[Plan]) -> tuple[State, ...]:
    """Return the caches and recurrent states of all plans, each once."""
    return tuple(dict.fromkeys(state for plan in plans for state in plan.states))


@dataclass(frozen=True, slots=True)
class Segment:
    """The launches from `first` up to but not including `last` in the part of a device."""

    device: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Transfer:
    """A float32 value that `source` computes and `target` reads; each has it in its own arena."""

    source: int
    target: int
    sent: Ref
    received: Ref


@dataclass(frozen=True, slots=True)
class Term:
    """The partial sum of a device, None if it has none, and where it receives the total."""

    device: int
    part: Ref | None
    total: Ref


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Float32 values that are added up; each device receives the total in its own arena."""

    terms: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class SplitPlan(Plan):
    """A plan over several devices: a part for each, and the order of their turns.

    Each part has its own arena. launches: of all parts, in the order of the schedule. A value that
    is sent has the same id on both devices. Segments of different devices that follow each other in
    the schedule may run at the same time. `sampled` is that of the part that makes the output. The
    other parts that read the ids of tokens have `sampled` too, for devices that receive tokens
    without the host.
    """

    parts: tuple[Plan, ...] = ()
    schedule: tuple[Segment | Transfer | AllReduce, ...] = ()
