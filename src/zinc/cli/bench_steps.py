"""Timed steps of random tokens, which `zinc bench` measures."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zinc.cli.step_profile import Profile
from zinc.core.dataclass import dataclass
from zinc.core.progress import stepper

if TYPE_CHECKING:
    from zinc.backends.api import Work
    from zinc.backends.plans import Plan
    from zinc.engine.load.model import LoadedModel
    from zinc.engine.step_cost import StepShape
    from zinc.ops.step import Step


@dataclass(slots=True)
class Rate:
    """Repeated runs of the same steps: seconds of each, and bytes and FLOPs of one."""

    seconds: list[float]
    tokens: int
    n_bytes: int
    flops: int
    steps: int
    work: list[Work]

    @property
    def tokens_per_s(self) -> list[float]:
        """Speed of each repetition."""
        return [self.tokens / s for s in self.seconds]

    @property
    def median_s(self) -> float:
        """Median of the seconds of a repetition."""
        return statistics.median(self.seconds)

    @property
    def host_us(self) -> float:
        """Microseconds per step in which the host did not wait for the device."""
        times = zip(self.seconds, self.work, strict=True)
        return 1e6 * statistics.median(s - work.waited_s for s, work in times) / self.steps

    @property
    def submissions(self) -> float:
        """Median of the submissions per step."""
        return statistics.median(work.submissions for work in self.work) / self.steps


class Bench:
    """Steps of random tokens on a model that was loaded for a fixed number of sequences."""

    def __init__(self, model: LoadedModel) -> None:
        import numpy as np

        from zinc.cli.steps import StepMaker

        assert model.options.sequences is not None
        self.n_sequences = model.options.sequences
        self._model, self._steps, self.kv_dtype = model, StepMaker(model), model.kv_dtype
        self.backend = model.backend
        self.program = model.program
        self.step_tokens = model.plan.max_tokens
        rng = np.random.default_rng(0)
        self._ids: list[int] = rng.integers(model.spec.vocab, size=model.context).tolist()

    def measure(
        self,
        prefill: int,
        decode: int,
        depth: int,
        reps: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> tuple[Rate | None, Rate | None]:
        """Return the speeds of prefill and decode.

        Prefill takes `prefill` tokens in an empty cache, decode `decode` tokens at `depth`. The two
        run `reps` times, alternating. progress: called between runs, never in a timed one.
        """
        n_fills = self.n_sequences if depth and decode else 0
        tick = stepper(progress, n_fills + (reps + 1) * (bool(prefill) + bool(decode)))
        prefill_s: list[tuple[float, Work]] = []
        decode_s: list[tuple[float, Work]] = []
        if depth and decode:
            for sequence in range(self.n_sequences):
                self._prefill(depth, sequence)
                tick()
        for rep in range(reps + 1):  # the first is the warm-up
            if prefill:
                # The ids equal those of the fill to `depth`, so the cache stays the same.
                took = self._prefill(prefill)
                prefill_s += [took] * (rep > 0)
                tick()
            if decode:
                took = self._run(self._decode_shapes(decode, depth))
                decode_s += [took] * (rep > 0)
                tick()
        return (
            self._rate(prefill_s, self._prefill_shapes(prefill)) if prefill else None,
            self._rate(decode_s, self._decode_shapes(decode, depth)) if decode else None,
        )

    def _prefill(self, n: int, sequence: int = 0) -> tuple[float, Work]:
        return self._run(self._prefill_shapes(n), sequence)

    def _run(self, shapes: list[StepShape], sequence: int = 0) -> tuple[float, Work]:
        """Run a step of each shape; return the seconds and the program's work counters."""
        program = self.program
        program.work = work = type(program.work)()
        start = time.perf_counter()
        for shape in shapes:
            program.step(self.step(shape, sequence))
        return time.perf_counter() - start, work

    def ids(self, n_tokens: int) -> list[int]:
        """Return a prompt of `n_tokens` random ids."""
        return self._ids[:n_tokens]

    def step(self, shape: StepShape, sequence: int = 0) -> Step:
        """Return a step of random ids."""
        if shape.sequences > 1:
            first = self._ids[shape.depth]
            ids = [(first + i) % self._model.spec.vocab for i in range(shape.sequences)]
            return self._steps.together(ids, shape.depth)
        ids = self._ids[shape.depth : shape.depth + shape.tokens]
        return self._steps.step(ids, shape.depth, outputs=shape.outputs, sequence=sequence)

    def _prefill_shapes(self, n: int) -> list[StepShape]:
        """Return the steps of a prompt of `n` tokens; only the last one computes logits."""
        from zinc.engine.step_cost import StepShape

        most = self.step_tokens
        return [
            StepShape(min(most, n - at), int(at + most >= n), at, self.kv_dtype)
            for at in range(0, n, most)
        ]

    def _decode_shapes(self, n: int, depth: int) -> list[StepShape]:
        from zinc.engine.step_cost import StepShape

        streams = self.n_sequences
        return [StepShape(1, 1, depth + i, self.kv_dtype, streams) for i in range(n)]

    def shapes(self, prefill: int, decode: int, depth: int) -> list[tuple[str, StepShape]]:
        """Return the shapes to profile: the last step of the prompt and the first decode step."""
        found = [("prefill", self._prefill_shapes(prefill)[-1])] if prefill else []
        return found + ([("decode", self._decode_shapes(1, depth)[0])] if decode else [])

    def counts(self, shape: StepShape) -> dict[str, Any]:
        """Return the dispatches and barriers of a step, as `zinc plan` reports them."""
        from zinc.cli.plan import barrier_report

        counts = self.backend.counts(
            self._model.plan,
            self.kv_dtype,
            tokens=shape.tokens * shape.sequences,
            outputs=shape.outputs * shape.sequences,
            sequences=shape.sequences,
            keys=shape.depth + shape.tokens,
        )
        return barrier_report(counts, self._model.spec.n_layers)

    def _rate(self, runs: list[tuple[float, Work]], shapes: list[StepShape]) -> Rate:
        launches = self._model.plan.launches
        return Rate(
            [seconds for seconds, _ in runs],
            sum(shape.tokens * shape.sequences for shape in shapes),
            sum(shape.bytes(launch) for shape in shapes for launch in launches),
            sum(shape.flops(launch) for shape in shapes for launch in launches),
            len(shapes),
            [work for _, work in runs],
        )

    def sampling_step(self, shape: StepShape) -> Step:
        """Return a step that samples a token of each row if the backend has a kernel for that."""
        from zinc.ops.sampling import pack_sample_params
        from zinc.ops.step import SampleParams

        step = self.step(shape)
        if self._model.plan.sampled is None:
            return step
        common = SampleParams(40, 0, 0.95, 0.05, 0.8)  # the defaults of a request
        return replace(step, sample_params=pack_sample_params([common] * len(step.output_rows)))

    def profile(
        self, shape: StepShape, reps: int, progress: Callable[[int, int], None] | None = None
    ) -> Profile:
        """Time a step launch by launch, and as a whole; return the medians."""
        step, program = self.sampling_step(shape), self.program
        runs, whole = [], []
        tick = stepper(progress, reps + 1)
        for _ in range(reps + 1):
            runs.append(program.profile(step))
            start = time.perf_counter()
            program.step(step)
            whole.append(time.perf_counter() - start)
            tick()
        seconds = [statistics.median(times) for times in zip(*runs[1:], strict=True)]
        plan: Plan = self._model.plan
        return Profile(shape, plan.launches, seconds, statistics.median(whole[1:]))
