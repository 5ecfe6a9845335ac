"""Comparison of a backend's launches with those of `ref`, one by one on the same inputs.

The reference walks the backend's own plan. Before each launch its inputs are copied over from the
backend, so an error shows at the launch that makes it and not at those that inherit it; keys and
values each keeps for itself, written from the same rows.

Two sources of launches: the layers of a model, and the cases that the op registry generates, which
need no model and reach every block format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from zinc.backends import api
from zinc.backends.api import (
    Backend,
    Kernels,
    Program,
)
from zinc.backends.plans import Launch, Plan, Ref
from zinc.core.progress import ProgressBar
from zinc.engine.load.self_test import BLOCK_TOKENS, bind_case, plan_case, relative_error
from zinc.ops import OPS
from zinc.ops.cases import Case
from zinc.ops.registry import Op
from zinc.ops.step import Step
from zinc.ops.values import FloatArray, Weight
from zinc.quant.blocks import BLOCKS, GGMLType

# Values that share a scale, in the formats of 8 bits.
SCALE_BLOCK = {"q8_32": 32, "q8_256": 256}
# A cache of 8-bit or 4-bit keys and values, seen through the softmax.
KV_TOLERANCE = {"f16": 0.0, "q8_0": 3e-2, "q4_0": 3e-1}
# Rows in front of a quantised weight are rounded to 8 bits: 1 / 254 of a block's largest each,
# which averages out over the sum. Errors of products in a row add up, and what they feed on, the
# product of gate and up, has larger peaks.
QUANTISED_TOLERANCE = 1e-2
# The same kernels on the same inputs: launches that do not wait for each other would show.
TOGETHER_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Check:
    """One output of one launch in one step: its relative error, and how much is allowed.

    kernels: what the backend runs for it, by the names of its own.
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
        # Written so that NaN departs.
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

    `allowed` returns the relative error that a launch may make.
    """
    plan = program.plan
    whole = {ref.id: ref for launch in plan.launches for ref in launch.outputs}
    for i, launch in enumerate(plan.launches):
        for x in launch.inputs:
            if isinstance(x, Ref):  # or a view of some of its columns
                base = whole[x.id]
                reference.write(base, program.read(base, step.rows(base.dim)))
        program.run(step, i, i + 1)
        reference.run(step, i, i + 1)
        for k, ref in enumerate(launch.outputs):
            rows = step.rows(ref.dim)
            wanted = reference.read(ref, rows)
            error = relative_error(program.read(ref, rows), wanted)
            tolerance = allowed(launch) + storage_error(wanted, ref.format)
            kernels = () if error <= tolerance else tuple(program.kernels(step, i))
            yield Check(name, i, launch.kernel, launch.label, k, error, tolerance, kernels)


@cache
def every_case() -> list[tuple[Op, Case]]:
    """Return all cases of the op registry."""
    return [(op, case) for op in OPS.values() for case in op.cases()]


def is_for(kernels: Kernels, op: Op) -> bool:
    """Return whether a backend must have a kernel for the op."""
    return not op.optional or kernels.supports(op.name)


def compare_cases(create: Callable[[], Backend]) -> Iterator[list[Check]]:
    """The checks of every case of the op registry, on a backend of its own each.

    The last check of a case is its whole step, against its launches one by one.
    """
    kernels = create()
    cases = [(op, case) for op, case in every_case() if is_for(kernels, op)]
    steps = [(plan_case(case, kernels), case.step(BLOCK_TOKENS)) for _, case in cases]
    planned = zip(cases, steps, strict=True)
    before = [(plan, case.before(BLOCK_TOKENS)) for (_, case), (plan, _) in planned]
    kernels.compile([*steps, *((plan, step) for plan, step in before if step)], "f16")
    with ProgressBar("testing kernels") as progress:
        for done, ((op, case), (plan, step)) in enumerate(zip(cases, steps, strict=True)):
            yield _compare_case(op, case, plan, step, create())
            progress(done + 1, len(cases))


def _compare_case(op: Op, case: Case, plan: Plan, step: Step, backend: Backend) -> list[Check]:
    name = f"case {case.name} of {op.name}"
    program = bind_case(backend, case, plan, step)
    reference = bind_case(api.create("ref"), case, plan, step)
    known = case_tolerance(op, case)

    def allowed(launch: Launch) -> float:
        return max(known, OPS[launch.kernel].tolerance)

    checks = list(compare(name, program, reference, step, allowed))
    one_by_one = program.read(plan.output, len(step.output_rows))
    error = relative_error(program.step(step), one_by_one)
    checks.append(Check(name, len(plan.launches), "", "", 0, error, TOGETHER_TOLERANCE))
    return checks


def storage_error(rows: FloatArray, format: str) -> float:
    """The largest relative error that storing `rows` as `format` may make.

    A value of a block whose largest is m moves by up to half a step, m / 254; a bfloat16 by up to
    2^-9 of itself.
    """
    if format == "bf16":
        return 2**-8
    size = float(np.linalg.norm(rows.astype(np.float64)))
    if format not in SCALE_BLOCK or not 0 < size < float("inf"):
        return 0.0
    starts = np.arange(0, rows.shape[1], SCALE_BLOCK[format])
    counts = np.diff([*starts, rows.shape[1]])
    steps = np.maximum.reduceat(np.abs(rows).astype(np.float64), starts, axis=1) / 254
    return 1.01 * float(np.sqrt((counts * steps**2).sum())) / size


def case_tolerance(op: Op, case: Case) -> float:
    """Return the relative error that a kernel may make in a case of the op registry."""
    products = [node for node in case.graph.nodes if OPS[node.op].has_matrices]
    matrices = {
        x for node in products for x in node.inputs if isinstance(x, Weight) and not x.is_vector
    }
    if any(map(_rounds_rows, matrices)):
        return QUANTISED_TOLERANCE * len(matrices)
    return op.tolerance


def _rounds_rows(w: Weight) -> bool:
    """Return whether a kernel may round the rows that it multiplies with the weight."""
    return w.type is GGMLType.BF16 or BLOCKS[w.type].block_size > 1


def launch_tolerance(launch: Launch, kv_dtype: str) -> float:
    """Return the relative error that a launch of a model may make, given its inputs."""
    op = OPS[launch.kernel]
    tolerance = op.tolerance + (KV_TOLERANCE[kv_dtype] if op.reads_cache else 0.0)
    if op.has_matrices and op.signature.weight_format is None:  # the kernel itself rounds rows
        weights = [x for x in launch.inputs if isinstance(x, Weight)]
        # Rows of a model have larger peaks than those of a case.
        tolerance += 2 * QUANTISED_TOLERANCE * any(map(_rounds_rows, weights))
    return tolerance
