"""The error of a Q8_0 KV cache, against the reference with keys and values rounded to Q8_0."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from models import harness
from models.harness import FIXTURES, Runner, expected

from zinc.ops.attention import CacheView

# Head dimensions are multiples of 32 in these.
DENSE = ["gemma2", "gemma3", "glm4", "llama", "phi3", "qwen2", "qwen3", "qwen35"]
# Not qwen3moe: a tie in its fourth token changes every row that attends to it.
EXPERTS = ["gptoss", "qwen2moe", "qwen35moe", "qwen3next"]


def round_to_q8_0(x: Any) -> Any:
    """Return `x` as Q8_0 stores it: blocks of 32 numbers that share an F16 scale."""
    blocks = x.reshape(-1, 32)
    scales = np.abs(blocks).max(axis=1, keepdims=True) / 127
    quants = np.round(np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales > 0))
    return (quants * scales.astype(np.float16)).astype(np.float32).reshape(x.shape)


def row_errors(got: Any, want: Any) -> Any:
    """Return the relative error of each row of logits."""
    return np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)


@pytest.mark.parametrize("name", [*DENSE, *EXPERTS])
def test_the_error_of_q8_0_is_little_more_than_its_rounding(name: str) -> None:
    """For experts the median error over rows is compared.

    Rounding may change the chosen expert of a row whose router scores nearly tie, and thereby the
    row by far more than the rounding itself.
    """
    path, (ids, want) = FIXTURES / f"{name}.gguf", expected(name)
    ids, want = ids[: harness.MAX_TOKENS], want[: harness.MAX_TOKENS]

    store = CacheView.store

    def store_rounded(view: CacheView, step: Any, k: Any, v: Any) -> None:
        store(view, step, round_to_q8_0(k), round_to_q8_0(v))

    with mock.patch.object(CacheView, "store", store_rounded):
        rounded = row_errors(Runner(path, "ref").feed((0, ids))[0], want)

    got = row_errors(Runner(path, "cpu", kv_dtype="q8_0").feed((0, ids))[0], want)
    assert np.median(rounded) > 1e-4  # the reference did round
    assert np.median(got) < 1.6 * np.median(rounded)
    if name in DENSE:
        assert got.max() < 2 * rounded.max()
