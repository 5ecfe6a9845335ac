"""Memory of recurrent states: bytes a sequence, and how many sequences may have one."""

from __future__ import annotations

import pytest

from zinc.engine import loader
from zinc.ops.graph import KVState, RecurrentState

KV = KVState("blk.1", n_heads=2, head_dim=64, head_dim_v=32)
LATENT = KVState("blk.2", n_heads=1, head_dim=96, head_dim_v=64, v_from_k=True)
STATE = RecurrentState("blk.0.delta", 1_000_000)


def test_only_attending_layers_count_for_a_token() -> None:
    assert loader.kv_bytes_per_token((STATE, KV), "f16") == 2 * (64 + 32) * 2
    assert loader.kv_bytes_per_token((STATE, LATENT), "f16") == 96 * 2
    assert loader.state_bytes_per_sequence((STATE, KV, STATE)) == 8_000_000


@pytest.mark.parametrize(
    ("available", "taken", "slots"),
    [(64_000_000_000, 0, loader.MAX_SEQUENCES), (1_000_000_000, 210_000_000, 10), (0, 10, 1)],
)
def test_states_take_a_share_of_the_memory_that_weights_leave(
    monkeypatch: pytest.MonkeyPatch, available: int, taken: int, slots: int
) -> None:
    monkeypatch.setattr(loader, "available_memory_bytes", lambda: available)
    assert loader.choose_state_slots((STATE, KV), taken) == slots


def test_a_model_without_recurrent_layers_is_not_limited_by_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loader, "available_memory_bytes", lambda: 0)
    assert loader.choose_state_slots((KV,), 0) == loader.MAX_SEQUENCES
    assert loader.cache_layout((KV,), 100, "f16", 3).state_slots == 3
