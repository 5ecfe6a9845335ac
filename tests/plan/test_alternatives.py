"""Alternatives in a plan: when they run, and that they compute what they replace."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from zinc.backends import api
from zinc.backends.api import CacheLayout, TensorData
from zinc.backends.plans import Plan, Ref
from zinc.formats.gguf import GGUFFile
from zinc.gpu.bucket import Bucket
from zinc.models import load
from zinc.ops import OPS
from zinc.ops.step import ONE_TOKEN, Otherwise, Step, StepCondition
from zinc.plan.planner import make_plan

FIXTURES = Path(__file__).parent.parent / "data" / "fixtures"
NAMES = ["qwen3", "gptoss", "deepseek2", "gemma3"]
BLOCK_TOKENS, N_BLOCKS = 64, 5


def plan_of(name: str, backend: str = "vulkan") -> Plan:
    with GGUFFile.open(FIXTURES / f"{name}.gguf") as file:
        return make_plan(load(file)[1], api.kernels(backend), max_tokens=300, max_outputs=1)


def logits(name: str, plan: Plan) -> np.ndarray:
    """Return the logits of `ref` for one token after 299 cached tokens."""
    backend = api.create("ref")
    with GGUFFile.open(FIXTURES / f"{name}.gguf") as file:
        for w in plan.weights:
            tensor = file.tensors[w.tensor]
            backend.upload(w, TensorData(tensor.type, w.shape, tensor))
        cache = backend.allocate(plan.states, CacheLayout(BLOCK_TOKENS, (N_BLOCKS,)))
        program = backend.prepare(plan, cache)
        ids = np.random.default_rng(0).integers(plan.output.cols, size=300)
        program.step(step_of(ids[:-1], 0))
        return program.step(step_of(ids[-1:], 299))


def step_of(ids: np.ndarray, first: int) -> Step:
    n = len(ids)
    return Step(
        ids=ids.astype(np.int32),
        positions=first + np.arange(n, dtype=np.int32),
        sequence=np.zeros(n, np.int32),
        output_rows=np.array([n - 1], np.int32),
        seq_start=np.array([0, n], np.int32),
        state_slot=np.zeros(1, np.int32),
        tables=(np.arange(N_BLOCKS, dtype=np.int32)[None],),
    )


def test_a_condition_and_its_complement_divide_all_steps() -> None:
    condition = StepCondition((1, 1), min_keys=257)
    sizes = [(1, 257, True), (1, 5000, True), (1, 256, True), (2, 257, True)]
    assert [condition.holds(*size) for size in sizes] == [True, True, False, False]
    assert [Otherwise((condition,)).holds(*size) for size in sizes] == [False, False, True, True]


def test_a_step_is_decode_if_every_sequence_has_one_token() -> None:
    condition = StepCondition(is_decode=True)
    first, ids = step_of(np.arange(3), 0), np.arange(3, dtype=np.int32)
    for starts, is_decode in (
        ([0, 1, 2, 3], True),
        ([0, 3], False),
        ([0, 1, 3], False),
        ([0, 2, 2, 3], False),
    ):
        slots = np.arange(len(starts) - 1, dtype=np.int32)
        step = replace(first, ids=ids, seq_start=np.array(starts, np.int32), state_slot=slots)
        sizes = step.n_tokens, step.n_keys, step.is_decode
        assert step.is_decode is condition.holds(*sizes) is is_decode
        assert Otherwise((condition,)).holds(*sizes) is not is_decode
        assert Bucket.of_step(plan_of("qwen35"), step).is_decode is is_decode


@pytest.mark.parametrize("name", NAMES)
def test_an_alternative_follows_the_launches_that_it_replaces(name: str) -> None:
    plan = plan_of(name)
    fused = [(a, b) for a, b in pairwise(plan.launches) if b.kernel == "rope_attention"]
    assert fused
    for attention, alternative in fused:
        assert attention.kernel == "attention"
        assert attention.when == Otherwise((alternative.when,))
        assert attention.outputs == alternative.outputs
    assert not any(x.when for x in plan.without_alternatives().launches)


@pytest.mark.parametrize("backend", ["cuda", "vulkan"])
@pytest.mark.parametrize("name", NAMES)
def test_inputs_of_an_alternative_are_kept_until_it_ends(name: str, backend: str) -> None:
    plan = plan_of(name, backend)
    for launch in plan.launches:
        if launch.kernel != "rope_attention":
            continue
        (y,) = launch.outputs
        end = y.offset + plan.max_tokens * y.stride
        for x in launch.inputs:
            if isinstance(x, Ref):
                start = x.offset - 4 * x.first
                assert end <= start or start + plan.max_tokens * x.stride <= y.offset


@pytest.mark.parametrize(
    ("name", "backend"),
    [*((name, "vulkan") for name in NAMES), ("gptoss", "cuda"), ("qwen35moe", "cuda")],
)
def test_an_alternative_computes_what_it_replaces(name: str, backend: str) -> None:
    plan = plan_of(name, backend)
    want = logits(name, plan.without_alternatives())
    np.testing.assert_array_equal(logits(name, plan), want)


def test_norm_route_replaces_all_launches_from_the_norm_to_the_sort() -> None:
    for case in OPS["norm_route"].cases():
        plan = make_plan(case.graph, api.kernels("cuda"), max_tokens=2, max_outputs=2)
        kernels = [launch.kernel for launch in plan.launches]
        at = kernels.index("norm_route")
        launch, replaced = plan.launches[at], plan.launches[at - 5 : at]
        assert launch.when == ONE_TOKEN
        wanted = ["rms_norm", "quantize", "linear", "route", "group_experts"]
        assert [x.kernel for x in replaced] == wanted
        assert all(x.when == Otherwise((launch.when,)) for x in replaced)
        assert list(launch.outputs) == [out for x in replaced[1:] for out in x.outputs]


def test_backends_without_a_fused_kernel_have_no_alternatives() -> None:
    for backend in ("ref", "null", "cpu"):
        assert not any(x.when for x in plan_of("qwen3", backend).launches)
