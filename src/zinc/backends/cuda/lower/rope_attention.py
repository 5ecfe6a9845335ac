"""Lowering of rope_attention as one dispatch, whose blocks merge the splits of the keys.

The last block of a head to end merges them, or a cluster of blocks does.
"""

from __future__ import annotations

from dataclasses import fields, replace

from zinc.backends.cuda.lower.registry import fuses, lowers
from zinc.backends.plans import Launch
from zinc.gpu.addresses import Addresses
from zinc.gpu.arguments.structs import (
    AttentionMergeArguments,
    DecodeAttentionArguments,
    RopeAttentionArguments,
)
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch
from zinc.gpu.lower import attention
from zinc.gpu.lower.attention import Cut
from zinc.gpu.lower.operands import ceil_div, operand, ref_or_null
from zinc.ops.graph import Node
from zinc.ops.step import StepCondition
from zinc.ops.values import KVState

# Tensor cores: a warp multiplies as many keys at once as fit its registers.
MAX_HEADS, MAX_SUMS = 8, 1024  # of a block
KEYS, WIDE_KEYS, MAX_NARROW_DIM, MAX_DIM = 16, 8, 128, 256
WARPS = 8
GROUPS_A_UNIT = 1  # blocks for each compute unit
# Up to CLUSTER_KEYS keys the splits of a head are a cluster of blocks, which merges them in shared
# memory. Those of one token fill half of the device, and the next kernel loads its weights on the
# other half.
CLUSTERS = (16, 8, 4, 2)  # blocks
CLUSTER_KEYS = 4096

# Vectors, for other heads.
AT_ONCE = 4  # keys that a lane loads ahead
# Blocks of splits of so few keys have more warps, so that no warp waits for keys twice.
SHORT_SPLIT, SHORT_WAVES, MAX_SUM_BYTES = 128, 8, 32 << 10


@fuses("rope_attention")
def rope_attention_steps(node: Node) -> StepCondition | None:
    """Return the steps with one token a sequence, if the heads of `node` suit the kernel."""
    return StepCondition(is_decode=True) if attention.prepares_heads(node) else None


@lowers("rope_attention")
def rope_attention(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    state, n_heads = operand(launch, "cache", KVState), int(launch.attributes["n_heads"])
    cut = matrix_cut(state, n_heads, at, bucket) or _vector_cut(state, n_heads, at, bucket)
    split, merge = attention.prepared(launch, at, bucket, cut)
    given, merged = split.arguments, merge.arguments
    assert isinstance(given, RopeAttentionArguments)
    assert isinstance(merged, AttentionMergeArguments)
    n_splits, n_groups, _ = split.groups
    arguments = DecodeAttentionArguments(
        **{field.name: getattr(given, field.name) for field in fields(given)},
        q_stride=ref_or_null(at, launch.input("q"))[1],
        k_stride=ref_or_null(at, launch.input("k"))[1],
        v_stride=ref_or_null(at, launch.input("v"))[1],
        table_stride=ref_or_null(at, launch.input("table"))[1],
        sinks=merged.sinks,
        out=merged.out,
        arrived=at.counters.take(bucket.tokens * n_groups),
        out_stride=launch.outputs[0].stride,
    )
    defines = (*split.kernel.defines, ("ONE_TOKEN", int(bucket.tokens == 1)))
    kernel = replace(split.kernel, defines=defines)
    return [Dispatch(kernel, arguments, (n_splits, n_groups, bucket.tokens))]


def matrix_cut(state: KVState, n_heads: int, at: Addresses, bucket: Bucket) -> Cut | None:
    """Return how to divide attention on tensor cores, None if the heads do not suit it."""
    wide, features = max(state.head_dim, state.head_dim_v), at.features
    suits = state.head_dim % 32 == state.head_dim_v % 64 == 0 and wide <= MAX_DIM
    if not suits or state.v_from_k or features.batch_invariant:
        return None
    repeats, visible = n_heads // state.n_heads, attention.visible_keys(state, bucket)
    keys = KEYS if wide <= MAX_NARROW_DIM else WIDE_KEYS
    is_cluster = features.clusters and visible <= CLUSTER_KEYS
    parts = ceil_div(repeats, min(MAX_HEADS, MAX_SUMS // state.head_dim_v))
    groups = state.n_heads * parts * bucket.tokens
    if is_cluster:
        room = features.compute_units // (2 if bucket.tokens == 1 else 1)
        splits = next((n for n in CLUSTERS if n * groups <= room), 1)
    else:
        wanted = attention.wanted_splits(at, groups, GROUPS_A_UNIT)
        splits = max(1, min(wanted, visible // (WARPS * keys), attention.MAX_SPLITS))
    warps = WARPS if splits * groups <= features.compute_units else WARPS // 2
    defines: tuple[tuple[str, int], ...] = (("KEYS", keys), ("WAVES", warps))
    if is_cluster and splits > 1:
        defines = (*defines, ("CLUSTER", splits))
    return Cut("attention_decode", ceil_div(repeats, parts), splits, defines)


def _vector_cut(state: KVState, n_heads: int, at: Addresses, bucket: Bucket) -> Cut:
    """Return how to divide attention on vectors, with the loads in flight that suit its splits."""
    cut = attention.few_cut(state, n_heads, at, bucket, splits_few=True)
    defines = dict(cut.defines) | {"AT_ONCE": AT_ONCE}
    sum_bytes = 4 * SHORT_WAVES * cut.each * state.head_dim_v
    split_keys = attention.visible_keys(state, bucket) // cut.splits
    if split_keys <= SHORT_SPLIT and sum_bytes <= MAX_SUM_BYTES:
        defines["WAVES"] = SHORT_WAVES
    return replace(cut, defines=tuple(defines.items()))
