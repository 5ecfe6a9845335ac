"""Attention with CUDA beyond the op cases, on the emulator, and how its keys are divided."""

from __future__ import annotations

import pytest
from cuda_emulator import emulated
from ops.attention_steps import CASES, errors

from zinc.backends.cuda.lower.attention import AttentionTile, choose_tile
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


def test_heads_that_are_too_wide_have_no_tile() -> None:
    latent = KVState("kv", 1, 576, 512, v_from_k=True)
    assert choose_tile(latent, 16, AT, Bucket(512, 1, 1, 512)) is None
