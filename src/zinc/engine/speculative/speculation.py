"""Speculation for the sequences of one engine: who drafts, how much, and what it was worth."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

from zinc.engine.flight import Flight
from zinc.engine.sequence import Sequence
from zinc.engine.speculative.answer_store import AnswerStore
from zinc.engine.speculative.draft import NO_DRAFT, Draft
from zinc.engine.speculative.policy import LEAST_GAIN, Acceptance, Offer, lengths
from zinc.engine.speculative.step_times import StepTimes
from zinc.engine.speculative.suffix import SuffixDrafter

# A recurrent state can be set back by this many rows. Longer drafts rarely pay.
MOST_ROWS = 16
# A longer draft is made than verified, so that its end is known to be worthless.
_LEAST_EXPECTED = 0.5


class Speculation:
    """Speculation of one engine.

    estimate: the time of a step by its number of rows, before it was measured. Rates of acceptance
    and times of steps are carried from one request to the next; drafts are made from the request's
    own text, and from past answers with the same namespace.
    """

    def __init__(self, estimate: Callable[[int], float]) -> None:
        self.times = StepTimes(estimate)
        self.acceptance = Acceptance()
        self.store = AnswerStore()

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
        asking = [s for s in streams if s.request.params.speculate and room(s) > 0]
        if not asking or most_rows < 1 or not self._can_pay(len(streams), n_rows):
            return {}
        offers = [
            Offer(self._draft(s, min(room(s), most_rows)), s.drafts.record, s.n_generated)
            for s in asking
        ]
        chosen = lengths(offers, len(streams), n_rows, most_rows, self.times, self.acceptance)
        drafts: dict[int, list[int]] = {}
        for s, offer, n in zip(asking, offers, chosen, strict=True):
            tokens, probabilities = offer.draft.tokens[:n], offer.draft.probabilities[:n]
            s.drafts.draft = Draft(tokens, probabilities) if n else NO_DRAFT
            if n:
                drafts[s.id] = tokens
        return drafts

    def is_likely(self, streams: Seq[Sequence]) -> bool:
        """Return whether a draft is likely for one of `streams`, before its next token is known."""
        return any(
            s.request.params.speculate
            and sum(self._draft(s, MOST_ROWS).probabilities) >= _LEAST_EXPECTED
            for s in streams
        )

    def landed(self, flight: Flight, seconds: float) -> None:
        """Record a step that took `seconds`, if it had streams only."""
        if len(flight.complete) < len(flight.running) or max(flight.counts) > MOST_ROWS:
            return
        n_plain = sum(flight.counts)
        n_drafted = sum(len(draft) for draft in flight.drafts.values())
        self.times.record(n_plain + n_drafted, seconds)
        assert self.times.unit_s is not None
        plain_s = self.times.unit_s * self.times.ratio(n_plain)
        for s in flight.complete:
            if s.id in flight.drafts:
                share = len(flight.drafts[s.id]) / n_drafted
                self._learn(s, plain_s, (seconds - plain_s) * share)

    def ended(self, s: Sequence) -> None:
        """Keep the answer of a sequence for the drafts of later requests."""
        if s.request.params.speculate and s.n_generated:
            self.store.add(s.namespace, s.ids[s.n_prompt :])

    def _can_pay(self, n_streams: int, n_rows: int) -> bool:
        """Return whether a token that is certain to be accepted would be worth its row."""
        gain = (n_streams + 1) / n_streams
        return gain >= LEAST_GAIN * self.times.ratio(n_rows + 1) / self.times.ratio(n_rows)

    def _draft(self, s: Sequence, most: int) -> Draft:
        """Return a draft of at most `most` tokens after the text of a sequence."""
        own = s.drafts
        if own.drafter is None or own.n_shifted != s.n_shifted:
            own.drafter = SuffixDrafter(s.ids, self.store, s.namespace)
            if s.request.prediction:
                own.drafter.add(s.request.prediction)
            own.n_seen, own.n_shifted = len(s.ids), s.n_shifted
        if len(s.ids) > own.n_seen:
            own.drafter.accept(s.ids[own.n_seen :])
            own.n_seen = len(s.ids)
        return own.drafter.draft(most)

    def _learn(self, s: Sequence, plain_s: float, extra_s: float) -> None:
        """Record the fate of a draft, which took `extra_s` beside a step of `plain_s` seconds."""
        own = s.drafts
        for i in range(min(own.n_valid + 1, own.n_compared)):
            accepted = i < own.n_valid
            self.acceptance.record(own.draft.probabilities[i], accepted)
            own.record.reached(own.record.probabilities[i], accepted)
        own.record.saved_s += own.n_valid * plain_s - extra_s
        own.record.last_draft = s.n_generated
        own.record.guard(s.n_generated)
