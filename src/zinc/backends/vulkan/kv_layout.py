"""Bytes of a block of keys and of values, by type: what allocation needs to know of the layout."""

from __future__ import annotations

from zinc.ops.graph import KVState


def key_block_bytes(state: KVState, dtype: str, block_tokens: int) -> int:
    """Bytes of the keys of one block of positions."""
    return _bytes(state.n_heads * state.head_dim * block_tokens, dtype)


def value_block_bytes(state: KVState, dtype: str, block_tokens: int) -> int:
    """Bytes of the values of one block; none when they are part of the keys."""
    if state.v_from_k:
        return 0
    return _bytes(state.n_heads * state.head_dim_v * block_tokens, dtype)


def _bytes(elements: int, dtype: str) -> int:
    return 2 * elements if dtype == "f16" else elements + elements // 32 * 2
