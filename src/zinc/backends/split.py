"""Several backends as one. Each has a part of the plan, of the weights and of the cache.

The engine and the prefix cache treat it as any other backend: `zinc.backends.split_program` copies
rows between the devices.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from zinc.backends.api import (
    Backend,
    Cache,
    CacheLayout,
    SplitDevices,
    StepCounts,
    TensorData,
)
from zinc.backends.capabilities import BackendKind, Capabilities, Roofline
from zinc.backends.micro_batches import (
    micro_batch_tokens,
)
from zinc.backends.plans import (
    Plan,
    Segment,
    SplitPlan,
    states_of,
    weights_of,
)
from zinc.backends.split_program import SplitCache, SplitProgram
from zinc.ops.node import Node
from zinc.ops.step import Step, StepCondition
from zinc.ops.values import RowFormat, State, Weight
from zinc.quant.blocks import GGMLType


@runtime_checkable
class Linkable(Protocol):
    """A backend whose device may write the memory of other devices."""

    def reaches(self, devices: Sequence[Backend]) -> bool:
        """Return whether `devices`, which include this one, can write each other's memory.

        Raises DeviceError.
        """
        ...

    def link(self, devices: Sequence[Backend], plan: SplitPlan, cache: Cache) -> SplitProgram:
        """Return a program whose devices exchange rows without the host.

        The parts of `plan` run on `devices`, which reach each other. cache: the `SplitCache` of
        their backend.
        """
        ...


def unique_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return `names`, with a number after each one that was there before."""
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        seen[name] += 1
        found.append(f"{name} #{seen[name]}" if seen[name] > 1 else name)
    return tuple(found)


class SplitBackend:
    """Several backends as one. Implements `zinc.backends.api.Backend`.

    devices: the backends that take part. division: how the model is divided, see `SplitDevices`.
    selectors: the device that each backend runs on, such as "vulkan:0"; by default each is a
    device of its own with the name of its backend. `keep` tells it where weights and states are.
    """

    def __init__(
        self,
        devices: Sequence[Backend],
        division: Callable[[Node], int] | tuple[float, ...],
        selectors: Sequence[str] = (),
    ) -> None:
        self.devices = tuple(devices)
        names = unique_names(selectors or [backend.name for backend in devices])
        self.split = SplitDevices(self.devices, division, names, tuple(selectors) or names)
        self._weights: list[set[str]] = []
        self._states: list[set[str]] = []
        self.name = "+".join(backend.name for backend in devices)
        each = [backend.capabilities for backend in devices]
        kinds, kv_dtypes = {c.kind for c in each}, {c.kv_dtype for c in each}
        self.capabilities = Capabilities(
            kinds.pop() if len(kinds) == 1 else BackendKind.DEVICE,
            kv_dtype=kv_dtypes.pop() if len(kv_dtypes) == 1 else "f16",
            batch_invariant=all(c.batch_invariant for c in each),
            rollback=all(c.rollback for c in each),
            host_rows=all(c.host_rows for c in each),
            level="+".join(c.level for c in each),
        )

    def keep(self, *plans: SplitPlan) -> None:
        """Remember which device reads each weight and state of `plans`.

        Later uploads and allocations go to these devices. Plans that are prepared later must not
        use other weights or states.
        """
        parts = [[plan.parts[i] for plan in plans] for i in range(len(self.devices))]
        self._weights = [{w.name for w in weights_of(each)} for each in parts]
        self._states = [{s.name for s in states_of(each)} for each in parts]

    def on(self, devices: Sequence[Backend]) -> SplitBackend:
        """Return a backend that runs the same plans on other devices."""
        other = SplitBackend(devices, self.split.division)
        other._weights, other._states = self._weights, self._states
        return other

    @functools.cached_property
    def is_linked(self) -> bool:
        """Whether the devices exchange rows without the host."""
        first = self.devices[0]
        return isinstance(first, Linkable) and first.reaches(self.devices)

    @property
    def micro_batch_tokens(self) -> int:
        """The tokens of a micro-batch of a long step."""
        return micro_batch_tokens(backend.capabilities.kind for backend in self.devices)

    def describe(self) -> str:
        return " with ".join(backend.describe() for backend in self.devices)

    def identity(self) -> str:
        return " with ".join(backend.identity() for backend in self.devices)

    def row_format(self, type: GGMLType) -> RowFormat:
        """Return the row format on the first device. A plan asks the device that runs the node."""
        return self.devices[0].row_format(type)

    def supports(self, kernel: str) -> bool:
        return all(backend.supports(kernel) for backend in self.devices)

    def stores(self, kernel: str, format: RowFormat) -> bool:
        return all(backend.stores(kernel, format) for backend in self.devices)

    def row_bytes(self, format: RowFormat, cols: int) -> int:
        return self.devices[0].row_bytes(format, cols)

    def runs_fused(self, node: Node) -> StepCondition | None:
        """Return None: a plan asks the device that runs the node."""
        return None

    def counts(
        self, plan: Plan, kv_dtype: str, *, tokens: int, outputs: int, sequences: int, keys: int
    ) -> StepCounts | None:
        assert isinstance(plan, SplitPlan)
        found = []
        for entry in plan.schedule:
            if isinstance(entry, Segment):
                part = plan.parts[entry.device]
                counts = self.devices[entry.device].counts(
                    replace(part, launches=part.launches[entry.first : entry.last]),
                    kv_dtype,
                    tokens=tokens,
                    outputs=outputs,
                    sequences=sequences,
                    keys=keys,
                )
                found += [counts] if counts is not None else []
        if not found:
            return None
        return StepCounts(sum(c.dispatches for c in found), sum(c.barriers for c in found))

    def expect(self, weights: Iterable[Weight]) -> None:
        weights = list(weights)
        for backend, names in zip(self.devices, self._weights, strict=True):
            backend.expect([weight for weight in weights if weight.name in names])

    def compile(self, steps: Iterable[tuple[Plan, Step]], kv_dtype: str) -> None:
        """Do nothing: the parts compile their kernels when they are prepared or run."""

    def measure(self) -> Roofline | None:
        """Return None: the parts have different limits."""
        return None

    def upload(self, weight: Weight, data: TensorData) -> None:
        for backend, names in zip(self.devices, self._weights, strict=True):
            if weight.name in names:
                backend.upload(weight, data)

    @property
    def weight_bytes(self) -> int:
        return sum(backend.weight_bytes for backend in self.devices)

    def available_bytes(self) -> int | None:
        """Return None: each device has its own memory and is asked for it."""
        return None

    def shared_bytes(self) -> int | None:
        return None

    def allocate(self, states: tuple[State, ...], layout: CacheLayout) -> SplitCache:
        caches = [
            backend.allocate(tuple(s for s in states if s.name in names), layout)
            for backend, names in zip(self.devices, self._states, strict=True)
        ]
        return SplitCache(caches, layout)

    def prepare(self, plan: Plan, cache: Any) -> SplitProgram:
        assert isinstance(plan, SplitPlan)
        first = self.devices[0]
        if self.is_linked and isinstance(first, Linkable):
            return first.link(self.devices, plan, cache)
        programs = [
            backend.prepare(part, each)
            for backend, part, each in zip(self.devices, plan.parts, cache.caches, strict=True)
        ]
        return SplitProgram(plan, programs, self.micro_batch_tokens, cache.steps)
