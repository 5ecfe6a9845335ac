"""Chains: drafts of which each token is predicted from the one before.

A model's NextN block and a draft model make them. Both take time for each token, unlike drafts from
repeated text, and read the text of a sequence first.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from typing import Protocol, TypeAlias, TypeVar

import numpy as np

from zinc.engine.sequence import Sequence
from zinc.engine.speculative.chain_policy import LEAST_PROBABILITY, ChainPolicy
from zinc.engine.speculative.draft import Draft
from zinc.engine.speculative.tracker import Source
from zinc.ops.values import FloatArray

# choose(sequence, depth, logits): the token to draft and the probability that it is accepted.
# depth: drafted tokens before it. logits: float32 [vocab], valid during the call only.
Choose: TypeAlias = Callable[[Sequence, int, FloatArray], tuple[int, float]]
# advance(sequences, rows, depth, tokens): run the token that was drafted last for each sequence,
# and return the logits that follow it, float32 [sequences, vocab]. rows: of the sequences in the
# logits before. depth: tokens drafted for each.
Advance: TypeAlias = Callable[[Seq[Sequence], Seq[int], int, Seq[int]], FloatArray]

T = TypeVar("T")

log = logging.getLogger("zinc.engine")


def most_likely(s: Sequence, depth: int, logits: FloatArray) -> tuple[int, float]:
    """Return the most likely token and its probability."""
    token = int(logits.argmax())
    return token, _probability(logits, token)


def guess(s: Sequence, depth: int, logits: FloatArray) -> tuple[int, float]:
    """Return the token that the sampler of a sequence draws from a drafter's `logits`.

    It is drawn with the noise of its position in the answer, `depth` after the next token.
    """
    token = s.sampler.guess(logits, depth)
    return token, _probability(logits, token)


def _probability(logits: FloatArray, token: int) -> float:
    return float(1 / np.exp(logits - logits[token]).sum())


def draw_chains(
    sequences: Seq[Sequence],
    rooms: Mapping[Sequence, int],
    logits: FloatArray,
    advance: Advance,
    choose: Choose,
    least: float,
) -> dict[int, Draft]:
    """Return a chain for each sequence, by id.

    rooms: the most tokens of each chain. logits: those after the text of each sequence, float32
    [sequences, vocab]. least: a chain ends after the first token whose joint probability with the
    tokens before it is lower.
    """
    drafts = {s.id: Draft() for s in sequences}
    depth = 0
    while True:
        for s, row in zip(sequences, logits, strict=True):
            token, probability = choose(s, depth, row)
            drafts[s.id].tokens.append(token)
            drafts[s.id].probabilities.append(probability)
        depth += 1
        going = [
            i
            for i, s in enumerate(sequences)
            if depth < rooms[s] and math.prod(drafts[s.id].probabilities) >= least
        ]
        if not going:
            return drafts
        sequences = [sequences[i] for i in going]
        logits = advance(sequences, going, depth, [drafts[s.id].tokens[-1] for s in sequences])


class ChainDrafter(Protocol):
    """A drafter that makes chains."""

    def draft(
        self,
        running: Iterable[Sequence],
        most: Mapping[int, int],
        choose: Choose = ...,
        least: float = ...,
    ) -> dict[int, Draft]:
        """Return drafts by id, of at most `most[id]` tokens; see `draw_chains`.

        Sequences whose text the drafter has not read get none.
        """
        ...

    def ended(self, s: Sequence) -> None:
        """Forget a sequence."""
        ...


class Chain:
    """A drafter of chains in an engine. A drafter that fails is not used again.

    policy: decides which sequences get chains, and how long these are.
    """

    def __init__(self, source: Source, drafter: ChainDrafter, policy: ChainPolicy) -> None:
        self.source, self.policy = source, policy
        self._drafter = drafter
        self._has_failed = False

    def uses(self, s: Sequence) -> bool:
        """Return whether a sequence gets chains; decided once."""
        if self._has_failed:
            return False
        uses = s.drafts.uses
        if self.source not in uses:
            uses[self.source] = s.request.params.speculate and self.policy.wants()
        return uses[self.source]

    def is_likely(self, streams: Seq[Sequence]) -> bool:
        """Return whether the next step of `streams` is likely to have a chain."""
        n = len(streams)
        return any(map(self.uses, streams)) and (self.policy.pays(n, n) or self.policy.is_due)

    def draft(self, wanting: Seq[Sequence], most: Mapping[int, int]) -> dict[int, Draft]:
        """Return drafts of sequences by id, of at most `most[id]` tokens."""

        def draw() -> dict[int, Draft]:
            ready = self._ready(wanting)
            return self._draw(ready, most) if ready else {}

        return self.attempt(draw, {})

    def attempt(self, work: Callable[[], T], otherwise: T) -> T:
        """Return the result of `work`, which runs the drafter.

        If the drafter fails or has failed before, return `otherwise`: answers do not need drafts.
        """
        if self._has_failed:
            return otherwise
        try:
            return work()
        except Exception:
            log.exception("drafts of the source %s are off after an error", self.source)
            self._has_failed = True
            return otherwise

    def ended(self, s: Sequence) -> None:
        """Forget a sequence."""
        self._drafter.ended(s)

    def _ready(self, wanting: Seq[Sequence]) -> Seq[Sequence]:
        """Return the sequences whose text the drafter has read."""
        return wanting

    def _draw(self, ready: Seq[Sequence], most: Mapping[int, int]) -> dict[int, Draft]:
        begun = time.perf_counter()
        drafts = self._drafter.draft(ready, most, choose=guess, least=LEAST_PROBABILITY)
        seconds = time.perf_counter() - begun
        n_steps = max((len(draft.tokens) for draft in drafts.values()), default=0)
        self._charge(ready, self.policy.took(seconds, n_steps))
        return drafts

    def _charge(self, sequences: Seq[Sequence], seconds: float) -> None:
        """Count `seconds` as time that the drafts of `sequences` must save."""
        for s in sequences:
            s.drafts.record.saved_s -= seconds / len(sequences)
