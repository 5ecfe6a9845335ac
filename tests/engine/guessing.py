"""Speculation that drafts the true answer with random errors, whatever that costs."""

from __future__ import annotations

import random
from functools import cache

from fake import alone

from zinc.engine.speculative.draft import Draft
from zinc.engine.speculative.speculation import Speculation


class Guessing(Speculation):
    """Speculation that knows the answers. text: returns prompt and answer of a sequence."""

    def __init__(self, text, seed=0):
        super().__init__(lambda rows: 1.0)
        self.text, self.random = text, random.Random(seed)
        self.n_accepted = self.n_wrong = 0

    def drafts(self, streams, n_rows, most_rows, room):
        drafts = {}
        for s in streams:
            most = min(room(s), most_rows - sum(map(len, drafts.values())))
            answer = self.text(s)[len(s.ids) :][: max(0, most)]
            tokens = [t if self.random.random() < 0.9 else 5 for t in answer]
            tokens = tokens[: self.random.randrange(17)]
            if tokens and s.request.params.speculate:
                s.drafts.draft = Draft(tokens, [0.5] * len(tokens))
                s.drafts.record.rates = [0.5] * len(tokens)
                drafts[s.id] = tokens
        return drafts

    def is_likely(self, streams):
        """Return whether the next step waits for drafts; else it may be queued ahead, without any.

        The engine's own answer depends on measured times.
        """
        return self.random.random() < 0.8

    def step_done(self, flight, seconds):
        super().step_done(flight, seconds)
        for s in flight.complete:
            if s.id in flight.drafts:
                self.n_accepted += s.drafts.n_valid
                self.n_wrong += len(flight.drafts[s.id]) - s.drafts.n_valid


@cache
def _alone(kind, ids):
    return alone(kind, ids, 60)


def guessing_fake(kind):
    """Return speculation for the fake model of `kind`."""
    return Guessing(lambda s: _alone(kind, tuple(s.request.ids)))
