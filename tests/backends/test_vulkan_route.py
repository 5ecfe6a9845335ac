"""group_experts with more slots than the op cases, in one tile of shared memory and in several."""

from __future__ import annotations

import numpy as np
import pytest
from ops.running import run
from present import computing

from zinc.backends import api
from zinc.ops.cases import Case
from zinc.ops.moe import SOFTMAX

pytestmark = pytest.mark.skipif("vulkan" not in computing(), reason="no Vulkan device here")


@pytest.mark.parametrize(("n_tokens", "n_experts", "top_k"), [(100, 60, 4), (700, 128, 8)])
def test_slots_are_sorted_by_expert_and_then_by_slot(n_tokens, n_experts, top_k):
    case = Case("sort", n_tokens)
    routes = case.graph.route(case.rows(n_experts), None, top_k=top_k, scoring=SOFTMAX)
    order, _ = case.graph.group_experts(routes, n_experts=n_experts)
    case.returns(order)
    np.testing.assert_array_equal(run(api.create("vulkan"), case), run(api.create("ref"), case))
