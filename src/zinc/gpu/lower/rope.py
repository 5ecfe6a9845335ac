"""Lowerings of rotary embedding: the table of angles, and heads that are rotated and stored."""

from __future__ import annotations

from zinc.backends.plans import Launch, Operand, Ref
from zinc.core.dataclass import dataclass
from zinc.core.rounding import ceil_div
from zinc.gpu.addresses import Addresses, DeviceKV
from zinc.gpu.arguments.structs import RopeStoreArguments, RopeTableArguments
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.kernel_set import lowers
from zinc.gpu.lower.operands import in_vectors, operand, ref_or_null, vector_or_null
from zinc.ops.values import Constant, KVState

TABLE_THREADS = 32


@lowers("rope_table")
def rope_table(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    frequencies, (y,) = operand(launch, "inv_freq", Constant), launch.outputs
    n = frequencies.cols
    scale = float(launch.attributes["scale"])
    arguments = RopeTableArguments(
        step=at.step,
        frequencies=at.vector(frequencies),
        y=at.ref(y),
        y_stride=y.stride,
        n=n,
        scale=scale,
        log_scale=float(launch.attributes.get("log_scale", 0.0)),
        period=int(launch.attributes.get("period", 1)),
    )
    offset = int(launch.attributes.get("offset", 0))
    shift = (("OFFSET", offset),) if offset else ()
    kernel = KernelVariant("rope_table", (*shift, ("THREADS", TABLE_THREADS)))
    return [Dispatch(kernel, arguments, (ceil_div(n, TABLE_THREADS), bucket.tokens, 1))]


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads of q, k and v, which one kernel normalises, rotates and stores.

    state: the cache of k and v, None for q alone. out: the rows of the rotated q, None without q.
    rope_dims: the dimensions of a head that are rotated. v_norm: normalise v, without a weight.
    """

    head_dim: int
    q: Operand = None
    k: Operand = None
    v: Operand = None
    table: Operand = None
    q_norm: Operand = None
    k_norm: Operand = None
    state: KVState | None = None
    out: Ref | None = None
    rope_dims: int = 0
    neox: bool = False
    eps: float = 0.0
    v_norm: bool = False


@lowers("rope_store")
def rope_store(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    cache, attrs = launch.input("cache"), launch.attributes
    heads = Heads(
        int(attrs["head_dim"]),
        q=launch.input("q"),
        k=launch.input("k"),
        v=launch.input("v"),
        table=launch.input("table"),
        q_norm=launch.input("q_norm"),
        k_norm=launch.input("k_norm"),
        state=cache if isinstance(cache, KVState) else None,
        out=launch.outputs[0],
        rope_dims=int(attrs["rope_dims"]),
        neox=bool(attrs["neox"]),
        eps=float(attrs["eps"]),
        v_norm=bool(attrs["v_norm"]),
    )
    return _dispatch(heads, at, bucket)


@lowers("rope")
def rope(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    attrs = launch.attributes
    heads = Heads(
        int(attrs["head_dim"]),
        q=launch.input("x"),
        table=launch.input("table"),
        out=launch.outputs[0],
        rope_dims=int(attrs["rope_dims"]),
        neox=bool(attrs["neox"]),
    )
    return _dispatch(heads, at, bucket)


@lowers("kv_store")
def kv_store(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    state = operand(launch, "cache", KVState)
    heads = Heads(state.head_dim, k=launch.input("k"), v=launch.input("v"), state=state)
    return _dispatch(heads, at, bucket)


def _dispatch(heads: Heads, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    """Return one dispatch with a workgroup for each head of q, k and v of each token."""
    q, k, v = (x if isinstance(x, Ref) else None for x in (heads.q, heads.k, heads.v))
    state, head_dim = heads.state, heads.head_dim
    n_q = q.cols // head_dim if q else 0
    n_kv = state.n_heads if state and k else 0
    head_dim_v = state.head_dim_v if state and v else head_dim
    cache = at.kv(state) if state and n_kv else DeviceKV(0, 0, 0, 0, 1, "f16", 0)
    kernel = KernelVariant(
        "rope_store",
        (
            ("HEAD_DIM", head_dim),
            ("HEAD_DIM_V", head_dim_v),
            ("KV_Q8", int(cache.dtype == "q8_0")),
            ("NEOX", int(heads.neox)),
            ("ROPE_DIMS", heads.rope_dims),
            ("VECTORS", in_vectors(at, q, k, v, heads.out)),
            ("WIDTH", max(head_dim, head_dim_v)),
        ),
    )
    (q_at, q_stride), (k_at, k_stride), (v_at, v_stride) = (ref_or_null(at, x) for x in (q, k, v))
    table_at, table_stride = ref_or_null(at, heads.table)
    out_at, out_stride = ref_or_null(at, heads.out)
    arguments = RopeStoreArguments(
        step=at.step,
        q=q_at,
        k=k_at,
        v=v_at,
        table=table_at,
        q_norm=vector_or_null(at, heads.q_norm),
        k_norm=vector_or_null(at, heads.k_norm),
        out=out_at,
        keys=cache.keys,
        values=cache.values,
        q_stride=q_stride,
        k_stride=k_stride,
        v_stride=v_stride,
        table_stride=table_stride,
        out_stride=out_stride,
        key_block=cache.key_block_bytes,
        value_block=cache.value_block_bytes,
        n_heads=n_q,
        n_kv_heads=n_kv,
        block_tokens=cache.block_tokens,
        block_table=cache.table,
        normalises_v=heads.v_norm,
        is_one_token=bucket.tokens == 1,
        eps=heads.eps,
    )
    n_heads = n_q + n_kv + (n_kv if v else 0)
    return [Dispatch(kernel, arguments, (n_heads, bucket.tokens, 1))]
