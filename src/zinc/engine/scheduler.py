"""Which sequences run in the next step, and how many tokens of each: a pure function.

Running sequences that wait for one token come first, so a stream stalls for at most one chunk of a
long prompt; what is left of the token budget goes to prompts in order of arrival. A sequence is
admitted only when the blocks for all it may ever need are free, so nobody is stopped half way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Demand:
    """A sequence in order of arrival: `pending` tokens are not in the cache yet.

    `blocks_wanted` is what it still has to be given before it can run (0 once admitted).
    """

    id: int
    pending: int
    blocks_wanted: int = 0


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one step."""

    tokens: int
    sequences: int
    blocks: int
    slots: int = 1 << 30  # sequences that may be admitted


def schedule(demands: Iterable[Demand], budget: Budget) -> dict[int, int]:
    """Tokens to run now, by sequence id. Never exceeds any part of the budget."""
    demands = [d for d in demands if d.pending > 0]
    # Stable: decodes first, each kind in order of arrival.
    demands.sort(key=lambda d: d.blocks_wanted > 0 or d.pending > 1)
    chosen: dict[int, int] = {}
    tokens, blocks, slots = budget.tokens, budget.blocks, budget.slots
    for d in demands:
        if tokens == 0 or len(chosen) == budget.sequences:
            break
        is_new = d.blocks_wanted > 0
        if d.blocks_wanted > blocks or is_new > slots:
            # First come, first served: a later, smaller request must not starve this one.
            blocks = 0
            continue
        chosen[d.id] = min(d.pending, tokens)
        tokens -= chosen[d.id]
        blocks -= d.blocks_wanted
        slots -= is_new
    return chosen
