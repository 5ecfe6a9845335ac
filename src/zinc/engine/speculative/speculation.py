"""Speculative decoding in one engine: which drafter drafts, how many tokens, and what they gain."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import partial

import numpy as np

from zinc.engine.sequence import Sequence
from zinc.engine.speculative.answer_store import AnswerStore
from zinc.engine.speculative.chains import Chain
from zinc.engine.speculative.draft import Draft, expected_tokens
from zinc.engine.speculative.draft_model import ModelChain, ModelDrafter
from zinc.engine.speculative.nextn import NextNDrafter, hidden_rows, nextn_chain
from zinc.engine.speculative.policy import (
    LEAST_GAIN,
    PROBE_TOKENS,
    Acceptance,
    Offer,
    lengths,
)
from zinc.engine.speculative.step_times import StepTimes, TypicalTime
from zinc.engine.speculative.suffix import PRIOR, SuffixDrafter
from zinc.engine.speculative.tracker import Source
from zinc.engine.step_in_flight import StepInFlight

# Most rows of a sequence in one step. Longer drafts rarely pay.
MOST_ROWS = 16
# The same if the model has recurrent layers: states that can roll back by this many rows take twice
# the memory, and those for 16 rows up to 2.25 times.
MOST_RECURRENT_ROWS = 8
# A step is not queued ahead of a draft that promises this many accepted tokens.
_LEAST_EXPECTED = 0.5
# Tokens of a match that is found quickly.
_LEAST_MATCH = 3


class Speculation:
    """Speculation of one engine.

    estimate: initial estimate of the time of a step by its number of rows. nextn: the drafter with
    the model's NextN block, if it has one. most_rows: most rows of a sequence in one step. Drafts
    from repeated text use the request's own text, and past answers in the same namespace. If
    several sources have a draft, the one with the most expected accepted tokens is used. Measured
    acceptance and times carry over from one request to the next.
    """

    def __init__(
        self,
        estimate: Callable[[int], float],
        nextn: NextNDrafter | None = None,
        most_rows: int = MOST_ROWS,
    ) -> None:
        self.most_rows = most_rows
        self.times = StepTimes(estimate)
        self.acceptance = {source: Acceptance() for source in Source}
        self.store = AnswerStore()
        self._suffix_s = TypicalTime(0.0)  # of a search
        self._n_refused = 0  # steps in which no token could pay for its row
        self.chains: dict[Source, Chain] = {}
        self._nextn = nextn
        if nextn is not None:
            self.chains[Source.NEXTN] = nextn_chain(nextn, self.times)

    def add_model(self, drafter: ModelDrafter, step_ratio: float, read_ratio: float) -> None:
        """Draft with a draft model as well.

        step_ratio, read_ratio: initial estimates of the time of its steps, and of prefilling a
        token of the text, as multiples of a step of the model.
        """
        self.chains[Source.MODEL] = ModelChain(drafter, self.times, step_ratio, read_ratio)

    def drafts(
        self,
        streams: Seq[Sequence],
        n_rows: int,
        most_rows: int,
        room: Callable[[Sequence], int],
    ) -> dict[int, list[int]]:
        """Return the drafted tokens that a step should verify, by the id of their sequence.

        streams: the sequences that gain a token in the step. n_rows: its rows without drafts.
        most_rows: rows of drafts that fit. room: returns the most drafted tokens of a sequence.
        """
        most = {s.id: min(room(s), most_rows) for s in streams if s.request.params.speculate}
        asking = [s for s in streams if most.get(s.id, 0) > 0]
        if not asking or not self._can_pay(len(streams), n_rows):
            return {}
        begun = time.perf_counter()
        found = {s.id: (Source.SUFFIX, self._suffix(s, most[s.id])) for s in asking}
        self._suffix_s.record((time.perf_counter() - begun) / len(asking))
        for chain in self.chains.values():
            self._draft(chain, asking, found, len(streams), n_rows, most)
        if not any(draft.tokens for _, draft in found.values()):
            return {}
        offers = [self._offer(s, *found[s.id]) for s in asking]
        chosen = lengths(offers, len(streams), n_rows, most_rows, self.times)
        for s, offer, n in zip(asking, offers, chosen, strict=True):
            s.drafts.source = found[s.id][0]
            s.drafts.draft = offer.draft.head(n)
        return {s.id: s.drafts.draft.tokens for s in asking if s.drafts.draft.tokens}

    def is_likely(self, streams: Seq[Sequence]) -> bool:
        """Return whether a draft is likely for one of `streams`, before its next token is known."""
        streams = [s for s in streams if s.request.params.speculate]
        return any(chain.is_likely(streams) for chain in self.chains.values()) or any(
            self._suffix(s, self.most_rows).expected >= _LEAST_EXPECTED for s in streams
        )

    def reads_rows(self, running: Seq[Sequence]) -> bool:
        """Return whether the NextN block reads the hidden rows of any of these sequences."""
        return self._nextn is not None and any(map(self.chains[Source.NEXTN].uses, running))

    def step_done(self, flight: StepInFlight, seconds: float | None) -> None:
        """Learn from a step that took `seconds`.

        seconds: None if another step was queued behind this one. Such steps overlap with work of
        the host, so their times are not comparable.
        """
        if self._nextn is not None:
            self._take_hidden(self._nextn, flight, is_followed=seconds is None)
        if seconds is None:
            for chain in self.chains.values():
                if any(map(chain.uses, flight.running)):
                    chain.policy.skipped()
            return
        if len(flight.complete) < len(flight.running) or max(flight.counts) > MOST_ROWS:
            return  # it has prompts
        n_plain = sum(flight.counts)
        n_drafted = sum(len(draft) for draft in flight.drafts.values())
        seconds = self.times.record(n_plain + n_drafted, seconds)
        assert self.times.unit_s is not None
        plain_s = self.times.unit_s * self.times.ratio(n_plain)
        for s in flight.complete:
            if s.id in flight.drafts:
                share = len(flight.drafts[s.id]) / n_drafted
                self._learn(s, plain_s, (seconds - plain_s) * share)

    def ended(self, s: Sequence) -> None:
        """Keep the answer of a sequence for the drafts of later requests.

        It still has its blocks, so that the NextN block can read the rest of the text, which a
        later prompt may begin with.
        """
        has_failed = s.finish_reason == "error"
        may_read = s.drafts.uses.get(Source.NEXTN) and s.cache.allocation is not None
        if self._nextn is not None and may_read and not has_failed:
            self.chains[Source.NEXTN].attempt(partial(self._nextn.catch_up, [s]), None)
        for chain in self.chains.values():
            chain.ended(s)
        if s.request.params.speculate and s.n_generated and not has_failed:
            self.store.add(s.namespace, s.ids[s.n_prompt :])

    def _can_pay(self, n_streams: int, n_rows: int) -> bool:
        """Return whether a drafted token would pay for its row if it were always accepted.

        If not, return True once in `PROBE_TOKENS` steps anyway, to measure the time of a row again.
        """
        gain = (n_streams + 1) / n_streams
        pays = gain >= LEAST_GAIN * self.times.ratio(n_rows + 1) / self.times.ratio(n_rows)
        self._n_refused = 0 if pays else self._n_refused + 1
        return pays or self._n_refused % PROBE_TOKENS == 0

    def _offer(self, s: Sequence, source: Source, draft: Draft) -> Offer:
        rates = self.acceptance[source].rates(draft.probabilities)
        return Offer(draft, rates, s.drafts.record, s.n_generated)

    # -- drafts from repeated text ----------------------------------------------------------------

    def _suffix(self, s: Sequence, most: int) -> Draft:
        """Return a draft of at most `most` tokens from text that repeats the end of a sequence."""
        own = s.drafts
        if own.drafter is None or own.n_shifted != s.n_shifted:
            own.drafter = SuffixDrafter(s.ids, self.store, s.namespace)
            if s.request.prediction:
                own.drafter.add(s.request.prediction)
            own.n_seen, own.n_shifted = len(s.ids), s.n_shifted
        if len(s.ids) > own.n_seen:
            own.drafter.accept(s.ids[own.n_seen :])
            own.n_seen = len(s.ids)
        return own.drafter.draft(most, self._least_match())

    def _least_match(self) -> int:
        """Return the shortest match that is worth a draft.

        Drafts from a single match of one token have the lowest acceptance. If such a token does not
        pay for its row and the search, only longer matches are searched for, which is faster.
        """
        rate = self.acceptance[Source.SUFFIX].rate(1 / (1 + PRIOR))
        searched = self._suffix_s.value / self.times.unit_s if self.times.unit_s else 0.0
        pays = 1 + rate >= LEAST_GAIN * (self.times.ratio(2) + searched)
        return 1 if pays else _LEAST_MATCH

    # -- drafts of chains -------------------------------------------------------------------------

    def _draft(
        self,
        chain: Chain,
        asking: Seq[Sequence],
        found: dict[int, tuple[Source, Draft]],
        n_streams: int,
        n_rows: int,
        most: dict[int, int],
    ) -> None:
        """Replace each draft in `found` for which a chain promises more accepted tokens."""
        depth = chain.policy.depth(n_streams, n_rows)
        promised = chain.policy.expected(depth)
        wanting = [
            s
            for s in asking
            if chain.uses(s)
            and found[s.id][1].expected < promised
            and s.n_generated >= s.drafts.record.off_until
        ]
        if not wanting:
            return
        drafts = chain.draft(wanting, {s.id: min(most[s.id], depth) for s in wanting})
        for id, draft in drafts.items():
            if self._accepted(chain.source, draft) > self._accepted(*found[id]):
                found[id] = chain.source, draft

    def _accepted(self, source: Source, draft: Draft) -> float:
        """Return the expected number of accepted tokens of a draft, by measured acceptance."""
        return expected_tokens(self.acceptance[source].rates(draft.probabilities))

    def _take_hidden(self, nextn: NextNDrafter, flight: StepInFlight, *, is_followed: bool) -> None:
        """Give the hidden rows of the tokens that are part of the text to the NextN block.

        A step that was queued behind overwrites the rows of the program, but not the copy of a
        short step.
        """
        lengths = [
            n + len(flight.drafts.get(s.id, ()))
            for s, n in zip(flight.running, flight.counts, strict=True)
        ]
        if not self.reads_rows(flight.running):
            return
        if not is_followed:
            parts = hidden_rows(flight.program, lengths)
        elif (copied := flight.result.hidden(sum(lengths))) is not None:
            parts = np.split(copied, np.cumsum(lengths)[:-1])
        else:
            return
        chain = self.chains[Source.NEXTN]
        for s, n, end, rows in zip(flight.running, flight.counts, flight.ends, parts, strict=True):
            if s.finish_reason is not None or not chain.uses(s):
                continue
            n_valid = s.drafts.n_valid if s.id in flight.drafts else 0
            chain.attempt(partial(nextn.took, s, end - n, rows[: n + n_valid].copy()), None)

    # -- learning ---------------------------------------------------------------------------------

    def _learn(self, s: Sequence, plain_s: float, extra_s: float) -> None:
        """Record which tokens of a draft were accepted, and its cost.

        plain_s: time of the step without drafts. extra_s: time that the draft added.
        """
        own = s.drafts
        for i in range(min(own.n_valid + 1, own.n_compared)):
            accepted = i < own.n_valid
            self.acceptance[own.source].record(own.draft.probabilities[i], accepted)
            own.record.reached(own.record.rates[i], accepted)
            if own.source in self.chains:
                self.chains[own.source].policy.record(i, accepted)
        own.record.saved_s += own.n_valid * plain_s - extra_s
        own.record.last_draft = s.n_generated
        own.record.guard(s.n_generated)
