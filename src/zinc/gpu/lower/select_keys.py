"""Lowering of select_keys: scores of all positions that a token sees, then the largest of them.

Scores take four bytes for each token and position, so a step of many tokens has several pairs of
dispatches, each for some of the tokens.
"""

from __future__ import annotations

from zinc.backends.plans import Launch
from zinc.core.rounding import ceil_div
from zinc.gpu.addresses import Addresses
from zinc.gpu.arguments.structs import IndexScoresArguments, SelectKeysArguments
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.kernel_set import lowers
from zinc.gpu.lower.operands import in_vectors, operand, power_of_two, rows
from zinc.ops.values import KVState

SCORE_BYTES = 32 << 20  # scores of one pair of dispatches, at most
SELECT_THREADS = 1024
SCORE_KEYS = 64  # positions that a workgroup scores
SCORE_THREADS = 128
# Index heads that a workgroup multiplies at once: eight threads with different heads share a key.
FEWEST_HEADS, MOST_HEADS = 16, 64


@lowers("select_keys")
def select_keys(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    """Lower the op `select_keys`."""
    if bucket.keys <= int(launch.attributes["top_k"]):  # every token sees all positions
        return [_selection(launch, at, bucket, 0, bucket.tokens, 0)]
    each = max(1, min(bucket.tokens, SCORE_BYTES // (4 * bucket.keys)))
    scores = at.scratch.take(4 * each * bucket.keys)
    dispatches: list[Dispatch] = []
    for first in range(0, bucket.tokens, each):
        n_tokens = min(each, bucket.tokens - first)
        dispatches += (
            _scores(launch, at, bucket, first, n_tokens, scores),
            _selection(launch, at, bucket, first, n_tokens, scores),
        )
    return dispatches


def _scores(
    launch: Launch, at: Addresses, bucket: Bucket, first: int, n_tokens: int, scores: int
) -> Dispatch:
    """Return the dispatch that scores positions for `n_tokens` tokens starting at `first`."""
    q, weights = rows(launch, "q"), rows(launch, "weights")
    state = operand(launch, "cache", KVState)
    if state.n_heads != 1 or state.head_dim % 8:
        heads = f"{state.n_heads} heads of {state.head_dim} columns"
        raise NotImplementedError(f"index keys have {heads}")
    n_heads, cache = weights.cols, at.kv(state)
    most = MOST_HEADS // 2 if at.features.has_fewest_registers else MOST_HEADS
    kernel = KernelVariant(
        "index_scores",
        (
            ("HEADS", max(FEWEST_HEADS, min(most, power_of_two(n_heads)))),
            ("HEAD_DIM", state.head_dim),
            ("HEAD_DIM_V", state.head_dim_v),
            ("KEYS", SCORE_KEYS),
            ("KV_Q8", int(cache.dtype == "q8_0")),
            ("THREADS", SCORE_THREADS),
            ("VECTORS", in_vectors(at, q)),
            ("V_FROM_K", int(state.v_from_k)),
        ),
    )
    arguments = IndexScoresArguments(
        step=at.step,
        q=at.ref(q),
        weights=at.ref(weights),
        keys=cache.keys,
        scores=scores,
        q_stride=q.stride,
        weights_stride=weights.stride,
        key_block=cache.key_block_bytes,
        scores_stride=bucket.keys,
        n_heads=n_heads,
        first=first,
        top_k=int(launch.attributes["top_k"]),
        block_shift=cache.block_shift,
        block_table=cache.table,
        is_one_token=bucket.tokens == 1,
    )
    return Dispatch(
        kernel, arguments, (ceil_div(bucket.keys, SCORE_KEYS), n_tokens, 1), waits=first > 0
    )


def _selection(
    launch: Launch, at: Addresses, bucket: Bucket, first: int, n_tokens: int, scores: int
) -> Dispatch:
    """Return the dispatch that selects positions for `n_tokens` tokens starting at `first`."""
    (out,) = launch.outputs
    arguments = SelectKeysArguments(
        step=at.step,
        scores=scores,
        out=at.ref(out),
        scores_stride=bucket.keys,
        out_stride=out.stride,
        first=first,
        top_k=int(launch.attributes["top_k"]),
        is_one_token=bucket.tokens == 1,
    )
    kernel = KernelVariant("select_keys", (("THREADS", SELECT_THREADS),))
    return Dispatch(kernel, arguments, (n_tokens, 1, 1), waits=scores > 0)
