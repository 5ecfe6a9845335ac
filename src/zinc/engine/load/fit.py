"""The memory that a model takes, the context that fits, and the speed that memory allows.

`zinc plan`, `inspect`, `list`, `show` and `pull` print this report; a load uses the same budgets.
Decode reads every weight once for each token, but only the experts that the router selects. The
read bandwidth of a device, divided by these bytes, is the upper limit of its tokens per second.
"""

from __future__ import annotations

from collections.abc import Iterator

from zinc.backends.plans import SplitPlan
from zinc.core.dataclass import dataclass
from zinc.core.errors import MemoryLimitError
from zinc.engine.cache_layout import context_bytes, state_bytes_per_sequence
from zinc.engine.load.bandwidth import Bandwidth, BandwidthOf
from zinc.engine.load.memory import RESERVE_SHARE, MemoryBudget, choose_context
from zinc.engine.load.planned import PlannedModel
from zinc.engine.step_cost import StepShape


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """The bytes that a model with one sequence takes of the memory of a device or the host.

    scratch_bytes: activations. available_bytes: free memory, less the reserve for other uses.
    """

    backend: str
    weights_bytes: int
    kv_bytes: int
    state_bytes: int
    scratch_bytes: int
    available_bytes: int

    @property
    def needed_bytes(self) -> int:
        """Bytes of all purposes together."""
        return self.weights_bytes + self.kv_bytes + self.state_bytes + self.scratch_bytes

    @property
    def fits(self) -> bool:
        """Whether there is room for all of it."""
        return self.needed_bytes <= self.available_bytes


@dataclass(frozen=True, slots=True)
class DecodeReads:
    """The bytes that a device moves for a token after an empty cache, and its bandwidth.

    bandwidth: None if it cannot be measured.
    """

    backend: str
    token_bytes: int
    bandwidth: Bandwidth | None


@dataclass(frozen=True, slots=True)
class FitReport:
    """The memory that a model takes with one sequence of `context_tokens`, and what decode reads.

    fitting_context_tokens: the longest context, up to the model's own, for which there is room; 0
    if the weights alone are too large. memories: one for each device that does not share the
    host's. reads: one for each device; () for an encoder, which does not decode. at_once: whether
    the devices read at the same time.
    """

    context_tokens: int
    fitting_context_tokens: int
    memories: tuple[MemoryNeed, ...]
    reads: tuple[DecodeReads, ...]
    at_once: bool = False

    @property
    def fits(self) -> bool:
        """Whether every memory has room."""
        return all(memory.fits for memory in self.memories)

    def total(self, purpose: str) -> int:
        """Return the bytes of a purpose, such as "kv_bytes", over all memories."""
        return sum(int(getattr(memory, purpose)) for memory in self.memories)

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Upper limit of tokens per second by bandwidth; None if that of a device is unknown."""
        times = []
        for each in self.reads:
            if each.bandwidth is None:
                return None
            times.append(each.token_bytes / each.bandwidth.bytes_per_s)
        seconds = max(times, default=0.0) if self.at_once else sum(times)
        return 1 / seconds if seconds else None


def fit_report(planned: PlannedModel, context: int, bandwidth_of: BandwidthOf) -> FitReport:
    """Return what a planned model takes with one sequence of `context` tokens.

    bandwidth_of: returns the bandwidth of a device.
    """
    budgets = planned.budgets()
    return FitReport(
        context_tokens=context,
        fitting_context_tokens=min(_fitting_context(planned, budget) for budget in budgets),
        memories=tuple(_need(planned, budget, context) for budget in budgets),
        reads=() if planned.spec.is_encoder else tuple(_reads(planned, bandwidth_of)),
        at_once=planned.backend.split is not None and planned.backend.split.is_by_tensor,
    )


def _reads(planned: PlannedModel, bandwidth_of: BandwidthOf) -> Iterator[DecodeReads]:
    """Yield, for each device, the bytes of a decode step with an empty cache."""
    plan, backend = planned.plans[0], planned.backend
    shape = StepShape(tokens=1, outputs=1, depth=0, kv_dtype=planned.kv_dtype)
    split = backend.split
    devices = (backend,) if split is None else split.devices
    names = (backend.name,) if split is None else split.names
    parts = plan.parts if isinstance(plan, SplitPlan) else (plan,)
    for name, device, part in zip(names, devices, parts, strict=True):
        token_bytes = sum(shape.bytes(launch) for launch in part.launches)
        yield DecodeReads(name, token_bytes, bandwidth_of(device))


def _need(planned: PlannedModel, budget: MemoryBudget, context: int) -> MemoryNeed:
    max_tokens = planned.options.step_tokens
    return MemoryNeed(
        backend=budget.name,
        weights_bytes=budget.weights_bytes,
        kv_bytes=context_bytes(budget.states, context, planned.kv_dtype, max_tokens),
        state_bytes=state_bytes_per_sequence(budget.states),
        scratch_bytes=budget.arena_bytes,
        available_bytes=int(budget.available * (1 - RESERVE_SHARE)),
    )


def _fitting_context(planned: PlannedModel, budget: MemoryBudget) -> int:
    taken = budget.taken + state_bytes_per_sequence(budget.states)
    max_tokens = planned.options.step_tokens
    try:
        return choose_context(
            planned.spec,
            budget.states,
            planned.kv_dtype,
            None,
            budget.available,
            taken,
            max_tokens,
        )
    except MemoryLimitError:
        return 0
