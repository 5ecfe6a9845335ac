"""Sequences that run on a loaded model and its NextN block, step by step, without the engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from zinc.backends.api import Program
from zinc.engine.batch import make_step
from zinc.engine.load.model import LoadedModel
from zinc.engine.load.options import LoadOptions
from zinc.engine.request import Request
from zinc.engine.sampling import SamplingParams
from zinc.engine.sequence import Sequence
from zinc.engine.speculative.nextn import NextNDrafter, hidden_rows


class Runs:
    """Sequences of the model in `path`, with at most `room` tokens each."""

    def __init__(
        self,
        path: Path,
        backend: str,
        *,
        room: int = 256,
        tokens: int = 64,
        nextn_tokens: int = 0,
        speculate: str = "off",
    ) -> None:
        options = LoadOptions(
            path,
            backend=backend,
            context=room,
            sequences=4,
            batch_tokens=tokens,
            max_outputs=tokens,
            speculate=speculate,
            nextn=True,
            nextn_tokens=nextn_tokens,
        )
        self.model = LoadedModel.open(options)
        drafter = self.model.drafter
        assert drafter is not None
        self.drafter: NextNDrafter = drafter
        self.program: Program = self.model.program
        self.pool = self.model.engine.pool
        self._n_groups = len(self.pool.groups)
        self._room, self._next = room, 0

    def __enter__(self) -> Runs:
        return self

    def __exit__(self, *_: object) -> None:
        self.model.close()

    def begin(self, ids: list[int], room: int | None = None) -> Sequence:
        """Return a sequence whose tokens have not run, with blocks for `room` tokens."""
        request = Request(ids, SamplingParams(max_tokens=1))
        s = Sequence.of(self._next, request, 1, self.model.spec.vocab)
        self._next += 1
        s.cache.allocation, _ = self.pool.attach(b"", 0)
        self.pool.grow(s.cache.allocation, self._room if room is None else room)
        return s

    def end(self, s: Sequence) -> None:
        assert s.cache.allocation is not None
        self.pool.release(s.cache.allocation)
        s.cache.allocation = None
        self.drafter.ended(s)

    def run(self, counts: dict[Sequence, int], *, take: bool = True) -> list[np.ndarray]:
        """Run the next tokens of sequences; return the logits of each token, by sequence.

        take: give the hidden rows to the drafter.
        """
        running, lengths = list(counts), list(counts.values())
        by_id = {s.id: n for s, n in counts.items()}
        step = make_step(running, by_id, self._n_groups, every_row=True)
        logits = np.array(self.program.step(step))
        for s, n, rows in zip(running, lengths, hidden_rows(self.program, lengths), strict=True):
            if take:
                self.drafter.took(s, s.n_run, rows)
            s.n_run += n
        return np.split(logits, np.cumsum(lengths)[:-1])

    def hidden(self, ids: list[int]) -> np.ndarray:
        """Return the model's hidden rows of a text, [tokens, hidden]."""
        s, most, parts = self.begin(ids), self.program.plan.max_tokens, []
        while s.pending:
            n = min(most, s.pending)
            self.run({s: n}, take=False)
            parts += hidden_rows(self.program, [n])
        self.end(s)
        return np.concatenate(parts)
