"""Delta rule, scan and convolution of many rows with CUDA beyond the op cases, on the emulator."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from cuda_emulator import emulated

from zinc.backends import api
from zinc.backends.api import Backend, CacheLayout, Program, TensorData
from zinc.ops.cases import Case
from zinc.ops.convolution import conv_case
from zinc.ops.recurrent import DeltaShape, delta_case
from zinc.ops.recurrent_step import delta_step_case
from zinc.ops.ssm import ssm_case
from zinc.ops.step import Step
from zinc.plan.planner import make_plan
from zinc.plan.rollback import rollback_graph

TOKENS = 110
TOLERANCE = 1e-4
# Tokens of two sequences in each step: in chunks, token by token, and in chunks again.
STEPS = ((70, 40), (1, 1), (0, 45), (65, 3), (2, 108))

# The same for sequences that are rolled back.
BACK_AND_FORTH = ((70, 40), (17, 17), (60, 48), (1, 100), (100, 1), (33, 18), (18, 33), (96, 14))

# Single tokens and steps with rejected rows take turns, over the ends of chunks.
ALTERNATING = ((20, 9), *[(1, 1)] * 13, (9, 2), *[(1, 1)] * 20, (9, 9), *[(1, 1)] * 3)

# Rejected tokens of each op by default; those of a scan run the kernels of the delta rule.
SET_BACK = {("delta_rule", 7), ("ssm_scan", 0), ("causal_conv", 16)}

IN_CHUNKS = {
    "delta_rule": ["delta_rule", "delta_chunks", "delta_scan", "delta_rule"],
    "delta_rule of channels": ["delta_rule", "delta_channels", "delta_scan", "delta_rule"],
    "ssm_scan": ["delta_rule", "delta_chunks", "delta_scan", "delta_rule"],
    "causal_conv": ["conv_edges", "conv_rows"],
}


def steps_of(
    counts: Sequence[Sequence[int]], slots: Sequence[int], ends: int = -1, rejected: int = 0
) -> list[Step]:
    """Return steps with `counts[i]` tokens of each sequence in step i, whose states are in `slots`.

    ends: index of a step before which each third sequence ends, and another one takes its slot.
    rejected: tokens by which a sequence is rolled back after each step that has more.
    """
    lengths, steps = np.zeros(len(slots), np.int32), []
    for i, added in enumerate(counts):
        if i == ends:
            lengths[::3] = 0
        n = sum(added)
        positions = [length + np.arange(k) for length, k in zip(lengths, added, strict=True)]
        steps.append(
            Step(
                ids=np.arange(n, dtype=np.int32),
                positions=np.concatenate(positions).astype(np.int32),
                sequence=np.repeat(np.arange(len(slots), dtype=np.int32), added),
                output_rows=np.arange(n, dtype=np.int32),
                seq_start=np.concatenate([[0], np.cumsum(added)]).astype(np.int32),
                state_slot=np.array(slots, np.int32),
                tables=(np.zeros((len(slots), 1), np.int32),),
            )
        )
        lengths += np.array([k - rejected if k > rejected else k for k in added], np.int32)
    return steps


def program_of(backend: Backend, case: Case, n_slots: int, rollback: int = 0) -> Program:
    """Return a program of the case whose cache has `n_slots` states."""
    graph = rollback_graph(case.graph, rollback) if rollback else case.graph
    plan = make_plan(graph, backend, max_tokens=case.n_tokens, max_outputs=case.n_tokens)
    for w in plan.weights:
        backend.upload(w, TensorData(w.type, w.shape, case.data(w)))
    cache = backend.allocate(plan.states, CacheLayout(64, (1,), state_slots=n_slots))
    return backend.prepare(plan, cache)


needs_compiler = pytest.mark.skipif(emulated.COMPILER is None, reason="there is no g++")
CASES = {
    "delta_rule": delta_case("steps", DeltaShape(2, 4, 64, 80), (TOKENS,), decay_rate=0.05),
    "delta_rule of channels": delta_case(
        "steps", DeltaShape(2, 4, 32, 48, True), (TOKENS,), decay_rate=0.05
    ),
    "ssm_scan": ssm_case("steps", DeltaShape(2, 18, 32, 16), (TOKENS,), decay_rate=0.05),
    "causal_conv": conv_case("steps", 136, 4, lengths=(TOKENS,), bias=True),
}
SLOW = {"delta_rule of channels", "ssm_scan"}  # rolled back, a scan runs the same kernels


@needs_compiler
@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.every if x in SLOW else ()) for x in CASES]
)
def test_states_continue_from_step_to_step(name: str) -> None:
    case, steps = CASES[name], steps_of(STEPS, (1, 0))
    check(program_of(emulated.backend(), case, 2), program_of(api.create("ref"), case, 2), steps)


@needs_compiler
@pytest.mark.parametrize(
    ("name", "rejected"),
    [
        pytest.param(name, n, marks=() if (name, n) in SET_BACK else pytest.mark.every)
        for name, n in product(CASES, (0, 7, 16))
    ],
)
def test_states_that_are_rolled_back_continue_in_chunks(name: str, rejected: int) -> None:
    """Steps begin and end at any place in a chunk; kernels start from S, and keep rows."""
    case = CASES[name]
    steps = steps_of(BACK_AND_FORTH, (1, 0), rejected=rejected)
    program = program_of(emulated.backend(), case, 2, rollback=16)
    check(program, program_of(api.create("ref"), case, 2, rollback=16), steps)
    kernels = [each.split(".")[0] for each in kernels_of(program, steps[0], name.split()[0])]
    assert kernels == IN_CHUNKS[name]


@needs_compiler
def test_scans_of_wide_states_go_in_chunks_with_one_stage() -> None:
    """Two stages of states of 256 numbers need more shared memory than most cards have."""
    case = ssm_case("wide", DeltaShape(1, 2, 256, 48), (TOKENS,), decay_rate=0.05)
    steps = steps_of(STEPS[:3], (1, 0))
    program = program_of(emulated.backend(), case, 2)
    check(program, program_of(api.create("ref"), case, 2), steps)
    _, scan = kernels_of(program, steps[0], "ssm_scan")
    assert "delta_scan" in scan
    assert "STAGES=1" in scan


@needs_compiler
@pytest.mark.parametrize("name", ["delta_rule", "delta_rule of channels", "ssm_scan"])
def test_the_batch_invariant_mode_goes_token_by_token(name: str) -> None:
    """Sums of a chunk are rounded otherwise, and chunks begin where a step does."""
    program = program_of(emulated.backend(batch_invariant=True), CASES[name], 2)
    (kernel,) = kernels_of(program, steps_of(STEPS, (1, 0))[0], name.split()[0])
    assert kernel.startswith("delta_rule.")


@needs_compiler
@pytest.mark.parametrize(
    ("n", "rollback"),
    [
        *(pytest.param(*x, marks=pytest.mark.every) for x in ((1, 0), (3, 0), (1, 16))),
        (8, 0),
        (3, 8),
    ],
)
def test_steps_with_one_token_a_sequence_run_fused_and_continue_the_states(
    n: int, rollback: int
) -> None:
    check_fused(emulated.backend(), n, rollback)


def check_fused(backend: Backend, n: int, rollback: int) -> None:
    """Compare prompts and decode of `n` sequences with ref, and check which steps run fused."""
    prompts, decode, mixed = [3] * n, [1] * n, [1] * (n - 1) + [2]
    steps = steps_of((prompts, decode, decode, mixed, decode), range(n)[::-1], ends=2)
    case = delta_step_case("steps", DeltaShape(2, 4, 32, 64), prompts)
    program = program_of(backend, case, n, rollback)
    check(program, program_of(api.create("ref"), case, n, rollback), steps)
    fused, unfused = (
        [i for i, x in enumerate(program.plan.launches) if x.kernel in names]
        for names in (("delta_step",), ("causal_conv", "delta_rule", "gated_norm"))
    )
    for step, is_decode in zip(steps, (False, True, True, False, True), strict=True):
        assert all(bool(program.kernels(step, i)) is is_decode for i in fused)
        assert all(bool(program.kernels(step, i)) is not is_decode for i in unfused)


@needs_compiler
@pytest.mark.parametrize("grouped", [pytest.param(False, marks=pytest.mark.every), True])
def test_fused_steps_share_states_that_are_rolled_back(grouped: bool) -> None:
    case = delta_step_case("steps", DeltaShape(2, 4, 32, 64), (20, 9), grouped=grouped)
    programs = (program_of(x, case, 2, 8) for x in (emulated.backend(), api.create("ref")))
    check(*programs, steps_of(ALTERNATING, (1, 0), rejected=6))


def kernels_of(program: Program, step: Step, op: str) -> list[str]:
    """Return the kernels that the first launch of `op` runs in a step."""
    return program.kernels(step, [launch.kernel for launch in program.plan.launches].index(op))


def check(program: Program, reference: Program, steps: Sequence[Step]) -> None:
    """Compare the outputs of all steps, which continue the states of those before."""
    for step in steps:
        got, want = np.array(program.step(step)), np.array(reference.step(step))
        assert np.linalg.norm(got - want) <= TOLERANCE * np.linalg.norm(want)
