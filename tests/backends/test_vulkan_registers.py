"""Vulkan kernels for lanes with few registers, on a device that claims to have few."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from ops.running import run
from present import absent

from zinc.backends import api, vulkan
from zinc.backends.vulkan import VulkanBackend, shaders
from zinc.testing.parity import case_tolerance, every_case, is_for

pytestmark = [
    pytest.mark.skipif("vulkan" in absent(), reason=absent().get("vulkan", "")),
    pytest.mark.skipif(shaders.compiler() is None, reason="needs a Slang compiler"),
]

# Kernels that FEW_REGISTERS changes, or whose tiles depend on registers.
CHANGED = (
    *("attention", "select_keys", "rope", "kv_store", "delta_rule", "delta_step"),
    *("ssm_scan", "linear", "linear_glu", "norm_route", "sample"),
)
CASES = {
    f"{op.name}-{case.name}": (op, case)
    for op, case in every_case()
    if op.name in CHANGED and is_for(api.kernels("vulkan"), op, case)
}
# Heads that the kernel prepares, the recurrent state, the router, and a sampler of two launches.
QUICK = (
    *("attention-few-rope-norm", "delta_rule-equal", "delta_step-shared"),
    *("norm_route-gate", "sample-banned-16390"),
)


@pytest.fixture(scope="module", params=[64, pytest.param(128, marks=pytest.mark.every)])
def backend(request: pytest.FixtureRequest) -> Iterator[VulkanBackend]:
    """Return a backend whose device claims to have 64 or 128 registers a lane."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vulkan, "host_of", getattr(vulkan.host_of, "__wrapped__", vulkan.host_of))
        found = api.create("vulkan")
        assert isinstance(found, VulkanBackend)
        found.features = replace(found.features, registers=request.param)
        patch.setattr(found.device, "features", found.features)
        yield found


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.every) for n in CASES]
)
def test_kernels_for_few_registers_agree_with_reference(backend: VulkanBackend, name: str) -> None:
    op, case = CASES[name]
    got, want = run(backend, case), run(api.create("ref"), case)
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= case_tolerance(op, case, backend) * np.linalg.norm(want)
