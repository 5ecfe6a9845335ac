"""Lowerings of rotary embedding: the table of angles, and heads that are rotated and stored."""

from __future__ import annotations

from zinc.backends.plans import Launch, Operand, Ref
from zinc.gpu.addresses import Addresses, DeviceKV
from zinc.gpu.arguments.structs import RopeStoreArguments, RopeTableArguments
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.kernel_set import lowers
from zinc.gpu.lower.operands import (
    ceil_div,
    in_vectors,
    operand,
    ref_or_null,
    vector_or_null,
)
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


@lowers("rope_store")
def rope_store(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    cache, attrs = launch.input("cache"), launch.attributes
    return _heads(
        at,
        bucket,
        (launch.input("q"), launch.input("k"), launch.input("v")),
        launch.input("table"),
        (launch.input("q_norm"), launch.input("k_norm")),
        cache if isinstance(cache, KVState) else None,
        launch.outputs[0],
        head_dim=int(attrs["head_dim"]),
        rope_dims=int(attrs["rope_dims"]),
        neox=int(attrs["neox"]),
        eps=float(attrs["eps"]),
        v_norm=int(attrs["v_norm"]),
    )


@lowers("rope")
def rope(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    attrs = launch.attributes
    return _heads(
        at,
        bucket,
        (launch.input("x"), None, None),
        launch.input("table"),
        (None, None),
        None,
        launch.outputs[0],
        head_dim=int(attrs["head_dim"]),
        rope_dims=int(attrs["rope_dims"]),
        neox=int(attrs["neox"]),
    )


@lowers("kv_store")
def kv_store(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    state = operand(launch, "cache", KVState)
    k, v = launch.input("k"), launch.input("v")
    nothing = (None, None)
    return _heads(at, bucket, (None, k, v), None, nothing, state, None, head_dim=state.head_dim)


def _heads(
    at: Addresses,
    bucket: Bucket,
    qkv: tuple[Operand, Operand, Operand],
    table: Operand,
    norms: tuple[Operand, Operand],
    state: KVState | None,
    out: Ref | None,
    *,
    head_dim: int,
    rope_dims: int = 0,
    neox: int = 0,
    eps: float = 0.0,
    v_norm: int = 0,
) -> list[Dispatch]:
    """Return one dispatch with a workgroup for each head of q, k and v of each token."""
    refs = [x for x in qkv if isinstance(x, Ref)]
    q, k, v = (x if isinstance(x, Ref) else None for x in qkv)
    n_q = q.cols // head_dim if q else 0
    n_kv = state.n_heads if state and k else 0
    head_dim_v = state.head_dim_v if state and v else head_dim
    width = max(head_dim, head_dim_v)
    cache = at.kv(state) if state and n_kv else DeviceKV(0, 0, 0, 0, 1, "f16", 0)
    kernel = KernelVariant(
        "rope_store",
        (
            ("HEAD_DIM", head_dim),
            ("HEAD_DIM_V", head_dim_v),
            ("KV_Q8", int(cache.dtype == "q8_0")),
            ("NEOX", neox),
            ("ROPE_DIMS", rope_dims),
            ("VECTORS", in_vectors(at, *refs, out)),
            ("WIDTH", width),
        ),
    )
    (q_at, q_stride), (k_at, k_stride), (v_at, v_stride) = (ref_or_null(at, x) for x in qkv)
    table_at, table_stride = ref_or_null(at, table)
    out_at, out_stride = ref_or_null(at, out)
    arguments = RopeStoreArguments(
        step=at.step,
        q=q_at,
        k=k_at,
        v=v_at,
        table=table_at,
        q_norm=vector_or_null(at, norms[0]),
        k_norm=vector_or_null(at, norms[1]),
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
        normalises_v=bool(v_norm),
        is_one_token=bucket.tokens == 1,
        eps=eps,
    )
    heads = n_q + n_kv + (n_kv if v else 0)
    return [Dispatch(kernel, arguments, (heads, bucket.tokens, 1))]
