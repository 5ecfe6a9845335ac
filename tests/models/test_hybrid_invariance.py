"""A hybrid on the CPU gives the same bits for a token however its prompt was cut and whoever shares
the step: from the convolution and the delta rule through products, attention and experts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models.harness import FIXTURES, Logits, Runner
from present import computing

HYBRIDS = ["qwen35", "qwen35moe", "qwen3next"]
IDS = np.random.default_rng(11).integers(512, size=80).astype(np.int32)

pytestmark = pytest.mark.skipif("cpu" not in computing(), reason="the CPU backend is not built")


@pytest.mark.parametrize("name", HYBRIDS)
@settings(max_examples=8, deadline=None)
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=10))
def test_any_cut_of_a_prompt_gives_the_same_bits(name: str, sizes: list[int]) -> None:
    path = FIXTURES / f"{name}.gguf"
    runner = Runner(path, "cpu", n_sequences=2)
    at = 0
    parts: list[Logits] = []
    while at < len(IDS):
        n = min(sizes[len(parts) % len(sizes)], len(IDS) - at)
        other = IDS[::-1][at : at + n // 2 + 1]
        parts.append(runner.feed((1, other), (0, IDS[at : at + n]))[1])
        at += n
    whole = Runner(path, "cpu").feed((0, IDS))[0]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
