"""Attention with CUDA beyond the op cases, on the emulator, and how its keys are divided."""

from __future__ import annotations

import pytest
from cuda_emulator import emulated
from ops.attention_steps import CASES, errors

from zinc.backends.cuda.lower.attention import AttentionTile, choose_tile
from zinc.backends.cuda.lower.rope_attention import matrix_cut
from zinc.gpu.addresses import NominalAddresses
from zinc.gpu.bucket import Bucket
from zinc.gpu.features import Features
from zinc.ops.values import KVState

QUICK = {"narrow-values", "wide-heads"}


@pytest.mark.skipif(emulated.COMPILER is None, reason="there is no g++")
@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[] if x in QUICK else pytest.mark.every) for x in CASES]
)
def test_prompts_and_decode_agree_with_ref(name: str) -> None:
    found, tolerance = errors(emulated.backend(), name)
    assert max(found) <= tolerance


AT = NominalAddresses(Features(32, shared_bytes=49152, compute_units=132), "f16")
HEADS = KVState("kv", 8, 128, 128)


@pytest.mark.parametrize(
    ("bucket", "tile"),
    [
        (Bucket(512, 1, 1, 512), AttentionTile(4, 1, 64, 1)),
        (Bucket(4, 4, 1, 16384), AttentionTile(1, 4, 64, 33)),
        (Bucket(8, 8, 8, 512), AttentionTile(1, 4, 64, 4)),
        (Bucket(32, 32, 32, 256), AttentionTile(1, 4, 64, 1)),
    ],
)
def test_few_rows_are_divided_among_more_blocks(bucket: Bucket, tile: AttentionTile) -> None:
    assert choose_tile(HEADS, 32, AT, bucket) == tile


CLUSTERS = NominalAddresses(
    Features(32, clusters=True, shared_bytes=49152, compute_units=132), "f16"
)


@pytest.mark.parametrize(
    ("state", "keys", "at", "splits", "each", "cluster"),
    [
        (HEADS, 1024, CLUSTERS, 8, 4, 8),
        (KVState("kv", 2, 256, 256), 1024, CLUSTERS, 16, 4, 16),  # few heads: larger clusters
        (HEADS, 16384, CLUSTERS, 16, 4, None),  # blocks for the whole device
        (HEADS, 1024, AT, 8, 4, None),
    ],
)
def test_decode_merges_short_contexts_in_clusters(
    state: KVState, keys: int, at: NominalAddresses, splits: int, each: int, cluster: int | None
) -> None:
    n_heads = 32 if state is HEADS else 16
    cut = matrix_cut(state, n_heads, at, Bucket(1, 1, 1, keys))
    assert cut is not None
    assert (cut.splits, cut.each, dict(cut.defines).get("CLUSTER")) == (splits, each, cluster)


@pytest.mark.parametrize(
    "state",
    [
        KVState("kv", 1, 576, 512, v_from_k=True),
        KVState("kv", 4, 80, 80),
        KVState("kv", 4, 512, 512),
    ],
)
def test_heads_that_do_not_suit_tensor_cores_are_multiplied_as_vectors(state: KVState) -> None:
    assert matrix_cut(state, 16, CLUSTERS, Bucket(1, 1, 1, 1024)) is None


def test_heads_that_are_too_wide_have_no_tile() -> None:
    latent = KVState("kv", 1, 576, 512, v_from_k=True)
    assert choose_tile(latent, 16, AT, Bucket(512, 1, 1, 512)) is None
