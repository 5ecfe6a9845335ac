"""Which launches of a plan wait for which: hazards over the ranges that they read and write.

Lowered (dispatch.py), they become levels of dispatches.

Two launches may run side by side unless one writes what the other reads or writes. A launch gets
the first level after those it waits for; only between levels is a barrier needed. Ranges are bytes
of the arena, and states of layers as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from zinc.backends.api import Launch, Plan, Ref
from zinc.core.errors import UnsupportedError
from zinc.gpu.dispatch import (
    JOINT,
    LOWERINGS,
    MAX_GROUPS,
    MAX_PUSH_BYTES,
    Addresses,
    Bucket,
    Dispatch,
)
from zinc.ops.registry import OPS
from zinc.ops.values import Dim, KVState, RecurrentState


@dataclass(frozen=True, slots=True)
class Access:
    """Bytes start to end of a space ("" is the arena), read or written."""

    space: str
    start: int
    end: int
    writes: bool

    def conflicts(self, other: Access) -> bool:
        return (
            (self.writes or other.writes)
            and self.start < other.end
            and other.start < self.end
            and self.space == other.space
        )


def accesses(launch: Launch, rows: dict[Dim, int]) -> Iterator[Access]:
    """What a launch reads and writes in a step of so many rows of each dim."""
    for operand, x in OPS[launch.kernel].signature.declared(launch.inputs):
        if isinstance(x, Ref):
            yield _range(x, rows, False)
        elif isinstance(x, KVState | RecurrentState):
            yield Access(x.name, 0, 1, operand.written)
    for ref in launch.outputs:
        yield _range(ref, rows, True)


def _range(ref: Ref, rows: dict[Dim, int], writes: bool) -> Access:
    """From the first byte of the value to the last: a view counts as the whole of its base."""
    start = ref.offset - 4 * ref.first
    return Access("", start, start + rows[ref.dim] * ref.stride, writes)


def waits(plan: Plan) -> list[tuple[int, ...]]:
    """For each launch the earlier launches that it must see the end of."""
    rows = {
        Dim.TOKENS: plan.max_tokens,
        Dim.OUTPUTS: plan.max_outputs,
        Dim.SEQUENCES: plan.max_tokens,
        Dim.CONSTANT: 1,
    }
    live: list[tuple[int, Access]] = []
    result = []
    for i, launch in enumerate(plan.launches):
        mine = list(accesses(launch, rows))
        found = {j for j, other in live for access in mine if access.conflicts(other)}
        result.append(tuple(sorted(found)))
        # What is written anew hides what was read and written there before.
        written = [a for a in mine if a.writes]
        live = [(j, a) for j, a in live if not any(_covers(w, a) for w in written)]
        live += [(i, access) for access in mine]
    return result


def _covers(outer: Access, inner: Access) -> bool:
    return outer.space == inner.space and outer.start <= inner.start and inner.end <= outer.end


def levels(before: Sequence[tuple[int, ...]], depth: Sequence[int]) -> list[int]:
    """The first level of each launch; `depth` says how many each takes (0 for one left out)."""
    start: list[int] = []
    for i, launches in enumerate(before):
        start.append(max((start[j] + depth[j] for j in launches), default=0))
        assert len(start) == i + 1
    return start


class Placed(Addresses, Protocol):
    """Addresses that remember the ranges of scratch that were handed out, for whoever clears it."""

    taken: list[tuple[int, int]]


def lowered(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    """What a launch becomes in a step of that bucket. Raises UnsupportedError."""
    if not bucket.rows(launch.dim):
        return []
    try:
        dispatches = LOWERINGS[launch.kernel](launch, at, bucket)
    except (KeyError, NotImplementedError, ValueError) as error:
        raise UnsupportedError(
            f"the Vulkan backend cannot run {launch.label or 'this model'}",
            f"{launch.kernel}: {error}",
            "choose another backend with {backend}",
        ) from error
    return _checked(launch, dispatches)


def lowered_both(
    first: Launch, second: Launch, at: Addresses, bucket: Bucket
) -> list[Dispatch] | None:
    """What the second of two neighbours becomes where it does the work of the first too."""
    joint = JOINT.get((first.kernel, second.kernel))
    dispatches = joint(first, second, at, bucket) if joint and bucket.rows(second.dim) else None
    return None if dispatches is None else _checked(second, dispatches)


def _checked(launch: Launch, dispatches: list[Dispatch]) -> list[Dispatch]:
    """Those that have workgroups."""
    for dispatch in dispatches:
        size = dispatch.arguments.layout().end
        assert size <= MAX_PUSH_BYTES, f"{launch.kernel} has arguments of {size} bytes"
        if max(dispatch.groups) > MAX_GROUPS:
            raise UnsupportedError(
                f"the Vulkan backend cannot run {launch.label or 'this model'}",
                f"{launch.kernel} needs {max(dispatch.groups)} workgroups in one direction, and "
                f"devices need not have more than {MAX_GROUPS}",
                "choose another backend with {backend}",
            )
    return [d for d in dispatches if min(d.groups) > 0]


def all_lowered(
    launches: Iterable[Launch], at: Addresses, bucket: Bucket
) -> Iterator[list[Dispatch]]:
    """What launches become, each by itself and each with the one before it."""
    before = None
    for launch in launches:
        yield lowered(launch, at, bucket)
        yield (before and lowered_both(before, launch, at, bucket)) or []
        before = launch


def schedule(
    plan: Plan, before: Sequence[tuple[int, ...]], at: Placed, bucket: Bucket
) -> list[list[tuple[int, Dispatch]]]:
    """Dispatches with the index of their launch, by level: a barrier is between two levels.

    before: as `waits` gives it.
    """
    made: list[list[Dispatch]] = []
    after: list[tuple[int, ...]] = []
    left: set[int] = set()  # launches whose work the next one does
    ring: list[tuple[int, int, int]] = []  # scratch of earlier launches: launch, start, end
    for i, launch in enumerate(plan.launches):
        at.taken.clear()
        both = lowered_both(plan.launches[i - 1], launch, at, bucket) if i else None
        if both is not None:
            made[-1] = []
            left.add(i - 1)
        made.append(lowered(launch, at, bucket) if both is None else both)
        taken = list(at.taken)
        same = {j for j, a, b in ring for start, end in taken if a < end and start < b}
        waited = {*before[i], *same}
        after.append(tuple(waited | {j + 1 for j in waited & left if j + 1 < i}))
        ring = [x for x in ring if not any(a <= x[1] and x[2] <= b for a, b in taken)]
        ring += [(i, start, end) for start, end in taken]
    depth = [sum(1 for k, d in enumerate(ds) if k == 0 or d.waits) for ds in made]
    first = levels(after, depth)
    steps: list[list[tuple[int, Dispatch]]] = []
    for i, dispatches in enumerate(made):
        level = first[i]
        for k, dispatch in enumerate(dispatches):
            level += 1 if k and dispatch.waits else 0
            while len(steps) <= level:
                steps.append([])
            steps[level].append((i, dispatch))
    return [level for level in steps if level]
