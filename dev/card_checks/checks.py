"""Op cases and fixtures as checks with a name, an error and a tolerance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from zinc.backends import api
from zinc.backends.api import Backend, CacheLayout, Kernels
from zinc.backends.plans import Plan
from zinc.engine.load.self_test import BLOCK_TOKENS, bind_case, plan_case, relative_error, steps
from zinc.formats.gguf import GGUFFile
from zinc.models import load
from zinc.ops.cases import Case
from zinc.ops.registry import Op
from zinc.ops.step import Step
from zinc.ops.values import FloatArray, KVState
from zinc.plan.planner import make_plan
from zinc.plan.weights import tensor_data
from zinc.testing.parity import case_tolerance, every_case, is_for

FIXTURES = Path(__file__).parents[2] / "tests" / "data" / "fixtures"
FIXTURE_TOLERANCE = 5e-3
ROOM = 128  # positions of the cache


@dataclass(frozen=True, slots=True)
class CaseCheck:
    """A case of the op registry, against the numpy reference."""

    op: Op
    case: Case

    @property
    def name(self) -> str:
        return f"{self.op.name}-{self.case.name}"

    def tolerance(self, kernels: Kernels) -> float:
        return case_tolerance(self.op, self.case, kernels)

    def steps(self, backend: Backend) -> Iterator[tuple[Plan, Step]]:
        plan = plan_case(self.case, backend)
        yield from ((plan, step) for step in steps(self.case))

    def error(self, backend: Backend) -> float:
        return relative_error(self._run(backend), self._run(api.create("ref")))

    def _run(self, backend: Backend) -> FloatArray:
        step = self.case.step(BLOCK_TOKENS)
        return bind_case(backend, self.case, plan_case(self.case, backend), step).step(step).copy()


@dataclass(frozen=True, slots=True)
class FixtureCheck:
    """A fixture, against the logits of the published model: at once and token by token."""

    path: Path

    @property
    def name(self) -> str:
        return f"fixture {self.path.stem}"

    def tolerance(self, kernels: Kernels) -> float:
        return FIXTURE_TOLERANCE

    def steps(self, backend: Backend) -> Iterator[tuple[Plan, Step]]:
        ids, _ = self._expected()
        with GGUFFile.open(self.path) as file:
            plan = _plan(file, backend, len(ids))
        _, tables = _layout(plan)
        for size in (len(ids), 1):
            yield from ((plan, _step(ids, *span, tables)) for span in _spans(len(ids), size))

    def error(self, backend: Backend) -> float:
        ids, wanted = self._expected()
        n = len(ids)
        with GGUFFile.open(self.path) as file:
            plan = _plan(file, backend, n)
            for weight in plan.weights:
                backend.upload(weight, tensor_data(weight, file.tensors[weight.tensor]))
        errors = []
        for size in (n, 1):
            layout, tables = _layout(plan)
            program = backend.prepare(plan, backend.allocate(plan.states, layout))
            steps = (_step(ids, *span, tables) for span in _spans(n, size))
            got = [program.step(step).copy() for step in steps]
            errors.append(relative_error(np.concatenate(got), wanted))
        return max(errors)

    def _expected(self) -> tuple[np.ndarray, FloatArray]:
        with np.load(self.path.with_suffix(".npz")) as data:
            return data["tokens"].astype(np.int32), data["logits"]


Check: TypeAlias = CaseCheck | FixtureCheck


def every_check(kernels: Kernels) -> Iterator[Check]:
    """Yield the checks that a backend with `kernels` must pass."""
    yield from (CaseCheck(op, case) for op, case in every_case() if is_for(kernels, op, case))
    fixtures = (path.with_suffix(".gguf") for path in sorted(FIXTURES.glob("*.npz")))
    yield from map(FixtureCheck, fixtures)


def compile_kernels(backend: Backend, checks: Sequence[Check]) -> None:
    """Compile the kernels of all checks, on all cores. Workers find them in the cache on disk."""
    backend.compile([step for check in checks for step in check.steps(backend)], "f16")


def _plan(file: GGUFFile, backend: Backend, n_tokens: int) -> Plan:
    return make_plan(load(file)[1], backend, max_tokens=n_tokens, max_outputs=n_tokens)


def _layout(plan: Plan) -> tuple[CacheLayout, tuple[np.ndarray, ...]]:
    """Return the cache of one sequence, and its block tables, in reverse order."""
    layers = [state for state in plan.states if isinstance(state, KVState)]
    windows = sorted({layer.window for layer in layers})
    n_blocks = ROOM // BLOCK_TOKENS
    layout = CacheLayout(
        block_tokens=BLOCK_TOKENS,
        n_blocks=(n_blocks,) * len(windows),
        group_of={layer.name: windows.index(layer.window) for layer in layers},
        state_slots=1,
    )
    table = np.arange(n_blocks, dtype=np.int32)[None, ::-1].copy()
    return layout, (table,) * len(windows)


def _spans(n: int, size: int) -> list[tuple[int, int]]:
    return [(at, min(at + size, n)) for at in range(0, n, size)]


def _step(ids: np.ndarray, start: int, end: int, tables: tuple[np.ndarray, ...]) -> Step:
    """Return the step of tokens `start` to `end` of a single sequence, with all their logits."""
    n = end - start
    return Step(
        ids=ids[start:end].copy(),
        positions=np.arange(start, end, dtype=np.int32),
        sequence=np.zeros(n, np.int32),
        output_rows=np.arange(n, dtype=np.int32),
        seq_start=np.array([0, n], np.int32),
        state_slot=np.zeros(1, np.int32),
        tables=tables,
    )
