"""gemma2, gemma3, gemma4, phi3 and glm4 beyond the fixtures.

Rules that depend on the model size, long contexts, memory of a plan, and inconsistent files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models.harness import BACKENDS, FIXTURES, Runner, expected, relative_error, rewrite

from zinc.backends import api
from zinc.core.errors import ModelError, UnsupportedError
from zinc.formats.gguf import GGUFFile
from zinc.models import ModelSpec, load
from zinc.plan.planner import make_plan

KINDS = {"ref": 1e-5}


def spec_of(path: Path, *, extended: bool = False) -> ModelSpec:
    with GGUFFile.open(path) as file:
        return load(file, extended=extended)[0]


# -- LongRoPE -----------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [1, 16, 90])
def test_long_divisors_beyond_the_original_context(backend: str, size: int) -> None:
    ids, logits = expected("phi3long", "long_")
    runner = Runner(FIXTURES / "phi3long.gguf", backend, extended=True)
    got = runner.feed_in_chunks(ids, size)
    assert relative_error(got, logits) <= KINDS.get(backend, 2e-3)
    assert (got.argmax(axis=1) == logits.argmax(axis=1)).all()


def test_divisors_depend_on_the_context() -> None:
    path = FIXTURES / "phi3long.gguf"
    i = np.arange(12)
    for extended, divisors in ((False, 1 + 0.05 * i), (True, 1 + 0.7 * i)):
        spec = spec_of(path, extended=extended)
        assert (spec.plain_context, spec.context) == (64, 512)
        (rope,) = set(spec.ropes())
        want = 10000.0 ** (-2.0 * i / 24) / divisors
        np.testing.assert_allclose(rope.inverse_frequencies().values, want, rtol=1e-6)


# -- Rules by model size ------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "n_layers"), [("gemma2", 46), ("gemma3", 62)])
def test_the_largest_gemma_scales_by_hidden_over_heads(
    tmp_path: Path, name: str, n_layers: int
) -> None:
    """query_pre_attn_scalar is 4608 / 32 in Gemma 2 27B and 5376 / 32 in Gemma 3 27B."""
    assert spec_of(FIXTURES / f"{name}.gguf").attention[0].scale == pytest.approx(32**-0.5)
    with GGUFFile.open(FIXTURES / f"{name}.gguf") as file:
        blocks = {
            t.replace("blk.0.", f"blk.{i}."): tensor.to_float32()
            for t, tensor in file.tensors.items()
            if t.startswith("blk.0.")
            for i in range(n_layers)
        }
    path = rewrite(
        FIXTURES / f"{name}.gguf",
        tmp_path / "large.gguf",
        metadata={f"{name}.block_count": n_layers},
        tensors=blocks,
    )
    assert spec_of(path).attention[0].scale == pytest.approx((64 / 4) ** -0.5)


@pytest.mark.parametrize(
    ("name", "sliding"),
    [("gemma2", [1, 0, 1, 0]), ("gemma3", [1, 1, 1, 1, 1, 0, 1]), ("gemma3long", [1, 0, 1])],
)
def test_sliding_layers_of_each_architecture(name: str, sliding: list[int]) -> None:
    attention = spec_of(FIXTURES / f"{name}.gguf").attention
    assert [a.window for a in attention] == [16 * s for s in sliding]


def test_gemma3_without_a_window_has_global_layers_only(tmp_path: Path) -> None:
    path = rewrite(
        FIXTURES / "gemma3.gguf", tmp_path / "m.gguf", drop=["gemma3.attention.sliding_window"]
    )
    attention = spec_of(path).attention
    assert {a.window for a in attention} == {0}
    assert {a.rope.base for a in attention if a.rope} == {1e6}


def test_phi_window_larger_than_the_context_is_none(tmp_path: Path) -> None:
    path = rewrite(
        FIXTURES / "phi3.gguf",
        tmp_path / "m.gguf",
        metadata={"phi3.attention.sliding_window": 262144},
    )
    assert {a.window for a in spec_of(path).attention} == {0}


def test_glm_files_with_rope_sections_pair_split_halves(tmp_path: Path) -> None:
    """With the converter's permutation of q and k undone, the logits are equal."""
    head_dim, half = 32, 8

    def permute(name: str, values: np.ndarray) -> np.ndarray:
        if not name.startswith("blk.") or name.split(".")[2] not in ("attn_q", "attn_k"):
            return values
        heads = values.reshape(-1, head_dim, *values.shape[1:])
        order = [*range(0, 2 * half, 2), *range(1, 2 * half, 2), *range(2 * half, head_dim)]
        return heads[:, order].reshape(values.shape)

    path = rewrite(
        FIXTURES / "glm4.gguf",
        tmp_path / "m.gguf",
        metadata={"glm4.rope.dimension_sections": [4, 2, 2, 0]},
        edit=permute,
    )
    ids, logits = expected("glm4")
    assert relative_error(Runner(path).feed((0, ids))[0], logits) <= 1e-5


@pytest.mark.parametrize(
    ("name", "rows"),
    [("blk.1.ffn_up.bias", 320), ("blk.2.attn_output.scale", 1)],
)
def test_an_unused_tensor_is_refused(tmp_path: Path, name: str, rows: int) -> None:
    path = rewrite(
        FIXTURES / "phi3.gguf", tmp_path / "m.gguf", tensors={name: np.ones(rows, np.float32)}
    )
    with pytest.raises(UnsupportedError, match=name.replace(".", r"\.")):
        spec_of(path)


@pytest.mark.parametrize(
    ("name", "key", "tensor"),
    [
        ("gemma4moe", "gemma4.expert_count", "ffn_down_exps"),
        ("gemma4e", "gemma4.embedding_length_per_layer_input", "per_layer_token_embd"),
    ],
)
def test_a_branch_without_its_key_is_refused(
    tmp_path: Path, name: str, key: str, tensor: str
) -> None:
    path = rewrite(FIXTURES / f"{name}.gguf", tmp_path / "m.gguf", drop=[key])
    with pytest.raises(UnsupportedError, match=tensor):
        spec_of(path)


def test_vision_tensors_are_ignored(tmp_path: Path) -> None:
    extra = {"v.patch_embd.weight": np.ones((4, 4), np.float32)}
    path = rewrite(FIXTURES / "gemma3.gguf", tmp_path / "m.gguf", tensors=extra)
    assert spec_of(path).n_layers == 7


# -- Memory -------------------------------------------------------------------------------------


def test_only_owners_of_kv_have_a_cache() -> None:
    """8 of 12 layers have a cache; the last 4 read those of layers 5 (global) and 7 (sliding)."""
    with GGUFFile.open(FIXTURES / "gemma4e.gguf") as file:
        _, graph = load(file)
        plan = make_plan(graph, api.create("null"), max_tokens=8, max_outputs=8)
    assert [s.name for s in plan.states] == [f"blk.{i}" for i in range(8)]
    reads = [x.input("cache").name for x in plan.launches if x.kernel == "attention"]
    assert reads[8:] == ["blk.7", "blk.7", "blk.7", "blk.5"]
    assert [s.window for s in plan.states] == [16] * 5 + [0] + [16] * 2


def test_stacked_tensors_are_uploaded_once_as_parts() -> None:
    with GGUFFile.open(FIXTURES / "gemma4moe.gguf") as file:
        _, graph = load(file)
        plan = make_plan(graph, api.create("null"), max_tokens=8, max_outputs=8)
    parts = [w for w in plan.weights if w.tensor == "blk.0.ffn_gate_up_exps.weight"]
    assert [(w.name, w.rows) for w in parts] == [
        ("blk.0.ffn_gate_up_exps.weight[0:64]", 64),
        ("blk.0.ffn_gate_up_exps.weight[64:128]", 64),
    ]


# -- Files that contradict themselves -----------------------------------------------------------

DAMAGED: list[tuple[str, dict[str, Any], str]] = [
    ("gemma2", {"metadata": {"gemma2.attn_logit_softcapping": -50.0}}, "attn_logit_softcapping"),
    ("gemma2", {"metadata": {"gemma2.attention.sliding_window": 0}}, "sliding_window"),
    ("gemma2", {"tensors": {"blk.1.post_ffw_norm.weight": None}}, "blk.1.post_ffw_norm.weight"),
    ("gemma3", {"metadata": {"gemma3.rope.freq_base_swa": float("nan")}}, "freq_base_swa"),
    ("gemma3", {"metadata": {"gemma3.rope.freq_base": 0.0}}, "freq_base"),
    ("gemma3", {"metadata": {"gemma3.attention.sliding_window_pattern": 0}}, "window_pattern"),
    (
        "gemma3",
        {"metadata": {"gemma3.attention.sliding_window_pattern": [True, False]}},
        "2 elements for 7 layers",
    ),
    (
        "gemma3",
        {"metadata": {"gemma3.attention.sliding_window_pattern": ["a"] * 7}},
        "yes or no",
    ),
    ("gemma3", {"tensors": {"blk.6.attn_q_norm.weight": np.ones(31, np.float32)}}, r"\[31\]"),
    ("gemma4", {"metadata": {"gemma4.attention.head_count_kv": [2, 2]}}, "2 elements"),
    ("gemma4", {"metadata": {"gemma4.attention.head_count_kv": [2, 2, 2, 2, 2, 0]}}, "layer 5"),
    ("gemma4", {"metadata": {"gemma4.attention.head_count_kv": [2, 2, 3, 2, 2, 1]}}, "evenly"),
    ("gemma4", {"metadata": {"gemma4.attention.head_count_kv": [2] * 6}}, "blk.5.attn_k.weight"),
    ("gemma4", {"metadata": {"gemma4.attention.shared_kv_layers": 7}}, "shared_kv_layers"),
    ("gemma4", {"metadata": {"gemma4.attention.shared_kv_layers": 6}}, "shares the KV"),
    ("gemma4", {"metadata": {"gemma4.rope.dimension_count_swa": 33}}, "33 dimensions"),
    ("gemma4", {"metadata": {"gemma4.attention.key_length": 1 << 19}}, "rope_freqs|attn_q"),
    ("gemma4", {"tensors": {"blk.0.attn_v.weight": None}}, "blk.0.attn_v.weight"),
    ("gemma4", {"tensors": {"rope_freqs.weight": np.ones(31, np.float32)}}, "rope_freqs"),
    ("gemma4", {"tensors": {"rope_freqs.weight": np.zeros(32, np.float32)}}, "not positive"),
    (
        "gemma4",
        {"tensors": {"blk.3.layer_output_scale.weight": np.array([np.nan], np.float32)}},
        "blk.3.layer_output_scale",
    ),
    ("gemma4", {"tensors": {"blk.3.layer_output_scale.weight": np.ones(2, np.float32)}}, r"\[2\]"),
    ("gemma4moe", {"metadata": {"gemma4.expert_used_count": 5}}, "5 experts"),
    ("gemma4moe", {"metadata": {"gemma4.expert_count": 8}}, "blk.0.ffn_gate_inp.weight"),
    ("gemma4moe", {"drop": ["gemma4.expert_feed_forward_length"]}, "expert_feed_forward_length"),
    ("gemma4moe", {"tensors": {"blk.5.ffn_gate_inp.scale": None}}, "blk.5.ffn_gate_inp.scale"),
    ("gemma4e", {"tensors": {"per_layer_proj_norm.weight": None}}, "per_layer_proj_norm"),
    (
        "gemma4e",
        {"metadata": {"gemma4.embedding_length_per_layer_input": 16}},
        "per_layer_token_embd",
    ),
    ("phi3", {"metadata": {"phi3.attention.sliding_window": "wide"}}, "sliding_window"),
    ("phi3", {"tensors": {"blk.2.ffn_up.weight": None}}, "blk.2.ffn_gate.weight"),
    (
        "phi3",
        {"tensors": {"blk.2.attn_qkv.weight": np.ones((191, 64), np.float32)}},
        r"\[191, 64\].*\[192, 64\]",
    ),
    ("phi3long", {"tensors": {"rope_factors_long.weight": None}}, "rope_factors_long"),
    ("phi3long", {"metadata": {"phi3.rope.dimension_count": 16}}, r"\[12\].*\[8\]"),
    ("glm4", {"metadata": {"glm4.rope.dimension_count": 15}}, "15 dimensions"),
    ("glm4", {"tensors": {"blk.0.post_attention_norm.weight": None}}, "post_attention_norm"),
]


@pytest.mark.parametrize(
    ("name", "damage", "message"), DAMAGED, ids=[f"{d[0]}-{d[2]}" for d in DAMAGED]
)
def test_damaged_metadata_raises_a_clear_error(
    tmp_path: Path, name: str, damage: dict[str, Any], message: str
) -> None:
    path = rewrite(FIXTURES / f"{name}.gguf", tmp_path / "damaged.gguf", **damage)
    with pytest.raises(ModelError, match=message) as caught:
        spec_of(path)
    assert str(path) in str(caught.value)
