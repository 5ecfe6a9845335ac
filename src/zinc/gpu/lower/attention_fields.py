"""Arguments that several kernels of attention share, by the names of their fields."""

from __future__ import annotations

from typing import Any

from zinc.backends.plans import Launch
from zinc.gpu.addresses import Addresses, DeviceKV
from zinc.gpu.lower.operands import is_bidirectional, operand, rows, values_of, vector_or_null
from zinc.ops.values import KVState


def cache_fields(state: KVState, cache: DeviceKV) -> dict[str, int]:
    """Return the arguments by which kernels find the keys and values of a layer."""
    values, value_block = values_of(state, cache)
    return {
        "keys": cache.keys,
        "values": values,
        "key_block": cache.key_block_bytes,
        "value_block": value_block,
        "n_kv_heads": state.n_heads,
        "block_shift": cache.block_shift,
        "block_table": cache.table,
    }


def attention_fields(launch: Launch, at: Addresses, y_at: int) -> dict[str, Any]:
    """Return the arguments that all kernels of the op `attention` have, but for the soft cap.

    y_at: address of the output, in rows of the launch's output.
    """
    q, state, (y,) = rows(launch, "q"), operand(launch, "cache", KVState), launch.outputs
    attrs = launch.attributes
    return {
        **cache_fields(state, at.kv(state)),
        "step": at.step,
        "q": at.ref(q),
        "sinks": vector_or_null(at, launch.input("sinks")),
        "slopes": vector_or_null(at, launch.input("slopes")),
        "out": y_at,
        "q_stride": q.stride,
        "out_stride": y.stride,
        "n_heads": int(attrs["n_heads"]),
        "bidirectional": is_bidirectional(launch),
        "window": int(attrs["window"]),
        "scale": float(attrs["scale"]),
    }
