"""The input of the scheduler, and shortcuts for steps that need no scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq

from zinc.engine.cache_manager import CacheManager
from zinc.engine.scheduler import Budget, Schedule, schedule
from zinc.engine.sequence import Sequence

# A running sequence with at most this many pending tokens is a stream: one sampled token, and some
# that a constraint dictates. They take little longer to run than one token.
STREAM_TOKENS = 8


def next_schedule(
    sequences: Mapping[int, Sequence],
    cache_manager: CacheManager,
    *,
    tokens: int,
    prompt_tokens: int,
    max_sequences: int,
) -> Schedule:
    """Return which sequences run in the next step, and which are preempted for them.

    sequences: by id, in order of arrival. tokens: the most of a step. prompt_tokens: the most
    prompt tokens of a step that also has streams. max_sequences: the most that run at a time.
    """
    pool = cache_manager.pool
    blocks, block_tokens = pool.available, pool.block_tokens
    slots = pool.available_slots
    budget = Budget(tokens, prompt_tokens, max_sequences, blocks, slots, block_tokens)
    running = [s for s in sequences.values() if s.is_running]
    waiting: list[Sequence] = []
    if len(running) < len(sequences):
        waiting = _admissible([s for s in sequences.values() if not s.is_running], running, budget)
    pending = {s.id: s.pending for s in running}
    # Each token may need a block.
    fits = sum(pending.values()) <= min(tokens, *blocks)
    if not waiting and fits and max(pending.values(), default=0) <= STREAM_TOKENS:
        return Schedule(pending)  # streams only, as in most steps
    # Counting the blocks that preemption would free is slow, so it is done only when needed.
    tight = bool(waiting) or min(blocks) <= tokens // block_tokens + 2 * len(running)
    asking = sorted([*running, *waiting], key=lambda s: s.id)
    back = cache_manager.delayed(asking)
    return schedule([cache_manager.demand(s, tight) for s in asking if s.id not in back], budget)


def _admissible(waiting: list[Sequence], running: Seq[Sequence], budget: Budget) -> list[Sequence]:
    """Return the waiting sequences that could be admitted.

    If no more can run, these are the sequences with a higher priority than one that runs. The
    search for cached prefixes of the others would be wasted.
    """
    if not running or (len(running) < budget.sequences and budget.slots > 0):
        return waiting
    least = min(s.request.priority for s in running)
    return [s for s in waiting if s.request.priority > least]
