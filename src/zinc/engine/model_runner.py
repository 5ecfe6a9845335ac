"""Runs tokens of sequences on the programs of a model.

Which program that is follows from the length of a sequence and from what is wanted of it: tokens,
hidden states, or the logits of every row. What it runs, it adds to the sequences' `n_run`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import cast

import numpy as np

from zinc.backends.api import DrawingProgram, Drawn, Program, Ready
from zinc.engine.batch import make_next_step, make_step
from zinc.engine.flight import Flight
from zinc.engine.sampling import Draw
from zinc.engine.sequence import Sequence
from zinc.ops.sampling import draws_of
from zinc.ops.step import Step
from zinc.ops.values import FloatArray

_BY_HOST: Draw = (0, 0, 1.0, 0.0, 1.0, 0.0)
_NO_TOKENS = np.empty((0, 2), np.float32)


class ModelRunner:
    """program: of sequences that are not extended; extended: of those that are. hidden: makes the
    program whose output are the rows behind the final norm. All are on one cache of `n_groups`.

    Methods raise what the device raises; sequences of one call are all extended, or none is.
    """

    def __init__(
        self,
        program: Program,
        extended: Program | None,
        hidden: Callable[[bool], Program] | None,
        n_groups: int,
    ) -> None:
        self._program, self._extended = program, extended
        self._make_hidden, self._n_groups = hidden, n_groups
        self._hidden: dict[bool, Program] = {}

    @property
    def can_embed(self) -> bool:
        return self._make_hidden is not None

    def launch(self, running: Seq[Sequence], counts: Mapping[int, int]) -> Flight:
        """Queues a step of so many tokens of each, by id; it has run already when this returns,
        unless the device draws."""
        program = self._program_of(running[0])
        complete = [s for s in running if counts[s.id] == s.pending]
        begun = time.perf_counter()
        draws: list[Draw | None] = [None] * len(complete)
        if program.plan.drawn is not None:
            draws = [None if s.is_constrained else s.sampler.draw() for s in complete]
        step = make_step(running, counts, self._n_groups)
        if any(draws):
            drawn = _draw(program, step, draws)
        else:
            drawn = Ready(_NO_TOKENS, program.step(step))
        on_device = [draw is not None for draw in draws]
        n_tokens = [counts[s.id] for s in running]
        ends = _advance(running, n_tokens)
        return Flight(program, drawn, running, n_tokens, ends, complete, on_device, begun)

    def launch_behind(self, flight: Flight, rows: Seq[int]) -> Flight:
        """Queues the next token of those in these rows of a flight, which nobody has seen yet."""
        running = [flight.complete[row] for row in rows]
        begun = time.perf_counter()
        step = make_next_step(running, rows, self._n_groups)
        drawn = _draw(flight.program, step, [s.sampler.draw() for s in running])
        ones = [1] * len(running)
        ends = _advance(running, ones)
        return Flight(
            flight.program, drawn, running, ones, ends, running, [True] * len(ones), begun
        )

    def embed(self, running: Seq[Sequence], counts: Mapping[int, int]) -> None:
        """Runs tokens of prompts up to the final norm, and has their rows read."""
        extended = running[0].extended
        if extended not in self._hidden:
            assert self._make_hidden is not None
            self._hidden[extended] = self._make_hidden(extended)
        step = make_step(running, counts, self._n_groups, every_row=True)
        rows = self._hidden[extended].step(step)
        for s, start, end in zip(running, step.seq_start, step.seq_start[1:], strict=False):
            assert s.readout is not None
            s.readout.read(s.ids, s.n_run, rows[start:end])
            s.n_run += int(end - start)

    def score(self, s: Sequence, count: int) -> FloatArray:
        """Runs tokens of a prompt alone and has the logits of all read, as many at a time as the
        program gives; returns those of the last, [1, vocab]."""
        program = self._program_of(s)
        end = s.n_run + count
        while s.n_run < end:
            n = min(end - s.n_run, program.plan.max_outputs)
            logits = program.step(make_step([s], {s.id: n}, self._n_groups, every_row=True))
            assert s.readout is not None
            s.readout.read(s.ids[: s.n_prompt], s.n_run, logits)
            s.n_run += n
        return logits[-1:]

    def _program_of(self, s: Sequence) -> Program:
        return self._extended if s.extended and self._extended is not None else self._program


def _advance(running: Seq[Sequence], counts: Seq[int]) -> list[int]:
    """Adds what was queued to what has run; returns that."""
    for s, count in zip(running, counts, strict=True):
        s.n_run += count
    return [s.n_run for s in running]


def _draw(program: Program, step: Step, draws: Seq[Draw | None]) -> Drawn:
    """None is a row that the host draws."""
    numbers = draws_of([_BY_HOST if draw is None else draw for draw in draws])
    return cast(DrawingProgram, program).draw(replace(step, draws=numbers))
