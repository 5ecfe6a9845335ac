"""Logits of every fixture on every available backend, compared with the published model code.

Fixtures are tiny models with random weights, in which every norm, bias and gate matters. Prompts
are longer than sliding windows.
"""

from __future__ import annotations

import numpy as np
import pytest
from effort import on_backends
from models.harness import (
    BACKENDS,
    FIXTURES,
    Runner,
    expected,
    fixture_names,
    relative_error,
)
from ops.vulkan_cases import MODELS

NAMES = fixture_names()
# What float32 sums in another order may differ by; and what a 16-bit cache and 8-bit rows add.
TOLERANCE = {"ref": 1e-5}
OTHERS = 2e-3

named = pytest.mark.parametrize("name", NAMES)
CHUNKS = [
    pytest.param(backend, size, marks=() if backend == "cpu" else pytest.mark.every)
    for backend in BACKENDS
    for size in (1, 7, 16)
]


def check(backend: str, got: np.ndarray, want: np.ndarray) -> None:
    """Assert that the best token agrees, unless the second best is within the tolerance."""
    tolerance = TOLERANCE.get(backend, OTHERS)
    assert np.isfinite(got).all()
    assert relative_error(got, want) <= tolerance
    second, best = np.sort(want, axis=1)[:, -2:].T
    clear = best - second > tolerance * np.sqrt(np.square(want).mean(axis=1))
    assert clear.sum() >= len(want) - 1
    assert (got.argmax(axis=1) == want.argmax(axis=1))[clear].all()


@pytest.mark.parametrize(
    ("name", "backend"), on_backends(NAMES, BACKENDS, everywhere=(), always=("cpu", "ref"))
)
def test_whole_prompt(name: str, backend: str) -> None:
    ids, logits = expected(name)
    check(backend, Runner(FIXTURES / f"{name}.gguf", backend).feed((0, ids))[0], logits)


@pytest.mark.alike(90)
@named
@pytest.mark.parametrize(("backend", "size"), CHUNKS)
def test_chunks(name: str, backend: str, size: int) -> None:
    ids, logits = expected(name)
    runner = Runner(FIXTURES / f"{name}.gguf", backend)
    check(backend, runner.feed_in_chunks(ids, size), logits)


@pytest.mark.parametrize(
    ("name", "backend"), on_backends(NAMES, BACKENDS, everywhere=MODELS, always=())
)
def test_chunks_of_many_sizes(name: str, backend: str) -> None:
    """Chunks of one token at the start and across a block end, after small and large chunks.

    On GPUs they need the kernels of a whole prompt, and those of few tokens and of decode.
    """
    ids, logits = expected(name)
    runner = Runner(FIXTURES / f"{name}.gguf", backend)
    sizes = [1, 1, 16, 7, *[1] * 8, len(ids) - 34, 1]
    cuts = np.split(ids, np.cumsum(sizes)[:-1])
    check(backend, np.concatenate([runner.feed((0, part))[0] for part in cuts]), logits)


@pytest.mark.alike(40)
@pytest.mark.parametrize(
    ("name", "backend"),
    on_backends(NAMES, BACKENDS, everywhere=("gptoss", "qwen35")),
)
def test_two_sequences_in_one_batch(name: str, backend: str) -> None:
    ids, logits = expected(name)
    other = ids[::-1][:33].copy()
    path = FIXTURES / f"{name}.gguf"
    alone = Runner(path, backend).feed((0, other))[0]

    runner = Runner(path, backend, n_sequences=2)
    # (tokens of the fixture, tokens of the other sequence) in each step
    cuts = [(3, 0), (1, 9), (10, 1), (1, 1), (0, 15), (len(ids) - 15, 7)]
    mine, theirs = [], []
    at = [0, 0]
    for n, m in cuts:
        parts = [(0, ids[at[0] : at[0] + n]), (1, other[at[1] : at[1] + m])]
        results = runner.feed(*(part for part in parts if len(part[1])))
        if n:
            mine.append(results[0])
        if m:
            theirs.append(results[-1])
        at = [at[0] + n, at[1] + m]
    check(backend, np.concatenate(mine), logits)
    if backend == "cpu":  # chunks and other sequences change nothing
        np.testing.assert_array_equal(np.concatenate(theirs), alone)
    else:
        check(backend, np.concatenate(theirs), alone)


@pytest.mark.alike(30)
@named
@pytest.mark.parametrize(
    "backend",
    [pytest.param(b, marks=pytest.mark.every if b == "vulkan" else ()) for b in BACKENDS],
)
def test_some_rows_are_outputs(name: str, backend: str) -> None:
    """Steps with no output row, with one, and with several."""
    ids, logits = expected(name)
    runner = Runner(FIXTURES / f"{name}.gguf", backend)
    first, second = len(ids) - 24, len(ids) - 12
    assert len(runner.feed_for([], (0, ids[:first]))) == 0
    got = [runner.feed_for([11], (0, ids[first:second]))]
    got.append(runner.feed_for([8, 0, 9], (0, ids[second:-1])))
    got.append(runner.feed_for([0], (0, ids[-1:])))
    check(backend, np.concatenate(got), logits[[second - 1, -4, second, -3, -1]])


@pytest.mark.alike(30)
@named
def test_fused_plan_equals_the_graph(name: str) -> None:
    """Unfused graphs run on ref only."""
    ids, logits = expected(name)
    path = FIXTURES / f"{name}.gguf"
    unfused = Runner(path, "ref", fuse=False).feed((0, ids))[0]
    check("ref", unfused, logits)
    np.testing.assert_array_equal(Runner(path, "ref").feed((0, ids))[0], unfused)
