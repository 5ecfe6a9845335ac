"""Lowering of rope_attention as one dispatch, whose last block merges the splits of the keys."""

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
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.lower import attention
from zinc.gpu.lower.operands import operand
from zinc.ops.graph import Node
from zinc.ops.step import StepCondition
from zinc.ops.values import KVState

AT_ONCE = 4  # keys that a lane loads ahead
# Blocks of splits of so few keys have more warps, so that no warp waits for keys twice.
SHORT_SPLIT, SHORT_WAVES, MAX_SUM_BYTES = 128, 8, 32 << 10


@fuses("rope_attention")
def rope_attention_steps(node: Node) -> StepCondition | None:
    """Return the steps of one token, if the heads of `node` suit the kernel."""
    return StepCondition(tokens=1) if attention.prepares_heads(node) else None


@lowers("rope_attention")
def rope_attention(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    split, merge = attention.prepared(launch, at, bucket, splits_few=True)
    given, merged = split.arguments, merge.arguments
    assert isinstance(given, RopeAttentionArguments)
    assert isinstance(merged, AttentionMergeArguments)
    n_splits, groups_of_heads, _ = split.groups
    arguments = DecodeAttentionArguments(
        **{field.name: getattr(given, field.name) for field in fields(given)},
        sinks=merged.sinks,
        out=merged.out,
        arrived=at.counters.take(groups_of_heads),
    )
    keys = attention.visible_keys(operand(launch, "cache", KVState), bucket) // n_splits
    return [Dispatch(_with_loads(split.kernel, keys), arguments, split.groups)]


def _with_loads(kernel: KernelVariant, keys: int) -> KernelVariant:
    """Return the kernel with the loads in flight that suit splits of `keys` keys."""
    defines = dict(kernel.defines) | {"AT_ONCE": AT_ONCE}
    sum_bytes = 4 * SHORT_WAVES * defines["EACH"] * defines["HEAD_DIM_V"]
    if keys <= SHORT_SPLIT and sum_bytes <= MAX_SUM_BYTES:
        defines["WAVES"] = SHORT_WAVES
    return replace(kernel, defines=tuple(defines.items()))
