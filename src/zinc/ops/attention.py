"""Attention over the KV cache, and the op that stores keys and values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from zinc.core.dataclass import dataclass
from zinc.ops.cases import Case
from zinc.ops.costs import elementwise_cost
from zinc.ops.node import Node
from zinc.ops.operands import cache, rows, vector
from zinc.ops.registry import Attrs, Cost, Division, Phase, op
from zinc.ops.step import IntArray, Step
from zinc.ops.values import Constant, FloatArray, KVState, Value


@dataclass(slots=True)
class CacheView:
    """The KV cache of one layer in `ref`, in float32.

    k is [blocks, block_tokens, heads, head_dim], v the same with head_dim_v.
    """

    group: int
    k: FloatArray
    v: FloatArray

    @property
    def block_tokens(self) -> int:
        return int(self.k.shape[1])

    @property
    def head_dim_v(self) -> int:
        return int(self.v.shape[3])

    def slots(self, step: Step, sequence: int, positions: IntArray) -> tuple[IntArray, IntArray]:
        """Return the block and the offset in it of each of `positions` of a sequence.

        Raises ValueError for a position without a block.
        """
        blocks = step.tables[self.group][sequence, positions // self.block_tokens]
        if (blocks < 0).any():
            raise ValueError("a position without a block was addressed")
        return blocks, positions % self.block_tokens

    def store(self, step: Step, k: FloatArray, v: FloatArray | None) -> None:
        """Store rows k and v of the step. v is None if values are part of the keys."""
        for s in range(step.n_sequences):
            rows = slice(step.seq_start[s], step.seq_start[s + 1])
            at = self.slots(step, s, step.positions[rows])
            self.k[at] = k[rows].reshape(-1, *self.k.shape[2:])
            if v is not None:
                self.v[at] = v[rows].reshape(-1, *self.v.shape[2:])


def _no_cases() -> Iterator[Case]:
    return iter(())  # tested in the cases of attention, which reads what it stored


@op(
    rows("k"),
    rows("v", optional=True),
    cache("cache", written=True, read=False),
    cost=elementwise_cost,
    cases=_no_cases,
    phase=Phase.ATTENTION,
    division=lambda node: Division(_cache(node).n_heads),
)
def kv_store(
    step: Step, attrs: Attrs, k: FloatArray, v: FloatArray | None, cache: CacheView
) -> Sequence[FloatArray]:
    """Store k and v in the cache at the positions of the step."""
    cache.store(step, k, v)
    return []


def _cache(node: Node) -> KVState:
    found = node.input("cache")
    assert isinstance(found, KVState)
    return found


def _division(node: Node) -> Division:
    """Return the division by KV heads, or by query heads if all of them read one KV head."""
    n_kv_heads, n_heads = _cache(node).n_heads, int(node.attrs["n_heads"])
    whole = frozenset({"keys", "cache"} if n_kv_heads == 1 else {"keys"})
    return Division(n_heads if n_kv_heads == 1 else n_kv_heads, whole, counts=("n_heads",))


def attention_cost(node: Node) -> Cost:
    """Return the cost of attention over the keys and values that a step sees."""
    state, n_heads = _cache(node), int(node.attrs["n_heads"])
    stored = state.head_dim + (0 if state.v_from_k else state.head_dim_v)
    return Cost(
        row_bytes=4 * n_heads * (state.head_dim + state.head_dim_v),
        key_bytes=2 * state.n_heads * stored,
        pair_flops=2 * n_heads * (state.head_dim + state.head_dim_v),
    )


def _cases() -> Iterator[Case]:
    shapes = [(4, 4, 32), (4, 2, 64), (8, 1, 16), (6, 2, 48)]
    for n_heads, n_kv, head_dim in shapes:
        for neox in (False, True):
            name = f"{n_heads}x{n_kv}x{head_dim}{'-neox' if neox else ''}"
            yield _attention_case(
                Case(name, 70, sequences=(40, 1, 29)), n_heads, n_kv, head_dim, neox
            )
    # Few queries, for which GPUs have a kernel of their own.
    yield _attention_case(Case("few", 13, sequences=(9, 1, 3)), 6, 2, 48, True, sinks=True)
    yield _attention_case(Case("drafts", 4, sequences=(3, 1), cached=20), 8, 2, 128, True)
    # Many keys, which GPUs split and merge; with many or wide heads they may use matrices.
    yield _attention_case(Case("deep", 3, sequences=(1, 2), cached=300), 6, 2, 64, True)
    yield _attention_case(Case("deep-one", 1, cached=310), 8, 2, 128, True)
    yield _attention_case(Case("deep-group", 2, cached=300), 8, 1, 128, True, window=280)
    yield _attention_case(Case("deep-heads", 1, cached=300), 8, 1, 256, False, sinks=True)
    yield _attention_case(Case("later", 40, cached=100), 4, 2, 64, True)
    # Queries and keys without norm and RoPE, and with the norm after RoPE.
    for prepared in ("plain", "rope-norm"):
        for kind, n_tokens, cached in (("few", 13, 0), ("deep-one", 1, 310)):
            case = Case(f"{kind}-{prepared}", n_tokens, cached=cached)
            yield _attention_case(case, 8, 2, 64, True, prepared=prepared)
    case = Case("window", 90, sequences=(70, 20))
    yield _attention_case(case, 4, 2, 32, True, window=16)
    # Windows that follow each other: with few queries, many, few keys and many.
    for case in (
        Case("chunked-many", 90, sequences=(70, 20)),
        Case("chunked-few", 13, sequences=(9, 1, 3), cached=37),
        Case("chunked-one", 1, cached=45),
    ):
        yield _attention_case(case, 4, 2, 64, True, window=16, chunked=True)
    case = Case("chunked-deep", 1, cached=700)
    yield _attention_case(case, 8, 2, 128, True, window=300, chunked=True)
    case = Case("sinks", 30, sequences=(30,))
    yield _attention_case(case, 4, 2, 32, True, sinks=True, softcap=20.0)
    yield _attention_case(Case("few-capped", 4, sequences=(3, 1)), 4, 2, 32, True, softcap=20.0)
    # Encoders: every token sees the whole text, with few queries, many, and several splits of keys.
    for name, sequences in (("few", (9, 1, 3)), ("many", (40, 1, 70)), ("long", (300, 20))):
        case = Case(f"whole-{name}", sum(sequences), sequences=sequences)
        yield _attention_case(case, 4, 4, 32, True, causal=False)
        case = Case(f"near-{name}", sum(sequences), sequences=sequences)
        yield _attention_case(case, 4, 4, 32, True, causal=False, window=9)
        case = Case(f"alibi-{name}", sum(sequences), sequences=sequences)
        yield _attention_case(case, 4, 2, 32, True, causal=False, alibi=True)
    # Latent attention and other wide heads: many queries, few, and one.
    lengths: tuple[int, ...]
    for name, lengths, cached, n_kv, n_heads, head_dim in (
        ("latent-many", (33, 7), 40, 1, 5, 576),
        ("latent-wave", (66, 7), 0, 1, 128, 576),  # more tiles of 64 rows than a GPU runs at once
        ("latent-few", (2, 1), 140, 1, 12, 576),
        ("latent-one", (1,), 200, 1, 16, 576),
        ("wide-many", (20, 4), 40, 2, 8, 512),
    ):
        case = Case(name, sum(lengths), sequences=lengths, cached=cached)
        state = KVState("kv", n_kv, head_dim, 512, v_from_k=n_kv == 1)
        q, k = case.rows(n_heads * head_dim), case.rows(n_kv * head_dim)
        case.graph.kv_store(k, case.rows(n_kv * 512) if n_kv > 1 else None, state)
        yield case.returns(case.graph.attention(q, state, scale=head_dim**-0.5))
    # A selection of the positions: with few and with several splits, and with two KV heads.
    for name, n_tokens, cached, n_kv, n_heads, (head_dim, head_dim_v), top_k in (
        ("latent", 20, 30, 1, 20, (96, 64), 16),
        ("deep", 2, 320, 1, 32, (80, 48), 300),
        ("heads", 40, 0, 2, 6, (48, 48), 16),
        ("wide", 19, 30, 1, 20, (576, 512), 20),
        ("wide-deep", 1, 320, 1, 16, (576, 512), 300),
    ):
        case = Case(f"selected-{name}", n_tokens, cached=cached)
        keys = case.selection(4, 32, top_k)
        state = KVState("kv", n_kv, head_dim, head_dim_v, v_from_k=n_kv == 1)
        q, k = case.rows(n_heads * head_dim), case.rows(n_kv * head_dim)
        v = case.rows(n_kv * head_dim_v) if n_kv > 1 else None
        case.graph.kv_store(k, v, state)
        yield case.returns(case.graph.attention(q, state, scale=head_dim**-0.5, keys=keys))


def _attention_case(
    case: Case,
    n_heads: int,
    n_kv: int,
    head_dim: int,
    neox: bool,
    *,
    window: int = 0,
    sinks: bool = False,
    softcap: float = 0.0,
    prepared: str = "norm-rope",
    causal: bool = True,
    chunked: bool = False,
    alibi: bool = False,
) -> Case:
    g = case.graph
    state = case.kv(n_kv, head_dim, window if causal else 0)
    q, k, v = case.rows(n_heads * head_dim), case.rows(n_kv * head_dim), case.rows(n_kv * head_dim)
    if prepared != "plain":
        table = g.rope_table(case.rope_frequencies(head_dim))
        late = prepared == "rope-norm"

        def prepare(x: Value) -> Value:
            x = g.rope(x, table, head_dim=head_dim, neox=neox) if late else x
            x = g.rms_norm(x, case.vector(head_dim), eps=1e-6, group=head_dim)
            return x if late else g.rope(x, table, head_dim=head_dim, neox=neox)

        q, k = prepare(q), prepare(k)
    g.kv_store(k, v, state)
    sink = case.vector(n_heads) if sinks else None
    slopes = Constant("slopes", tuple(2.0 ** -(h + 1) for h in range(n_heads))) if alibi else None
    y = g.attention(
        q,
        state,
        sink,
        scale=head_dim**-0.5,
        softcap=softcap,
        causal=causal,
        window=window,
        chunked=chunked,
        slopes=slopes,
    )
    return case.returns(y)


@op(
    rows("q"),
    cache("cache"),
    vector("sinks", optional=True),
    vector("slopes", optional=True),
    rows("keys", optional=True),
    cost=attention_cost,
    cases=_cases,
    self_test=("4x4x32",),
    tolerance=2e-3,  # the cache holds float16
    phase=Phase.ATTENTION,
    stores_formats=True,
    division=_division,
)
def attention(
    step: Step,
    attrs: Attrs,
    q: FloatArray,
    cache: CacheView,
    sinks: FloatArray | None,
    slopes: FloatArray | None = None,
    keys: FloatArray | None = None,
) -> Sequence[FloatArray]:
    """Return softmax(scale * q k^T) v over the cached positions up to that of each query.

    Without `causal`, it is over all positions up to the last one of the sequence in the step. Query
    head h reads KV head h // (n_heads / n_kv_heads). A query sees positions less than `window` away
    (0: all), or with `chunked` those since the last multiple of `window`. `softcap` limits
    scores to cap * tanh(s / cap). A sink adds exp(sink) to the softmax denominator of its head and
    has no value. ALiBi (Press et al. 2022) subtracts the slope of a head times the distance of
    query and key from each score. With `keys`, a query sees only the positions in its row of
    them (zinc.ops.select_keys).
    """
    causal = bool(attrs.get("causal", 1))
    n_heads, window, softcap = int(attrs["n_heads"]), int(attrs["window"]), float(attrs["softcap"])
    n_kv, head_dim = cache.k.shape[2:]
    out = np.empty((len(q), n_heads * cache.head_dim_v), dtype=np.float32)
    for s in range(step.n_sequences):
        rows = slice(step.seq_start[s], step.seq_start[s + 1])
        positions = step.positions[rows]
        if not len(positions):
            continue
        first = max(0, int(positions[0]) - window + 1) if window else 0
        key_positions = np.arange(first, int(positions[-1]) + 1, dtype=np.int32)
        at = cache.slots(step, s, key_positions)
        all_keys = np.repeat(cache.k[at], n_heads // n_kv, axis=1)
        values = np.repeat(cache.v[at], n_heads // n_kv, axis=1)
        queries = q[rows].reshape(-1, n_heads, head_dim)
        dots = queries.transpose(1, 0, 2) @ all_keys.transpose(1, 2, 0)  # [heads, queries, keys]
        scores = dots.astype(np.float64) * float(attrs["scale"])
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        distance = positions[:, None] - key_positions[None, :]
        if slopes is not None:
            scores -= slopes.astype(np.float64)[:, None, None] * np.abs(distance)
        visible = distance >= 0 if causal else np.ones_like(distance, dtype=bool)
        if window:
            visible &= np.abs(distance) < window
        if keys is not None:
            selected = np.zeros((len(positions), len(key_positions) + 1), dtype=bool)
            np.put_along_axis(selected, keys[rows].astype(np.int32) - first, True, axis=1)
            visible &= selected[:, :-1]  # the last column is that of the position -1
        if attrs.get("chunked"):
            visible &= key_positions[None, :] >= (positions // window * window)[:, None]
        scores = np.where(visible, scores, -np.inf)
        top = scores.max(axis=2, keepdims=True)
        if sinks is not None:
            top = np.maximum(top, sinks[:, None, None])
        weights = np.exp(scores - top)
        total = weights.sum(axis=2, keepdims=True)
        if sinks is not None:
            total = total + np.exp(sinks[:, None, None] - top)
        mixed = (weights / total @ values.transpose(1, 0, 2)).transpose(1, 0, 2)
        out[rows] = mixed.reshape(len(positions), -1).astype(np.float32)
    return [out]
