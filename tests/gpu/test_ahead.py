"""The kernels compiled ahead are all that steps of any size need."""

from __future__ import annotations

from dataclasses import replace

import pytest
from goldens import pins

from zinc.backends import api
from zinc.backends.cuda import CUDA_KERNELS
from zinc.backends.plans import Plan
from zinc.gpu import ahead
from zinc.gpu.addresses import NominalAddresses
from zinc.gpu.dispatch import KernelVariant
from zinc.gpu.features import Features
from zinc.plan.planner import make_plan

CONTEXT = 1 << 15


@pytest.mark.alike(1)
@pytest.mark.parametrize(
    ("name", "clusters"),
    [
        ("shape-qwen3-8b", True),
        ("shape-qwen36-35b-a3b", False),
        ("shape-deepseek2-lite", True),
        pytest.param("shape-qwen3-8b", False, marks=pytest.mark.every),
        pytest.param("shape-qwen36-35b-a3b", True, marks=pytest.mark.every),
        pytest.param("shape-deepseek2-lite", False, marks=pytest.mark.every),
    ],
)
def test_few_buckets_have_the_kernels_of_all(name: str, clusters: bool) -> None:
    plan = make_plan(
        pins._graph(name), api.kernels("cuda"), max_tokens=512, max_outputs=64, samples=True
    )
    features = Features(32, clusters=clusters, shared_bytes=49152, compute_units=132)
    few, every = (
        set(ahead.kernels(CUDA_KERNELS, plan, features, steps, "f16"))
        for steps in (
            ahead.distinct_buckets(plan, CONTEXT),
            ahead.buckets(plan.max_tokens, plan.max_outputs, CONTEXT),
        )
    )
    assert few == every
    assert _each_lowered(plan, features) <= few


def _each_lowered(plan: Plan, features: Features) -> set[KernelVariant]:
    """Return the kernels of all launches in all buckets."""
    at = NominalAddresses(features, "f16")
    launches = {ahead.lowering_key(x): x for x in plan.launches}.values()
    return {
        dispatch.kernel
        for bucket in ahead.buckets(plan.max_tokens, plan.max_outputs, CONTEXT)
        for launch in launches
        for dispatch in CUDA_KERNELS.lower(launch, at, bucket)
    }


def test_steps_that_are_not_decode_need_no_other_kernels() -> None:
    """Test the buckets of decode of many sequences, for steps in which some have two tokens."""
    name, features = "shape-qwen36-35b-a3b", Features(32, shared_bytes=49152, compute_units=132)
    plan = make_plan(
        pins._graph(name), api.kernels("cuda"), max_tokens=512, max_outputs=64, samples=True
    )
    compiled = ahead.distinct_buckets(plan, CONTEXT)
    mixed = [replace(b, is_decode=False) for b in compiled if b.tokens > 1]
    every, needed = (
        set(ahead.kernels(CUDA_KERNELS, plan, features, steps, "f16"))
        for steps in (compiled, mixed)
    )
    assert needed <= every
