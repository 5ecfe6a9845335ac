"""Drafts that fit a step: its rows, the context of each sequence, and the blocks that are free."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq

from zinc.backends.plans import Plan
from zinc.core.dataclass import dataclass
from zinc.core.errors import MemoryLimitError
from zinc.engine.admission import STREAM_TOKENS
from zinc.engine.batch import NO_DRAFTS
from zinc.engine.sequence import Sequence
from zinc.engine.speculative.speculation import Speculation
from zinc.engine.step_in_flight import StepInFlight
from zinc.kv import CachePool


@dataclass(frozen=True, slots=True)
class DraftScheduler:
    """Scheduler of drafts: asks `speculation` for as many as a step of an engine has room for.

    max_sequence_tokens: the most tokens of a sequence. plain_context: of one that is not extended.
    """

    speculation: Speculation
    pool: CachePool
    plan: Plan
    max_sequence_tokens: int
    plain_context: int

    def drafts(self, running: Seq[Sequence], counts: Mapping[int, int]) -> Mapping[int, Seq[int]]:
        """Return the drafted tokens that a step verifies, by the id of their sequence.

        counts: tokens of each sequence without drafts. The sequences have blocks for their drafts
        then. Steps with prompts verify none.
        """
        rows = [counts[s.id] for s in running]
        has_prompts = any(n != s.pending for s, n in zip(running, rows, strict=True))
        if has_prompts or max(rows) > STREAM_TOKENS:
            return NO_DRAFTS
        most = min(self.plan.max_tokens - sum(rows), self.plan.max_outputs - len(running))
        drafts = self.speculation.drafts(running, sum(rows), most, self._room)
        for s in running:
            if s.id in drafts:
                assert s.cache.allocation is not None
                try:
                    self.pool.grow(s.cache.allocation, len(s.ids) + len(drafts[s.id]))
                except MemoryLimitError:
                    del drafts[s.id]
        return drafts

    def needs_tokens(self, flight: StepInFlight) -> bool:
        """Return whether the step after `flight` must wait for the tokens of `flight`.

        It must if `flight` has drafts or the next step is likely to have some. It must also wait if
        the NextN block reads the hidden rows of a prompt, which are too many to be copied.
        """
        if flight.drafts or self.speculation.is_likely(flight.complete):
            return True
        has_prompts = max(flight.counts) > STREAM_TOKENS
        return has_prompts and self.speculation.reads_rows(flight.running)

    def _room(self, s: Sequence) -> int:
        """Return the most tokens that may be drafted for a sequence.

        The answer may end with the step, and its last token never needs a row.
        """
        context = (
            self.max_sequence_tokens
            if s.extended
            else min(self.max_sequence_tokens, self.plain_context)
        )
        rows = self.speculation.most_rows - s.pending
        return min(s.max_tokens - s.n_generated - 1, context - len(s.ids), rows)
