"""Lowering of rope_attention as one dispatch, whose last block merges the splits of the keys."""

from __future__ import annotations

from dataclasses import fields

from zinc.backends.cuda.lower.registry import lowers
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


@lowers("rope_attention")
def rope_attention(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    split, merge = attention.rope_attention(launch, at, bucket)
    given, merged = split.arguments, merge.arguments
    assert isinstance(given, RopeAttentionArguments)
    assert isinstance(merged, AttentionMergeArguments)
    _, groups_of_heads, _ = split.groups
    arguments = DecodeAttentionArguments(
        **{field.name: getattr(given, field.name) for field in fields(given)},
        sinks=merged.sinks,
        out=merged.out,
        arrived=at.counters.take(groups_of_heads),
    )
    return [Dispatch(split.kernel, arguments, split.groups)]
