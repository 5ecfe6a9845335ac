"""Sequences that are rolled back after rejected rows: bits are those of plain decoding.

On devices this needs batch-invariant mode.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import effort
import numpy as np
import pytest
from models.harness import FIXTURES, MAX_TOKENS, Ids, Logits, Runner, planned
from models.pooled import speculate
from present import computing

from zinc.backends.api import Backend
from zinc.backends.plans import Plan
from zinc.ops.recurrent_state import CHUNK

SMALL = ["lfm2", "granitehybrid", "jamba", "kimilinear", "rwkv7"]
ON_DEVICES = "qwen35moe"  # the others run there with --every only
HYBRIDS = ["qwen35", "qwen3next", "qwen35moe", *SMALL]
# Whose heads do not fit the groups of q8_0.
SMALL_HEADS = [(name, "q8_0") for name in ("deepseek2", *SMALL)]
# Recurrent layers, sliding windows and latent attention.
FAMILIES = [
    ("cpu", name, kv_dtype)
    for name in (*HYBRIDS, "gemma3", "gemma4", "deepseek2")
    for kv_dtype in ("f16", "q8_0")
    if (name, kv_dtype) not in SMALL_HEADS
]
DEVICES = [name for name in computing() if name != "cpu"]
RUNS = [
    *[run for run in FAMILIES if "cpu" in computing()],
    *[
        pytest.param(backend, name, "f16", marks=() if name == ON_DEVICES else pytest.mark.every)
        for backend in DEVICES
        for name in HYBRIDS
    ],
]
TAILS = [
    pytest.param(
        name,
        backend,
        tail,
        marks=() if backend == "cpu" else pytest.mark.every,
    )
    for name in HYBRIDS
    for backend in computing()
    for tail in (1, CHUNK - 1, CHUNK)
]
TEXTS = [np.random.default_rng(i).integers(96, size=MAX_TOKENS).astype(np.int32) for i in (1, 2)]


def texts_of(backend: str) -> list[Ids]:
    """Return two texts, of fewer chunks on devices by default."""
    return TEXTS if backend == "cpu" or effort.EVERY else [ids[: 3 * CHUNK] for ids in TEXTS]


def loaded_model(backend: str, name: str, rollback: bool = True) -> tuple[Backend, Plan]:
    path, invariant = FIXTURES / f"{name}.gguf", backend in DEVICES
    return planned(path, backend, batch_invariant=invariant, rollback=rollback)


@cache
def plain(backend: str, name: str, kv_dtype: str) -> list[Logits]:
    """Return the logits of both texts, decoded token by token without rollback."""
    loaded = loaded_model(backend, name, rollback=False)
    path = FIXTURES / f"{name}.gguf"
    runner = Runner(path, loaded=loaded, n_sequences=2, kv_dtype=kv_dtype)
    return [runner.feed_in_chunks(ids, 1, i) for i, ids in enumerate(texts_of(backend))]


def walk(backend: str, name: str, kv_dtype: str, seed: int, folder: Path | None = None) -> None:
    """Run both texts in random steps with rejected rows and compare them with `plain`."""
    wanted = plain(backend, name, kv_dtype)
    texts = [(t.tolist(), w) for t, w in zip(texts_of(backend), wanted, strict=True)]
    speculate(loaded_model(backend, name), kv_dtype, texts, seed, folder)


def n_walks(backend: str) -> int:
    """Return the walks of a model: 2,000 for all models on the CPU with --every."""
    if backend == "cpu":
        return 182 if effort.EVERY else 6
    return 30 if effort.EVERY else 2


@pytest.mark.alike(5)
@pytest.mark.parametrize(("backend", "name", "kv_dtype"), RUNS)
def test_rejected_rows_leave_no_trace(backend: str, name: str, kv_dtype: str) -> None:
    for seed in range(n_walks(backend)):
        walk(backend, name, kv_dtype, seed)


@pytest.mark.alike(5)
@pytest.mark.parametrize(("backend", "name", "kv_dtype"), RUNS)
def test_a_sequence_that_was_rolled_back_continues_from_disk(
    backend: str, name: str, kv_dtype: str, tmp_path: Path
) -> None:
    for seed in range(effort.examples(8 if backend == "cpu" else 4)):
        walk(backend, name, kv_dtype, 1000 + seed, tmp_path / str(seed))


@pytest.mark.alike(6)
@pytest.mark.parametrize(("name", "backend", "tail"), TAILS)
def test_every_position_can_be_gone_back_to(name: str, backend: str, tail: int) -> None:
    """One accepted row a step, and `tail` rejected ones: every offset in a chunk occurs."""
    ids, want = texts_of(backend)[0], plain(backend, name, "f16")[0]
    loaded = loaded_model(backend, name)
    runner = Runner(FIXTURES / f"{name}.gguf", loaded=loaded, room=MAX_TOKENS + CHUNK)
    for at in range(len(ids)):
        (logits,) = runner.feed((0, np.concatenate([ids[at : at + 1], TEXTS[1][:tail]])))
        runner.lengths[0] = at + 1
        np.testing.assert_array_equal(logits[0], want[at])


@pytest.mark.parametrize("name", HYBRIDS)
def test_ref_sets_a_sequence_back(name: str) -> None:
    """The reference uses the same slots: it agrees with itself without rejected rows."""
    path = FIXTURES / f"{name}.gguf"
    want = Runner(path, "ref").feed((0, TEXTS[0]))[0]
    runner = Runner(path, loaded=planned(path, "ref", rollback=True), room=MAX_TOKENS + CHUNK)
    at = 0
    for ahead, tail in ((30, 0), (3, 13), (1, 15), (14, 16), (32, 12), (16, 16)):
        (logits,) = runner.feed((0, np.concatenate([TEXTS[0][at : at + ahead], TEXTS[1][:tail]])))
        error = np.abs(logits[:ahead] - want[at : at + ahead]).max()
        assert error < 1e-4 * np.abs(want).max()
        at += ahead
        runner.lengths[0] = at
    assert at == MAX_TOKENS


@pytest.mark.parametrize("backend", computing())
def test_a_state_without_rollback_cannot_be_rolled_back(backend: str) -> None:
    """The test of this module would fail on the plain layout."""
    wanted = plain(backend, "qwen35", "f16")
    texts = [(t.tolist(), w) for t, w in zip(texts_of(backend), wanted, strict=True)]
    loaded = loaded_model(backend, "qwen35", rollback=False)
    with pytest.raises(AssertionError, match=r"from [0-9]+ on"):
        speculate(loaded, "f16", texts, 0)
