"""The scheduler: which sequences run in the next step, and how many tokens of each.

It is a pure function. Streams (sequences with one pending token) come first; while there are any,
prompts share a smaller part of the step, so a stream stalls by at most one chunk of a long prompt.
Prompt tokens are divided equally among clients; prompts of one client run first come, first served.
A sequence gets cache blocks as it grows. If none are left, the sequence of lowest priority that
came last is preempted: it loses its blocks and is resumed later. A prompt is admitted when there is
memory for all of it and for the running sequences to continue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field

from zinc.core.dataclass import dataclass
from zinc.core.rounding import ceil_div

# Sequences that run at a time, unless a plan has fewer output rows.
MAX_SEQUENCES = 64

Blocks = tuple[int, ...]  # one number for each group of layers


@dataclass(frozen=True, slots=True)
class Demand:
    """A sequence as the scheduler sees it.

    pending: tokens that are not in the cache. runnable: pending tokens that one step may run.
    n_run, n_table: tokens in the cache and entries of the block table, or what a waiting sequence
    would start with. admitted: whether it is running. Numbers of blocks in each group:

        missing_blocks   its tokens still need them.
        freeable_blocks  preempting a running sequence would free them.
        pinned_blocks    idle ones that the cached prefix of a waiting sequence would take.
    """

    id: int
    pending: int
    runnable: int
    n_run: int
    n_table: int
    missing_blocks: Blocks
    admitted: bool
    freeable_blocks: Blocks = ()
    pinned_blocks: Blocks = ()
    priority: int = 0
    client: str = ""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one step.

    tokens: of all sequences. prompt_tokens: of prompts while there are streams. sequences: running
    at a time. blocks: available in each group. slots: sequences that may still be admitted.
    """

    tokens: int
    prompt_tokens: int
    sequences: int
    blocks: Blocks
    slots: int
    block_tokens: int


@dataclass(slots=True)
class Schedule:
    """A step to run. tokens: counts by sequence id. preempted: ids that lose their blocks first."""

    tokens: dict[int, int] = field(default_factory=dict)
    preempted: list[int] = field(default_factory=list)


def schedule(demands: Iterable[Demand], budget: Budget) -> Schedule:
    """Return the schedule of one step; `demands` are in order of arrival.

    It never exceeds the budget, and runs at least one sequence if any can run.
    """
    return _Scheduler(sorted(demands, key=lambda d: -d.priority), budget).run()


class _Scheduler:
    """The state of one scheduling decision: chosen tokens, and the blocks that remain."""

    def __init__(self, order: Sequence[Demand], budget: Budget) -> None:
        self._order = order  # most important first
        self._budget = budget
        self._rank = {d.id: i for i, d in enumerate(order)}
        self._admitted = {d.id: d for d in order if d.admitted}
        self._blocks = list(budget.blocks)
        self._slots = budget.slots
        self._chosen: dict[int, int] = {}
        self._preempted: list[int] = []
        self._refused = False
        # Blocks of each group that admitted prompts still need, so that other prompts cannot be
        # admitted with them.
        self._reserved = [0] * len(budget.blocks)
        for d in self._admitted.values():
            if d.pending > 1:
                self._reserve(d.missing_blocks)

    def run(self) -> Schedule:
        """Return the schedule."""
        streams = [d for d in self._order if d.admitted and d.pending == 1]
        prompts = [d for d in self._order if d.pending > 1 or (d.pending and not d.admitted)]
        for d in streams:
            self._take(d, 1)
        left = self._tokens_left()
        if any(n for n in self._chosen.values()):
            left = min(left, self._budget.prompt_tokens)
        for priority in sorted({d.priority for d in prompts}, reverse=True):
            left -= self._share([d for d in prompts if d.priority == priority], left)
        return Schedule(self._chosen, self._preempted)

    def _share(self, prompts: Sequence[Demand], tokens: int) -> int:
        """Divide `tokens` among the clients of `prompts`; return how many were used."""
        queues: dict[str, list[Demand]] = {}
        for d in prompts:
            queues.setdefault(d.client, []).append(d)
        given = 0
        wants = {c: sum(d.runnable for d in queue) for c, queue in queues.items()}
        # The smallest demand first: the rest of its share goes to the others.
        order = sorted(queues, key=lambda c: wants[c])
        for i, client in enumerate(order):
            part = ceil_div(tokens - given, len(order) - i)
            given += self._serve(queues[client], min(part, tokens - given))
        # Tokens that a client could not use go to any prompt.
        return given + self._serve(prompts, tokens - given)

    def _serve(self, queue: Sequence[Demand], tokens: int) -> int:
        """Give up to `tokens` tokens to the prompts of a queue; return how many were used."""
        given = 0
        for d in queue:
            if given == tokens:
                break
            had = self._chosen.get(d.id, 0)
            n = min(d.runnable - had, tokens - given)
            if n > 0 and d.id not in self._preempted and self._take(d, had + n):
                given += n
        return given

    def _take(self, d: Demand, n: int) -> bool:
        """Schedule `n` tokens of a sequence in total. Return False if memory is short."""
        if d.id in self._preempted:
            return False
        if d.id in self._chosen:  # some of its tokens are chosen already
            more = self._need(d, n) - self._need(d, self._chosen[d.id])
            return self._allocate(d, n, [more] * len(self._blocks))
        if d.admitted:
            return self._allocate(d, n, [self._need(d, n)] * len(self._blocks))
        if self._refused or not self._admit(d):
            # First come, first served: a later, smaller request must not starve this one.
            self._refused = True
            return False
        self._slots -= 1
        self._admitted[d.id] = d
        self._reserve(d.missing_blocks)
        need = self._need(d, n)
        return self._allocate(d, n, [pin + need for pin in d.pinned_blocks])

    def _need(self, d: Demand, n: int) -> int:
        """Return the blocks of each group that `n` more tokens of a sequence need."""
        return max(0, ceil_div(d.n_run + n, self._budget.block_tokens) - d.n_table)

    def _allocate(self, d: Demand, n: int, cost: Sequence[int]) -> bool:
        """Schedule `n` tokens that need `cost` blocks of each group; preempt others if necessary.

        Returns False if there are not enough blocks.
        """
        while not all(c <= b for c, b in zip(cost, self._blocks, strict=True)):
            if not self._preempt_after(self._rank[d.id]):
                return False
        self._blocks = [b - c for b, c in zip(self._blocks, cost, strict=True)]
        if d.pending > 1:
            more = self._need(d, n) - self._need(d, self._chosen.get(d.id, 0))
            self._reserved = [max(0, p - more) for p in self._reserved]
        self._chosen[d.id] = n
        return True

    def _admit(self, d: Demand) -> bool:
        """Return whether a prompt can be admitted, after preempting sequences of lower priority."""
        while True:
            running = len(self._admitted)
            # Each running sequence may soon need another block.
            has_blocks = all(
                pin + lack <= blocks - reserved - running
                for pin, lack, blocks, reserved in zip(
                    d.pinned_blocks, d.missing_blocks, self._blocks, self._reserved, strict=True
                )
            )
            if has_blocks and self._slots > 0 and running < self._budget.sequences:
                return True
            if not self._preempt_after(self._rank[d.id], below=d.priority):
                return False

    def _preempt_after(self, rank: int, below: int | None = None) -> bool:
        """Preempt the least important sequence after `rank`; return False if there is none."""
        for d in reversed(self._order[rank + 1 :]):
            if d.id not in self._admitted or not d.admitted:
                continue
            if below is not None and d.priority >= below:
                return False
            del self._admitted[d.id]
            self._preempted.append(d.id)
            returned = self._need(d, self._chosen.pop(d.id)) if d.id in self._chosen else 0
            self._blocks = [
                b + f + returned for b, f in zip(self._blocks, d.freeable_blocks, strict=True)
            ]
            self._slots += 1
            if d.pending > 1:
                left = [max(0, lack - returned) for lack in d.missing_blocks]
                self._reserved = [max(0, p - x) for p, x in zip(self._reserved, left, strict=True)]
            return True
        return False

    def _reserve(self, missing_blocks: Blocks) -> None:
        """Reserve blocks for an admitted prompt."""
        self._reserved = [p + x for p, x in zip(self._reserved, missing_blocks, strict=True)]

    def _tokens_left(self) -> int:
        return self._budget.tokens - sum(self._chosen.values())
