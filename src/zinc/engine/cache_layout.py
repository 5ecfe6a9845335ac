"""Sizes of a KV cache: blocks, recurrent states and the bytes they take.

Pure arithmetic over the states of a plan. `zinc.engine.load.memory` decides how large a cache to
allocate; this module says what a cache of a given size looks like.
"""

from __future__ import annotations

from zinc.backends.api import CacheLayout
from zinc.core.errors import RequestError
from zinc.core.kv_types import BYTES_PER_NUMBER, GROUP_DIMENSIONS
from zinc.core.rounding import ceil_div
from zinc.kv import Group, window_blocks
from zinc.ops.values import KVState, RecurrentState, State

BLOCK_TOKENS = 64
# Sequences whose sliding windows the cache holds in full at the same time.
WINDOW_SEQUENCES = 8


def resolve_kv_dtype(wanted: str, default: str, states: tuple[State, ...]) -> str:
    """Return the type of keys and values for `wanted`, which is "auto" or a type.

    "auto" means `default`, the backend's choice, or f16 if the heads do not fit its groups;
    docs/adr/0001-kv-type.md has the reasons. Raises RequestError for an unknown type, or a type
    that the model's head dimensions rule out.
    """
    if wanted != "auto" and wanted not in BYTES_PER_NUMBER:
        known = ", ".join(BYTES_PER_NUMBER)
        raise RequestError(f"there is no KV type {wanted!r}", "", f"choose auto or one of {known}")
    dims = {dim for s in states if isinstance(s, KVState) for dim in (s.head_dim, s.head_dim_v)}
    odd = sorted(dim for dim in dims if dim % GROUP_DIMENSIONS)
    if wanted == "auto":
        return "f16" if odd else default
    if wanted != "f16" and odd:
        raise RequestError(
            f"keys and values of this model cannot be stored as {wanted}",
            f"it needs heads whose dimensions are multiples of {GROUP_DIMENSIONS}, not {odd[0]}",
            "choose f16",
        )
    return wanted


def kv_bytes_per_token(states: tuple[State, ...], kv_dtype: str) -> float:
    """Return the bytes of keys and values that one position takes over all attention layers."""
    layers = [s for s in states if isinstance(s, KVState)]
    dims = sum(s.n_heads * (s.head_dim + (0 if s.v_from_k else s.head_dim_v)) for s in layers)
    return dims * BYTES_PER_NUMBER[kv_dtype]


def state_bytes_per_sequence(states: tuple[State, ...]) -> int:
    """Return the bytes of recurrent state of one sequence over all layers, at any length."""
    return sum(4 * s.floats for s in states if isinstance(s, RecurrentState))


def cache_layout(
    states: tuple[State, ...],
    tokens: int,
    kv_dtype: str,
    state_slots: int = 1,
    chunk_tokens: int | None = None,
) -> CacheLayout:
    """Return a layout for `tokens` positions over all sequences and `state_slots` sequences.

    chunk_tokens: the most tokens of one sequence in a step. With it, the layers of each sliding
    window form a group that has blocks for the window only. Without it, every layer keeps every
    position.
    """
    n_blocks = ceil_div(tokens, BLOCK_TOKENS)
    if chunk_tokens is None:
        return CacheLayout(BLOCK_TOKENS, (n_blocks,), kv_dtype, state_slots=state_slots)
    layers = [s for s in states if isinstance(s, KVState)]
    windows = sorted({s.window for s in layers}) or [0]
    most = [
        WINDOW_SEQUENCES * window_blocks(w, chunk_tokens, BLOCK_TOKENS) if w else n_blocks
        for w in windows
    ]
    return CacheLayout(
        BLOCK_TOKENS,
        tuple(min(n_blocks, n) for n in most),
        kv_dtype,
        group_of={s.name: windows.index(s.window) for s in layers},
        state_slots=state_slots,
    )


def cache_groups(states: tuple[State, ...], layout: CacheLayout) -> list[Group]:
    """Return the groups of a layout; a group has a window if all of its layers share it."""
    groups = []
    for i, n_blocks in enumerate(layout.n_blocks):
        members = [
            s for s in states if isinstance(s, KVState) and layout.group_of.get(s.name, 0) == i
        ]
        windows = {s.window for s in members}
        window = windows.pop() if len(windows) == 1 else 0
        block_bytes = kv_bytes_per_token(tuple(members), layout.kv_dtype) * layout.block_tokens
        groups.append(Group(n_blocks, window, round(block_bytes)))
    return groups


def cache_bytes(states: tuple[State, ...], layout: CacheLayout) -> int:
    """Return the bytes of keys and values in a layout."""
    return sum(group.n_blocks * group.block_bytes for group in cache_groups(states, layout))


def context_bytes(states: tuple[State, ...], context: int, kv_dtype: str, chunk_tokens: int) -> int:
    """Return the bytes of keys and values of one sequence of `context` tokens.

    chunk_tokens: see `cache_layout`.
    """
    return cache_bytes(states, cache_layout(states, context, kv_dtype, 1, chunk_tokens))
