"""Data hazards between the launches of a plan.

Two launches may run concurrently unless one writes memory that the other reads or writes.
`dependencies` returns the earlier launches that each launch must wait for. Memory is compared as
byte ranges of the arena; a layer's KV cache or recurrent state counts as one range.
`zinc.gpu.graph` carries dependencies over to dispatches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from zinc.backends.plans import EXCHANGE, Launch, Plan, Ref
from zinc.core.dataclass import dataclass
from zinc.gpu.bucket import Bucket
from zinc.ops.registry import OPS
from zinc.ops.values import Dim, KVState, RecurrentState


@dataclass(frozen=True, slots=True)
class Access:
    """A read or write of bytes `start` to `end` of a space: "" is the arena, others are states."""

    space: str
    start: int
    end: int
    writes: bool

    def conflicts(self, other: Access) -> bool:
        """Return whether the order of the two accesses to one space matters."""
        return (self.writes or other.writes) and self.start < other.end and other.start < self.end

    def covers(self, other: Access) -> bool:
        """Return whether all bytes of `other`, an access to the same space, are accessed."""
        return self.start <= other.start and other.end <= self.end


def accesses(launch: Launch, rows: dict[Dim, int]) -> Iterator[Access]:
    """Yield the reads and writes of a launch in a step with `rows[dim]` rows of each dim."""
    if launch.kernel == EXCHANGE:
        yield Access(EXCHANGE, 0, 1, True)  # exchanges run one after another
        yield from (_range(x, rows, False) for x in launch.inputs if isinstance(x, Ref))
    else:
        for operand, x in OPS[launch.kernel].signature.declared(launch.inputs):
            if isinstance(x, Ref):
                yield _range(x, rows, operand.overwritten)
            elif isinstance(x, KVState | RecurrentState):
                yield Access(x.name, 0, 1, operand.written)
    for ref in launch.outputs:
        yield _range(ref, rows, True)


def _range(ref: Ref, rows: dict[Dim, int], writes: bool) -> Access:
    """Return the access to a value. An access to a view counts as one to its whole base."""
    start = ref.offset - 4 * ref.first
    return Access("", start, start + rows[ref.dim] * ref.stride, writes)


def dependencies(plan: Plan, bucket: Bucket) -> list[tuple[int, ...]]:
    """Return for each launch the indices of the earlier launches that it must wait for.

    Launches that do not run in the steps of `bucket` have no dependencies, and no launch waits for
    them. Indices are increasing. Launches that a listed dependency already waits for may be
    omitted.
    """
    rows = {
        Dim.TOKENS: plan.max_tokens,
        Dim.OUTPUTS: plan.max_outputs,
        Dim.SEQUENCES: plan.max_tokens,
        Dim.CONSTANT: 1,
    }
    live: defaultdict[str, list[tuple[int, Access]]] = defaultdict(list)  # by space
    result = []
    for i, launch in enumerate(plan.launches):
        mine = list(accesses(launch, rows)) if bucket.runs(launch) else []
        found = {j for access in mine for j, x in live[access.space] if access.conflicts(x)}
        result.append(tuple(sorted(found)))
        # Later launches that touch a range written here wait for this launch, not for older ones.
        for access in mine:
            if access.writes:
                older = live[access.space]
                live[access.space] = [(j, x) for j, x in older if not access.covers(x)]
        for access in mine:
            live[access.space].append((i, access))
    return result
