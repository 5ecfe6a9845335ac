"""Expert architectures beyond the fixtures.

Other ways to store the same weights, launches that a plan leaves out, block formats of experts, and
inconsistent files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import on_backends
from models.harness import (
    BACKENDS,
    FIXTURES,
    Runner,
    expected,
    relative_error,
    rewrite,
    with_blocks,
)

from zinc.backends import api
from zinc.backends.api import CacheLayout
from zinc.core.errors import ModelError, UnsupportedError
from zinc.formats.gguf import GGUFFile
from zinc.models import ModelSpec, architectures, load
from zinc.models.parts.latent import LatentAttention
from zinc.models.parts.weights import block_of
from zinc.ops.graph import Graph
from zinc.plan.planner import make_plan
from zinc.quant.blocks import GGMLType


def loaded(path: Path) -> tuple[ModelSpec, Graph]:
    with GGUFFile.open(path) as file:
        return load(file)


def tensors(name: str) -> dict[str, np.ndarray]:
    with GGUFFile.open(FIXTURES / f"{name}.gguf") as file:
        return {key: tensor.to_float32() for key, tensor in file.tensors.items()}


def logits(path: Path, name: str) -> np.ndarray:
    ids, _ = expected(name)
    return Runner(path).feed((0, ids))[0]


def assert_same_model(path: Path, name: str) -> None:
    np.testing.assert_allclose(logits(path, name), expected(name)[1], rtol=0, atol=2e-5)


# -- The same weights, stored otherwise -----------------------------------------------------------


def test_experts_with_gate_and_up_in_one_tensor(tmp_path: Path) -> None:
    source = tensors("qwen3moe")
    changes: dict[str, np.ndarray | None] = {}
    for i in range(4):
        gate, up = f"blk.{i}.ffn_gate_exps.weight", f"blk.{i}.ffn_up_exps.weight"
        stacked = np.concatenate([source[gate], source[up]], axis=1)
        changes |= {gate: None, up: None, f"blk.{i}.ffn_gate_up_exps.weight": stacked}
    path = rewrite(FIXTURES / "qwen3moe.gguf", tmp_path / "m.gguf", tensors=changes)
    assert_same_model(path, "qwen3moe")


def test_shared_gate_as_a_vector_and_widths_by_tensor(tmp_path: Path) -> None:
    source = tensors("qwen2moe")
    gates = {n: v[0] for n, v in source.items() if n.endswith("ffn_gate_inp_shexp.weight")}
    path = rewrite(
        FIXTURES / "qwen2moe.gguf",
        tmp_path / "m.gguf",
        tensors=gates,
        drop=[
            "qwen2moe.expert_feed_forward_length",
            "qwen2moe.expert_shared_feed_forward_length",
        ],
    )
    assert_same_model(path, "qwen2moe")


def test_latent_keys_and_values_split_or_not(tmp_path: Path) -> None:
    source = tensors("deepseek2v2")
    n_heads, nope, rope, rank = 4, 32, 16, 32
    changes: dict[str, np.ndarray | None] = {}
    for i in range(3):
        stacked = source[f"blk.{i}.attn_kv_b.weight"].reshape(n_heads, -1, rank)
        changes[f"blk.{i}.attn_kv_b.weight"] = None
        keys = stacked[:, :nope].transpose(0, 2, 1)
        changes[f"blk.{i}.attn_k_b.weight"] = np.ascontiguousarray(keys)
        changes[f"blk.{i}.attn_v_b.weight"] = np.ascontiguousarray(stacked[:, nope:])
    prefix = "deepseek2.attention."
    path = rewrite(
        FIXTURES / "deepseek2v2.gguf",
        tmp_path / "m.gguf",
        metadata={
            f"{prefix}key_length": rank + rope,
            f"{prefix}value_length": rank,
            f"{prefix}key_length_mla": nope + rope,
            f"{prefix}value_length_mla": 16,
            f"{prefix}head_count_kv": 1,
        },
        tensors=changes,
    )
    assert_same_model(path, "deepseek2v2")


def test_gating_without_a_key_follows_from_the_choice_bias(tmp_path: Path) -> None:
    path = rewrite(
        FIXTURES / "deepseek2v3.gguf", tmp_path / "m.gguf", drop=["deepseek2.expert_gating_func"]
    )
    assert_same_model(path, "deepseek2v3")


def without_chosen_experts(name: str, folder: Path) -> tuple[Path, Path]:
    """Write a fixture whose routed experts output zero, and an equivalent one with dense layers.

    The second has the shared experts as dense layers, padded with zeros, and keeps the keys that
    count and choose experts.
    """
    source = FIXTURES / f"{name}.gguf"
    with GGUFFile.open(source) as file:
        arch = file.str("general.architecture")
        n_nextn = file.int(f"{arch}.nextn_predict_layers", default=0)
        n_layers = file.int(f"{arch}.block_count") - n_nextn
        width = file.int(f"{arch}.feed_forward_length")
    silent: dict[str, np.ndarray | None] = {}
    dense: dict[str, np.ndarray | None] = {}
    for key, values in tensors(name).items():
        if (block_of(key) or 0) >= n_layers:
            silent[key] = dense[key] = None
        elif "_exps." in key or "exp_probs" in key or "gate_inp" in key:
            dense[key] = None
            if "ffn_down_exps" in key:
                silent[key] = np.zeros_like(values)
        elif "_shexp." in key:
            axis = 1 if "down" in key else 0
            missing = [(0, width - n if i == axis else 0) for i, n in enumerate(values.shape)]
            dense[key] = None
            dense[key.replace("_shexp", "")] = np.pad(values, missing)
    metadata, drop = {f"{arch}.block_count": n_layers}, [f"{arch}.nextn_predict_layers"]
    return (
        rewrite(source, folder / "silent.gguf", metadata=metadata, drop=drop, tensors=silent),
        rewrite(
            source,
            folder / "dense.gguf",
            metadata={**metadata, f"{arch}.leading_dense_block_count": n_layers},
            drop=drop,
            tensors=dense,
        ),
    )


@pytest.mark.parametrize("name", ["deepseek2v2", "deepseek2v3", "glm4moe"])
def test_all_layers_may_be_dense(tmp_path: Path, name: str) -> None:
    silent, dense = without_chosen_experts(name, tmp_path)
    spec, _ = loaded(dense)
    assert spec.experts is None
    found = logits(dense, name)
    np.testing.assert_allclose(found, logits(silent, name), rtol=0, atol=2e-5)
    assert relative_error(found, expected(name)[1]) > 0.01


@pytest.mark.parametrize("name", ["deepseek2v2", "deepseek2v3", "glm4moe"])
def test_expert_keys_do_not_affect_dense_layers(tmp_path: Path, name: str) -> None:
    _, dense = without_chosen_experts(name, tmp_path)
    with GGUFFile.open(dense) as file:
        keys = [key for key in file.metadata if ".expert_" in key]
    assert len(keys) >= 7
    plain = rewrite(dense, tmp_path / "plain.gguf", drop=keys)
    np.testing.assert_array_equal(logits(dense, name), logits(plain, name))


# -- Features that change the result --------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("deepseek2v2", {"deepseek2.expert_group_used_count": 4}),
        ("deepseek2v3", {"deepseek2.expert_group_used_count": 3}),
        ("deepseek2v3", {"deepseek2.expert_gating_func": 1}),
        ("deepseek2v3", {"deepseek2.expert_weights_norm": False}),
        ("deepseek2v2", {"deepseek2.expert_weights_scale": 1.0}),
        ("deepseek2v2", {"deepseek2.rope.scaling.yarn_log_multiplier": 0.0}),
        ("gptoss", {"gpt-oss.attention.sliding_window": 64}),
        ("glm4moe", {"glm4moe.rope.dimension_count": 32}),
    ],
)
def test_metadata_changes_the_result(tmp_path: Path, name: str, change: dict[str, Any]) -> None:
    path = rewrite(FIXTURES / f"{name}.gguf", tmp_path / "m.gguf", metadata=change)
    assert relative_error(logits(path, name), expected(name)[1]) > 0.01


# -- What a plan holds ----------------------------------------------------------------------------


def test_the_nextn_block_does_not_change_the_logits(tmp_path: Path) -> None:
    spec, graph = loaded(FIXTURES / "glm4moe.gguf")
    assert (spec.n_layers, spec.n_nextn, len(spec.attention)) == (3, 1, 3)
    plan = make_plan(graph, api.create("ref"), max_tokens=4, max_outputs=4)
    assert not [w.name for w in plan.weights if w.tensor.startswith("blk.3.")]
    stripped = {n: None for n in tensors("glm4moe") if n.startswith("blk.3.")}
    path = rewrite(
        FIXTURES / "glm4moe.gguf",
        tmp_path / "m.gguf",
        metadata={"glm4moe.block_count": 3},
        drop=["glm4moe.nextn_predict_layers"],
        tensors=stripped,
    )
    assert_same_model(path, "glm4moe")


def test_latent_attention_caches_the_latent_and_the_rotary_key_only() -> None:
    spec, graph = loaded(FIXTURES / "deepseek2v3.gguf")
    a = spec.attention[0]
    assert isinstance(a, LatentAttention)
    assert (a.q_rank, a.rank, a.nope_dim, a.rope_dim, a.v_dim) == (32, 48, 16, 16, 32)
    backend = api.create("ref")
    plan = make_plan(graph, backend, max_tokens=4, max_outputs=4)
    cache = backend.allocate(plan.states, CacheLayout(16, (2,)))
    assert cache.n_bytes == 3 * 2 * 16 * (48 + 16) * 4


def test_an_expert_layer_has_few_launches() -> None:
    _, graph = loaded(FIXTURES / "qwen2moe.gguf")
    plan = make_plan(graph, api.create("ref"), max_tokens=4, max_outputs=4)
    kernels = [launch.kernel for launch in plan.launches if launch.label == "blk.1"]
    assert kernels == [
        "rms_norm",
        "linear",  # q, k and v
        "rope_store",
        "attention",
        "linear",  # and the residual
        "rms_norm",
        "linear",  # router and the gate of the shared expert
        "route",
        "group_experts",
        "linear_glu",
        "gate",
        "linear",  # and the residual
        "moe_glu",
        "moe_down",  # and the residual
    ]


def test_alternate_layers_slide() -> None:
    spec, graph = loaded(FIXTURES / "gptoss.gguf")
    assert [a.window for a in spec.attention] == [16, 0, 16, 0]
    plan = make_plan(graph, api.create("ref"), max_tokens=4, max_outputs=4)
    assert [state.window for state in plan.states] == [16, 0, 16, 0]


# -- Block formats --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("format", "backend"),
    on_backends(("MXFP4", "Q8_0"), BACKENDS, everywhere=("MXFP4",), always=("cpu", "ref")),
)
def test_experts_in_block_formats(tmp_path: Path, backend: str, format: str) -> None:
    """MXFP4 is the published format of gpt-oss.

    On backends that round rows to 8 bits, the router may choose another of two experts with nearly
    equal scores, so the median error over tokens is compared there.
    """
    blocks, plain = with_blocks("gptoss", tmp_path, "exps.weight", GGMLType[format])
    ids, _ = expected("gptoss")
    got = Runner(blocks, backend).feed((0, ids))[0]
    want = logits(plain, "gptoss")
    if backend == "ref":
        assert relative_error(got, want) <= 1e-6
    else:
        errors = np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)
        assert np.median(errors) <= 2e-2
    assert relative_error(want, expected("gptoss")[1]) > 1e-3  # it was rounded


SHARED = tuple(f"ffn_{part}_shexp.weight" for part in ("gate", "up", "down"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_decode_with_a_shared_expert_in_a_block_format(tmp_path: Path, backend: str) -> None:
    """Fixtures have float weights, and fused products with experts need 8-bit rows."""
    blocks, plain = with_blocks("qwen2moe", tmp_path, ("exps.weight", *SHARED), GGMLType.Q8_0)
    ids, _ = expected("qwen2moe")
    runner = Runner(blocks, backend)
    got = np.concatenate([runner.feed((0, ids[:-16]))[0], runner.feed_in_chunks(ids[-16:], 1)])
    want = logits(plain, "qwen2moe")
    errors = np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)
    assert np.median(errors[-16:]) <= (1e-5 if backend == "ref" else 2e-2)
    if backend == "vulkan":
        ops = {launch.kernel for launch in runner.program.plan.launches}
        assert {"norm_route", "linear_glu_gate", "moe_down_linear"} <= ops


def test_a_transposed_block_format_keeps_its_values(tmp_path: Path) -> None:
    """attn_kv_b is transposed as float16, which is finer than its block format."""
    blocks, plain = with_blocks("deepseek2v2", tmp_path, "attn_kv_b.weight", GGMLType.Q8_0)
    error = relative_error(logits(blocks, "deepseek2v2"), logits(plain, "deepseek2v2"))
    assert 0 < error <= 1e-3


# -- Files that contradict themselves -------------------------------------------------------------

DEEPSEEK = "deepseek2.attention."


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("qwen3moe", {"qwen3moe.expert_count": 5}, r"ffn_gate_inp.weight has shape \[4, 64\]"),
        ("qwen3moe", {"qwen3moe.expert_count": 1 << 31}, "expert_count is 2147483648"),
        ("qwen3moe", {"qwen3moe.expert_count": 0}, "expert_count is 0"),
        ("qwen3moe", {"qwen3moe.expert_used_count": 9}, "9 experts cannot be chosen from"),
        ("qwen3moe", {"qwen3moe.expert_feed_forward_length": 32}, r"ffn_gate_exps.*\[4, 32, 64\]"),
        ("qwen2moe", {"qwen2moe.expert_shared_feed_forward_length": 96}, "ffn_gate_shexp"),
        ("deepseek2v3", {"deepseek2.expert_group_count": 5}, "of 5 groups of 12 experts"),
        ("deepseek2v3", {"deepseek2.expert_group_used_count": 5}, "group_used_count is 5"),
        ("deepseek2v3", {"deepseek2.expert_group_used_count": 1}, "4 experts cannot be chosen"),
        ("deepseek2v3", {"deepseek2.leading_dense_block_count": 2}, "blk.1.ffn_gate.weight"),
        ("deepseek2v3", {"deepseek2.leading_dense_block_count": 0}, "blk.0.ffn_gate_inp.weight"),
        ("deepseek2v3", {f"{DEEPSEEK}kv_lora_rank": 16}, "attn_kv_a_mqa"),
        ("deepseek2v3", {f"{DEEPSEEK}key_length_mla": 64}, "attn_q_b"),
        ("deepseek2v3", {f"{DEEPSEEK}value_length_mla": 16}, "attn_v_b"),
        ("deepseek2v3", {"deepseek2.rope.dimension_count": 32}, "leave none of the 32"),
        ("deepseek2v3", {"deepseek2.rope.dimension_count": 15}, "15 dimensions"),
        ("deepseek2v3", {"deepseek2.rope.scaling.yarn_log_multiplier": -1.0}, "-1"),
        (
            "deepseek2v3",
            {f"{DEEPSEEK}key_length_mla": 1 << 20, f"{DEEPSEEK}head_count": 1024},
            "attn_q_b",
        ),
        ("deepseek2v2", {f"{DEEPSEEK}key_length": 64}, "attn_q.weight"),
        ("deepseek2v2", {f"{DEEPSEEK}value_length": 32}, "attn_kv_b"),
        ("glm4moe", {"glm4moe.nextn_predict_layers": 4}, "nextn_predict_layers is 4 of 4 blocks"),
        ("glm4moe", {"glm4moe.nextn_predict_layers": 0}, "block 3 is a layer.*blk.3.nextn"),
    ],
)
def test_contradictions_are_named(
    tmp_path: Path, name: str, changes: dict[str, Any], says: str
) -> None:
    path = rewrite(FIXTURES / f"{name}.gguf", tmp_path / "m.gguf", metadata=changes)
    with pytest.raises(ModelError, match=says) as caught:
        loaded(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("qwen2moe", "blk.1.ffn_gate_inp_shexp.weight"),
        ("qwen2moe", "blk.2.ffn_up_shexp.weight"),
        ("qwen2moe", "blk.0.attn_k.bias"),
        ("qwen3moe", "blk.3.ffn_down_exps.weight"),
        ("qwen3moe", "blk.0.attn_q_norm.weight"),
        ("gptoss", "blk.1.attn_sinks.weight"),
        ("gptoss", "blk.1.attn_output.bias"),
        ("gptoss", "blk.2.ffn_gate_inp.bias"),
        ("gptoss", "blk.3.ffn_down_exps.bias"),
        ("gptoss", "blk.0.post_attention_norm.weight"),
        ("deepseek2v3", "blk.2.attn_v_b.weight"),
        ("deepseek2v3", "blk.0.attn_kv_a_norm.weight"),
        ("deepseek2v3", "blk.1.ffn_down_shexp.weight"),
        ("deepseek2v2", "blk.0.attn_kv_b.weight"),
        ("glm4moe", "blk.1.attn_k_norm.weight"),
    ],
)
def test_missing_tensors_are_named(tmp_path: Path, name: str, tensor: str) -> None:
    path = rewrite(FIXTURES / f"{name}.gguf", tmp_path / "m.gguf", tensors={tensor: None})
    wanted = tensor.replace("attn_kv_b", "attn_k_b")  # which newer files have
    with pytest.raises(ModelError, match=rf"tensor {wanted} .*missing"):
        loaded(path)


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("deepseek2v3", {"deepseek2.expert_gating_func": 4}, "gating function 4"),
        ("llama4", {"llama4.expert_used_count": 2}, "2 experts scale the input"),
        ("mistral4", {"mistral4.attention.temperature_length": 5}, "every 8 positions"),
        ("mistral4", {"mistral4.rope.scaling.yarn_log_multiplier": 0.0}, "scales them too"),
    ],
)
def test_variants_without_code_are_refused(
    tmp_path: Path, name: str, changes: dict[str, Any], says: str
) -> None:
    path = rewrite(FIXTURES / f"{name}.gguf", tmp_path / "m.gguf", metadata=changes)
    with pytest.raises(UnsupportedError, match=says):
        loaded(path)


def test_expert_architectures_are_listed() -> None:
    assert {"qwen2moe", "qwen3moe", "gpt-oss", "deepseek2", "glm4moe"} <= set(architectures())
    assert not {"moe", "latent"} & set(architectures())
