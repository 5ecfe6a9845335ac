"""`zinc verify`: every launch of a backend against `ref`, on the same inputs, in the real model.

The reference walks the backend's own plan. Before each launch its inputs are copied over from the
backend, so an error shows at the launch that makes it and not at those that inherit it; keys and
values each keeps for itself, written from the same rows.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zinc.cli import usage
from zinc.cli.text import table

if TYPE_CHECKING:
    from zinc.backends.api import Launch, Ref
    from zinc.cli.loading import Bound
    from zinc.ops.graph import FloatArray
    from zinc.ops.step import Step

# Values that share a scale, in the formats of 8 bits.
SCALE_BLOCK = {"q8_32": 32, "q8_256": 256}
# A cache of 8-bit or 4-bit keys and values, seen through the softmax.
KV_TOLERANCE = {"f16": 0.0, "q8_0": 3e-2, "q4_0": 3e-1}
DECODE_STEPS = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    usage.add_model(parser)
    parser.add_argument(
        "--tokens",
        type=usage.count,
        default=32,
        metavar="N",
        help=f"tokens of the prompt; {DECODE_STEPS} decode steps follow (default: %(default)s)",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="show every part's errors")
    usage.add_backend(parser)
    usage.add_kv_dtype(parser)
    usage.add_json(parser)


def run(args: argparse.Namespace) -> int:
    from zinc.backends import api
    from zinc.cli import loading
    from zinc.core.errors import RequestError
    from zinc.formats.gguf import GGUFFile

    if args.tokens > loading.BATCH_TOKENS:
        raise RequestError(
            f"cannot verify {args.tokens:,} tokens",
            f"the prompt is one step of at most {loading.BATCH_TOKENS}",
        )
    backend = loading.create_backend(args)
    with GGUFFile.open(usage.model_path(args)) as file:
        context = args.tokens + DECODE_STEPS
        bound = loading.bind(file, backend, context, args.kv_dtype, max_outputs=args.tokens)
        reference = loading.bind(file, api.create("ref"), context, bound.kv_dtype, plan=bound.plan)
        checks = list(compare(bound, reference, args.tokens, bound.kv_dtype))
        logits = compare_logits(bound, reference, args.tokens)
        departed = next((check for check in checks if check.departs), None)
        if args.json:
            report = {
                "model": str(file.path),
                "backend": backend.name,
                "description": backend.describe(),
                "checks": [check.to_dict() for check in checks],
                "first_departure": departed and departed.to_dict(),
                **logits,
            }
            json.dump(report, sys.stdout)
            print()
        else:
            print(f"{file.path} on {backend.describe()}, against ref")
            if args.verbose:
                print(_parts(checks))
            print(_verdict(checks, departed, logits))
    return 1 if departed else 0


@dataclass(frozen=True, slots=True)
class Check:
    """One output of one launch in one step: its relative error, and how much is allowed."""

    step: str
    index: int
    kernel: str
    label: str
    output: int
    error: float
    tolerance: float

    @property
    def departs(self) -> bool:
        # Written so that NaN departs.
        return not self.error <= self.tolerance

    def to_dict(self) -> dict[str, Any]:
        """JSON has no NaN or infinity; such an error is null."""
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
        }


def _steps(bound: Bound, n_tokens: int) -> Iterator[tuple[str, Step]]:
    """A prompt with logits for every token, then single tokens after it."""
    import numpy as np

    ids = np.random.default_rng(0).integers(bound.spec.vocab, size=bound.context).tolist()
    yield "prefill", bound.step(ids[:n_tokens], 0, outputs=n_tokens)
    for at in range(n_tokens, n_tokens + DECODE_STEPS):
        yield f"decode at {at}", bound.step([ids[at]], at, outputs=1)


def compare(bound: Bound, reference: Bound, n_tokens: int, kv_dtype: str) -> Iterator[Check]:
    """Runs both, launch by launch."""
    from zinc.backends.api import Ref

    for name, step in _steps(bound, n_tokens):
        for i, launch in enumerate(bound.plan.launches):
            for x in launch.inputs:
                if isinstance(x, Ref):
                    reference.program.write(x, bound.program.read(x, _rows(x, step)))
            bound.program.run(step, i, i + 1)
            reference.program.run(step, i, i + 1)
            for k, ref in enumerate(launch.outputs):
                rows = _rows(ref, step)
                wanted = reference.program.read(ref, rows)
                error = relative_error(bound.program.read(ref, rows), wanted)
                tolerance = _tolerance(launch, kv_dtype) + storage_error(wanted, ref.act)
                yield Check(name, i, launch.kernel, launch.label, k, error, tolerance)


def compare_logits(bound: Bound, reference: Bound, n_tokens: int) -> dict[str, Any]:
    """Both run freely: what all errors together do to the logits of the prompt."""
    _, step = next(_steps(bound, n_tokens))
    found = bound.program.step(step).copy()
    wanted = reference.program.step(step)
    error = relative_error(found, wanted)
    return {
        "logits_error": error if error - error == 0 else None,
        "argmax_agrees": int((found.argmax(axis=1) == wanted.argmax(axis=1)).sum()),
        "logits_rows": len(wanted),
    }


def relative_error(found: FloatArray, wanted: FloatArray) -> float:
    """|found - wanted| / |wanted| in the Euclidean norm; infinite when `found` is not finite."""
    import numpy as np

    if not np.isfinite(found).all():
        return float("inf")
    size = float(np.linalg.norm(wanted.astype(np.float64)))
    difference = float(np.linalg.norm(found.astype(np.float64) - wanted))
    return difference / size if size else difference


def _rows(ref: Ref, step: Step) -> int:
    from zinc.ops.graph import Dim

    match ref.dim:
        case Dim.TOKENS:
            return step.n_tokens
        case Dim.OUTPUTS:
            return len(step.output_rows)
        case Dim.SEQUENCES:
            return step.n_sequences
        case _:
            return 1


def storage_error(rows: FloatArray, act: str) -> float:
    """The largest relative error that storing `rows` as `act` may make.

    A value of a block whose largest is m moves by up to half a step, m / 254; a bfloat16 by up to
    2^-9 of itself.
    """
    import numpy as np

    if act == "bf16":
        return 2**-8
    size = float(np.linalg.norm(rows.astype(np.float64)))
    if act not in SCALE_BLOCK or not 0 < size < float("inf"):
        return 0.0
    starts = np.arange(0, rows.shape[1], SCALE_BLOCK[act])
    counts = np.diff([*starts, rows.shape[1]])
    steps = np.maximum.reduceat(np.abs(rows).astype(np.float64), starts, axis=1) / 254
    return 1.01 * float(np.sqrt((counts * steps**2).sum())) / size


def _tolerance(launch: Launch, kv_dtype: str) -> float:
    from zinc.ops import OPS
    from zinc.ops.graph import KVState

    reads_cache = launch.kernel != "rope_store" and any(
        isinstance(x, KVState) for x in launch.inputs
    )
    cache = KV_TOLERANCE[kv_dtype] if reads_cache else 0.0
    return OPS[launch.kernel].tolerance + cache


def _parts(checks: list[Check]) -> str:
    """The worst check of every part of the model."""
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
            "departs" if check.departs else "",
        )
        for label, check in worst.items()
    ]
    return table(("part", "worst kernel", "launch |", "error |", "allowed |", ""), rows)


def _verdict(checks: list[Check], departed: Check | None, logits: dict[str, Any]) -> str:
    error = logits["logits_error"]
    shown = "no finite number" if error is None else f"{error:.2e}"
    end_to_end = (
        f"all together: logits depart by {shown}, "
        f"argmax agrees at {logits['argmax_agrees']} of {logits['logits_rows']} positions"
    )
    if departed is None:
        n_launches = 1 + max(check.index for check in checks)
        return f"all {n_launches} launches agree\n{end_to_end}"
    return (
        f"launch {departed.index} ({departed.kernel} of {departed.label or 'the model'}) departs "
        f"in the {departed.step}: relative error {departed.error:.2e}, "
        f"{departed.tolerance:.2e} is allowed\n{end_to_end}"
    )
