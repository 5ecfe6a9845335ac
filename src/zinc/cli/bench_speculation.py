"""The measurements of `zinc bench --speculate`: cost of verified rows, and speed with drafts.

The cost is the time of a step with several rows of one sequence, as a multiple of a step of one
row. The speeds are those of two answers without and with drafts, interleaved: one of new text, and
one that repeats a text known beforehand. Prompts are random ids, and no run reuses another one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zinc.core.progress import stepper

if TYPE_CHECKING:
    from zinc.cli.bench_steps import Bench
    from zinc.engine.load.model import LoadedModel
    from zinc.engine.sampling import SamplingParams
    from zinc.engine.sequence import Timings

ROWS = (1, 2, 3, 4, 6, 8, 12, 16)
MOST_ROWS = ROWS[-1]
LEAST_PROMPT = 16  # tokens of a prompt, whatever the depth
_STEPS = 4  # steps of a measurement


def measure(
    model: LoadedModel,
    bench: Bench,
    decode: int,
    depth: int,
    reps: int,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Return the costs of rows and the speeds of answers of `decode` tokens at `depth`.

    Everything runs `reps` times after a warm-up, and medians are returned. progress: called between
    runs, never in a timed one.
    """
    tick = stepper(progress, 3 * (reps + 1))
    costs = _row_costs(bench, depth, reps, tick)
    answers = Answers(model, bench.ids(max(depth, LEAST_PROMPT)), decode)
    return {
        "mode": model.options.speculate,
        "rows": costs,
        "answers": [
            answers.compare("new text", reps, tick, temperature=1.0),
            answers.compare("repeated text", reps, tick, temperature=0.0, is_known=True),
        ],
    }


def _row_costs(
    bench: Bench, depth: int, reps: int, tick: Callable[[], None]
) -> list[dict[str, Any]]:
    """Return the time of a step by its rows, in milliseconds and in steps of one row."""
    from zinc.engine.step_cost import StepShape

    steps = {n: bench.sampling_step(StepShape(n, n, depth, bench.kv_dtype)) for n in ROWS}
    seconds: dict[int, list[float]] = {n: [] for n in ROWS}
    for rep in range(reps + 1):  # the first is the warm-up
        for n, step in steps.items():
            start = time.perf_counter()
            for _ in range(_STEPS):
                bench.program.step(step)
            seconds[n] += [(time.perf_counter() - start) / _STEPS] * (rep > 0)
        tick()
    ratios = {n: _median_ratio(seconds[n], seconds[ROWS[0]]) for n in ROWS}
    return [
        {"rows": n, "ms": 1e3 * statistics.median(seconds[n]), "ratio": ratios[n]} for n in ROWS
    ]


class Answers:
    """Answers of `n_tokens` to the prompt `ids`, run by the engine of `model`."""

    def __init__(self, model: LoadedModel, ids: Sequence[int], n_tokens: int) -> None:
        self._engine, self._ids, self._n_tokens = model.engine, ids, n_tokens
        self._n_runs, self._adapters = 0, model.adapter_use()

    def compare(
        self,
        name: str,
        reps: int,
        tick: Callable[[], None],
        *,
        temperature: float,
        is_known: bool = False,
    ) -> dict[str, Any]:
        """Return the speeds of the answer called `name` without and with drafts.

        is_known: drafts are also made from the answer that the warm-up without drafts gave.
        """
        from zinc.engine.sampling import SamplingParams

        plain: list[Timings] = []
        drafted: list[Timings] = []
        known: Sequence[int] = ()
        for rep in range(reps + 1):  # the first is the warm-up
            params = SamplingParams(
                max_tokens=self._n_tokens, temperature=temperature, seed=rep, speculate=False
            )
            answer, timings = self._run(params)
            plain += [timings] * (rep > 0)
            if is_known and rep == 0:
                known = answer
            _, timings = self._run(params, known)
            drafted += [timings] * (rep > 0)
            tick()
        rates = [[t.generated_tokens_per_s for t in runs] for runs in (plain, drafted)]
        return {
            "name": name,
            "plain_tokens_per_s": statistics.median(rates[0]),
            "drafted_tokens_per_s": statistics.median(rates[1]),
            "speedup": _median_ratio(rates[1], rates[0]),
            "tokens_per_step": statistics.median(t.tokens_per_step for t in drafted),
            "drafted_tokens": sum(t.drafted_tokens for t in drafted),
            "accepted_tokens": sum(t.accepted_tokens for t in drafted),
        }

    def _run(
        self, params: SamplingParams, known: Sequence[int] | None = None
    ) -> tuple[list[int], Timings]:
        """Return an answer and its timings. known: turns drafts on, and is text for them."""
        from zinc.engine.request import Request

        self._n_runs += 1
        request = Request(
            self._ids,
            params if known is None else replace(params, speculate=True),
            namespace=b"bench %d" % self._n_runs,
            prediction=known or (),
            adapters=self._adapters,
        )
        sequence = self._engine.submit(request)
        while sequence.finish_reason is None:
            self._engine.step()
        if sequence.error is not None:
            raise sequence.error
        return sequence.generated, sequence.timings()


def _median_ratio(values: Sequence[float], others: Sequence[float]) -> float:
    """Return the median of the ratios of values that were measured one after the other."""
    return statistics.median(a / b for a, b in zip(values, others, strict=True))
