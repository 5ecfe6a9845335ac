"""Memory of keys, values and recurrent states: bytes, blocks and slots."""

from __future__ import annotations

import pytest

from zinc.core.errors import RequestError
from zinc.engine import cache_layout
from zinc.engine.load import memory
from zinc.ops.values import KVState, RecurrentState

KV = KVState("blk.1", n_heads=2, head_dim=64, head_dim_v=32)
LATENT = KVState("blk.2", n_heads=1, head_dim=96, head_dim_v=64, v_from_k=True)
STATE = RecurrentState("blk.0.delta", 1_000_000)


def test_bytes_per_token_count_attention_layers_only() -> None:
    assert cache_layout.kv_bytes_per_token((STATE, KV), "f16") == 2 * (64 + 32) * 2
    assert cache_layout.kv_bytes_per_token((STATE, LATENT), "f16") == 96 * 2
    assert cache_layout.state_bytes_per_sequence((STATE, KV, STATE)) == 8_000_000


@pytest.mark.parametrize(
    ("available", "taken", "slots"),
    [
        (64_000_000_000, 0, memory.MAX_STATE_SLOTS),
        (1_000_000_000, 210_000_000, 10),
        (100_000_000, 0, 4),
        (0, 10, 1),
    ],
)
def test_states_take_a_share_of_the_memory_that_weights_leave(
    available: int, taken: int, slots: int
) -> None:
    assert memory.choose_state_slots((STATE, KV), available, taken) == slots


def test_a_model_without_recurrent_layers_is_not_limited_by_them() -> None:
    assert memory.choose_state_slots((KV,), 0, 0) == memory.MAX_SEQUENCES
    assert cache_layout.cache_layout((KV,), 100, "f16", 3).state_slots == 3


def test_the_kv_type_follows_backend_and_heads() -> None:
    odd = KVState("blk.4", n_heads=1, head_dim=48, head_dim_v=64)
    assert cache_layout.resolve_kv_dtype("auto", "q8_0", (KV, STATE)) == "q8_0"
    assert cache_layout.resolve_kv_dtype("auto", "f16", (KV, STATE)) == "f16"
    assert cache_layout.resolve_kv_dtype("auto", "q8_0", (KV, odd)) == "f16"
    assert cache_layout.resolve_kv_dtype("f16", "q8_0", (KV,)) == "f16"
    assert cache_layout.resolve_kv_dtype("q4_0", "q8_0", (KV,)) == "q4_0"
    assert (
        cache_layout.kv_bytes_per_token((KV,), "q4_0") * 32
        == cache_layout.kv_bytes_per_token((KV,), "f16") * 9
    )
    with pytest.raises(RequestError, match="multiples of 32, not 48"):
        cache_layout.resolve_kv_dtype("q8_0", "q8_0", (odd,))
    with pytest.raises(RequestError, match="no KV type 'f8'"):
        cache_layout.resolve_kv_dtype("f8", "q8_0", ())


SLIDING = KVState("blk.3", n_heads=2, head_dim=64, head_dim_v=64, window=512)


def test_a_sliding_window_takes_no_more_than_sequences_need() -> None:
    layout = cache_layout.cache_layout((KV, SLIDING, LATENT), 100_000, "f16", 1, chunk_tokens=512)
    groups = cache_layout.cache_groups((KV, SLIDING, LATENT), layout)
    assert [g.window for g in groups] == [0, 512]
    assert [g.n_blocks for g in groups] == [1563, 8 * (16 + 3)]
    assert [g.block_bytes for g in groups] == [64 * (2 * 96 + 96) * 2, 64 * 2 * 128 * 2]
    assert layout.group_of == {"blk.1": 0, "blk.3": 1, "blk.2": 0}
    short = cache_layout.cache_layout((KV, SLIDING), 640, "f16", 1, chunk_tokens=512)
    assert short.n_blocks == (10, 10)


def test_without_a_chunk_every_layer_keeps_every_position() -> None:
    layout = cache_layout.cache_layout((KV, SLIDING), 6400, "f16")
    assert [(g.n_blocks, g.window) for g in cache_layout.cache_groups((KV, SLIDING), layout)] == [
        (100, 0)
    ]


def test_the_cache_holds_several_contexts_when_they_are_cheap() -> None:
    each = 4096 * 2 * (64 + 32) * 2
    for available, contexts in ((0, 1), (20 * 8 * each, 8), (4 * 10 * each, 4), (9 * each, 1)):
        assert memory.choose_pool((KV,), 4096, "f16", available, 0, 512) == contexts * 4096
