"""`zinc bench`: prefill and decode speed, compared with the limits of the machine.

Prefill and decode are measured separately: the first token after a prompt does not count as decode.
A warm-up round of both runs first. Steps use random token ids and, except in a profile, sample no
token, so the speed depends on the model's shape alone. With --json, stdout is one object.
"""

from __future__ import annotations

import argparse
import json
import statistics
from functools import partial
from typing import TYPE_CHECKING, Any

from zinc import __version__
from zinc.cli import argtypes, bench_text, parsed, usage
from zinc.cli.bench_steps import Bench, Rate
from zinc.core.progress import ProgressBar

if TYPE_CHECKING:
    from zinc.backends.capabilities import Roofline
    from zinc.engine.load.model import LoadedModel
    from zinc.engine.step_cost import StepShape


def add_arguments(parser: argparse.ArgumentParser) -> None:
    usage.add_model(parser)
    number = partial(usage.add_number, parser)
    number("--prefill", argtypes.natural, 512, "tokens of the measured prompt; 0 skips it")
    number("--decode", argtypes.natural, 128, "tokens to decode one by one; 0 skips it")
    number("--depth", argtypes.natural, 0, "tokens in the cache before decode")
    number("--streams", argtypes.count, 1, "sequences that decode together")
    number("--reps", argtypes.count, 5, "repetitions; medians are reported")
    usage.add_backend(parser)
    usage.add_kv_dtype(parser)
    usage.add_json(parser)
    parser.add_argument(
        "--speculate",
        nargs="?",
        const="suffix",
        choices=("suffix", "mtp", "draft"),
        help="also measure the cost and gain of speculative decoding, with drafts from repeated "
        "text (suffix, the default), and also from the model's NextN block (mtp) or the model of "
        "--draft (draft)",
    )
    usage.add_draft(parser)
    usage.add_lora(parser)
    parser.add_argument(
        "--profile", action="store_true", help="also show where the time goes, by phase and kernel"
    )


def _check(args: argparse.Namespace) -> None:
    """Raise UsageError for options that contradict each other."""
    if args.prefill == args.decode == 0:
        raise argtypes.UsageError("--prefill 0 and --decode 0 leave nothing to measure")
    if args.speculate and args.decode < 2:
        raise argtypes.UsageError("--speculate measures decode: use a --decode of at least 2")
    if (args.draft is None) is (args.speculate == "draft"):
        raise argtypes.UsageError("--speculate draft and --draft MODEL go together")


def run(args: argparse.Namespace) -> int:
    from zinc.cli import roofline
    from zinc.engine.load import bandwidth

    _check(args)
    with _load(args) as model:
        limits = roofline.measure_visibly(model.backend)
        if limits is not None:
            bandwidth.store(model.backend, limits)
        bench = Bench(model)
        with ProgressBar("measuring", delay_s=0) as progress:
            prefill, decode = bench.measure(
                args.prefill, args.decode, args.depth, args.reps, progress
            )
        report = _report(args, bench, prefill, decode, limits)
        report["model"], report["model_bytes"] = str(model.file.path), model.file.n_bytes
        shapes = bench.shapes(args.prefill, args.decode, args.depth)
        for name, shape in shapes:
            report[f"{name}_step"] = bench.counts(shape)
        if not args.json:
            print(bench_text.summary(report, limits))
        for name, shape in shapes if args.profile else ():
            report |= _profile(args, bench, name, shape, limits)
        if args.speculate:
            report["speculation"] = found = _speculation(args, model, bench)
            if not args.json:
                print(f"\n{bench_text.speculation(found)}")
    if args.json:
        print(json.dumps(report))
    return 0


def _profile(
    args: argparse.Namespace, bench: Bench, name: str, shape: StepShape, limits: Roofline | None
) -> dict[str, Any]:
    """Profile the step `name` and print the profile; return its fields of the report."""
    with ProgressBar(f"profiling {name}", delay_s=0) as progress:
        profile = bench.profile(shape, args.reps, progress)
    phases, kernels = profile.by_phase(limits), profile.by_kernel(limits)
    if not args.json:
        print(f"\n{name}, {bench_text.profile(profile, phases, kernels)}")
    return {
        f"{name}_phases": phases,
        f"{name}_profile": kernels,
        f"{name}_phases_percent_of_step": profile.percent_of_step,
    }


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
    from zinc.engine.load.planning import plan_model

    rows = MOST_ROWS if args.speculate else 1
    least = max(LEAST_PROMPT + args.decode, args.depth + MOST_ROWS) if args.speculate else 0
    options = parsed.load_options(
        args,
        path=parsed.model_path(args),
        context=max(args.prefill, args.depth + args.decode, least),
        max_outputs=max(args.streams, rows),
        sequences=args.streams,
        speculate=args.speculate or "auto",
        draft=parsed.draft_path(args),
    )
    with loading.context_from("--prefill, --depth or --decode"):
        planned = plan_model(options)
        if planned.spec.is_encoder and args.decode:
            planned.close()
            raise UnsupportedError(
                "an encoder does not decode",
                "",
                "measure its speed with --decode 0 --prefill TOKENS",
            )
        loading.print_choice(planned.choice)
        return loading.open_model(planned)


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
