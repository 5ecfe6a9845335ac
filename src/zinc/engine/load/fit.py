"""The memory that a model takes, by purpose and device, and the context that fits.

`zinc plan`, `inspect`, `list`, `show` and `pull` print this report; a load uses the same budgets.
"""

from __future__ import annotations

from dataclasses import dataclass

from zinc.core.errors import MemoryLimitError
from zinc.engine.cache_layout import context_bytes, state_bytes_per_sequence
from zinc.engine.load.memory import RESERVE_SHARE, MemoryBudget, choose_context
from zinc.engine.load.planned import PlannedModel


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """The bytes that one sequence takes of a memory, by purpose.

    scratch_bytes: activations. available_bytes: free memory less the part that zinc leaves to
    others.
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
class FitReport:
    """The memory that a model takes with one sequence of `context_tokens`.

    fitting_context_tokens: the longest context, up to the model's own, for which there is room; 0
    if the weights alone are too large. memories: one for each device that does not share the
    host's.
    """

    context_tokens: int
    fitting_context_tokens: int
    memories: tuple[MemoryNeed, ...]

    @property
    def fits(self) -> bool:
        """Whether every memory has room."""
        return all(memory.fits for memory in self.memories)

    def total(self, purpose: str) -> int:
        """Return the bytes of a purpose, such as "kv_bytes", over all memories."""
        return sum(int(getattr(memory, purpose)) for memory in self.memories)


def fit_report(planned: PlannedModel, context: int) -> FitReport:
    """Return what a planned model takes with one sequence of `context` tokens."""
    budgets = planned.budgets()
    return FitReport(
        context_tokens=context,
        fitting_context_tokens=min(_fitting_context(planned, budget) for budget in budgets),
        memories=tuple(_need(planned, budget, context) for budget in budgets),
    )


def _need(planned: PlannedModel, budget: MemoryBudget, context: int) -> MemoryNeed:
    max_tokens = planned.options.batch_tokens
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
    max_tokens = planned.options.batch_tokens
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
