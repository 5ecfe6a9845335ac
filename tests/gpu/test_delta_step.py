"""Workgroups of delta_step for all heads that it supports, on devices of every kind."""

from __future__ import annotations

from itertools import product

import pytest

from zinc.backends.vulkan import SLANG_KERNELS, VulkanKernels
from zinc.gpu.addresses import NominalAddresses
from zinc.gpu.bucket import Bucket
from zinc.gpu.features import MAX_THREADS, Features
from zinc.ops.recurrent import DeltaShape
from zinc.ops.recurrent_step import delta_step_case
from zinc.plan.planner import make_plan

DEVICES = [
    Features(subgroup, registers=registers, compute_units=units)
    for (subgroup, registers), units in product(
        ((8, 256), (16, 64), (16, 128), (32, 256), (64, 256)), (1, 132)
    )
]
SIZES = [x for x in product(range(32, 257, 32), range(32, 129, 32)) if x[0] * x[1] <= 16384]


@pytest.mark.parametrize(("k_dim", "v_dim"), SIZES)
def test_lanes_share_whole_columns_and_fill_subgroups(k_dim: int, v_dim: int) -> None:
    case = delta_step_case("size", DeltaShape(1, 2, k_dim, v_dim), (1,))
    plan = make_plan(case.graph, VulkanKernels(), max_tokens=1, max_outputs=1)
    (launch,) = (x for x in plan.launches if x.kernel == "delta_step")
    bucket = Bucket(tokens=1, outputs=1, sequences=1, keys=64, is_decode=True)
    for features in DEVICES:
        (dispatch,) = SLANG_KERNELS.lower(launch, NominalAddresses(features, "f16"), bucket)
        macros = dict(dispatch.kernel.defines)
        assert macros["THREADS"] <= MAX_THREADS
        assert macros["THREADS"] % 64 == 0
        assert v_dim % (macros["THREADS"] // macros["SHARE"]) == 0
        assert k_dim % (4 * macros["SHARE"]) == 0
