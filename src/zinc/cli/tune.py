"""`zinc tune`: find the fastest tiles of matrix products on a GPU, and keep them in a table.

Each product is timed with many tiles, whose results are compared with the reference. Later runs of
zinc use the table of the device. An interrupted run resumes where it ended.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zinc.cli import argtypes, parsed, usage
from zinc.cli.text import table
from zinc.core.errors import RequestError
from zinc.core.progress import ProgressBar

if TYPE_CHECKING:
    from zinc.backends.api import Backend
    from zinc.backends.plans import Plan
    from zinc.backends.tuning import TunedProduct, TuneReport

MAX_OUTPUTS = 64  # rows of logits of a step


def add_arguments(parser: argparse.ArgumentParser) -> None:
    usage.add_model(parser, "model whose products are tuned (default: products of common sizes)")
    usage.add_device(parser)
    parser.add_argument(
        "--budget",
        type=argtypes.count,
        metavar="SECONDS",
        help="stop after this time; the next run continues (default: tune all products)",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="write the table to FILE (default: the table of the device, which zinc uses)",
    )
    usage.add_json(parser)


def run(args: argparse.Namespace) -> int:
    from zinc.backends.tuning import Tunable

    backend = _backend(args)
    if not isinstance(backend, Tunable):
        raise RequestError(
            f"the backend {backend.name} has no tiles to tune",
            "only GPU backends have tiles",
            "with {backend} or {device}, choose a GPU that `zinc check` lists",
        )
    plans = [_plan(args, backend)] if args.model else common_plans(backend)
    path = Path(args.output) if args.output else None
    with ProgressBar("tuning", delay_s=0) as progress:
        report = backend.tune(plans, path, args.budget, progress)
    if args.json:
        json.dump(_as_json(backend, report), sys.stdout, indent=2)
        print()
    else:
        print(f"{backend.describe()}\n\n{text(report)}")
    return 0


def _backend(args: argparse.Namespace) -> Backend:
    """Return the backend of the options; for "auto" the GPU that a model would run on."""
    from zinc.backends import api
    from zinc.engine.load import auto

    name, options = parsed.backend_name(args), parsed.backend_options(args)
    if name != "auto":
        return api.create(name, None, options)
    machine = auto.this_machine(None, options)
    return auto.select(machine, wanted=options.get("device", "")).backend


def _plan(args: argparse.Namespace, backend: Backend) -> Plan:
    """Return the plan of the whole model on `backend`, whether it fits there or not."""
    from zinc.engine.load.options import BATCH_TOKENS
    from zinc.formats.gguf import GGUFFile
    from zinc.models import load
    from zinc.plan.planner import make_plan

    with GGUFFile.open(parsed.model_path(args)) as file:
        _, graph = load(file)
    return make_plan(graph, backend, max_tokens=BATCH_TOKENS, max_outputs=MAX_OUTPUTS)


def common_plans(backend: Backend) -> list[Plan]:
    """Return plans with the products of common models: 8B, and experts of 30B-A3B."""
    from zinc.cli.tune_shapes import common_graphs
    from zinc.engine.load.options import BATCH_TOKENS
    from zinc.plan.planner import make_plan

    return [
        make_plan(graph, backend, max_tokens=BATCH_TOKENS, max_outputs=MAX_OUTPUTS)
        for graph in common_graphs()
    ]


def text(report: TuneReport) -> str:
    """Return the products with their tiles, and what could not be tuned."""
    lines = [_table(report.products)] if report.products else []
    refused = sum(len(x.refused) for x in report.products)
    if refused:
        were = "1 tile was" if refused == 1 else f"{refused} tiles were"
        lines.append(f"{were} refused; the table says why")
    lines += [f"{name}: not tuned, {why}" for name, why in report.skipped]
    if report.n_left:
        are = "1 product is" if report.n_left == 1 else f"{report.n_left} products are"
        lines.append(f"{are} left: run the command again to continue")
    return "\n".join([*lines, f"the table is {report.path}"])


def _table(products: Sequence[TunedProduct]) -> str:
    rows = [
        (x.name, x.default_us, x.us, _gain(x), x.n_tried, x.tile or "none ran") for x in products
    ]
    header = ("product", "formula us |", "best us |", "gain |", "tried |", "tile")
    return table(header, rows)


def _gain(product: TunedProduct) -> str:
    """Return how much faster a product is than with the formula's tile."""
    if not (product.us and product.default_us):
        return "-"
    return f"{100 * (product.default_us / product.us - 1):.0f}%"


def _as_json(backend: Backend, report: TuneReport) -> dict[str, Any]:
    return {
        "backend": backend.name,
        "description": backend.describe(),
        "table": str(report.path),
        "products": [asdict(x) for x in report.products],
        "left": report.n_left,
        "skipped": dict(report.skipped),
    }
