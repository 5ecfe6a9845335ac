"""Attention of the CPU to selected positions: every SIMD level and every format of the cache.

Positions are given, so that rounding of index keys does not select others. The op cases and
`tests/models/test_sparse.py` compare the selection itself.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from backends.levels import OF_KERNELS

from zinc.backends import api
from zinc.backends.api import CacheLayout, TensorData
from zinc.ops.cases import Case
from zinc.ops.step import Step
from zinc.ops.values import KVState
from zinc.plan.planner import make_plan
from zinc.quant.blocks import GGMLType

TOKENS, TOP_K, BLOCK_TOKENS, HEADS = 390, 300, 64, 6
TOLERANCE = {"f16": 1e-3, "q8_0": 1.5e-2, "q4_0": 0.2}
STATES = {
    "latent": KVState("kv", 1, 96, 64, v_from_k=True),
    "grouped": KVState("kv", 2, 64, 32),
}


@cache
def case_of(name: str) -> Case:
    """Return a case in which each token sees random positions, those of 256 and more too."""
    state, case = STATES[name], Case("selected", TOKENS)
    keys = np.full((TOKENS, TOP_K), -1, np.float32)
    for token in range(TOKENS):
        seen = min(TOP_K, token + 1)
        keys[token, :seen] = np.sort(case.rng.choice(token + 1, seen, replace=False))
    q, k = case.rows(HEADS * state.head_dim), case.rows(state.n_heads * state.head_dim)
    v = None if state.v_from_k else case.rows(state.n_heads * state.head_dim_v)
    g = case.graph
    g.kv_store(k, v, state)
    selected = g.embed(case.given(keys))
    return case.returns(g.attention(q, state, scale=0.2, keys=selected))


def run(
    backend_name: str,
    name: str,
    dtype: str = "f16",
    sizes: tuple[int, ...] = (TOKENS,),
    threads: int = 2,
    level: str | None = None,
) -> np.ndarray:
    """Return the rows of all tokens, which run in steps of these sizes."""
    case = case_of(name)
    backend = api.create(backend_name, threads, {"level": level} if level else {})
    plan = make_plan(case.graph, backend, max_tokens=TOKENS, max_outputs=TOKENS)
    for w in plan.weights:
        backend.upload(w, TensorData(GGMLType.F32, w.shape, case.data(w)))
    n_blocks = -(-TOKENS // BLOCK_TOKENS)
    layout = CacheLayout(BLOCK_TOKENS, (n_blocks,), kv_dtype=dtype)
    program = backend.prepare(plan, backend.allocate(plan.states, layout))
    found, at = [], 0
    for n in sizes:
        every = np.arange(at, at + n, dtype=np.int32)
        step = Step(
            ids=every,
            positions=every,
            sequence=np.zeros(n, np.int32),
            output_rows=np.arange(n, dtype=np.int32),
            seq_start=np.array([0, n], np.int32),
            state_slot=np.zeros(1, np.int32),
            tables=(np.arange(n_blocks, dtype=np.int32)[None, ::-1].copy(),),
        )
        found.append(np.array(program.step(step)))
        at += n
    return np.concatenate(found)


@cache
def reference(name: str) -> np.ndarray:
    return run("ref", name)


@pytest.mark.parametrize("level", OF_KERNELS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", STATES)
def test_attention_to_selected_positions(name: str, dtype: str, level: str) -> None:
    got, want = run("cpu", name, dtype, level=level), reference(name)
    errors = np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)
    assert np.median(errors) <= TOLERANCE[dtype]
    # Tokens that see all positions use the kernels of other models.
    assert errors[TOP_K:].max() <= errors[:TOP_K].max() <= 2 * TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", STATES)
def test_steps_and_threads_change_no_bit(name: str, dtype: str) -> None:
    """Few tokens divide their selection over the threads."""
    whole = run("cpu", name, dtype, threads=1)
    tail = TOKENS - 310
    for sizes, threads in (((310, *[1] * tail), 3), ((*[30] * 13,), 2)):
        got = run("cpu", name, dtype, sizes, threads)
        np.testing.assert_array_equal(got, whole)
