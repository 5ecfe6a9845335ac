"""Attention with Vulkan beyond the op cases."""

from __future__ import annotations

import pytest
from ops.attention_steps import CASES, errors
from present import absent

from zinc.backends import api
from zinc.gpu.lower import attention

pytestmark = pytest.mark.skipif("vulkan" in absent(), reason=absent().get("vulkan", ""))


# Drivers for CPUs compile a case for 10 to 60 s. This one has windows with sinks and a limit of
# scores; the test of several splits has normalised heads and an 8-bit cache. "turns" need a large
# GPU, and the others have the same code with other sizes.
QUICK = ("window",)
EVERY = pytest.mark.every


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=() if x in QUICK else EVERY) for x in CASES]
)
def test_prompts_and_decode_agree_with_ref(name):
    found, tolerance = errors(api.create("vulkan"), name)
    assert max(found) <= tolerance


@pytest.mark.parametrize(
    "name", ["normed", *(pytest.param(x, marks=EVERY) for x in ("latent", "wide-group"))]
)
def test_new_keys_of_a_step_may_lie_in_several_splits(name, monkeypatch):
    """Splits of two keys, so that no workgroup has all keys of a step's tokens."""
    monkeypatch.setattr(attention, "MIN_KEYS", 1)
    monkeypatch.setattr(attention, "MIN_UNITS", 1 << 16)
    monkeypatch.setattr(attention, "SHALLOW_KEYS", 0)
    found, tolerance = errors(api.create("vulkan"), name)
    assert max(found) <= tolerance
