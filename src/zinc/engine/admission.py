"""What the scheduler is asked, and when it need not be: who may run in the next step at all."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq

from zinc.engine.holdings import Holdings
from zinc.engine.scheduler import Budget, Schedule, schedule
from zinc.engine.sequence import Sequence

# A sequence that waits for no more is a stream: the token that was drawn, and some that follow it
# by dictation. They run in little more time than one.
STREAM_TOKENS = 8


def next_schedule(
    sequences: Mapping[int, Sequence],
    holdings: Holdings,
    *,
    tokens: int,
    prompt_tokens: int,
    seats: int,
) -> Schedule:
    """Who runs, and who makes room for that.

    sequences: by id, in order of arrival. tokens: of a step; prompt_tokens: of prompts in one that
    has streams. seats: how many may hold a part of the cache.
    """
    pool = holdings.pool
    blocks, block_tokens = pool.available, pool.block_tokens
    budget = Budget(tokens, prompt_tokens, seats, blocks, pool.available_slots, block_tokens)
    running = [s for s in sequences.values() if s.holding is not None]
    waiting: list[Sequence] = []
    if len(running) < len(sequences):
        waiting = _admissible([s for s in sequences.values() if s.holding is None], running, budget)
    pending = {s.id: s.pending for s in running}
    # A token may need a block.
    fits = sum(pending.values()) <= min(tokens, *blocks)
    if not waiting and fits and max(pending.values(), default=0) <= STREAM_TOKENS:
        return Schedule(pending)  # streams alone, as most steps are
    # What preemption would free is counted only when somebody may be preempted.
    tight = bool(waiting) or min(blocks) <= tokens // block_tokens + 2 * len(running)
    asking = sorted([*running, *waiting], key=lambda s: s.id)
    back = holdings.held_back(asking)
    return schedule([holdings.demand(s, tight) for s in asking if s.id not in back], budget)


def _admissible(waiting: list[Sequence], running: Seq[Sequence], budget: Budget) -> list[Sequence]:
    """Those of the waiting who may be let in: when every seat is taken, only who is more important
    than somebody who runs. To look for the others' prefixes would be in vain."""
    if not running or (len(running) < budget.sequences and budget.slots > 0):
        return waiting
    least = min(s.priority for s in running)
    return [s for s in waiting if s.priority > least]
