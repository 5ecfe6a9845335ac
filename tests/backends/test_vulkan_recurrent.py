"""The delta rule in chunks, and fused steps of decode, with Vulkan beyond the op cases."""

from __future__ import annotations

from typing import Any

import pytest
from backends.test_cuda_recurrent import (
    ALTERNATING,
    STEPS,
    TOKENS,
    check,
    check_fused,
    kernels_of,
    program_of,
    steps_of,
)
from present import computing

from zinc.backends import api
from zinc.backends.api import Program
from zinc.ops.recurrent import DeltaShape, delta_case
from zinc.ops.recurrent_step import delta_step_case

pytestmark = pytest.mark.skipif("vulkan" not in computing(), reason="there is no Vulkan driver")

CASE = delta_case("steps", DeltaShape(2, 4, 32, 40, True), (TOKENS,), decay_rate=0.05, floor=-5.0)
PROMPT, DECODE, *_ = steps_of(STEPS, (1, 0))


def program(rollback: int = 0, **options: Any) -> Program:
    return program_of(api.create("vulkan", options=options), CASE, 2, rollback)


def kernel_names(program: Program, step: Any) -> list[str]:
    return [each.split(".")[0] for each in kernels_of(program, step, "delta_rule")]


@pytest.mark.every
def test_states_continue_from_step_to_step() -> None:
    check(program(), program_of(api.create("ref"), CASE, 2), steps_of(STEPS, (1, 0)))


def test_prompts_go_in_chunks_and_decode_token_by_token() -> None:
    assert kernel_names(program(), PROMPT) == ["delta_channels", "delta_scan"]
    assert kernel_names(program(), DECODE) == ["delta_rule"]


def test_the_batch_invariant_mode_and_states_that_are_rolled_back_go_token_by_token() -> None:
    assert kernel_names(program(batch_invariant="true"), PROMPT) == ["delta_rule"]
    assert kernel_names(program(rollback=8), PROMPT) == ["delta_rule"]


@pytest.mark.parametrize(
    ("n", "rollback"),
    [pytest.param(1, 0, marks=pytest.mark.every), (8, 0), (3, 8)],
)
def test_steps_with_one_token_a_sequence_run_fused_and_continue_the_states(
    n: int, rollback: int
) -> None:
    check_fused(api.create("vulkan"), n, rollback)


@pytest.mark.parametrize("grouped", [pytest.param(False, marks=pytest.mark.every), True])
def test_fused_steps_share_states_that_are_rolled_back(grouped: bool) -> None:
    case = delta_step_case("steps", DeltaShape(2, 4, 32, 64), (20, 9), grouped=grouped)
    programs = (program_of(api.create(x), case, 2, 8) for x in ("vulkan", "ref"))
    check(*programs, steps_of(ALTERNATING, (1, 0), rejected=6))
