"""Drafts from the NextN blocks of a model (`zinc.models.parts.nextn`).

The first block has keys and values of its own in the blocks of the sequence. Its row at position p
reads token p and the model's hidden row of position p - 1, and predicts token p + 1:

    position      0    1    2    3    4    5
    token        t0   t1   t2   t3   d4   d5        t3 is sampled and has not run in the model
    hidden row    0   h0   h1   h2   g3   g4        g: the block's own rows
    prediction                  d4   d5   d6

The model's hidden rows replace the block's own when the model has verified the draft. Rows that the
block never saw, or saw with another hidden row, cost acceptance and never change an answer.

If a model has several blocks, each drafts one token: block d runs up to the d-th drafted token, and
runs the rows of drafted tokens again when the model has verified these. Its rows wait until a draft
is long enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq

import numpy as np

from zinc.backends.api import CacheLayout, Program
from zinc.backends.plans import Plan
from zinc.core.dataclass import dataclass
from zinc.engine.batch import make_draft_step
from zinc.engine.sequence import Sequence
from zinc.engine.speculative.chain_policy import ChainPolicy
from zinc.engine.speculative.chains import Chain, Choose, draw_chains, most_likely
from zinc.engine.speculative.draft import Draft
from zinc.engine.speculative.step_times import StepTimes
from zinc.engine.speculative.tracker import Source
from zinc.models.parts.spec import NextNInput
from zinc.ops.registry import OPS
from zinc.ops.values import Dim, FloatArray


def hidden_rows(program: Program, counts: Seq[int]) -> list[FloatArray]:
    """Return the model's hidden rows of its last step, for sequences of `counts` tokens in turn.

    program: of a plan with `hidden`. Each part is float32 [tokens, hidden].
    """
    assert program.plan.hidden is not None
    rows = program.read(program.plan.hidden, sum(counts))
    return np.split(rows, np.cumsum(counts)[:-1])


# Initial estimate of the acceptance at each depth. It is cautious: trained blocks reach 0.6 to 0.9.
# Four tokens are enough: each step on the block's own hidden rows lowers acceptance, and longer
# chains never paid in published measurements.
_RATES = (0.7, 0.65, 0.6, 0.55)
# Initial estimate of the time of a draft step, as a multiple of a step of the model.
_STEP_RATIO = 0.2

# Most positions by which a NextN block may lag behind its sequence. Running many rows at once is
# cheap, and this many positions before a sliding window keep their cache blocks
# (`zinc.kv.pool.SLACK_BLOCKS`).
MOST_WAITING = 128
_NO_ROWS = np.empty((0, 0), np.float32)


@dataclass(slots=True)
class _Progress:
    """The part of a sequence that a block has read.

    n_run: positions that have run. rows: the hidden rows that the next positions read, each float32
    [hidden].
    """

    n_run: int
    rows: list[FloatArray]

    @property
    def end(self) -> int:
        """The position after the last one whose hidden row is known."""
        return self.n_run + len(self.rows)


class _Block:
    """A NextN block with its programs, and what it has read of each sequence, by id."""

    def __init__(self, depth: int, programs: Seq[Program], block_tokens: int) -> None:
        self.depth, self.programs = depth, programs
        self.progress: dict[int, _Progress] = {}
        self._block_tokens = block_tokens

    def pending(self, s: Sequence) -> int:
        """Return how many rows of a sequence can run, not counting its last token.

        The next position of a prompt that is run in parts may have no cache block yet.
        """
        known = self.progress.get(s.id)
        if known is None:
            return 0
        n_positions = min(len(s.ids) - 1, _n_positions(s, self._block_tokens))
        return max(0, min(len(known.rows), n_positions - known.n_run))


@dataclass(slots=True)
class _DraftSteps:
    """Steps of a drafter after the first one of a draft.

    drafted: the tokens that have been drafted. hidden: the hidden rows of the last step.
    """

    drafter: NextNDrafter
    drafted: dict[Sequence, list[int]]
    hidden: list[FloatArray]

    def advance(self, going: Seq[Sequence], rows: Seq[int], n: int, tokens: Seq[int]) -> FloatArray:
        """Run the token drafted last for each sequence; return the logits. See `Advance`."""
        for s, token in zip(going, tokens, strict=True):
            self.drafted[s].append(token)
        before = [self.hidden[i] for i in rows]
        logits, self.hidden = self.drafter.advance(going, n, self.drafted, before)
        return logits


class NextNDrafter:
    """Drafter of all sequences of a model with its NextN blocks.

    programs: the programs of each block in turn, for sequences up to the plain context and, if
    there are any, for longer ones. They share the model's cache, which has `layout`. reads: what
    the blocks read for further tokens. tokens: the token id of each of their logits; () if they
    have logits for all `n_vocab` tokens. The sequences of one call are all extended, or none is.
    """

    def __init__(
        self,
        programs: Seq[Seq[Program]],
        layout: CacheLayout,
        n_vocab: int,
        reads: NextNInput = NextNInput.OWN,
        tokens: tuple[int, ...] = (),
    ) -> None:
        self._n_vocab, self._tokens = n_vocab, np.array(tokens, np.int32)
        self.programs, self._reads = programs, reads
        self._n_groups, self._block_tokens = len(layout.n_blocks), layout.block_tokens
        self.blocks = [
            _Block(i, each, layout.block_tokens)
            for i, each in enumerate(zip(*programs, strict=True))
        ]
        self._most_tokens = programs[0][0].plan.max_tokens

    @property
    def most_drafted(self) -> int | None:
        """The most tokens of a draft; None if the blocks do not bound it."""
        return None if self._reads is NextNInput.OWN else len(self.blocks)

    def took(self, s: Sequence, first: int, rows: FloatArray) -> None:
        """Take the model's hidden rows of accepted tokens of a sequence, starting at `first`.

        rows: float32 [tokens, hidden], which the drafter keeps. If the rows before are not known,
        such as those of a cached prefix, the blocks see zeros in place of them. Rows run when
        a block is `MOST_WAITING` positions behind, and otherwise with the next draft.
        """
        known = self.blocks[0].progress.get(s.id)
        if known is None or known.end != first + 1:
            nothing = np.zeros(rows.shape[1], np.float32)
            for block in self.blocks:
                n = 1 + block.depth if self._reads is NextNInput.MODEL else 1
                block.progress[s.id] = _Progress(first, [nothing] * n)
        for block in self.blocks if self._reads is NextNInput.MODEL else self.blocks[:1]:
            block.progress[s.id].rows.extend(rows)
        oldest = min(block.progress[s.id].n_run for block in self.blocks)
        if first + len(rows) - oldest >= MOST_WAITING:
            self.catch_up([s])

    def ended(self, s: Sequence) -> None:
        """Forget a sequence."""
        for block in self.blocks:
            block.progress.pop(s.id, None)

    def behind(self, s: Sequence) -> int:
        """Return how many rows of a sequence `catch_up` would run in the first block."""
        return self.blocks[0].pending(s)

    def catch_up(self, running: Iterable[Sequence]) -> None:
        """Run all rows whose hidden rows are known, except the last, which the draft runs."""
        running = list(running)
        for block in self.blocks:
            self._catch_up(block, running)

    def draft(
        self,
        running: Iterable[Sequence],
        most: Mapping[int, int],
        choose: Choose = most_likely,
        least: float = 0.0,
    ) -> dict[int, Draft]:
        """Return drafts of the tokens that follow the last token of each sequence, by id.

        most: the most tokens of each draft, which also ends where the blocks of the sequence end.
        least: a draft ends after the first token whose joint probability with the tokens before it
        is lower. Sequences whose hidden rows are not known up to their last token get no draft.
        """
        rooms = {s: self._room(s, most.get(s.id, 0)) for s in running}
        able = [s for s, room in rooms.items() if room > 0]
        if not able:
            return {}
        logits, hidden = self._first(able)
        steps = _DraftSteps(self, {s: [] for s in able}, hidden)
        return draw_chains(able, rooms, logits, steps.advance, choose, least)

    def advance(
        self,
        going: Seq[Sequence],
        n: int,
        drafted: Mapping[Sequence, Seq[int]],
        before: Seq[FloatArray],
    ) -> tuple[FloatArray, list[FloatArray]]:
        """Run the block that drafts token `n` of each sequence, up to the last `drafted` token.

        before: the hidden rows that it reads, of the step before. Returns logits and hidden rows as
        `_step` does.
        """
        if self._reads is NextNInput.OWN:
            return self._repeat(going, n, [drafted[s][-1] for s in going], before)
        return self._next(self.blocks[n], going, drafted, before)

    def _room(self, s: Sequence, most: int) -> int:
        """Return how many tokens can be drafted for a sequence, at most `most`."""
        known = self.blocks[0].progress.get(s.id)
        if known is None or known.end != len(s.ids) or not known.rows:
            return 0
        if self._reads is not NextNInput.OWN:
            most = min(most, len(self.blocks))
        return min(most, _n_positions(s, self._block_tokens) - len(s.ids) + 1)

    def _catch_up(self, block: _Block, running: Seq[Sequence]) -> None:
        """Run all rows of one block whose hidden rows are known, except the last."""
        pending = {s: block.pending(s) for s in running}
        while any(pending.values()):
            counts, room = {}, self._most_tokens
            for s, n in pending.items():
                if take := min(n, room):
                    counts[s] = take
                    room -= take
            self._run(block, counts, outputs=False)
            pending = {s: n - counts.get(s, 0) for s, n in pending.items()}

    def _first(self, running: Seq[Sequence]) -> tuple[FloatArray, list[FloatArray]]:
        """Run the first block up to the last token of each sequence; see `_step`."""
        block = self.blocks[0]
        counts = {s: len(block.progress[s.id].rows) for s in running}
        if sum(counts.values()) > self._most_tokens:
            self._catch_up(block, running)
            counts = dict.fromkeys(running, 1)
        return self._run(block, counts, outputs=True)

    def _repeat(
        self, going: Seq[Sequence], n: int, tokens: Seq[int], before: Seq[FloatArray]
    ) -> tuple[FloatArray, list[FloatArray]]:
        """Run the first block on the `n`th drafted tokens and its rows before them; see `_step`."""
        firsts = [len(s.ids) - 1 + n for s in going]
        rows = [each[-1:] for each in before]
        return self._step(self.blocks[0], going, firsts, [[t] for t in tokens], rows, outputs=True)

    def _next(
        self,
        block: _Block,
        going: Seq[Sequence],
        drafted: Mapping[Sequence, Seq[int]],
        before: Seq[FloatArray],
    ) -> tuple[FloatArray, list[FloatArray]]:
        """Run another block up to the last of the `drafted` tokens; see `_step`.

        before: the rows of the block before that this one reads last, [tokens, hidden].
        """
        n_rows = sum(block.progress[s.id].end - block.progress[s.id].n_run for s in going)
        if n_rows + len(going) * block.depth > self._most_tokens:
            self._catch_up(block, going)
        known = [block.progress[s.id] for s in going]
        firsts = [each.n_run for each in known]
        texts = [[*s.ids, *drafted[s]] for s in going]
        parts = [ids[each.n_run :] for ids, each in zip(texts, known, strict=True)]
        rows = []
        for each, part, more in zip(known, parts, before, strict=True):
            n_lacking = len(part) - len(each.rows)
            rows.append(np.stack([*each.rows, *more[len(more) - n_lacking :]]))
        logits, hidden = self._step(block, going, firsts, parts, rows, outputs=True)
        for s, part, own in zip(going, parts, hidden, strict=True):
            self._ran(block, s, len(part) - block.depth, own)
        return logits, hidden

    def _run(
        self, block: _Block, counts: Mapping[Sequence, int], *, outputs: bool
    ) -> tuple[FloatArray, list[FloatArray]]:
        """Run the next `counts[s]` rows of each sequence; see `_step`."""
        known = [block.progress[s.id] for s in counts]
        firsts = [each.n_run for each in known]
        parts = [s.ids[at : at + n] for (s, n), at in zip(counts.items(), firsts, strict=True)]
        rows = [np.stack(each.rows[:n]) for each, n in zip(known, counts.values(), strict=True)]
        logits, hidden = self._step(block, list(counts), firsts, parts, rows, outputs=outputs)
        for (s, n), own in zip(counts.items(), hidden, strict=True):
            self._ran(block, s, n, own)
        return logits, hidden

    def _ran(self, block: _Block, s: Sequence, n: int, own: FloatArray) -> None:
        """Record that `n` more rows of a sequence, which were not drafted, have run.

        own: the block's hidden rows, if another block reads them.
        """
        known = block.progress[s.id]
        known.n_run += n
        del known.rows[:n]
        if self._reads is NextNInput.PREVIOUS and block.depth + 1 < len(self.blocks):
            self.blocks[block.depth + 1].progress[s.id].rows.extend(own[:n])

    def _step(
        self,
        block: _Block,
        running: Seq[Sequence],
        firsts: Seq[int],
        parts: Seq[Seq[int]],
        rows: Seq[FloatArray],
        *,
        outputs: bool,
    ) -> tuple[FloatArray, list[FloatArray]]:
        """Run tokens `parts[i]` of sequence i starting at position `firsts[i]`.

        rows: the hidden row that each token reads, [tokens, hidden]. Returns the logits of the last
        token of each sequence, or none, and the block's own hidden rows: for each sequence those of
        all tokens if another block reads them, else that of the last token, if the block makes any.
        """
        program = block.programs[-1 if running[0].extended else 0]
        allocations = [s.cache.allocation for s in running if s.cache.allocation is not None]
        plan, counts = program.plan, [len(part) for part in parts]
        feeds_next = plan.hidden is not None and plan.hidden.dim is Dim.TOKENS
        step = make_draft_step(
            allocations, firsts, parts, self._n_groups, outputs=outputs or feeds_next
        )
        assert plan.given is not None
        program.write(plan.given, np.concatenate(rows))
        if not outputs and not feeds_next:
            program.run(step, 0, _n_storing(plan))
            return _NO_ROWS, [_NO_ROWS] * len(parts)
        logits = program.step(step)
        logits = self._of_vocabulary(logits) if outputs else _NO_ROWS
        if plan.hidden is None:
            return logits, [_NO_ROWS] * len(parts)
        if not feeds_next:
            return logits, np.split(program.read(plan.hidden, len(parts)), len(parts))
        return logits, np.split(program.read(plan.hidden, sum(counts)), np.cumsum(counts)[:-1])

    def _of_vocabulary(self, logits: FloatArray) -> FloatArray:
        """Return logits of all tokens, float32 [outputs, vocab]: -inf for those without a row."""
        if not len(self._tokens):
            return logits
        every = np.full((len(logits), self._n_vocab), -np.inf, np.float32)
        every[:, self._tokens] = logits
        return every


def nextn_chain(drafter: NextNDrafter, times: StepTimes) -> Chain:
    """Return the chains of a NextN block of a model whose steps take `times`."""
    rates = _RATES[: drafter.most_drafted]
    return Chain(Source.NEXTN, drafter, ChainPolicy(times, rates, _STEP_RATIO))


def _n_positions(s: Sequence, block_tokens: int) -> int:
    """Return how many positions of a sequence have cache blocks; 0 if it is not running."""
    return 0 if s.cache.allocation is None else len(s.cache.allocation.tables[0]) * block_tokens


def _n_storing(plan: Plan) -> int:
    """Return the number of launches up to the last one that stores keys and values."""
    return 1 + max(i for i, each in enumerate(plan.launches) if OPS[each.kernel].writes_state)
