"""Attention with CUDA beyond the op cases, on the emulator, and how its keys are divided."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from cuda_emulator import emulated
from ops import attention_steps
from ops.attention_steps import CASES, errors
from ops.running import run

from zinc.backends import api
from zinc.backends.cuda.lower.attention import AttentionTile, choose_tile, spread_merge
from zinc.backends.cuda.lower.rope_attention import tensor_core_config
from zinc.backends.cuda.lower.wide_attention import WideTile, wide_tile
from zinc.gpu.addresses import NominalAddresses
from zinc.gpu.arguments.structs import AttentionMergeArguments
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.features import Features
from zinc.ops.cases import Case
from zinc.ops.values import KVState

QUICK = {"narrow-values"}  # the op cases of test_cuda_emulated.py have a 16-bit cache


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
    config = tensor_core_config(state, n_heads, at, Bucket(1, 1, 1, keys))
    assert config is not None
    assert (config.splits, config.heads, dict(config.defines).get("CLUSTER")) == (
        splits,
        each,
        cluster,
    )


@pytest.mark.parametrize(
    ("tokens", "keys", "of_tile"),
    [(2, 512, 1), (4, 256, 1), (4, 512, 2), (4, 4096, 4), (8, 256, 2), (8, 1024, 2), (16, 512, 2)],
)
def test_tokens_of_few_keys_have_small_tiles(tokens: int, keys: int, of_tile: int) -> None:
    """The tiles were timed on an H200 (dev/kernels/cuda.md)."""
    config = tensor_core_config(HEADS, 32, CLUSTERS, Bucket(tokens, tokens, 1, keys))
    assert config is not None
    assert dict(config.defines)["TILE_TOKENS"] == of_tile


@pytest.mark.parametrize(
    "state",
    [
        KVState("kv", 1, 576, 512, v_from_k=True),
        KVState("kv", 4, 80, 80),
        KVState("kv", 4, 512, 512),
    ],
)
def test_heads_that_do_not_suit_tensor_cores_are_multiplied_as_vectors(state: KVState) -> None:
    assert tensor_core_config(state, 16, CLUSTERS, Bucket(1, 1, 1, 1024)) is None


LATENT = KVState("kv", 1, 576, 512, v_from_k=True)
CARDS = {
    "RTX 4090": {"most_shared_bytes": 99 << 10},
    "A100": {"most_shared_bytes": 163 << 10},
    "H100": {"most_shared_bytes": 227 << 10},
}


def wide_at(card: str, dtype: str = "f16") -> NominalAddresses:
    return NominalAddresses(replace(AT.features, **CARDS[card]), dtype)


@pytest.mark.parametrize(
    ("card", "dtype", "n_heads", "bucket", "tile"),
    [
        ("H100", "f16", 16, Bucket(512, 1, 1, 4096), WideTile(4, 2, 1, 32, 3)),
        ("H100", "q8_0", 16, Bucket(512, 1, 1, 4096), WideTile(4, 2, 1, 32, 1)),
        ("A100", "f16", 16, Bucket(512, 1, 1, 4096), WideTile(4, 2, 1, 32, 3)),
        ("RTX 4090", "f16", 16, Bucket(512, 1, 1, 4096), WideTile(4, 2, 1, 16, 3)),
        ("RTX 4090", "q8_0", 16, Bucket(512, 1, 1, 4096), WideTile(4, 2, 1, 16, 1)),
        ("H100", "f16", 16, Bucket(1, 1, 1, 16384), WideTile(1, 4, 1, 16, 5, 2, splits=256)),
        ("H100", "f16", 16, Bucket(8, 8, 8, 4096), WideTile(1, 4, 1, 16, 5, 2, splits=33)),
        ("H100", "f16", 32, Bucket(1, 1, 1, 256), WideTile(1, 4, 1, 16, 5, 2, splits=8)),
        ("H100", "f16", 32, Bucket(1, 1, 1, 32768), WideTile(2, 2, 2, 32, 3, splits=132)),
        ("H100", "f16", 16, Bucket(4, 1, 1, 4096), WideTile(1, 4, 1, 16, 5, 2, splits=64)),
        ("H100", "f16", 16, Bucket(512, 1, 1, 512), WideTile(2, 2, 2, 32, 3)),
        ("H100", "f16", 128, Bucket(512, 1, 1, 512), WideTile(4, 2, 1, 32, 3)),
        ("H100", "f16", 128, Bucket(1, 1, 1, 16384), WideTile(4, 2, 1, 32, 3, splits=66)),
    ],
)
def test_rows_of_all_heads_share_latent_keys(
    card: str, dtype: str, n_heads: int, bucket: Bucket, tile: WideTile
) -> None:
    assert wide_tile(LATENT, n_heads, wide_at(card, dtype), bucket, False) == tile


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("dtype", ["f16", "q8_0"])
@pytest.mark.parametrize("state", [LATENT, KVState("kv", 4, 512, 512), KVState("kv", 1, 320, 256)])
def test_every_number_of_rows_has_a_tile_that_fits(card: str, dtype: str, state: KVState) -> None:
    at = wide_at(card, dtype)
    for n_tokens in (1, 2, 4, 8, 512):
        found = wide_tile(state, 16 * state.n_heads, at, Bucket(n_tokens, 1, 1, 4096), True)
        assert found is not None
        shared_bytes = found.blocks * found.shared_bytes(state, dtype)
        assert shared_bytes <= CARDS[card]["most_shared_bytes"]


@pytest.mark.parametrize(
    ("state", "n_heads"),
    [
        (LATENT, 4),  # few rows
        (KVState("kv", 1, 592, 512), 16),
        (KVState("kv", 1, 512, 80), 16),
    ],
)
def test_other_wide_heads_are_multiplied_as_vectors(state: KVState, n_heads: int) -> None:
    assert wide_tile(state, n_heads, wide_at("H100"), Bucket(1, 1, 1, 4096), False) is None


@pytest.mark.skipif(emulated.COMPILER is None, reason="there is no g++")
def test_a_prompt_of_latent_attention_agrees_with_ref() -> None:
    case = Case("prompt", 9)
    state = KVState("kv", 1, 288, 256, v_from_k=True)
    case.graph.kv_store(case.rows(288), None, state)
    case.returns(case.graph.attention(case.rows(4 * 288), state, scale=0.05))
    got, want = run(emulated.backend(), case), run(api.create("ref"), case)
    assert np.linalg.norm(got - want) / np.linalg.norm(want) <= 2e-3


@pytest.mark.skipif(emulated.COMPILER is None, reason="there is no g++")
@pytest.mark.parametrize(
    ("card", "state", "dtype", "more"),
    [
        (card, state, dtype, more)
        for card in CARDS
        for dtype in ("f16", "q8_0")
        for state, more in (
            (LATENT, {"heads": 20}),
            (LATENT, {"heads": 3, "sinks": True, "softcap": 15.0}),
            (KVState("kv", 1, 512, 512, window=50), {"heads": 5}),
        )
    ],
)
@pytest.mark.every
def test_wide_heads_agree_with_ref(
    card: str, state: KVState, dtype: str, more: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = emulated.EmulatedHost.features
    features = replace(features, **CARDS[card])
    monkeypatch.setattr(emulated.EmulatedHost, "features", features)
    monkeypatch.setitem(CASES, "wide", (state, dtype, more))
    monkeypatch.setattr(attention_steps, "TOKENS", 40)
    found, tolerance = errors(emulated.backend(), "wide")
    assert max(found) <= tolerance


MERGE_FIELDS = [field.name for field in fields(AttentionMergeArguments)]


@pytest.mark.parametrize(
    ("n_heads", "n_tokens", "columns", "found"),
    [
        (16, 1, 512, (64, 32, 8)),  # columns of a block, threads that share a column, blocks
        (16, 512, 512, (512, 2, 1)),
        (8, 8, 80, (80, 2, 1)),
    ],
)
def test_merges_of_few_heads_are_spread_over_blocks(
    n_heads: int, n_tokens: int, columns: int, found: tuple[int, int, int]
) -> None:
    kernel = KernelVariant("attention_merge", (("HEAD_DIM_V", columns), ("PARTS", 2)))
    arguments = AttentionMergeArguments(**dict.fromkeys(MERGE_FIELDS, 0))
    plain = Dispatch(kernel, arguments, (n_heads, n_tokens, 1))
    spread = spread_merge(plain, columns, AT)
    defines = dict(spread.kernel.defines)
    assert (defines["COLUMNS"], defines["PARTS"], spread.groups[2]) == found


def test_heads_that_are_too_wide_have_no_tile() -> None:
    latent = KVState("kv", 1, 576, 512, v_from_k=True)
    assert choose_tile(latent, 16, AT, Bucket(512, 1, 1, 512)) is None
