"""How keys and values lie in a block of the cache.

A block has a plane for each head, [block_tokens, padded] numbers, where `padded` rounds the head up
to 16 so that every position starts on 16 bytes. As F16 a number has two bytes; as Q8_0 one, and
behind the numbers of a plane come its scales, a float16 for each 32 numbers of a position.
"""

from __future__ import annotations

from zinc.core.errors import UnsupportedError
from zinc.ops.values import KVState

DTYPES = ("f16", "q8_0")


def padded(head_dim: int) -> int:
    """Numbers that a head of a position takes."""
    return -(-head_dim // 16) * 16


def plane_bytes(head_dim: int, dtype: str, block_tokens: int) -> int:
    """Bytes of one head of a block."""
    if dtype == "f16":
        return 2 * block_tokens * padded(head_dim)
    if dtype == "q8_0":
        scales = 2 * block_tokens * -(-head_dim // 32)
        return block_tokens * padded(head_dim) + -(-scales // 16) * 16
    raise UnsupportedError(
        f"GPU backends have no KV cache of type {dtype}",
        "",
        f"choose one of {', '.join(DTYPES)}",
    )


def key_block_bytes(state: KVState, dtype: str, block_tokens: int) -> int:
    return state.n_heads * plane_bytes(state.head_dim, dtype, block_tokens)


def value_block_bytes(state: KVState, dtype: str, block_tokens: int) -> int:
    """0 when the values are part of the keys."""
    if state.v_from_k:
        return 0
    return state.n_heads * plane_bytes(state.head_dim_v, dtype, block_tokens)
