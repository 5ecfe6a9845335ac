"""Batch invariance: a token's logits have the same bits whatever the chunking and the batch."""

from __future__ import annotations

import effort
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models.harness import FIXTURES, Logits, Runner
from present import computing

from zinc.backends import api
from zinc.core.errors import DeviceError, RequestError

# One of each kind of attention, cache, experts and recurrence, on a window and beyond it.
FAMILIES = ["gemma3", "gptoss", "deepseek2", "deepseek32", "qwen35moe", "qwen35"]
HYBRIDS = ["qwen35", "qwen35moe", "qwen3next", "granitehybrid", "lfm2", "kimilinear", "rwkv7"]
IDS = np.random.default_rng(11).integers(96, size=80).astype(np.int32)
SOME = IDS[:40]


@pytest.mark.alike(4)
@pytest.mark.skipif("cpu" not in computing(), reason="the CPU backend is not built")
@pytest.mark.parametrize("name", HYBRIDS)
@settings(max_examples=8, deadline=None)
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=10))
def test_chunking_of_a_prompt_does_not_change_a_bit(name: str, sizes: list[int]) -> None:
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


@pytest.mark.parametrize(
    ("name", "backend"),
    effort.on_backends(FAMILIES, computing(), everywhere=["qwen35"]),
)
def test_the_batch_invariant_mode_gives_the_same_bits_in_every_step(
    name: str, backend: str
) -> None:
    path = FIXTURES / f"{name}.gguf"

    def runner() -> Runner:
        return Runner(path, backend, n_sequences=3, batch_invariant=True)

    whole = runner().feed((0, SOME))[0]
    for size, n in ((16, 32), (7, 40), *[(1, 0)] * effort.EVERY):  # so many, and singles
        alone = runner()
        parts = [alone.feed_in_chunks(SOME[:n], size)] if n else []
        parts += [alone.feed((0, SOME[i : i + 1]))[0] for i in range(n, len(SOME))]
        np.testing.assert_array_equal(
            np.concatenate(parts), whole, err_msg=f"in chunks of {size} and singles"
        )
    ragged = runner()
    # (tokens of the prompt, of a second sequence, of a third) in each step
    cuts = [(3, 0, 5), (1, 1, 1), (10, 22, 1), (1, 2, 0), (14, 1, 1), (1, 1, 22), (10, 9, 0)]
    at = [0, 0, 0]
    parts = []
    for lengths in cuts:
        step = [(s, SOME[at[s] : at[s] + n]) for s, n in enumerate(lengths) if n]
        parts.append(ragged.feed(*step)[0])
        at = [a + n for a, n in zip(at, lengths, strict=True)]
    np.testing.assert_array_equal(np.concatenate(parts), whole, err_msg="in ragged batches")


def test_backends_without_batch_invariance_refuse_it() -> None:
    with pytest.raises(DeviceError, match="the ref backend has no batch-invariant mode"):
        api.create("ref", options={"batch_invariant": "true"})
    with pytest.raises(RequestError, match="must be true or false"):
        api.create("null", options={"batch_invariant": "yes"})
