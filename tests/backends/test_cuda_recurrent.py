"""Delta rule and convolution of many rows with CUDA beyond the op cases, on the emulator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from cuda_emulator import emulated

from zinc.backends import api
from zinc.backends.api import Backend, CacheLayout, TensorData
from zinc.ops.cases import Case
from zinc.ops.recurrent import DeltaShape, delta_case
from zinc.ops.step import Step
from zinc.ops.values import RecurrentState
from zinc.plan.planner import make_plan

TOKENS = 110
TOLERANCE = 1e-4
# Tokens of two sequences in each step: in chunks, token by token, and in chunks again.
STEPS = ((70, 40), (1, 1), (0, 45), (65, 3), (2, 108))


def step_of(counts: Sequence[int], lengths: Sequence[int]) -> Step:
    """Return a step of `counts` tokens after `lengths` of each sequence."""
    n = sum(counts)
    positions = [length + np.arange(count) for count, length in zip(counts, lengths, strict=True)]
    return Step(
        ids=np.arange(n, dtype=np.int32),
        positions=np.concatenate(positions).astype(np.int32),
        sequence=np.repeat(np.arange(len(counts), dtype=np.int32), counts),
        output_rows=np.arange(n, dtype=np.int32),
        seq_start=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        state_slot=np.array([1, 0], np.int32),
        tables=(np.zeros((2, 1), np.int32),),
    )


def outputs(backend: Backend, case: Case) -> list[np.ndarray]:
    """Return the outputs of all steps, which continue the states of those before."""
    plan = make_plan(case.graph, backend, max_tokens=TOKENS, max_outputs=TOKENS)
    for w in plan.weights:
        backend.upload(w, TensorData(w.type, w.shape, case.data(w)))
    cache = backend.allocate(plan.states, CacheLayout(64, (1,), state_slots=2))
    program, lengths, found = backend.prepare(plan, cache), [0, 0], []
    for counts in STEPS:
        found.append(np.array(program.step(step_of(counts, lengths))))
        lengths = [a + b for a, b in zip(lengths, counts, strict=True)]
    return found


def convolution() -> Case:
    case = Case("steps", TOKENS)
    x, weight = case.rows(136), case.vector(136 * 4)
    return case.returns(case.graph.conv_silu(x, weight, RecurrentState("conv", 3 * 136)))


CASES = {
    "delta_rule": delta_case("steps", DeltaShape(2, 4, 64, 80), (TOKENS,), pace=0.05),
    "conv_silu": convolution(),
}


@pytest.mark.skipif(emulated.COMPILER is None, reason="there is no g++")
@pytest.mark.parametrize("name", CASES)
def test_states_continue_from_step_to_step(name: str) -> None:
    case = CASES[name]
    got, want = outputs(emulated.backend(), case), outputs(api.create("ref"), case)
    for a, b in zip(got, want, strict=True):
        assert np.linalg.norm(a - b) <= TOLERANCE * np.linalg.norm(b)
