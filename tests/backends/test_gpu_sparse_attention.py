"""Selection of positions and attention to them on GPUs: CUDA kernels run on the emulator.

The op cases have few positions, one float16 cache and scores that fit into memory at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from backends.selected import row_errors, run_in_steps, selected_case
from cuda_emulator import emulated
from ops.running import run
from present import computing

from zinc.backends import api
from zinc.backends.api import Backend
from zinc.backends.cuda.lower import select_keys as tensor_cores
from zinc.gpu.lower import select_keys
from zinc.ops.cases import Case
from zinc.ops.values import KVState

DEVICES = [
    pytest.param(
        "emulated",
        marks=[
            pytest.mark.skipif(emulated.COMPILER is None, reason="there is no g++"),
            pytest.mark.every,
        ],
    ),
    *[name for name in computing() if name in ("cuda", "vulkan")],
]
TOKENS, TOP_K, BLOCK_TOKENS = 60, 30, 16
TOLERANCE = {"f16": 1e-3, "q8_0": 1.5e-2}
STATES = {
    "latent": (5, KVState("kv", 1, 96, 64, v_from_k=True)),
    "wide-heads": (20, KVState("kv", 1, 576, 512, v_from_k=True)),
    "wide": (2, KVState("kv", 1, 576, 512, v_from_k=True)),
    "grouped": (6, KVState("kv", 2, 64, 32)),
}


def device(name: str, **options: Any) -> Backend:
    if name == "emulated":
        return emulated.backend(**options)
    return api.create(name, options={key: str(x).lower() for key, x in options.items()})


@pytest.mark.every
@pytest.mark.parametrize("name", DEVICES)
def test_equal_scores_of_many_positions_are_selected_in_order(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores are small whole numbers. Threads and blocks have several, as in a long context."""
    monkeypatch.setattr(select_keys, "SELECT_THREADS", 64)
    monkeypatch.setattr(tensor_cores, "BLOCKS_PER_UNIT", 1)
    case = Case("long", 2, cached=900)
    case.returns(case.selection(5, 16, 300))
    np.testing.assert_array_equal(run(device(name), case), run(api.create("ref"), case))


@pytest.mark.parametrize("name", DEVICES)
def test_tokens_are_scored_in_several_dispatches(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case("many", 70, sequences=(40, 1, 29))
    case.returns(case.selection(7, 40, 16))
    want = run(api.create("ref"), case)
    monkeypatch.setattr(select_keys, "SCORE_BYTES", 4 * 256 * 9)  # of nine tokens
    np.testing.assert_array_equal(run(device(name), case), want)


@pytest.mark.parametrize("name", DEVICES)
def test_the_first_of_equal_and_infinite_scores_are_selected(name: str) -> None:
    """A score is -infinity or 0, which is the product of a negative weight and 0."""
    dim, n = 32, 40
    case = Case("infinite", n)
    q, keys = np.zeros((2, n, dim), np.float32)
    q[:, 0], keys[:, 0] = np.inf, np.where(np.arange(n) % 4 == 1, -1, 1)
    g, state = case.graph, KVState("index", 1, dim, dim, v_from_k=True)
    g.kv_store(g.embed(case.given(keys)), None, state)
    weights = g.embed(case.given(np.full((n, 1), -1, np.float32)))
    case.returns(g.select_keys(g.embed(case.given(q)), weights, state, top_k=12))
    np.testing.assert_array_equal(run(device(name), case), run(api.create("ref"), case))


@cache
def case_of(name: str) -> Case:
    n_heads, state = STATES[name]
    return selected_case(state, n_heads, TOKENS, TOP_K)


def run_selected(backend: Backend, name: str, dtype: str, sizes: Sequence[int] = ()) -> np.ndarray:
    return run_in_steps(backend, case_of(name), dtype, BLOCK_TOKENS, sizes)


@cache
def reference(name: str) -> np.ndarray:
    return run_selected(api.create("ref"), name, "f16")


@pytest.mark.every
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", DEVICES)
def test_attention_to_selected_positions(name: str, state: str, dtype: str) -> None:
    """A prompt, then few tokens at once and single tokens, whose selections may be split."""
    sizes = (TOKENS - 17, 13, 1, 1, 1, 1)
    errors = row_errors(run_selected(device(name), state, dtype, sizes), reference(state))
    assert np.median(errors) <= TOLERANCE[dtype]
    assert errors.max() <= 2 * TOLERANCE[dtype]


@pytest.mark.every
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", DEVICES)
def test_the_batch_invariant_mode_gives_the_same_bits_in_every_step(name: str, state: str) -> None:
    backend = device(name, batch_invariant=True)
    whole = run_selected(backend, state, "f16")
    parts = run_selected(backend, state, "f16", (TOKENS - 17, 13, 1, 1, 1, 1))
    np.testing.assert_array_equal(parts, whole)
