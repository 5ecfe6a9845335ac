"""Cases of attention in which each token sees random positions, and their runs in several steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zinc.backends.api import Backend, CacheLayout, TensorData
from zinc.ops.cases import Case
from zinc.ops.step import Step
from zinc.ops.values import KVState
from zinc.plan.planner import make_plan
from zinc.quant.blocks import GGMLType


def selected_case(state: KVState, n_heads: int, n_tokens: int, top_k: int) -> Case:
    """Return a case of one sequence in which each token sees at most `top_k` random positions."""
    case = Case("selected", n_tokens)
    keys = np.full((n_tokens, top_k), -1, np.float32)
    for token in range(n_tokens):
        seen = min(top_k, token + 1)
        keys[token, :seen] = np.sort(case.rng.choice(token + 1, seen, replace=False))
    q, k = case.rows(n_heads * state.head_dim), case.rows(state.n_heads * state.head_dim)
    v = None if state.v_from_k else case.rows(state.n_heads * state.head_dim_v)
    g = case.graph
    g.kv_store(k, v, state)
    selected = g.embed(case.given(keys))
    return case.returns(g.attention(q, state, scale=state.head_dim**-0.5, keys=selected))


def run_in_steps(
    backend: Backend, case: Case, dtype: str, block_tokens: int, sizes: Sequence[int] = ()
) -> np.ndarray:
    """Return the rows of all tokens of a case of one sequence.

    sizes: tokens of each step; by default one step has all of them.
    """
    n_tokens = case.max_tokens
    plan = make_plan(case.graph, backend, max_tokens=n_tokens, max_outputs=n_tokens)
    for w in plan.weights:
        backend.upload(w, TensorData(GGMLType.F32, w.shape, case.data(w)))
    n_blocks = -(-n_tokens // block_tokens)
    layout = CacheLayout(block_tokens, (n_blocks,), kv_dtype=dtype)
    program = backend.prepare(plan, backend.allocate(plan.states, layout))
    found, at = [], 0
    for n in sizes or (n_tokens,):
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


def row_errors(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Return the relative error of each row."""
    return np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)
