"""Kernels of moe_down for tokens with many experts."""

from __future__ import annotations

import pytest
from present import computing

from zinc.backends import api
from zinc.backends.api import Kernels
from zinc.backends.cuda import CUDA_KERNELS, CudaKernels
from zinc.backends.vulkan import SLANG_KERNELS, VulkanKernels
from zinc.gpu.addresses import NominalAddresses
from zinc.gpu.bucket import Bucket
from zinc.gpu.features import Features
from zinc.gpu.kernel_set import KernelSet
from zinc.gpu.lower.experts import MAX_TOP_K
from zinc.ops import OPS
from zinc.ops.cases import Case
from zinc.ops.moe import SOFTMAX
from zinc.ops.values import ActivationFn
from zinc.plan.planner import make_plan
from zinc.quant.blocks import GGMLType
from zinc.testing.parity import compare_case

needs_vulkan = pytest.mark.skipif("vulkan" not in computing(), reason="there is no Vulkan driver")


def case_of(top_k: int) -> Case:
    """Return a case of one token, whose last product may include that of a shared expert."""
    case, n_experts, type = Case("many", n_tokens=1), top_k + 8, GGMLType.Q8_0
    g, x = case.graph, case.rows(64)
    routes = g.route(case.rows(n_experts), None, top_k=top_k, scoring=SOFTMAX, renormalise=True)
    order, starts = g.group_experts(routes, n_experts=n_experts)
    gate, up, down = (case.experts(n_experts, 64, 64, type, 0.1) for _ in range(3))
    h = g.moe_glu(x, order, starts, gate, up, activation=ActivationFn.SILU)
    y = g.moe_down(h, order, starts, routes, down)
    own = g.glu(case.rows(64), None, activation=ActivationFn.SILU)
    return case.returns(g.add(y, g.linear(own, case.matrix(64, 64, type, 0.1))))


@pytest.mark.parametrize("top_k", [MAX_TOP_K, MAX_TOP_K + 1])
@pytest.mark.parametrize(
    ("kernels", "kernel_set"),
    [(VulkanKernels(), SLANG_KERNELS), (CudaKernels(), CUDA_KERNELS)],
    ids=["vulkan", "cuda"],
)
def test_a_separate_kernel_sums_more_experts_than_moe_down_has_room_for(
    kernels: Kernels, kernel_set: KernelSet, top_k: int
) -> None:
    plan = make_plan(case_of(top_k).graph, kernels, max_tokens=1, max_outputs=1)
    at = NominalAddresses(Features(32), "f16")
    bucket = Bucket(tokens=1, outputs=1, sequences=1, keys=64, is_decode=True)
    found = {
        dispatch.kernel.name
        for launch in plan.launches
        if launch.kernel in ("moe_down", "moe_down_linear")
        for dispatch in kernel_set.lower(launch, at, bucket)
    }
    fits = top_k <= MAX_TOP_K
    assert ("moe_down" in found, "moe_sum" in found) == (fits, not fits)


@needs_vulkan
def test_a_token_with_many_experts_agrees_with_the_reference() -> None:
    checks = compare_case(OPS["moe_down"], case_of(MAX_TOP_K + 1), api.create("vulkan"))
    assert checks
    assert all(check.error <= check.tolerance for check in checks)
