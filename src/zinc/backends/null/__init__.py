"""A backend that records launches and computes nothing, for tests of the planner and scheduler.

In each row of logits one entry is 1, at (id + position) mod vocab, so the next token of a run is
known; all others are zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from zinc.backends.api import CacheLayout, FinishedStep, HostBackend, TensorData, Work
from zinc.backends.capabilities import BackendKind, Capabilities, DeviceInfo
from zinc.backends.plans import Plan, Ref
from zinc.ops.registry import OPS
from zinc.ops.step import Step
from zinc.ops.values import FloatArray, RowFormat, State, Weight
from zinc.quant.blocks import GGMLType


class NullCache:
    n_bytes = 0

    def __init__(self, layout: CacheLayout) -> None:
        self.layout = layout
        self.copies: list[tuple[int, int, int]] = []
        self.state_copies: list[tuple[int, int]] = []

    def copy_block(self, group: int, source: int, target: int) -> None:
        self.copies.append((group, source, target))

    def copy_state(self, source: int, target: int) -> None:
        self.state_copies.append((source, target))

    def block_views(self, group: int, block: int) -> list[npt.NDArray[np.uint8]]:
        return []

    def put_block(self, group: int, block: int, views: list[npt.NDArray[np.uint8]]) -> None:
        pass  # it stores nothing

    def state_views(self, slot: int) -> list[npt.NDArray[np.uint8]]:
        return []

    def put_state(self, slot: int, views: list[npt.NDArray[np.uint8]]) -> None:
        pass


class NullProgram:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.work = Work()
        self.steps: list[Step] = []
        self.launched: list[str] = []
        self._sampled = np.empty(0, np.int32)

    def step(self, step: Step) -> FloatArray:
        self.steps.append(step)
        self.run(step, 0, len(self.plan.launches))
        logits = np.zeros((len(step.output_rows), self.plan.output.cols), np.float32)
        rows = step.output_rows
        best = (step.ids[rows] + step.positions[rows]) % self.plan.output.cols
        logits[np.arange(len(rows)), best] = 1.0
        return logits

    def sample(self, step: Step) -> FinishedStep:
        logits = self.step(step.with_ids(self._sampled))
        self._sampled = logits.argmax(axis=1).astype(np.int32)
        return FinishedStep(np.stack([self._sampled, logits.max(axis=1)], axis=1), logits)

    def run(self, step: Step, first: int, last: int) -> None:
        launches = self.plan.launches[first:last]
        self.launched.extend(x.kernel for x in launches if x.runs_in(step))

    def read(self, ref: Ref, rows: int) -> FloatArray:
        return np.zeros((rows, ref.cols), np.float32)

    def write(self, ref: Ref, rows: FloatArray) -> None:
        pass

    def kernels(self, step: Step, launch: int) -> list[str]:
        return [self.plan.launches[launch].kernel]

    def profile(self, step: Step) -> list[float]:
        self.step(step)
        return [0.0] * len(self.plan.launches)


class NullBackend(HostBackend):
    name = "null"
    weight_bytes = 0
    capabilities = Capabilities(
        BackendKind.DRY_RUN, batch_invariant=True, rollback=True, host_rows=True
    )

    def describe(self) -> str:
        return "null: records launches, computes nothing"

    def row_format(self, type: GGMLType) -> RowFormat:
        return (
            RowFormat.F32
            if type in (GGMLType.F32, GGMLType.F16, GGMLType.BF16)
            else RowFormat.Q8_256
        )

    def supports(self, kernel: str) -> bool:
        return True

    def stores(self, kernel: str, format: RowFormat) -> bool:
        return OPS[kernel].stores_formats

    def row_bytes(self, format: RowFormat, cols: int) -> int:
        return 4 * cols

    def upload(self, weight: Weight, data: TensorData) -> None:
        pass

    def allocate(self, states: tuple[State, ...], layout: CacheLayout) -> NullCache:
        return NullCache(layout)

    def prepare(self, plan: Plan, cache: Any) -> NullProgram:
        return NullProgram(plan)


def create(threads: int | None = None, options: Mapping[str, str] | None = None) -> NullBackend:
    return NullBackend()


def kernels(options: Mapping[str, str] | None = None) -> NullBackend:
    return NullBackend()


def devices() -> list[DeviceInfo]:
    return []
