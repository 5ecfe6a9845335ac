"""Micro-batches: parts of a step that move through the devices of a split model as in a pipeline.

    device 0   | 0 | 1 | 2 | 3 |
    device 1       | 0 | 1 | 2 | 3 |
    device 2           | 0 | 1 | 2 | 3 |

Each device runs the micro-batches in order, in a thread of its own. So caches and recurrent states
change as they do when a prompt is read in chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from queue import SimpleQueue

import numpy as np

from zinc.backends.api import FinishedStep, Program
from zinc.backends.capabilities import BackendKind
from zinc.backends.plans import AllReduce, Plan, Segment, SplitPlan, Transfer
from zinc.ops.step import Step
from zinc.ops.values import FloatArray

# Tokens of a micro-batch by kind of device: GEMM kernels are inefficient with fewer.
MICRO_BATCH_TOKENS = dict.fromkeys(BackendKind, 128) | {BackendKind.DEVICE: 512}
# Micro-batches of a step of the default size. More of them keep the devices busy for a larger part
# of the step, but take more memory.
MICRO_BATCHES = 4
# A sequence is cut into parts of at least this many tokens, so that rows to be verified stay
# together: a recurrent state can be rolled back within the last rows of one step only.
LEAST_TOKENS = 32
NO_TOKENS = np.empty((0, 2), np.float32)


def can_overlap(plan: SplitPlan) -> bool:
    """Return whether the devices of `plan` can work on different micro-batches at the same time.

    This requires that each device has one turn in a step, that attention is causal, and that the
    host writes no rows before a step. If the host reads hidden rows, the device that makes the
    output must have them.
    """
    turns = [entry.device for entry in plan.schedule if isinstance(entry, Segment)]
    if len(turns) < 2 or len(turns) > len(set(turns)):
        return False
    if any(isinstance(entry, AllReduce) for entry in plan.schedule):
        return False  # tensor parallelism keeps all devices busy already
    if plan.given is not None:
        return False
    if any(part.hidden is not None and not part.output.cols for part in plan.parts):
        return False
    return all(launch.attributes.get("causal", 1) for launch in plan.launches)


def micro_batch_tokens(kinds: Iterable[BackendKind]) -> int:
    """Return the tokens of a micro-batch for devices of these kinds.

    A slow device decides, because it gains nothing from larger ones.
    """
    return min(MICRO_BATCH_TOKENS[kind] for kind in kinds)


def micro_batches(step: Step, n_tokens: int) -> list[Step]:
    """Return the parts of `step` that run one after the other; a small step is one part.

    n_tokens: approximate size of a part. The parts have the output rows of `step`, in its order.
    """
    n_parts = step.n_tokens // n_tokens
    if (np.diff(step.output_rows) < 0).any():
        n_parts = 1
    cuts = [0]
    for i in range(1, n_parts):
        cut = _cut(step, step.n_tokens * i // n_parts)
        if cuts[-1] < cut < step.n_tokens:
            cuts.append(cut)
    cuts.append(step.n_tokens)
    if len(cuts) == 2:
        return [step]
    return [step.part(a, b) for a, b in pairwise(cuts)]


def _cut(step: Step, wanted: int) -> int:
    """Return a row near `wanted` at which to cut, so that no part of a sequence is too short."""
    sequence = int(step.sequence[wanted])
    first, last = int(step.seq_start[sequence]), int(step.seq_start[sequence + 1])
    if wanted - first < LEAST_TOKENS:
        return first
    return last if last - wanted < LEAST_TOKENS else wanted


def result_of(program: Program, plan: Plan, step: Step, logits: bool) -> FinishedStep:
    """Return the tokens and, if wanted, the logits of a step that `program` has run."""
    n, sampled = len(step.output_rows), NO_TOKENS
    if n and step.sample_params is not None and plan.sampled is not None:
        sampled = program.read(plan.sampled, n)
    no_rows = np.empty((0, plan.output.cols), np.float32)
    return FinishedStep(sampled, program.read(plan.output, n) if logits and n else no_rows)


def joined(results: Sequence[FinishedStep], cols: int) -> FinishedStep:
    """Return the rows of all results, with logits of `cols` columns."""
    no_rows = np.empty((0, cols), np.float32)
    hidden = [x.hidden_rows for x in results if x.hidden_rows is not None]
    return FinishedStep(
        np.concatenate([NO_TOKENS, *(x.tokens() for x in results if len(x.tokens()))]),
        np.concatenate([no_rows, *(x.logits() for x in results)]),
        np.concatenate(hidden) if hidden else None,
    )


class Pipeline:
    """The programs of a split plan, run on several micro-batches at the same time.

    last: the device that makes the output.
    """

    def __init__(self, plan: SplitPlan, programs: Sequence[Program], last: int) -> None:
        self._programs, self._plan = tuple(programs), plan
        self._entries, self._last = plan.schedule, last
        self._threads: ThreadPoolExecutor | None = None

    def run(self, steps: Sequence[Step], logits: bool) -> list[FinishedStep]:
        """Run `steps` in order and return the result of each.

        logits: whether to read the logits. Raises as programs do.
        """
        if self._threads is None:
            self._threads = ThreadPoolExecutor(len(self._programs), "zinc-device")
        # The rows of each transfer, one entry a micro-batch; None if the sender failed.
        sent: list[SimpleQueue[FloatArray | None]] = [SimpleQueue() for _ in self._entries]
        work = [
            self._threads.submit(self._run_device, i, steps, sent, logits)
            for i in range(len(self._programs))
        ]
        outputs = [each.exception() or each.result() for each in work]
        for found in outputs:
            if isinstance(found, BaseException):
                raise found
        result = outputs[self._last]
        assert isinstance(result, list)
        return result

    def _run_device(
        self,
        device: int,
        steps: Sequence[Step],
        sent: Sequence[SimpleQueue[FloatArray | None]],
        logits: bool,
    ) -> list[FinishedStep]:
        """Run the part of a device on all micro-batches; return the results if it makes them.

        Stops early if another device has failed.
        """
        outputs: list[FinishedStep] = []
        try:
            for step in steps:
                if not self._run_part(device, step, sent):
                    return outputs
                if device == self._last:
                    outputs.append(self._result(step, logits))
        except BaseException:
            for rows_sent in sent:
                rows_sent.put(None)
            raise
        return outputs

    def _run_part(
        self, device: int, step: Step, sent: Sequence[SimpleQueue[FloatArray | None]]
    ) -> bool:
        """Run the part of a device on one micro-batch. Return False if another device failed."""
        for entry, rows_sent in zip(self._entries, sent, strict=True):
            if isinstance(entry, Transfer) and not self._transfer(device, step, entry, rows_sent):
                return False
            if isinstance(entry, Segment) and entry.device == device:
                self._programs[device].run(step, entry.first, entry.last)
        return True

    def _result(self, step: Step, logits: bool) -> FinishedStep:
        """Return the result of a micro-batch, with its hidden rows if the host reads them."""
        program, hidden = self._programs[self._last], self._plan.hidden
        result = result_of(program, self._plan, step, logits)
        if hidden is None:
            return result
        return replace(result, hidden_rows=program.read(hidden, step.rows(hidden.dim)))

    def _transfer(
        self, device: int, step: Step, entry: Transfer, sent: SimpleQueue[FloatArray | None]
    ) -> bool:
        """Send or receive the rows of a transfer, if `device` does. Return False after a failure.

        A sender does not wait for the receiver.
        """
        rows = step.rows(entry.sent.dim)
        if not rows:
            return True
        if entry.source == device:
            sent.put(self._programs[device].read(entry.sent, rows))
        elif entry.target == device:
            received = sent.get()
            if received is None:
                return False
            self._programs[device].write(entry.received, received)
        return True
