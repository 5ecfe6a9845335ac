"""Lowering of select_keys with scores from tensor cores, if the index heads suit them."""

from __future__ import annotations

from dataclasses import replace

from zinc.backends.cuda.lower.registry import lowers
from zinc.backends.plans import Launch
from zinc.core.rounding import ceil_div
from zinc.gpu.addresses import Addresses
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.lower import select_keys as vectors
from zinc.gpu.lower.operands import in_vectors, operand, rows
from zinc.ops.values import KVState

WARPS, WARP_KEYS = 4, 32  # positions that a warp scores at once
TILE_HEADS = 16
MAX_DIM = 128  # widest keys that fit into the registers of a warp
BLOCKS_PER_UNIT = 8  # blocks per compute unit; each block prepares the queries of a token


@lowers("select_keys")
def select_keys(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    """Lower the op `select_keys`."""
    return [_on_tensor_cores(x, launch, at) for x in vectors.select_keys(launch, at, bucket)]


def _on_tensor_cores(dispatch: Dispatch, launch: Launch, at: Addresses) -> Dispatch:
    """Return `dispatch` with the scores on tensor cores, or unchanged if they do not suit it."""
    state, n_heads = operand(launch, "cache", KVState), rows(launch, "weights").cols
    heads = TILE_HEADS * ceil_div(n_heads, TILE_HEADS)
    keys = WARPS * WARP_KEYS
    pitch = state.head_dim // 8 | (1 if state.head_dim % 64 else 0)
    shared_bytes = 16 * (2 * heads + keys) * pitch
    if (
        dispatch.kernel.name != "index_scores"
        or state.head_dim % 16
        or state.head_dim > MAX_DIM
        or shared_bytes + 4 * heads > at.features.most_shared_bytes
    ):
        return dispatch
    positions, n_tokens, _ = dispatch.groups
    tiles = ceil_div(positions * vectors.SCORE_KEYS, keys)
    wanted = ceil_div(BLOCKS_PER_UNIT * at.features.compute_units, n_tokens)
    kernel = KernelVariant(
        "index_scores_mma",
        (
            ("HEADS", heads),
            ("HEAD_DIM", state.head_dim),
            ("HEAD_DIM_V", state.head_dim_v),
            ("KV_Q8", int(at.kv(state).dtype == "q8_0")),
            ("THREADS", 32 * WARPS),
            ("VECTORS", in_vectors(at, rows(launch, "q"))),
            ("V_FROM_K", int(state.v_from_k)),
        ),
        shared_bytes,
    )
    return replace(dispatch, kernel=kernel, groups=(min(tiles, wanted), n_tokens, 1))
