"""`zinc bench`: prefill and decode speed, compared with the limits of the machine.

Prefill and decode are measured separately: the first token after a prompt does not count as decode.
A warm-up round of both runs first. Steps use random token ids and, except in a profile, sample no
token, so the speed depends on the model's shape alone. With --json, stdout is one object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from zinc import __version__
from zinc.cli import bench_text, usage
from zinc.cli.step_profile import Profile
from zinc.core.progress import ProgressBar, stepper

if TYPE_CHECKING:
    from zinc.backends.api import Work
    from zinc.backends.capabilities import Roofline
    from zinc.backends.plans import Plan
    from zinc.engine.load.model import LoadedModel
    from zinc.engine.step_cost import StepShape
    from zinc.ops.step import Step


def add_arguments(parser: argparse.ArgumentParser) -> None:
    usage.add_model(parser)
    number = partial(usage.add_number, parser)
    number("--prefill", usage.natural, 512, "tokens of the measured prompt; 0 skips it")
    number("--decode", usage.natural, 128, "tokens to decode one by one; 0 skips it")
    number("--depth", usage.natural, 0, "tokens in the cache before decode")
    number("--streams", usage.count, 1, "sequences that decode together")
    number("--reps", usage.count, 5, "repetitions; medians are reported")
    usage.add_backend(parser)
    usage.add_kv_dtype(parser)
    usage.add_json(parser)
    parser.add_argument(
        "--speculate",
        nargs="?",
        const="suffix",
        choices=("suffix", "mtp", "draft"),
        help="also show what drafts cost and gain: those from repeated text (suffix, the default), "
        "or also of the model's NextN block (mtp) or of the model of --draft (draft)",
    )
    usage.add_draft(parser)
    usage.add_lora(parser)
    parser.add_argument(
        "--profile", action="store_true", help="also show where the time goes, by phase and kernel"
    )


def run(args: argparse.Namespace) -> int:
    if args.prefill == args.decode == 0:
        raise usage.UsageError("--prefill 0 and --decode 0 leave nothing to measure")
    if args.speculate and args.decode < 2:
        raise usage.UsageError("--speculate measures decode: use a --decode of at least 2")
    if (args.draft is None) is (args.speculate == "draft"):
        raise usage.UsageError("--speculate draft and --draft MODEL go together")

    from zinc.cli import roofline
    from zinc.engine.load import bandwidth

    with _load(args) as model:
        limits = roofline.measure_visibly(model.backend)
        if limits is not None:
            bandwidth.store(model.backend, limits)
        bench = Bench(model)
        with ProgressBar("measuring", delay_s=0) as progress:
            prefill_s, decode_s = bench.measure(
                args.prefill, args.decode, args.depth, args.reps, progress
            )
        report = _report(args, bench, prefill_s, decode_s, limits)
        report["model"], report["model_bytes"] = str(model.file.path), model.file.n_bytes
        for name, shape in bench.shapes(args.prefill, args.decode, args.depth):
            report[f"{name}_step"] = bench.counts(shape)
        if not args.json:
            print(bench_text.summary(report, limits))
        if args.profile:
            for name, shape in bench.shapes(args.prefill, args.decode, args.depth):
                with ProgressBar(f"profiling {name}", delay_s=0) as progress:
                    profile = bench.profile(shape, args.reps, progress)
                phases, kernels = profile.by_phase(limits), profile.by_kernel(limits)
                report[f"{name}_phases"], report[f"{name}_profile"] = phases, kernels
                report[f"{name}_phases_percent_of_step"] = profile.percent_of_step
                if not args.json:
                    print(f"\n{name}, {bench_text.profile(profile, phases, kernels)}")
        if args.speculate:
            report["speculation"] = found = _speculation(args, model, bench)
            if not args.json:
                print(f"\n{bench_text.speculation(found)}")
    if args.json:
        print(json.dumps(report))
    return 0


def _speculation(args: argparse.Namespace, model: LoadedModel, bench: Bench) -> dict[str, Any]:
    """Return what drafts cost and gain."""
    from zinc.cli.bench_speculation import measure

    with ProgressBar("measuring drafts", delay_s=0) as progress:
        return measure(model, bench, args.decode, args.depth, args.reps, progress)


def _load(args: argparse.Namespace) -> LoadedModel:
    """Load the model for `args.streams` sequences of the longest measured run."""
    from zinc.cli import loading
    from zinc.cli.bench_speculation import LEAST_PROMPT, MOST_ROWS
    from zinc.core.errors import UnsupportedError
    from zinc.engine.load.planned import plan_model

    rows = MOST_ROWS if args.speculate else 1
    least = max(LEAST_PROMPT + args.decode, args.depth + MOST_ROWS) if args.speculate else 0
    options = usage.load_options(
        args,
        path=usage.model_path(args),
        context=max(args.prefill, args.depth + args.decode, least),
        max_outputs=max(args.streams, rows),
        sequences=args.streams,
        speculate=args.speculate or "auto",
        draft=usage.draft_path(args),
    )
    with loading.context_from("--prefill, --depth or --decode"):
        planned = plan_model(options)
        if planned.spec.is_encoder and args.decode:
            planned.close()
            raise UnsupportedError(
                "an encoder does not decode",
                "",
                "time texts with --decode 0 --prefill TOKENS",
            )
        loading.print_choice(planned.choice)
        return loading.open_model(planned)


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


def _report(
    args: argparse.Namespace,
    bench: Bench,
    prefill: Rate | None,
    decode: Rate | None,
    limits: Roofline | None,
) -> dict[str, Any]:
    from zinc.core.processor import cpu_model

    report: dict[str, Any] = {
        "zinc": __version__,
        "backend": bench.backend.name,
        "description": bench.backend.describe(),
        "threads": bench.backend.capabilities.threads,
        "level": bench.backend.capabilities.level or None,
        "cpu_model": cpu_model(),
        "kv_dtype": bench.kv_dtype,
        "prefill_tokens": args.prefill,
        "decode_tokens": args.decode,
        "depth": args.depth,
        "streams": args.streams,
        "reps": args.reps,
        "step_tokens": bench.step_tokens,
        "bandwidth_gb_per_s": limits.bytes_per_s / 1e9 if limits else None,
        "int8_peak_gops": limits.int8_ops_per_s / 1e9 if limits else None,
    }
    for name, rate in (("prefill", prefill), ("decode", decode)):
        # All keys are present in any case, so that readers need not know what was measured.
        rates = rate.tokens_per_s if rate else []
        report[f"{name}_tokens_per_s"] = statistics.median(rates) if rates else None
        report[f"{name}_reps_tokens_per_s"] = rates
        bytes_per_s = rate.n_bytes / rate.median_s if rate else None
        flops = rate.flops / rate.median_s if rate else None
        report[f"{name}_host_us_per_step"] = rate and rate.host_us
        report[f"{name}_submissions_per_step"] = rate and rate.submissions
        report[f"{name}_gb_per_s"] = bytes_per_s and bytes_per_s / 1e9
        report[f"{name}_gops"] = flops and flops / 1e9
        report[f"{name}_percent_of_bandwidth"] = (
            100 * bytes_per_s / limits.bytes_per_s if limits and bytes_per_s else None
        )
        report[f"{name}_percent_of_int8_peak"] = (
            100 * flops / limits.int8_ops_per_s if limits and flops else None
        )
    return report
