"""`zinc plan`: the launches that run a model, with their bytes and FLOPs, and the memory they need.

It prints the plan that the backend executes, and reads no weights.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from zinc.cli import argtypes, parsed, usage
from zinc.cli.argtypes import UsageError
from zinc.cli.text import size, table
from zinc.core.dataclass import dataclass
from zinc.core.errors import RequestError

if TYPE_CHECKING:
    from zinc.backends.api import StepCounts
    from zinc.backends.plans import Launch, Operand, Plan
    from zinc.engine.load.fit import FitReport
    from zinc.engine.load.planned import PlannedModel
    from zinc.engine.step_cost import StepShape

MATRIX_COLOR, CACHE_COLOR = "#cfe2f3", "#fce5cd"  # launches that read matrices or a KV cache


def add_arguments(parser: argparse.ArgumentParser) -> None:
    usage.add_model(parser)
    usage.add_number(
        parser, "--tokens", argtypes.count, 1, "tokens of the step whose cost is shown"
    )
    usage.add_number(parser, "--depth", argtypes.natural, 0, "tokens already in the cache")
    usage.add_backend(parser)
    usage.add_cache(parser)
    usage.add_lora(parser)
    usage.add_json(parser)
    parser.add_argument("--dot", action="store_true", help="print a graph for Graphviz")


def run(args: argparse.Namespace) -> int:
    if args.json and args.dot:
        raise UsageError("give either --json or --dot")

    from zinc.cli import loading
    from zinc.engine.load.options import BATCH_TOKENS
    from zinc.engine.load.planning import plan_model

    most = args.tokens if args.tokens > BATCH_TOKENS else None
    path = parsed.model_path(args)
    options = parsed.load_options(args, path=path, batch_tokens=most, max_outputs=1)
    with plan_model(options) as planned:
        loading.print_choice(planned.choice)
        report = _Report.of(planned, args.tokens, args.depth)
        if args.dot:
            print(dot(report.plan))
        elif args.json:
            json.dump(report.as_json(), sys.stdout, indent=2)
            print()
        else:
            print(report.as_text())
    return 0


@dataclass(frozen=True, slots=True)
class _Report:
    """The plan of a step, with its cost and memory.

    barriers: see `barrier_report`. split: see `device_map.report`; empty if the model is on one
    device.
    """

    planned: PlannedModel
    plan: Plan
    shape: StepShape
    fit: FitReport
    memory: dict[str, Any]
    barriers: dict[str, Any]
    split: dict[str, Any]

    @classmethod
    def of(cls, planned: PlannedModel, n_tokens: int, depth: int) -> _Report:
        """Return the report on a step of `n_tokens` after `depth` cached tokens.

        Raises RequestError if they exceed the context.
        """
        from zinc.backends.plans import SplitPlan
        from zinc.cli import device_map, fit_text
        from zinc.cli.inspect import nextn_memory
        from zinc.engine.step_cost import StepShape

        spec, backend, kv_dtype = planned.spec, planned.backend, planned.kv_dtype
        context = planned.options.context or spec.context
        if depth + n_tokens > context:
            raise RequestError(
                f"a step of {n_tokens:,} tokens after {depth:,} cached ones is not possible",
                f"the context has {context:,} tokens",
                "choose a smaller --depth or --tokens",
            )
        plan = planned.plan_for(depth + n_tokens)
        shape = StepShape(n_tokens, 1, depth, kv_dtype)
        counts = backend.counts(
            plan, kv_dtype, tokens=n_tokens, outputs=1, sequences=1, keys=depth + n_tokens
        )
        fit = fit_text.report_of(planned, context)
        memory = {**_memory(fit), **nextn_memory(planned.file, spec)}
        split: dict[str, Any] = {}
        if isinstance(plan, SplitPlan) and backend.split is not None:
            split = device_map.report(plan, backend.split.names, shape, context)
        barriers = barrier_report(counts, spec.n_layers)
        return cls(planned, plan, shape, fit, memory, barriers, split)

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        from zinc.cli import fit_text

        return {
            "model": str(self.planned.file.path),
            "backend": self.planned.backend.name,
            **describe(self.plan, self.shape),
            **self.barriers,
            **self.memory,
            **fit_text.as_json(self.fit),
            **self.split,
        }

    def as_text(self) -> str:
        """Return the report as text."""
        from zinc.backends.plans import SplitPlan
        from zinc.cli import device_map, fit_text

        plan, backend = self.plan, self.planned.backend
        where = device_map.columns(plan, self.split) if isinstance(plan, SplitPlan) else None
        n_launches = len(plan.launches)
        lines = [
            f"{self.planned.file.path} on {backend.describe()}: {n_launches} launches\n",
            launches(plan, self.shape, where),
            totals(plan, self.shape, self.memory),
        ]
        if self.split:
            lines.append(device_map.text(self.split))
        if self.barriers:
            lines.append(f"on the device: {barrier_text(self.barriers)}")
        return "\n".join([*lines, fit_text.verdict(self.fit)])


def barrier_report(counts: StepCounts | None, n_layers: int) -> dict[str, Any]:
    """Return the dispatches and barriers of a step as JSON; empty if the backend has none."""
    if counts is None:
        return {}
    return {
        "dispatches": counts.dispatches,
        "barriers": counts.barriers,
        "barriers_a_layer": counts.barriers / n_layers,
    }


def barrier_text(report: dict[str, Any]) -> str:
    """Return the dispatches and barriers of a step as text."""
    return (
        f"{report['dispatches']:,} dispatches, {report['barriers']:,} barriers between them "
        f"({report['barriers_a_layer']:.1f} a layer)"
    )


def _memory(report: FitReport) -> dict[str, Any]:
    """Return the bytes that the whole model takes, by purpose."""
    return {
        "weights_bytes": report.total("weights_bytes"),
        "kv_bytes": report.total("kv_bytes"),
        "state_bytes": report.total("state_bytes"),
        "context_tokens": report.context_tokens,
        "arena_bytes": report.total("scratch_bytes"),
    }


def launches(plan: Plan, shape: StepShape, where: Sequence[tuple[str, str]] | None = None) -> str:
    """Return a table of the launches; `where` adds two columns, see `device_map.columns`."""
    has_alternatives = any(launch.when for launch in plan.launches)
    rows = [
        (
            i,
            *(where[i] if where else ()),
            launch.label,
            launch.kernel,
            *((str(launch.when or ""),) if has_alternatives else ()),
            _operands(launch),
            ", ".join(f"{ref.cols} {ref.format}" for ref in launch.outputs),
            size(shape.bytes(launch)),
            f"{shape.flops(launch) / 1e6:,.2f}",
        )
        for i, launch in enumerate(plan.launches)
    ]
    header = (
        "# |",
        *(("on", "receives |") if where else ()),
        "part",
        "kernel",
        *(("when",) if has_alternatives else ()),
        "reads",
        "writes",
        "bytes |",
        "MFLOP |",
    )
    return table(header, rows)


def totals(plan: Plan, shape: StepShape, memory: dict[str, Any]) -> str:
    """Return the totals of a step and of the memory as text."""
    from zinc.cli.inspect import nextn_text

    n_bytes = sum(shape.bytes(launch) for launch in plan.launches)
    flops = sum(shape.flops(launch) for launch in plan.launches)
    tokens = "1 token" if shape.tokens == 1 else f"{shape.tokens:,} tokens"
    state = memory["state_bytes"]
    recurrent = f"recurrent state {size(state)} a sequence, " if state else ""
    kept = f"kept for speculation: {nextn_text(memory)}\n" if memory["nextn_blocks"] else ""
    return (
        f"\na step of {tokens} after {shape.depth:,} cached ones: "
        f"{size(n_bytes)}, {flops / 1e9:.3f} GFLOP\n"
        f"memory: weights {size(memory['weights_bytes'])}, "
        f"KV cache {size(memory['kv_bytes'])} for {memory['context_tokens']:,} tokens, "
        f"{recurrent}arena {size(memory['arena_bytes'])} for steps of {plan.max_tokens} tokens\n"
        f"{kept}"
        f"plan {plan.hash}"
    )


def describe(plan: Plan, shape: StepShape) -> dict[str, Any]:
    """Return a plan and its costs as JSON values."""
    return {
        "hash": plan.hash,
        "max_tokens": plan.max_tokens,
        "tokens": shape.tokens,
        "depth": shape.depth,
        "bytes": sum(shape.bytes(launch) for launch in plan.launches),
        "flops": sum(shape.flops(launch) for launch in plan.launches),
        "launches": [
            {
                "index": i,
                "label": launch.label,
                "kernel": launch.kernel,
                "dim": str(launch.dim),
                "inputs": [_operand(x) for x in launch.inputs],
                "outputs": [_operand(x) for x in launch.outputs],
                "attrs": launch.attributes,
                "when": str(launch.when) if launch.when else None,
                "runs": shape.runs(launch),
                "bytes": shape.bytes(launch),
                "flops": shape.flops(launch),
            }
            for i, launch in enumerate(plan.launches)
        ],
    }


def _operand(x: Operand) -> dict[str, Any] | None:
    """Return an operand of a launch as JSON values."""
    from zinc.backends.plans import Ref
    from zinc.ops.values import Constant, Weight

    match x:
        case None:
            return None
        case Ref():
            return {
                "value": x.id, "dim": str(x.dim), "cols": x.cols, "format": str(x.format),
                "offset": x.offset, "stride": x.stride,
            }  # fmt: skip
        case Weight():
            return {"weight": x.name, "type": x.type.name, "shape": list(x.shape)}
        case Constant():
            return {"constant": x.name, "cols": x.cols}
        case _:
            return {"state": x.name}


def _operands(launch: Launch) -> str:
    """Return the weights of a launch with their types, and the states that it uses."""
    from zinc.ops.values import KVState, RecurrentState, Weight

    names = []
    for x in launch.inputs:
        if isinstance(x, Weight):
            name = x.name.removeprefix(f"{launch.label}.").replace(".weight", "")
            names.append(name if x.is_vector else f"{name} {x.type.name}")
        elif isinstance(x, KVState):
            names.append("cache")
        elif isinstance(x, RecurrentState):
            names.append("state")
    return ", ".join(names)


def dot(plan: Plan) -> str:
    """Return the plan as a Graphviz digraph of launches and the values between them."""
    from zinc.backends.plans import Ref

    lines = ["digraph plan {", "  node [shape=box, style=filled, fillcolor=white];"]
    made: dict[int, int] = {}
    for i, launch in enumerate(plan.launches):
        reads = _operands(launch)
        text = f"{i} {launch.label}\\n{launch.kernel}" + (f"\\n{reads}" if reads else "")
        color = _color(launch)
        lines.append(f'  n{i} [label="{_escaped(text)}", fillcolor="{color}"];')
        lines += [
            f'  n{made[x.id]} -> n{i} [label="{x.cols} {x.format}"];'
            for x in launch.inputs
            if isinstance(x, Ref)
        ]
        made |= {ref.id: i for ref in launch.outputs}
    return "\n".join([*lines, "}"])


def _color(launch: Launch) -> str:
    """Return the color of a launch in the graph."""
    from zinc.ops import OPS

    op = OPS[launch.kernel]
    if op.has_matrices:
        return MATRIX_COLOR
    return CACHE_COLOR if op.reads_cache else "white"


def _escaped(text: str) -> str:
    return text.replace('"', '\\"')
