"""Drafts from a second, smaller model of the same vocabulary.

The draft model has a cache of its own. It runs the text of a sequence in chunks, then the tokens
that it drafts one at a time:

    text          t0 t1 t2 t3 t4
    first step    t0 t1 t2 t3 t4 -> d5
    second step                     d5 -> d6
    text then     t0 t1 t2 t3 t4    d5    x6        d6 was rejected
    first step                            x6 -> d7

Rejected tokens need no cleaning up: the sequence is rolled back to the position after the last
token that is part of the text. What this model computes changes acceptance and never an answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import field

import numpy as np

from zinc.backends.api import Program
from zinc.backends.plans import Plan
from zinc.core.dataclass import dataclass
from zinc.core.errors import MemoryLimitError
from zinc.engine.batch import make_draft_step
from zinc.engine.sequence import Sequence
from zinc.engine.speculative.chain_policy import ChainPolicy
from zinc.engine.speculative.chains import Chain, Choose, draw_chains, most_likely
from zinc.engine.speculative.draft import Draft
from zinc.engine.speculative.step_times import StepTimes
from zinc.engine.speculative.tracker import Source
from zinc.engine.step_in_flight import common_length
from zinc.kv import Allocation, CachePool, key_of
from zinc.ops.values import FloatArray

# Acceptance by depth before it is measured; models of one family reach 0.6 to 0.9.
_RATES = (0.65,) * 8

# Most tokens that the first step of a draft prefills. A text with more unread tokens gets no draft
# until `read` has run them.
MOST_BEHIND = 16


@dataclass(slots=True, eq=False)
class _Text:
    """The part of a sequence that the draft model has run.

    ids: the tokens that have run. The first `n_known` are tokens of the sequence; drafted tokens
    may follow. n_shifted: `Sequence.n_shifted` when the text began. extended: the text is longer
    than the plain context of the draft model.
    """

    sequence: Sequence
    allocation: Allocation
    n_shifted: int
    extended: bool
    ids: list[int] = field(default_factory=list)
    n_known: int = 0

    @property
    def behind(self) -> int:
        """Tokens of the sequence to run before the next one can be drafted."""
        return len(self.sequence.ids) - len(self.ids)

    def common(self) -> int:
        """Return how many leading tokens of `ids` equal those of the sequence."""
        known = self.n_known
        return known + common_length(self.sequence.ids[known:], self.ids[known:])

    def roll_back(self, n_tokens: int) -> None:
        """Forget the tokens after the first `n_tokens`, which are those of the sequence."""
        del self.ids[n_tokens:]
        self.n_known = n_tokens


class ModelDrafter:
    """Drafter of all sequences of a model with a draft model.

    programs: programs of the draft model: for sequences up to its `plain_context`, and optionally
    for longer ones, up to `context` tokens. pool: their cache. rollback: rows by which its
    recurrent states can be rolled back, if it has any. n_vocab: vocabulary size of the target
    model. A sequence for which the cache has no room gets no drafts until another one ends.
    """

    def __init__(
        self,
        programs: Seq[Program],
        pool: CachePool,
        context: int,
        plain_context: int,
        n_vocab: int,
        rollback: int,
    ) -> None:
        self._programs, self.pool = programs, pool
        self._context = context
        self._plain_context = plain_context if len(programs) > 1 else context
        self._n_vocab, self._own_vocab = n_vocab, programs[0].plan.output.cols
        self._rollback = rollback
        self._texts: dict[int, _Text] = {}
        self._refused: set[int] = set()

    @property
    def plan(self) -> Plan:
        """The plan of the draft model for sequences up to its plain context."""
        return self._programs[0].plan

    def unread(self, s: Sequence) -> int:
        """Return how many tokens of a sequence `read` has to run before it gets drafts."""
        text = self._text(s)
        return 0 if text is None else max(0, text.behind - MOST_BEHIND)

    def read(self, running: Iterable[Sequence]) -> int:
        """Run a step of the text of sequences that is not read. Returns its number of tokens."""
        parts: dict[_Text, int] = {}
        left = self.plan.max_tokens
        for text in sorted(self._found(running), key=lambda text: text.behind):
            n = min(left, text.behind - 1, self._to_checkpoint(text))
            if text.behind > MOST_BEHIND and n > 0 and self._grow(text, len(text.ids) + n):
                parts[text] = n
                left -= n
        for extended in (False, True):
            texts = [text for text in parts if text.extended is extended]
            if texts:
                ids = [t.sequence.ids[len(t.ids) : len(t.ids) + parts[t]] for t in texts]
                self._step(texts, ids, outputs=False)
        for text in parts:
            text.n_known = len(text.ids)
            if text.n_known == text.sequence.n_prompt and not text.n_shifted:
                self.pool.checkpoint(text.allocation, key_of(text.ids))
        return sum(parts.values())

    def draft(
        self,
        running: Iterable[Sequence],
        most: Mapping[int, int],
        choose: Choose = most_likely,
        least: float = 0.0,
    ) -> dict[int, Draft]:
        """Return drafts of the tokens that follow the last token of each sequence, by id.

        most: the most tokens of each draft. least: a draft ends after the first token whose joint
        probability with the tokens before it is lower. Sequences with unread text get no draft.
        """
        able: dict[_Text, int] = {}
        left = self.plan.max_tokens
        for text in self._found(running):
            n_tokens = len(text.sequence.ids)
            room = min(most.get(text.sequence.id, 0), self._context - n_tokens + 1)
            fits = text.behind <= min(MOST_BEHIND, left) and room > 0
            if fits and self._grow(text, n_tokens + room - 1):
                able[text] = room
                left -= text.behind
        drafts: dict[int, Draft] = {}
        for extended in (False, True):
            rooms = {text: room for text, room in able.items() if text.extended is extended}
            if rooms:
                drafts |= self._draw(rooms, choose, least)
        return drafts

    def ended(self, s: Sequence) -> None:
        """Forget a sequence, whose text stays in the prefix cache."""
        self._refused.discard(s.id)
        if s.id in self._texts:
            self._release(self._texts[s.id])
            self._refused.clear()

    # -- texts in the cache -----------------------------------------------------------------------

    def _found(self, running: Iterable[Sequence]) -> list[_Text]:
        return [text for text in map(self._text, running) if text is not None]

    def _text(self, s: Sequence) -> _Text | None:
        """Return the text of a sequence, rolled back to the tokens that both have in common.

        None if the sequence is too long, or there is no memory for it.
        """
        extended = len(s.ids) > self._plain_context
        text = self._texts.get(s.id)
        if text is not None:
            n_common = min(text.common(), len(s.ids) - 1)
            is_same = text.n_shifted == s.n_shifted and text.extended == extended
            if is_same and self._can_continue(text, n_common) and len(s.ids) <= self._context:
                text.roll_back(n_common)
                self.pool.trim(text.allocation, n_common)
                return text
            self._release(text, keep=is_same)
        return self._attach(s, extended) if len(s.ids) <= self._context else None

    def _can_continue(self, text: _Text, n_tokens: int) -> bool:
        """Return whether a text can continue after its first `n_tokens` tokens."""
        return not self._rollback or len(text.ids) - n_tokens <= self._rollback

    def _attach(self, s: Sequence, extended: bool) -> _Text | None:
        """Begin the text of a sequence with its longest cached prefix; None without memory."""
        if s.id in self._refused:
            return None
        needed = zip(self.pool.max_blocks(len(s.ids)), self.pool.available, strict=True)
        if any(n > available for n, available in needed) or not self.pool.available_slots:
            if self._drop_idle():
                return self._attach(s, extended)
            self._refused.add(s.id)
            return None
        namespace = s.request.namespace
        namespace = b"extended:" + namespace if extended else namespace
        allocation, n_cached = self.pool.attach(key_of(s.ids), len(s.ids) - 1, namespace)
        text = _Text(s, allocation, s.n_shifted, extended, s.ids[:n_cached], n_cached)
        self._texts[s.id] = text
        return text

    def _grow(self, text: _Text, n_tokens: int) -> bool:
        """Give a text blocks for `n_tokens` positions. Returns False if there are too few."""
        try:
            self.pool.grow(text.allocation, n_tokens)
        except MemoryLimitError:
            if self._drop_idle(text):
                return self._grow(text, n_tokens)
            self._release(text)
            self._refused.add(text.sequence.id)
            return False
        return True

    def _drop_idle(self, but: _Text | None = None) -> bool:
        """Release a text whose sequence waits. Returns False if there is none."""
        for text in self._texts.values():
            if text is not but and not text.sequence.is_running:
                self._release(text)
                return True
        return False

    def _release(self, text: _Text, keep: bool = True) -> None:
        """Give back the memory of a text. keep: leave it in the prefix cache."""
        del self._texts[text.sequence.id]
        n_kept = text.common() if keep and text.n_shifted == text.sequence.n_shifted else 0
        n_kept = n_kept if self._can_continue(text, n_kept) else 0
        self.pool.release(text.allocation, key_of(text.ids[:n_kept]))

    def _to_checkpoint(self, text: _Text) -> int:
        """Return how many tokens may be read at once: up to the end of the prompt."""
        left = text.sequence.n_prompt - len(text.ids)
        return left if left > 0 else self.plan.max_tokens

    # -- running ----------------------------------------------------------------------------------

    def _draw(self, rooms: Mapping[_Text, int], choose: Choose, least: float) -> dict[int, Draft]:
        """Return drafts of at most `rooms[text]` tokens. The texts are all extended, or none is."""
        texts = list(rooms)
        logits = self._step(texts, [t.sequence.ids[len(t.ids) :] for t in texts], outputs=True)
        for text in texts:
            text.n_known = len(text.ids)
        of = {text.sequence: text for text in texts}

        def advance(going: Seq[Sequence], rows: Seq[int], n: int, tokens: Seq[int]) -> FloatArray:
            return self._step([of[s] for s in going], [[token] for token in tokens], outputs=True)

        lengths = {text.sequence: room for text, room in rooms.items()}
        return draw_chains(list(of), lengths, logits, advance, choose, least)

    def _step(self, texts: Seq[_Text], parts: Seq[Seq[int]], *, outputs: bool) -> FloatArray:
        """Run the next tokens of each text; return the logits of the last ones.

        They are float32 [texts, vocab], or no rows without `outputs`.
        """
        program = self._programs[-1 if texts[0].extended else 0]
        # Tokens beyond a smaller vocabulary are padding; any other token stands for them.
        ids = [[token if token < self._own_vocab else 0 for token in part] for part in parts]
        firsts = [len(text.ids) for text in texts]
        allocations = [text.allocation for text in texts]
        step = make_draft_step(allocations, firsts, ids, len(self.pool.groups), outputs=outputs)
        try:
            logits = program.step(step)
        except BaseException:  # it is unknown which part has run
            for text in texts:
                self._release(text, keep=False)
            raise
        for text, part in zip(texts, parts, strict=True):
            text.ids += part
        return self._of_vocabulary(logits)

    def _of_vocabulary(self, logits: FloatArray) -> FloatArray:
        """Return logits of the model's vocabulary, whose padding may differ in length."""
        if self._own_vocab >= self._n_vocab:
            return logits[:, : self._n_vocab]
        missing = ((0, 0), (0, self._n_vocab - self._own_vocab))
        return np.pad(logits, missing, constant_values=-np.inf)


class ModelChain(Chain):
    """Chains of a draft model, which reads the text of a sequence when that is likely to pay.

    times: of the steps of the model whose tokens it drafts. step_ratio, read_ratio: estimated times
    of a step of the draft model, and of reading a token, in steps of that model.
    """

    def __init__(
        self, drafter: ModelDrafter, times: StepTimes, step_ratio: float, read_ratio: float
    ) -> None:
        super().__init__(Source.MODEL, drafter, ChainPolicy(times, _RATES, step_ratio, read_ratio))
        self._model = drafter

    def _ready(self, wanting: Seq[Sequence]) -> Seq[Sequence]:
        unread = {s: self._model.unread(s) for s in wanting}
        due = [s for s, n in unread.items() if self.policy.repays(s.n_generated, n)]
        if any(unread[s] for s in due):
            begun = time.perf_counter()
            n_tokens = self._model.read(due)
            seconds = self.policy.has_read(n_tokens, time.perf_counter() - begun)
            # The answer is read because the sequence gets drafts, a prompt because it repays.
            if all(unread[s] <= s.n_generated for s in due):
                self._charge(due, seconds)
        return [s for s in due if not self._model.unread(s)]
