"""Lowering of attention with many queries: a workgroup takes a tile of queries of one sequence.

There is a kernel for vectors and one for cooperative matrices.
"""

from __future__ import annotations

from zinc.backends.plans import Launch
from zinc.core.rounding import ceil_div
from zinc.gpu.addresses import Addresses
from zinc.gpu.arguments.structs import AttentionTileArguments
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.lower.attention_fields import attention_fields
from zinc.gpu.lower.operands import (
    alibi,
    chunked,
    in_vectors,
    is_capped,
    is_q8,
    operand,
    power_of_two,
    rows,
)
from zinc.ops.values import KVState

# Vectors: float16 numbers of queries and of keys in shared memory.
TILE_HALVES = 8192
KEY_HALVES = 4096
TILE_THREADS = 128

# Matrices: rows of queries and keys of a tile. A subgroup scores a matrix of them.
MATRIX_ROWS = 64
MATRIX_KEYS = 32
MAX_MATRIX_DIM = 256  # widest head whose queries and half of its sums fit into registers


def many_queries(launch: Launch, at: Addresses, bucket: Bucket, y_at: int) -> list[Dispatch]:
    """Return the dispatch of attention that writes its output to address `y_at`."""
    q, state, (y,) = rows(launch, "q"), operand(launch, "cache", KVState), launch.outputs
    n_heads = int(launch.attributes["n_heads"])
    own: tuple[tuple[str, int], ...] = ()
    fitting = [tile for tile in _matrix_tiles(state, at) if _has_matrices(state, at, *tile)]
    if fitting:
        name, (n_rows, keys) = "attention_matrices", fitting[0]
    else:
        wide = max(state.head_dim, state.head_dim_v)
        most = 16 if at.features.has_fewest_registers else 32
        n_rows = min(most, power_of_two(TILE_HALVES // wide + 1) // 2)
        keys = min(32, power_of_two(KEY_HALVES // wide + 1) // 2, at.kv(state).block_tokens)
        name, own = "attention_tiles", (("THREADS", TILE_THREADS),)
    kernel = KernelVariant(
        name,
        (
            *own,
            *alibi(launch),
            *chunked(launch),
            ("BK", keys),
            ("BQ", n_rows),
            ("HEAD_DIM", state.head_dim),
            ("HEAD_DIM_V", state.head_dim_v),
            ("KV_Q8", int(at.kv(state).dtype == "q8_0")),
            ("Q8", is_q8(y)),
            ("SOFTCAP", is_capped(launch)),
            ("VECTORS", in_vectors(at, q)),
            ("V_FROM_K", int(state.v_from_k)),
        ),
    )
    arguments = AttentionTileArguments(
        **attention_fields(launch, at, y_at),
        is_one_token=bucket.tokens == 1,
        softcap=float(launch.attributes["softcap"]),
    )
    # The last tile of each sequence may be partly empty.
    tiles = ceil_div(bucket.tokens * (n_heads // state.n_heads), n_rows) + bucket.sequences
    return [Dispatch(kernel, arguments, (state.n_heads, tiles, 1))]


def _matrix_tiles(state: KVState, at: Addresses) -> list[tuple[int, int]]:
    """Return tiles (rows of queries, keys) for matrices, best first.

    With more keys more subgroups share the sums of a row.
    """
    if not at.features.has_few_registers:
        return [(MATRIX_ROWS, MATRIX_KEYS)]
    if max(state.head_dim, state.head_dim_v) <= 128 and at.features.has_fewest_registers:
        return [(MATRIX_ROWS // 2, 2 * MATRIX_KEYS), (MATRIX_ROWS, MATRIX_KEYS)]
    if max(state.head_dim, state.head_dim_v) <= 128:
        return [(MATRIX_ROWS, MATRIX_KEYS), (MATRIX_ROWS // 2, MATRIX_KEYS)]
    return [(MATRIX_ROWS // 4, 2 * MATRIX_KEYS), (MATRIX_ROWS // 2, MATRIX_KEYS)]


def _has_matrices(state: KVState, at: Addresses, rows: int, keys: int) -> bool:
    """Return whether the kernel with matrices can use tiles of `rows` queries and `keys` keys."""
    key, value = state.head_dim // 8 + 1, state.head_dim_v // 8 + 1
    if at.features.has_few_registers:  # values reuse the memory of keys, not of queries
        tile = 16 * (keys * max(key, value) + rows * key)
    else:
        tile = 16 * max(keys * (key + value), rows * key)
    scored = rows * (4 * (keys + 4) + 2 * (keys + 8) + 12)  # scores, weights, running maxima
    matrix = at.features.matrix
    return (
        at.features.cooperative_matrix
        and 4 * at.features.subgroup <= matrix.m * matrix.n  # a lane has four scores of a row
        and at.kv(state).block_tokens >= keys
        and state.head_dim % 16 == state.head_dim_v % 16 == 0
        and max(state.head_dim, state.head_dim_v) <= MAX_MATRIX_DIM
        and tile + scored <= at.features.shared_bytes
    )
