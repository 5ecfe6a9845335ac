"""Execution of steps: runs the tokens of sequences on the programs of a model.

The program depends on the length of a sequence and on the rows that are wanted: logits for an
answer, hidden states, or the logits of every token. Every call adds to the sequences' `n_run`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from typing import TypeAlias

import numpy as np

from zinc.backends.api import FinishedStep, Program, StepResult
from zinc.engine.batch import NO_DRAFTS, make_next_step, make_step, uses_adapters
from zinc.engine.readout import ReadoutKind
from zinc.engine.sequence import Sequence
from zinc.engine.step_in_flight import StepInFlight
from zinc.ops.sampling import sampling_step
from zinc.ops.step import SampleParams, Step
from zinc.ops.values import FloatArray

# Returns the program for readouts of a kind, for sequences that are extended or not, and that may
# use adapters or not.
PrepareProgram: TypeAlias = Callable[[ReadoutKind, bool, bool], Program]

_BY_HOST = SampleParams(k=0)
_NO_TOKENS = np.empty((0, 2), np.float32)


class ModelRunner:
    """Runner of steps on a model's programs, which share one cache of `n_groups` groups of layers.

    program: runs sequences up to the plain context. extended: runs longer ones. adapted: these two
    for steps in which a sequence uses an adapter, if any is loaded. prepare: returns the program
    for readouts of a kind. The sequences of one call are all extended, or none is. Methods raise
    the errors of the device.
    """

    def __init__(
        self,
        program: Program,
        extended: Program | None,
        prepare: PrepareProgram | None,
        n_groups: int,
        adapted: Seq[Program] = (),
    ) -> None:
        self._programs = [[program] if extended is None else [program, extended], adapted]
        self._prepare, self._n_groups = prepare, n_groups
        self._reading: dict[tuple[ReadoutKind, bool, bool], Program] = {}

    def can_read(self, kind: ReadoutKind) -> bool:
        """Return whether there is a program for readouts of `kind`."""
        return kind is ReadoutKind.PROMPT_LOGITS or self._prepare is not None

    def launch(
        self,
        running: Seq[Sequence],
        counts: Mapping[int, int],
        drafts: Mapping[int, Seq[int]] = NO_DRAFTS,
    ) -> StepInFlight:
        """Run a step with `counts[id]` tokens of each sequence, and verify `drafts`.

        drafts: drafted tokens by the id of their sequence. If the device samples, the step is
        queued, and may still run when this returns.
        """
        program = self._program_of(running)
        complete = [s for s in running if counts[s.id] == s.pending]
        begun = time.perf_counter()
        n_rows = [1 + len(drafts.get(s.id, ())) for s in complete]
        params: list[SampleParams | None] = [None] * sum(n_rows)
        if program.plan.sampled is not None:
            params = [each for s in complete for each in _params(s, drafts.get(s.id, ()))]
        step = make_step(running, counts, self._n_groups, drafts=drafts)
        result: StepResult
        if any(params):
            result = _sample(program, step, params)
        else:
            result = FinishedStep(_NO_TOKENS, program.step(step))
        firsts = itertools.accumulate(n_rows[:-1], initial=0)
        on_device = [params[row] is not None for row, _ in zip(firsts, complete, strict=False)]
        n_tokens = [counts[s.id] for s in running]
        ends = _advance(running, n_tokens)
        return StepInFlight(
            program, result, running, n_tokens, ends, complete, on_device, begun, drafts
        )

    def launch_behind(self, flight: StepInFlight, rows: Seq[int]) -> StepInFlight:
        """Queue the next step of the sequences in `rows` of a flight, which the device samples.

        rows: output rows of the flight's step, whose tokens may still be unknown.
        """
        running = [flight.complete[row] for row in rows]
        begun = time.perf_counter()
        step = make_next_step(running, rows, self._n_groups)
        result = _sample(
            flight.program, step, [s.sampler.device_params(behind=True) for s in running]
        )
        ones = [1] * len(running)
        ends = _advance(running, ones)
        return StepInFlight(
            flight.program, result, running, ones, ends, running, [True] * len(ones), begun
        )

    def embed(self, running: Seq[Sequence], step: Step) -> None:
        """Run `step`, tokens of prompts, up to the final norm; their readouts take the rows."""
        program = self._reading_program(ReadoutKind.HIDDEN, running)
        rows = program.step(step)
        starts = step.seq_start.tolist()
        for s, start, end in zip(running, starts, starts[1:], strict=False):
            assert s.request.readout is not None
            s.request.readout.read(s.ids, s.n_run, rows[start:end])
            s.n_run += end - start

    def score(self, s: Sequence, count: int) -> FloatArray:
        """Run the next `count` tokens of a prompt alone; the readout takes the logits of each.

        A step has as many tokens as the program has output rows. Returns the logits of the last
        token, float32 [1, vocab].
        """
        readout = s.request.readout
        assert readout is not None
        program = self._program_of([s])
        if readout.kind is ReadoutKind.LOGITS:
            program = self._reading_program(readout.kind, [s])
        end = s.n_run + count
        while s.n_run < end:
            n = min(end - s.n_run, program.plan.max_outputs)
            logits = program.step(make_step([s], {s.id: n}, self._n_groups, every_row=True))
            readout.read(s.ids[: s.n_prompt], s.n_run, logits)
            s.n_run += n
        return logits[-1:]

    def _reading_program(self, kind: ReadoutKind, running: Seq[Sequence]) -> Program:
        """Return the program that yields rows of `kind`; it is prepared when first used."""
        key = kind, running[0].extended, uses_adapters(running)
        if key not in self._reading:
            assert self._prepare is not None
            self._reading[key] = self._prepare(*key)
        return self._reading[key]

    def _program_of(self, running: Seq[Sequence]) -> Program:
        """Return the program of a step of these sequences.

        A step without adapters runs as if none was loaded.
        """
        programs = self._programs[uses_adapters(running)]
        return programs[min(running[0].extended, len(programs) - 1)]


def _advance(running: Seq[Sequence], counts: Seq[int]) -> list[int]:
    """Add `counts` to the sequences' `n_run`; return the new values."""
    for s, count in zip(running, counts, strict=True):
        s.n_run += count
    return [s.n_run for s in running]


def _params(s: Sequence, draft: Seq[int]) -> list[SampleParams | None]:
    """Return how the device samples the next token and those after each drafted token.

    None leaves a row to the host, which then samples all of them.
    """
    n_rows = 1 + len(draft)
    # A drafted token may end the reasoning, and the constraint then applies to the rows behind it.
    if s.is_constrained or (n_rows > 1 and s.request.constraint is not None):
        return [None] * n_rows
    if not s.sampler.fits_device(len(draft)):
        return [None] * n_rows
    return [s.sampler.device_params(draft[:ahead]) for ahead in range(n_rows)]


def _sample(program: Program, step: Step, params: Seq[SampleParams | None]) -> StepResult:
    """Queue `step` with device sampling; None leaves a row to the host."""
    rows = [_BY_HOST if each is None else each for each in params]
    return program.sample(sampling_step(step, rows))
