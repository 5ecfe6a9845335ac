"""Layout of the keys or values in a KV cache block.

A block has one plane for each KV head. A plane holds [block_tokens, padded] numbers, where `padded`
is the head's width rounded up to 16, so that every position starts on 16 bytes.

    f16    float16 numbers
    q8_0   int8 numbers, then float16 scales [block_tokens, ceil(width / 32)]
"""

from __future__ import annotations

from zinc.core.errors import UnsupportedError
from zinc.core.rounding import ceil_div, round_up
from zinc.ops.values import KVState

DTYPES = ("f16", "q8_0")


def padded(head_dim: int) -> int:
    """Return the width of a head rounded up to a multiple of 16."""
    return round_up(head_dim, 16)


def plane_bytes(head_dim: int, dtype: str, block_tokens: int) -> int:
    """Return the bytes of a plane. Raises UnsupportedError for an unknown `dtype`."""
    if dtype == "f16":
        return 2 * block_tokens * padded(head_dim)
    if dtype == "q8_0":
        scales = 2 * block_tokens * ceil_div(head_dim, 32)
        return block_tokens * padded(head_dim) + round_up(scales, 16)
    raise UnsupportedError(
        f"GPU backends have no KV cache of type {dtype}",
        "",
        f"choose one of {', '.join(DTYPES)}",
    )


def key_block_bytes(state: KVState, dtype: str, block_tokens: int) -> int:
    """Return the bytes of a block of keys of all heads."""
    return state.n_heads * plane_bytes(state.head_dim, dtype, block_tokens)


def value_block_bytes(state: KVState, dtype: str, block_tokens: int) -> int:
    """Return the bytes of a block of values, 0 if values are part of the keys."""
    if state.v_from_k:
        return 0
    return state.n_heads * plane_bytes(state.head_dim_v, dtype, block_tokens)
