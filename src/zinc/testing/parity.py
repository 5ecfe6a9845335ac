"""Comparison of a backend with `ref`, launch by launch on the same inputs.

Both run the backend's plan. Before each launch, its inputs are copied from the backend to the
reference, so an error appears at the launch that makes it and not at later ones. Each side has its
own KV cache, written from the same rows.

The launches are those of a model, or of the cases in the op registry, which need no model and cover
every block format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np

from zinc.backends import api
from zinc.backends.api import (
    Backend,
    Kernels,
    Program,
)
from zinc.backends.plans import AllReduce, Launch, Plan, Ref, SplitPlan
from zinc.core.dataclass import dataclass
from zinc.core.progress import ProgressBar
from zinc.engine.load.self_test import BLOCK_TOKENS, bind_case, plan_case, relative_error
from zinc.ops import OPS
from zinc.ops.cases import Case
from zinc.ops.registry import Op
from zinc.ops.step import Step
from zinc.ops.values import FloatArray, RowFormat, Weight
from zinc.quant.blocks import BLOCKS, GGMLType

# Number of values that share a scale in integer formats, and the largest integer.
SCALE_BLOCK = {"q8_32": 32, "q8_256": 256, "q15_32": 32}
MOST = {"q8_32": 127, "q8_256": 127, "q15_32": 16383}
# Error of attention with quantised keys and values.
KV_TOLERANCE = {"f16": 0.0, "q8_0": 3e-2, "q4_0": 3e-1}
# Kernels may round the rows that they multiply with quantised weights to 8 bits. That is an error
# of 1 / 254 of a block's largest value, which partly averages out. Errors of consecutive products
# add up, and the product of gate and up has larger peaks.
QUANTISED_TOLERANCE = 1e-2
# Error of F16 weights and rows that are rounded to 15 bits. Other kernels multiply float32 numbers.
HALF_TOLERANCE = 1e-3
# Running all launches in one step must give the same result as running them one by one. Otherwise a
# launch did not wait for one that it depends on.
TOGETHER_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Check:
    """Relative error of one output of a launch, and its tolerance.

    kernels: names of the backend's kernels for the launch.
    """

    step: str
    index: int
    kernel: str
    label: str
    output: int
    error: float
    tolerance: float
    kernels: tuple[str, ...] = ()

    @property
    def departs(self) -> bool:
        # `not <=` rather than `>`, so that NaN counts as a deviation.
        return not self.error <= self.tolerance

    def to_dict(self) -> dict[str, Any]:
        """Return the check as JSON values; an error that is not finite is null."""
        finite = self.error - self.error == 0
        return {
            "step": self.step,
            "launch": self.index,
            "kernel": self.kernel,
            "label": self.label,
            "output": self.output,
            "error": self.error if finite else None,
            "tolerance": self.tolerance,
            "departs": self.departs,
            "kernels": list(self.kernels),
        }


def compare(
    name: str,
    program: Program,
    reference: Program,
    step: Step,
    allowed: Callable[[Launch], float],
) -> Iterator[Check]:
    """Run both programs launch by launch and yield a check of each output.

    `allowed` returns the relative error that a launch may make. A launch without rows in the step
    has no check, because a backend does not write its outputs. Nor has an output that only the
    launch itself reads, and whose memory a later output of the launch reuses.
    """
    plan = program.plan
    whole = {ref.id: ref for launch in plan.launches for ref in launch.outputs}
    if isinstance(plan, SplitPlan):
        sums = (entry for entry in plan.schedule if isinstance(entry, AllReduce))
        whole |= {term.total.id: term.total for entry in sums for term in entry.terms}
    for i, launch in enumerate(plan.launches):
        if not launch.runs_in(step) or not step.rows(launch.dim):
            continue
        for x in launch.inputs:
            if isinstance(x, Ref):  # or a view of some of its columns
                base = whole[x.id]
                reference.write(base, program.read(base, step.rows(base.dim)))
        program.run(step, i, i + 1)
        reference.run(step, i, i + 1)
        for k, ref in enumerate(launch.outputs):
            if any(_share_memory(ref, later, step) for later in launch.outputs[k + 1 :]):
                continue
            rows = step.rows(ref.dim)
            wanted = reference.read(ref, rows)
            error = relative_error(program.read(ref, rows), wanted)
            tolerance = allowed(launch) + storage_error(wanted, ref.format)
            kernels = () if error <= tolerance else tuple(program.kernels(step, i))
            yield Check(name, i, launch.kernel, launch.label, k, error, tolerance, kernels)


def _share_memory(a: Ref, b: Ref, step: Step) -> bool:
    """Return whether the rows of two values in a step overlap in the arena."""
    a_end, b_end = (ref.offset + step.rows(ref.dim) * ref.stride for ref in (a, b))
    return a.id != b.id and a.offset < b_end and b.offset < a_end


@cache
def every_case() -> list[tuple[Op, Case]]:
    """Return all cases of the op registry."""
    return [(op, case) for op in OPS.values() for case in op.cases()]


def is_for(kernels: Kernels, op: Op, case: Case) -> bool:
    """Return whether a backend must have the kernels for a case of the op."""
    ops = (op, *(OPS[node.op] for node in case.graph.nodes))
    return all(not each.optional or kernels.supports(each.name) for each in ops)


def compare_cases(create: Callable[[], Backend]) -> Iterator[list[Check]]:
    """Yield the checks of each case of the op registry, each on a new backend.

    The last check of a case compares its whole step with its launches run one by one.
    """
    kernels = create()
    cases = [(op, case) for op, case in every_case() if is_for(kernels, op, case)]
    steps = [(plan_case(case, kernels), case.step(BLOCK_TOKENS)) for _, case in cases]
    planned = zip(cases, steps, strict=True)
    before = [(plan, case.before(BLOCK_TOKENS)) for (_, case), (plan, _) in planned]
    kernels.compile([*steps, *((plan, step) for plan, step in before if step)], "f16")
    with ProgressBar("testing kernels") as progress:
        for done, ((op, case), (plan, step)) in enumerate(zip(cases, steps, strict=True)):
            yield _compare(op, case, plan, step, create())
            progress(done + 1, len(cases))


def compare_case(op: Op, case: Case, backend: Backend) -> list[Check]:
    """Return the checks of one case, as `compare_cases` does."""
    return _compare(op, case, plan_case(case, backend), case.step(BLOCK_TOKENS), backend)


def _compare(op: Op, case: Case, plan: Plan, step: Step, backend: Backend) -> list[Check]:
    name = f"case {case.name} of {op.name}"
    program = bind_case(backend, case, plan, step)
    reference = bind_case(api.create("ref"), case, plan, step)
    known = case_tolerance(op, case, backend)

    def allowed(launch: Launch) -> float:
        return max(known, OPS[launch.kernel].tolerance)

    checks = list(compare(name, program, reference, step, allowed))
    one_by_one = np.array(program.read(plan.output, len(step.output_rows)))
    if (before := case.before(BLOCK_TOKENS)) is not None:
        program.step(before)  # starts at position 0, and so resets recurrent states
    error = relative_error(program.step(step), one_by_one)
    checks.append(Check(name, len(plan.launches), "", "", 0, error, TOGETHER_TOLERANCE))
    return checks


def storage_error(rows: FloatArray, format: str) -> float:
    """Return the largest relative error of storing `rows` as `format`.

    In integer formats a value changes by up to half a step, m / 254 with 8 bits and m the largest
    value of its block; in bfloat16 by up to 2^-9 of itself.
    """
    if format == "bf16":
        return 2**-8
    size = float(np.linalg.norm(rows.astype(np.float64)))
    if format not in SCALE_BLOCK or not 0 < size < float("inf"):
        return 0.0
    starts = np.arange(0, rows.shape[1], SCALE_BLOCK[format])
    counts = np.diff([*starts, rows.shape[1]])
    steps = np.maximum.reduceat(np.abs(rows).astype(np.float64), starts, axis=1)
    steps /= 2 * MOST[format]
    return 1.01 * float(np.sqrt((counts * steps**2).sum())) / size


def case_tolerance(op: Op, case: Case, kernels: Kernels) -> float:
    """Return the relative error that one of `kernels` may make in a case of the op registry."""
    products = [node for node in case.graph.nodes if OPS[node.op].has_matrices]
    matrices = {
        x for node in products for x in node.inputs if isinstance(x, Weight) and not x.is_vector
    }
    return max(op.tolerance, len(matrices) * _largest_rounding(matrices, kernels))


def _largest_rounding(weights: Iterable[Weight], kernels: Kernels) -> float:
    """Return the largest error of rounding rows that are multiplied with one of `weights`."""
    return max((_rounding(w, kernels) for w in weights), default=0.0)


def _rounding(w: Weight, kernels: Kernels) -> float:
    if w.type is GGMLType.BF16 or BLOCKS[w.type].block_size > 1:
        return QUANTISED_TOLERANCE
    return HALF_TOLERANCE if w.type is GGMLType.F16 and _rounds_halves(kernels) else 0.0


def _rounds_halves(kernels: Kernels) -> bool:
    """Return whether a device multiplies F16 weights as 15-bit integers."""
    devices = (kernels,) if kernels.split is None else kernels.split.devices
    return any(device.row_format(GGMLType.F16) is RowFormat.Q15_32 for device in devices)


def launch_tolerance(launch: Launch, kv_dtype: str, kernels: Kernels) -> float:
    """Return the relative error that a launch of a model may make, given its inputs."""
    op = OPS[launch.kernel]
    tolerance = op.tolerance + (KV_TOLERANCE[kv_dtype] if op.reads_cache else 0.0)
    weights = [x for x in launch.inputs if isinstance(x, Weight)]
    if op.has_matrices and op.signature.weight_format is None:  # the kernel itself rounds rows
        # Rows in a model have larger peaks than rows in a case.
        tolerance += 2 * _largest_rounding(weights, kernels)
    elif op.has_matrices:
        # The plan rounds the rows, the kernel F16 weights.
        halves = (w for w in weights if w.type is GGMLType.F16)
        tolerance += _largest_rounding(halves, kernels)
    return tolerance
