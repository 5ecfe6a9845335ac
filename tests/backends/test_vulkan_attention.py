"""Attention with Vulkan beyond the op cases."""

from __future__ import annotations

import pytest
from ops.attention_steps import CASES, errors
from present import absent

from zinc.backends import api

pytestmark = pytest.mark.skipif("vulkan" in absent(), reason=absent().get("vulkan", ""))


# "turns" need a large GPU, and the kernels of the others run in further cases.
REPEATED = {"turns", "grouped", "narrow-values"}


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.every if x in REPEATED else ()) for x in CASES]
)
def test_prompts_and_decode_agree_with_ref(name):
    found, tolerance = errors(api.create("vulkan"), name)
    assert max(found) <= tolerance
