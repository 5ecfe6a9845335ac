"""Attention of few tokens: the shared memory of workgroups is at most that of a device."""

from __future__ import annotations

from itertools import product

import pytest

from zinc.core.rounding import ceil_div
from zinc.gpu.addresses import NominalAddresses
from zinc.gpu.bucket import Bucket
from zinc.gpu.features import Features
from zinc.gpu.lower.attention import DecodeConfig, decode_config
from zinc.ops.values import KVState

N_KV, TILE_KEYS = 4, 16


def head_float4s(config: DecodeConfig, head_dim: int, subgroup: int, most_own: int) -> int:
    """Return HEADS_FLOAT4S of few_queries.slang."""
    waves = dict(config.defines)["WAVES"]
    own_slots = 2 * most_own if most_own == 1 or 2 * most_own < waves else waves
    return (config.heads + own_slots) * subgroup * ceil_div(head_dim, 4 * subgroup)


def vector_bytes(config: DecodeConfig, head_dim: int, features: Features, most_own: int) -> int:
    """Return the bytes of `groupshared` variables of attention.slang, without `own_chunks`."""
    waves, lanes = (dict(config.defines)[name] for name in ("WAVES", "LANES"))
    heads = head_float4s(config, head_dim, features.subgroup, most_own)
    sums, chunks = waves * config.heads * head_dim // 4, ceil_div(head_dim, 8 * lanes)
    queries = 2 * chunks * lanes if features.has_fewest_registers and chunks > 1 else 0
    return 16 * max(heads, sums) + 16 * config.heads * queries + 8 * waves * config.heads


def matrix_bytes(config: DecodeConfig, head_dim: int, features: Features, most_own: int) -> int:
    """Return the same of attention_few_matrices.slang."""
    waves, columns = (dict(config.defines)[name] for name in ("WAVES", "COLUMNS"))
    heads = head_float4s(config, head_dim, features.subgroup, most_own)
    pitch, out_pitch = head_dim // 8 + 1, head_dim // 4 + 1
    tile = max(waves * max(TILE_KEYS * pitch, columns * out_pitch), columns * pitch + heads)
    scores, weights = 16 * (TILE_KEYS // 4 + 1), 4 * (TILE_KEYS // 2 + 4)
    return 16 * tile + waves * columns * (scores + weights + 4) + 8 * waves * config.heads


@pytest.mark.parametrize("head_dim", [16, 64, 80, 128, 192, 256])
@pytest.mark.parametrize(
    ("tokens", "most_own", "keys"), [(1, 1, 4096), (8, 8, 4096), (16, 16, 256)]
)
def test_prepared_heads_fit_into_shared_memory(
    head_dim: int, tokens: int, most_own: int, keys: int
) -> None:
    bucket, state = Bucket(tokens, 1, 1, keys), KVState("kv", N_KV, head_dim, head_dim)
    found = set()
    for subgroup, registers, matrices, shared, repeats, units in product(
        (8, 16, 32, 64), (64, 256), (False, True), (32768, 49152), (1, 4, 8), (2, 132)
    ):
        features = Features(
            subgroup,
            registers=registers,
            cooperative_matrix=matrices,
            narrow_matrix=matrices,
            shared_bytes=shared,
            compute_units=units,
        )
        at = NominalAddresses(features, "f16")
        config = decode_config(state, N_KV * repeats, at, bucket, most_own=most_own)
        found.add(config.kernel)
        n_bytes = (vector_bytes if config.kernel == "attention" else matrix_bytes)(
            config, head_dim, features, most_own
        )
        assert n_bytes + 2 * most_own * 2 * head_dim <= shared
    assert ("attention_few_matrices" in found) is (keys > 256)
