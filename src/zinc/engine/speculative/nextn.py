"""Drafts from the NextN block of a model (`zinc.models.parts.nextn`).

The block has keys and values of its own in the blocks of the sequence. Its row at position p reads
token p and the model's hidden row of position p - 1, and predicts token p + 1:

    position      0    1    2    3    4    5
    token        t0   t1   t2   t3   d4   d5        t3 is sampled and has not run in the model
    hidden row    0   h0   h1   h2   g3   g4        g: the block's own rows
    prediction                  d4   d5   d6

The model's hidden rows replace the block's own when the model has verified the draft. Rows that the
block never saw, or saw with another hidden row, cost acceptance and never change an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

from zinc.backends.api import CacheLayout, Program
from zinc.backends.plans import Plan
from zinc.engine.batch import make_draft_step
from zinc.engine.sequence import Sequence
from zinc.engine.speculative.chain_policy import ChainPolicy
from zinc.engine.speculative.chains import Chain, Choose, draw_chains, most_likely
from zinc.engine.speculative.draft import Draft
from zinc.engine.speculative.step_times import StepTimes
from zinc.engine.speculative.tracker import Source
from zinc.ops.registry import OPS
from zinc.ops.values import FloatArray


def hidden_rows(program: Program, counts: Seq[int]) -> list[FloatArray]:
    """Return the model's hidden rows of its last step, for sequences of `counts` tokens in turn.

    program: of a plan with `hidden`. Each part is float32 [tokens, hidden].
    """
    assert program.plan.hidden is not None
    rows = program.read(program.plan.hidden, sum(counts))
    return np.split(rows, np.cumsum(counts)[:-1])


# Acceptance by depth before it is measured: low, since trained blocks reach 0.6 to 0.9. A longer
# chain of the block's own rows loses acceptance and never paid in published measurements.
_RATES = (0.7, 0.65, 0.6, 0.55)
# The time of a draft step in model steps before it is measured.
_STEP_RATIO = 0.2

# Most hidden rows of a sequence that wait for the block. Keys of many rows at once cost little.
MOST_WAITING = 128
_NO_ROWS = np.empty((0, 0), np.float32)


@dataclass(slots=True)
class _Progress:
    """The part of a sequence that the block has read.

    n_run: positions that have run. rows: the model's hidden rows from position n_run - 1 on, each
    float32 [hidden].
    """

    n_run: int
    rows: list[FloatArray]

    @property
    def end(self) -> int:
        """The position after that of the last hidden row."""
        return self.n_run - 1 + len(self.rows)


class NextNDrafter:
    """Drafter of all sequences of a model with its NextN block.

    programs: for sequences up to the plain context, and for longer ones if there are any, on the
    cache of the model with `layout`. tokens: the token of each of their logits; () if those are of
    all `n_vocab` tokens. The sequences of one call are all extended, or none is.
    """

    def __init__(
        self,
        programs: Seq[Program],
        layout: CacheLayout,
        n_vocab: int,
        tokens: tuple[int, ...] = (),
    ) -> None:
        self._n_vocab, self._tokens = n_vocab, np.array(tokens, np.int32)
        self.programs = programs
        self._n_groups, self._block_tokens = len(layout.n_blocks), layout.block_tokens
        self._progress: dict[int, _Progress] = {}

    def took(self, s: Sequence, first: int, rows: FloatArray) -> None:
        """Take the model's hidden rows of accepted tokens of a sequence, from `first` on.

        rows: float32 [tokens, hidden], which the drafter keeps. If the rows before are not known,
        such as those of a cached prefix, the block sees zeros in place of the last of them. Rows
        run when `MOST_WAITING` wait, and otherwise with the next draft.
        """
        known = self._progress.get(s.id)
        if known is None or known.end != first:
            nothing = np.zeros(rows.shape[1], np.float32)
            known = self._progress[s.id] = _Progress(first, [nothing])
        known.rows.extend(rows)
        if len(known.rows) > MOST_WAITING:
            self.catch_up([s])

    def ended(self, s: Sequence) -> None:
        """Forget a sequence."""
        self._progress.pop(s.id, None)

    def behind(self, s: Sequence) -> int:
        """Return how many rows of a sequence `catch_up` would run."""
        known = self._progress.get(s.id)
        if known is None or not s.is_running:
            return 0
        return max(0, min(len(known.rows), len(s.ids) - 1 - known.n_run))

    def catch_up(self, running: Iterable[Sequence]) -> None:
        """Run the rows whose hidden rows are known, but that of the last token, for the draft."""
        pending = {s: self.behind(s) for s in running}
        while any(pending.values()):
            counts, room = {}, self.programs[0].plan.max_tokens
            for s, n in pending.items():
                if take := min(n, room):
                    counts[s] = take
                    room -= take
            self._run(counts, outputs=False)
            pending = {s: n - counts.get(s, 0) for s, n in pending.items()}

    def draft(
        self,
        running: Iterable[Sequence],
        most: Mapping[int, int],
        choose: Choose = most_likely,
        least: float = 0.0,
    ) -> dict[int, Draft]:
        """Return drafts of the tokens that follow the last token of each sequence, by id.

        most: the most tokens of each draft, which also ends where the blocks of the sequence end.
        least: a draft ends with the token whose probability, times that of the tokens before it, is
        less. Sequences whose hidden rows are not known up to their last token get no draft.
        """
        rooms = {s: self._room(s, most.get(s.id, 0)) for s in running}
        able = [s for s, room in rooms.items() if room > 0]
        if not able:
            return {}
        logits, hidden = self._first_step(able)

        def advance(going: Seq[Sequence], rows: Seq[int], n: int, tokens: Seq[int]) -> FloatArray:
            nonlocal hidden
            firsts = [len(s.ids) - 1 + n for s in going]
            parts = [[token] for token in tokens]
            logits, hidden = self._step(going, firsts, parts, hidden[list(rows)], outputs=True)
            return logits

        return draw_chains(able, rooms, logits, advance, choose, least)

    def _first_step(self, running: Seq[Sequence]) -> tuple[FloatArray, FloatArray]:
        """Run all rows of the sequences whose hidden rows are known; see `_step`."""
        counts = {s: len(self._progress[s.id].rows) for s in running}
        if sum(counts.values()) > self.programs[0].plan.max_tokens:
            self.catch_up(running)
            counts = dict.fromkeys(running, 1)
        return self._run(counts, outputs=True)

    def _room(self, s: Sequence, most: int) -> int:
        """Return how many tokens can be drafted for a sequence, at most `most`."""
        known, holding = self._progress.get(s.id), s.cache.holding
        if known is None or holding is None or known.end != len(s.ids) - 1 or not known.rows:
            return 0
        return min(most, len(holding.tables[0]) * self._block_tokens - len(s.ids) + 1)

    def _run(
        self, counts: Mapping[Sequence, int], *, outputs: bool
    ) -> tuple[FloatArray, FloatArray]:
        """Run the next `counts[s]` rows of each sequence; see `_step`."""
        known = [self._progress[s.id] for s in counts]
        firsts = [each.n_run for each in known]
        parts = [s.ids[at : at + n] for (s, n), at in zip(counts.items(), firsts, strict=True)]
        rows = [row for s, n in counts.items() for row in self._progress[s.id].rows[:n]]
        result = self._step(list(counts), firsts, parts, np.stack(rows), outputs=outputs)
        for each, n in zip(known, counts.values(), strict=True):
            each.n_run += n
            del each.rows[:n]
        return result

    def _step(
        self,
        running: Seq[Sequence],
        firsts: Seq[int],
        parts: Seq[Seq[int]],
        hidden: FloatArray,
        *,
        outputs: bool,
    ) -> tuple[FloatArray, FloatArray]:
        """Run tokens `parts[i]` of sequence i from position `firsts[i]` on.

        hidden: the row of the position before each token. Returns logits and the block's own hidden
        rows of the last token of each sequence, or no rows.
        """
        program = self.programs[-1 if running[0].extended else 0]
        holdings = [s.cache.holding for s in running if s.cache.holding is not None]
        step = make_draft_step(holdings, firsts, parts, self._n_groups, outputs=outputs)
        given, own = program.plan.given, program.plan.hidden
        assert given is not None
        assert own is not None
        program.write(given, hidden)
        if not outputs:
            program.run(step, 0, _n_storing(program.plan))
            return _NO_ROWS, _NO_ROWS
        logits = program.step(step)
        return self._of_vocabulary(logits), program.read(own, len(logits))

    def _of_vocabulary(self, logits: FloatArray) -> FloatArray:
        """Return logits of all tokens, float32 [outputs, vocab]: -inf for those without a row."""
        if not len(self._tokens):
            return logits
        every = np.full((len(logits), self._n_vocab), -np.inf, np.float32)
        every[:, self._tokens] = logits
        return every


def nextn_chain(drafter: NextNDrafter, times: StepTimes) -> Chain:
    """Return the chains of a NextN block of a model whose steps take `times`."""
    return Chain(Source.NEXTN, drafter, ChainPolicy(times, _RATES, _STEP_RATIO))


def _n_storing(plan: Plan) -> int:
    """Return how many launches it takes to store keys and values, which later ones only read."""
    return 1 + max(i for i, each in enumerate(plan.launches) if OPS[each.kernel].writes_state)
