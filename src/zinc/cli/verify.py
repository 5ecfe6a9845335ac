"""`zinc verify`: compare every launch of a backend with the reference, on the same inputs.

With --kernels, the cases of the op registry run first. They cover kernels that the model does not
use, and name the kernel that a driver or compiler gets wrong. `zinc.testing.parity` does the
comparison.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zinc.cli import argtypes, parsed, usage
from zinc.cli.text import table
from zinc.core.progress import ProgressBar

if TYPE_CHECKING:
    from zinc.backends.api import Backend, Kernels
    from zinc.backends.plans import Launch
    from zinc.engine.load.model import LoadedModel
    from zinc.engine.load.options import LoadOptions
    from zinc.ops.step import Step
    from zinc.testing.parity import Check

DECODE_STEPS = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    usage.add_model(parser)
    tokens = f"tokens of the prompt; {DECODE_STEPS} decode steps follow"
    usage.add_number(parser, "--tokens", argtypes.count, 32, tokens)
    parser.add_argument(
        "--kernels",
        action="store_true",
        help="first test every kernel on its own, with cases that need no model",
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="show the differences of all parts"
    )
    usage.add_backend(parser)
    usage.add_kv_dtype(parser)
    usage.add_lora(parser)
    usage.add_json(parser)


def run(args: argparse.Namespace) -> int:
    from zinc.cli import loading
    from zinc.core.errors import RequestError
    from zinc.engine.load.options import BATCH_TOKENS
    from zinc.engine.load.planning import plan_model

    if args.tokens > BATCH_TOKENS:
        raise RequestError(
            f"--tokens {args.tokens} is too large",
            f"the prompt is one step of at most {BATCH_TOKENS} tokens",
            f"use --tokens {BATCH_TOKENS} or less",
        )
    report: dict[str, Any] = {}
    wrong = _test_kernels(args, report) if args.kernels else None
    options = parsed.load_options(
        args,
        path=parsed.model_path(args),
        context=args.tokens + DECODE_STEPS,
        max_outputs=args.tokens,
        sequences=1,
    )
    with loading.context_from("--tokens"), plan_model(_deep_enough(options)) as planned:
        loading.print_choice(planned.choice)
        backend = planned.backend
        report |= {"backend": backend.name, "description": backend.describe()}
        model = loading.open_model(planned)
        reference = loading.open_model(planned.on(_reference(backend)))
        with ProgressBar("comparing launches") as progress:
            checks = list(compare_layers(model, reference, backend, args.tokens, progress))
            logits = compare_logits(model, reference, args.tokens)
        departed = next((check for check in checks if check.departs), None)
        if args.json:
            report |= {
                "model": str(planned.file.path),
                "checks": [check.to_dict() for check in checks],
                "first_departure": departed and departed.to_dict(),
                **logits,
            }
            json.dump(report, sys.stdout)
            print()
        else:
            print(f"{planned.file.path} on {backend.describe()}, against ref")
            if args.verbose:
                print(_parts(checks))
            print(_verdict(checks, departed, logits))
    return 1 if departed or wrong else 0


def _reference(backend: Backend) -> Backend:
    """Return the reference for the plans of `backend`; one per device if devices add up sums."""
    from zinc.backends import api
    from zinc.backends.split import SplitBackend

    if isinstance(backend, SplitBackend) and backend.split.is_by_tensor:
        return backend.on([api.create("ref") for _ in backend.devices])
    return api.create("ref")


def _deep_enough(options: LoadOptions) -> LoadOptions:
    """Return the options with a context in which every launch of the plan runs.

    Some launches run only when many tokens are cached. A model with a shorter context never runs
    them.
    """
    from zinc.engine.load.planning import plan_model
    from zinc.ops.step import StepCondition

    with plan_model(options) as planned:
        launches = [launch for plan in planned.plans for launch in plan.launches]
        conditions = [x.when for x in launches if isinstance(x.when, StepCondition)]
        keys = max((condition.min_keys for condition in conditions), default=0)
        if (options.context or 0) < keys <= planned.spec.context:
            return replace(options, context=keys)
    return options


def _test_kernels(args: argparse.Namespace, report: dict[str, Any]) -> Check | None:
    """Run the cases of the op registry; return the first failed check."""
    from zinc.cli import loading
    from zinc.testing import parity

    description = loading.create_backend(args).describe()
    results = list(parity.compare_cases(lambda: loading.create_backend(args)))
    departed = [check for checks in results for check in checks if check.departs]
    first = departed[0] if departed else None
    kernels = sorted({check.kernel for checks in results for check in checks if check.kernel})
    report["kernels"] = {
        "cases": len(results),
        "tested": kernels,
        "departures": [check.to_dict() for check in departed],
    }
    if not args.json:
        print(f"kernels on {description}, against ref")
        if first is None:
            print(f"all {len(kernels)} kernels agree in {len(results)} cases")
        for check in departed[: None if args.verbose else 1]:
            print(_departure(check))
        if len(departed) > 1 and not args.verbose:
            print(f"and {len(departed) - 1} more; -v shows them")
    return first


def _steps(model: LoadedModel, n_tokens: int) -> Iterator[tuple[str, Step]]:
    """Yield a prompt with logits for every token, then decode steps after it.

    If the context is longer, it is filled up to its last position, where one more decode step
    follows. A token is sampled from each row if the plan has a launch for that.
    """
    import numpy as np

    from zinc.cli.steps import StepMaker
    from zinc.ops.sampling import pack_sample_params
    from zinc.ops.step import SampleParams

    maker = StepMaker(model)

    rng = np.random.default_rng(0)
    ids = rng.integers(model.spec.vocab, size=model.context).tolist()
    params = pack_sample_params(
        [SampleParams(40, 0, 0.95, 0.05, 0.8, index) for index in range(n_tokens)]
    )
    steps = [("prefill", maker.step(ids[:n_tokens], 0, outputs=n_tokens))]
    steps += [
        (f"decode at {at}", maker.step([ids[at]], at, outputs=1))
        for at in range(n_tokens, n_tokens + DECODE_STEPS)
    ]
    at, last = n_tokens + DECODE_STEPS, model.context - 1
    if at <= last:
        if at < last:
            steps.append((f"prefill at {at}", maker.step(ids[at:last], at, outputs=0)))
        steps.append((f"decode at {last}", maker.step([ids[last]], last, outputs=1)))
    for name, step in steps:
        n_sampled = len(step.output_rows) if model.plan.sampled else 0
        yield name, replace(step, sample_params=params[:n_sampled] if n_sampled else None)


def compare_layers(
    model: LoadedModel,
    reference: LoadedModel,
    kernels: Kernels,
    n_tokens: int,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Check]:
    """Yield the checks of all launches, in a prompt of `n_tokens` and in decode.

    kernels: the backend of `model`. progress: its total includes one more step, for
    `compare_logits`.
    """
    from zinc.testing.parity import compare, launch_tolerance

    def allowed(launch: Launch) -> float:
        return launch_tolerance(launch, model.kv_dtype, kernels)

    n_launches = len(model.plan.launches)
    steps = list(_steps(model, n_tokens))
    total = (len(steps) + 1) * n_launches
    for i, (name, step) in enumerate(steps):
        for check in compare(name, model.program, reference.program, step, allowed):
            yield check
            if progress is not None:
                progress(i * n_launches + check.index + 1, total)


def compare_logits(model: LoadedModel, reference: LoadedModel, n_tokens: int) -> dict[str, Any]:
    """Compare the logits of the prompt when each program runs on its own results."""
    from zinc.engine.load.self_test import relative_error

    _, step = next(_steps(model, n_tokens))
    found = model.program.step(step).copy()
    wanted = reference.program.step(step)
    error = relative_error(found, wanted)
    return {
        "logits_error": error if error - error == 0 else None,
        "argmax_agrees": int((found.argmax(axis=1) == wanted.argmax(axis=1)).sum()),
        "logits_rows": len(wanted),
    }


def _parts(checks: list[Check]) -> str:
    """Return a table of the worst check of each part of the model."""
    worst: dict[str, Check] = {}
    for check in checks:
        before = worst.get(check.label)
        if before is None or check.error / check.tolerance > before.error / before.tolerance:
            worst[check.label] = check
    rows = [
        (
            label or "-",
            check.kernel,
            check.index,
            f"{check.error:.2e}",
            f"{check.tolerance:.2e}",
            "differs" if check.departs else "",
        )
        for label, check in worst.items()
    ]
    return table(("part", "worst kernel", "launch |", "error |", "allowed |", ""), rows)


def _verdict(checks: list[Check], departed: Check | None, logits: dict[str, Any]) -> str:
    error = logits["logits_error"]
    shown = "no finite number" if error is None else f"{error:.2e}"
    end_to_end = (
        f"all together: logits differ by {shown}, "
        f"argmax agrees at {logits['argmax_agrees']} of {logits['logits_rows']} positions"
    )
    if departed is None:
        n_launches = 1 + max(check.index for check in checks)
        return f"all {n_launches} launches agree\n{end_to_end}"
    return f"{_departure(departed)}\n{end_to_end}"


def _departure(check: Check) -> str:
    part = f" of {check.label}" if check.label else ""
    what = f"launch {check.index} ({check.kernel}{part}) differs"
    if not check.kernel:
        what = "all launches together differ from the launches one by one"
    ran = f"\nit runs {', '.join(check.kernels)}" if check.kernels else ""
    return (
        f"{what} in the {check.step}: relative error {check.error:.2e}, "
        f"{check.tolerance:.2e} is allowed{ran}"
    )
