"""Attention beyond the op cases: an 8-bit cache, keys in several splits, sequences that decode."""

from __future__ import annotations

import numpy as np

from zinc.backends import api
from zinc.backends.api import Backend, CacheLayout, TensorData
from zinc.ops.cases import Case
from zinc.ops.step import Step
from zinc.ops.values import KVState
from zinc.plan.planner import make_plan
from zinc.quant.blocks import GGMLType

ROOM = 640  # positions of a sequence
TOKENS = 160


def case_of(
    state: KVState,
    *,
    heads: int = 6,
    sinks: bool = False,
    softcap: float = 0.0,
    norms: bool = False,
) -> Case:
    """Return a case of RoPE, cache write and attention, as in a model.

    With `norms` each head is normalised, and RoPE rotates only some dimensions, in pairs of
    neighbours.
    """
    case = Case("attention", TOKENS)
    g, head_dim = case.graph, state.head_dim
    q, k = case.rows(heads * head_dim), case.rows(state.n_heads * head_dim)
    v = None if state.v_from_k else case.rows(state.n_heads * state.head_dim_v)
    table = g.rope_table(case.rope_frequencies(head_dim - 20 if norms else head_dim))
    if norms:
        q, k = (g.rms_norm(x, case.vector(head_dim), eps=1e-6, group=head_dim) for x in (q, k))
        assert v is not None
        v = g.rms_norm(v, None, eps=1e-6, group=state.head_dim_v)
    k = g.rope(k, table, head_dim=head_dim, neox=not norms)
    q = g.rope(q, table, head_dim=head_dim, neox=not norms)
    g.kv_store(k, v, state)
    sink = case.vector(heads) if sinks else None
    return case.returns(g.attention(q, state, sink, scale=head_dim**-0.5, softcap=softcap))


def outputs(backend: Backend, case: Case, dtype: str, block_tokens: int) -> list[np.ndarray]:
    """Return the outputs of a short sequence, a prompt in chunks, both decoding, and few tokens."""
    plan = make_plan(case.graph, backend, max_tokens=TOKENS, max_outputs=TOKENS)
    for w in plan.weights:
        values = np.ascontiguousarray(case.tensors[w.name])
        backend.upload(w, TensorData(GGMLType.F32, w.shape, values.reshape(-1).view(np.uint8)))
    n_blocks = ROOM // block_tokens
    layout = CacheLayout(block_tokens, (2 * n_blocks,), kv_dtype=dtype)
    program = backend.prepare(plan, backend.allocate(plan.states, layout))
    tables = np.arange(2 * n_blocks, dtype=np.int32)[::-1].reshape(n_blocks, 2).T
    lengths = [0, 0]
    results = []
    together, few = [(1, 1), (0, 1)], ([(1, 1), (0, 2)], [(1, 3), (0, 5)])
    for parts in ([(1, 21)], [(1, 1)], *[[(0, TOKENS)]] * 3, [(0, 1)], together, *few):
        counts = [n for _, n in parts]
        n_tokens = sum(counts)
        positions = [lengths[s] + np.arange(n) for s, n in parts]
        step = Step(
            ids=np.arange(n_tokens, dtype=np.int32)[::-1].copy(),
            positions=np.concatenate(positions).astype(np.int32),
            sequence=np.repeat(np.arange(len(parts)), counts).astype(np.int32),
            output_rows=np.arange(n_tokens, dtype=np.int32),
            seq_start=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
            state_slot=np.array([s for s, _ in parts], np.int32),
            tables=(np.ascontiguousarray(tables[[s for s, _ in parts]]),),
        )
        results.append(np.array(program.step(step)))
        for s, n in parts:
            lengths[s] += n
    return results


CASES = {
    "grouped": (KVState("kv", 2, 64, 64), "f16", {}),
    "ends-within-blocks": (KVState("kv", 6, 80, 80), "q8_0", {}),
    "narrow-values": (KVState("kv", 1, 96, 64), "q8_0", {}),
    "wide-group": (KVState("kv", 1, 128, 128), "q8_0", {"sinks": True}),
    "wide-heads": (KVState("kv", 1, 256, 256, window=300), "f16", {}),
    # Long enough that subgroups of a large GPU take several turns.
    "turns": (KVState("kv", 64, 16, 16), "f16", {"heads": 128}),
    "odd-matrices": (KVState("kv", 2, 80, 48), "f16", {}),
    "normed": (KVState("kv", 2, 96, 64), "q8_0", {"norms": True}),
    "latent": (KVState("kv", 1, 96, 64, v_from_k=True), "q8_0", {}),
    "window": (KVState("kv", 3, 32, 32, window=50), "f16", {"sinks": True, "softcap": 15.0}),
}


def errors(backend: Backend, name: str) -> tuple[list[float], float]:
    """Return the relative error of each step of case `name` on `backend`, and their tolerance."""
    state, dtype, more = CASES[name]
    block_tokens = 16 if name in ("ends-within-blocks", "window") else 64  # matrices need 64
    case = case_of(state, **more)
    got = outputs(backend, case, dtype, block_tokens)
    want = outputs(api.create("ref"), case, dtype, block_tokens)
    found = [
        float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in zip(got, want, strict=True)
    ]
    return found, 2e-3 if dtype == "f16" else 1.5e-2
