"""Lowering of rope_attention as one dispatch, whose blocks merge the splits of the keys.

The last block of a head to end merges them, or a cluster of blocks does. A step has one token of
each sequence (decode), or few tokens of any (verification of drafts).
"""

from __future__ import annotations

from dataclasses import replace

from zinc.backends.cuda.lower.registry import fuses, lowers
from zinc.backends.plans import Launch
from zinc.core.rounding import ceil_div
from zinc.gpu.addresses import Addresses
from zinc.gpu.arguments.structs import (
    AttentionMergeArguments,
    DecodeAttentionArguments,
    RopeAttentionArguments,
)
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch
from zinc.gpu.lower import attention
from zinc.gpu.lower.attention import DecodeConfig
from zinc.gpu.lower.operands import operand
from zinc.ops.node import Node
from zinc.ops.step import StepCondition
from zinc.ops.values import KVState

# Tensor cores: a warp multiplies as many keys at once as fit its registers.
MAX_HEADS, MAX_SUMS = 8, 1024  # per block
# Pairs (tokens of a step, keys) up to which this kernel is faster than rope_store and the attention
# of prompts. A block has the new keys and values of all tokens in shared memory.
FEW_TOKENS = ((4, 8192), (8, 1024), (16, 512))
# Pairs (most scores of a head, tokens of a tile), where scores are tokens x keys. With few keys,
# preparing the heads takes most of the time. Then smaller tiles are faster, although each of them
# reads all keys.
TOKENS_OF_TILE = ((1024, 1), (8192, 2))
KEYS, WIDE_KEYS, MAX_NARROW_DIM, MAX_DIM = 16, 8, 128, 256
WARPS = 8
GROUPS_A_UNIT = 1  # blocks for each compute unit
# Up to CLUSTER_KEYS keys, the splits of a head are blocks of one cluster, which merges them in
# shared memory. If all tokens together have so few keys, the clusters fill half of the device, so
# that the next kernel loads its weights on the other half.
CLUSTERS = (16, 8, 4, 2)  # blocks of a cluster
CLUSTER_KEYS = 4096

# Vectors, for other heads.
AT_ONCE = 4  # keys that a lane loads ahead
# For splits of at most SHORT_SPLIT keys a block has SHORT_WAVES warps. Then each warp loads all of
# its keys at once, instead of in two rounds.
SHORT_SPLIT, SHORT_WAVES, MAX_SUM_BYTES = 128, 8, 32 << 10


@fuses("rope_attention")
def rope_attention_steps(node: Node) -> StepCondition | None:
    """Return the steps with one token per sequence or few tokens, if `node` suits the kernels."""
    state = node.input("cache")
    assert isinstance(state, KVState)
    if not attention.prepares_heads(node):
        return None
    return StepCondition(is_decode=True, or_few=FEW_TOKENS if _suits_matrices(state) else ())


@lowers("rope_attention")
def rope_attention(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    state, n_heads = operand(launch, "cache", KVState), int(launch.attributes["n_heads"])
    config = tensor_core_config(state, n_heads, at, bucket) or _vector_config(
        state, n_heads, at, bucket
    )
    split, merge = attention.rope_attention_of(launch, at, bucket, config)
    given, merged = split.arguments, merge.arguments
    assert isinstance(given, RopeAttentionArguments)
    assert isinstance(merged, AttentionMergeArguments)
    n_splits, n_groups, _ = split.groups
    arguments = DecodeAttentionArguments.extending(
        given,
        sinks=merged.sinks,
        out=merged.out,
        arrived=at.counters.take(bucket.tokens * n_groups),
    )
    tiles = bucket.tiles(dict(config.defines).get("TILE_TOKENS", 1))
    defines = (*split.kernel.defines, ("ONE_TOKEN", int(bucket.tokens == 1)))
    kernel = replace(split.kernel, defines=defines, shared_bytes=_shared_bytes(state, config))
    return [Dispatch(kernel, arguments, (n_splits, n_groups, tiles))]


def _suits_matrices(state: KVState) -> bool:
    """Return whether the kernel for tensor cores supports the heads of `state`."""
    wide = max(state.head_dim, state.head_dim_v)
    return (
        state.head_dim % 32 == state.head_dim_v % 64 == 0 and wide <= MAX_DIM and not state.v_from_k
    )


def _shared_bytes(state: KVState, config: DecodeConfig) -> int:
    """Return the shared memory of a block for prepared heads and, later, for sums of its warps."""
    if config.kernel != "attention_decode":
        return 0
    defines = dict(config.defines)
    warps, rows = defines["WAVES"], defines.get("TILE_TOKENS", 1) * config.heads
    width = max(state.head_dim, state.head_dim_v)
    slots = rows + 2 * defines.get("MOST_OWN", 1)  # slots of prepared heads
    return 4 * max(warps * rows * state.head_dim_v, slots * ceil_div(width, 128) * 128)


def tensor_core_config(
    state: KVState, n_heads: int, at: Addresses, bucket: Bucket
) -> DecodeConfig | None:
    """Return the configuration for tensor cores, None if they do not support the heads."""
    wide, features = max(state.head_dim, state.head_dim_v), at.features
    if not _suits_matrices(state) or features.batch_invariant:
        return None
    repeats, visible = n_heads // state.n_heads, attention.visible_keys(state, bucket)
    keys = KEYS if wide <= MAX_NARROW_DIM else WIDE_KEYS
    is_decode = bucket.is_decode or bucket.tokens == 1
    is_cluster = features.clusters and (visible <= CLUSTER_KEYS or not is_decode)
    defines: tuple[tuple[str, int], ...] = (("KEYS", keys),)
    if is_decode:
        parts = ceil_div(repeats, min(MAX_HEADS, MAX_SUMS // state.head_dim_v))
        tiles = bucket.tokens
    else:
        parts = ceil_div(repeats, MAX_HEADS)
        queries = MAX_HEADS * (2 if wide <= MAX_NARROW_DIM else 1)
        scores = bucket.tokens * visible  # scores per head
        most = next((n for limit, n in TOKENS_OF_TILE if scores <= limit), bucket.tokens)
        tokens = min(queries // ceil_div(repeats, parts), bucket.tokens, most)
        tiles = bucket.tiles(tokens)
        defines = (*defines, ("TILE_TOKENS", tokens), ("MOST_OWN", bucket.tokens))
    groups = state.n_heads * parts * tiles
    if is_cluster:
        is_short = visible * tiles <= CLUSTER_KEYS or not is_decode
        room = features.compute_units // (2 if is_short else 1)
        # Each warp has at least one group of `keys` keys.
        most = min(room // groups, visible // (WARPS * keys))
        splits = next((n for n in CLUSTERS if n <= most), 1)
    else:
        wanted = attention.wanted_splits(at, groups, GROUPS_A_UNIT)
        splits = max(1, min(wanted, visible // (WARPS * keys), attention.MAX_SPLITS))
    warps = WARPS if splits * groups <= features.compute_units else WARPS // 2
    defines = (*defines, ("WAVES", warps))
    if is_cluster and splits > 1:
        defines = (*defines, ("CLUSTER", splits))
    return DecodeConfig("attention_decode", ceil_div(repeats, parts), splits, defines)


def _vector_config(state: KVState, n_heads: int, at: Addresses, bucket: Bucket) -> DecodeConfig:
    """Return the configuration with vector arithmetic; short splits have more warps."""
    config = attention.decode_config(state, n_heads, at, bucket, splits_few=True)
    defines = dict(config.defines) | {"AT_ONCE": AT_ONCE}
    sum_bytes = 4 * SHORT_WAVES * config.heads * state.head_dim_v
    split_keys = attention.visible_keys(state, bucket) // config.splits
    if split_keys <= SHORT_SPLIT and sum_bytes <= MAX_SUM_BYTES:
        defines["WAVES"] = SHORT_WAVES
    return replace(config, defines=tuple(defines.items()))
