"""Files whose tensors and metadata disagree: a clear error for each, in every architecture.

Fixtures are changed in memory: a tensor is missing, has another shape or is unknown, a count is
wrong, or a key is missing. A change may only be accepted if real files rely on the default.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any

import pytest
from effort import EVERY
from models.harness import FIXTURES, fixture_names

from zinc.backends import api
from zinc.core.errors import ModelError, UnsupportedError, ZincError
from zinc.formats.gguf import GGUFArray, GGUFFile, Tensor
from zinc.models import load
from zinc.models.parts.nextn import nextn_tensors
from zinc.models.parts.weights import block_of
from zinc.plan.planner import make_plan

NAMES = fixture_names()
# Where a tensor may stand for others, the error names what is looked for instead.
INSTEAD = {
    "attn_qkv": "attn_q",
    "ffn_gate_up_exps": "ffn_gate_exps",
    "attn_kv_b": "attn_k_b",
    "ssm_ba": "ssm_beta",
}


@cache
def opened(name: str) -> GGUFFile:
    return GGUFFile.open(FIXTURES / f"{name}.gguf")


def changed(
    file: GGUFFile,
    tensors: Mapping[str, Tensor | None] | None = None,
    keys: Mapping[str, Any] | None = None,
) -> GGUFFile:
    """Return the file with tensors and keys replaced, or removed if None."""
    view = copy.copy(file)
    merged = {**file.tensors, **(tensors or {})}
    view.tensors = MappingProxyType({k: t for k, t in merged.items() if t is not None})
    both = {**file.metadata, **(keys or {})}
    view.metadata = MappingProxyType({k: v for k, v in both.items() if v is not None})
    return view


def arch_of(file: GGUFFile) -> str:
    return file.str("general.architecture")


def plan_hash(file: GGUFFile) -> str:
    plan = make_plan(load(file)[1], api.kernels("null"), max_tokens=4, max_outputs=1)
    return plan.hash


def needed(file: GGUFFile) -> Iterator[Tensor]:
    """Return the tensors of the first and the last two layers, and those outside layers."""
    spec, graph = load(file)
    kept = {t.name for t in nextn_tensors(file, spec)}
    plan = make_plan(graph, api.kernels("null"), max_tokens=4, max_outputs=1)
    read = {weight.tensor for weight in plan.weights}
    for name, tensor in file.tensors.items():
        block = block_of(name)
        if name in kept or block not in (None, 0, spec.n_layers - 2, spec.n_layers - 1):
            continue
        if name in read or block is None:
            yield tensor


# Without a tensor `output`, the head is the embedding.
OPTIONAL = {("step35", "rope_freqs.weight")}


@pytest.mark.alike(12)
@pytest.mark.parametrize("name", NAMES)
def test_a_missing_tensor_is_named(name: str) -> None:
    file = opened(name)
    for tensor in needed(file):
        without = changed(file, {tensor.name: None})
        if tensor.name == "output.weight" or (name, tensor.name) in OPTIONAL:
            assert load(without)
            continue
        with pytest.raises(ModelError) as caught:
            load(without)
        said = str(caught.value)
        stems = tensor.name.split(".")
        stem = stems[-2] if stems[-1] in ("weight", "bias", "scale") else stems[-1]
        assert any(s in said for s in (stem, INSTEAD.get(stem, stem))) or (
            stem == "ffn_up" and "ffn_gate" in said  # which is stacked in it
        ), f"{tensor.name}: {said}"
        assert str(file.path) in said


@pytest.mark.alike(12)
@pytest.mark.parametrize("name", NAMES)
def test_an_error_names_both_shapes(name: str) -> None:
    file = opened(name)
    for i, tensor in enumerate(needed(file)):
        shapes = [
            (*tensor.shape[:-1], tensor.shape[-1] + 32),
            (tensor.shape[0] * 2, *tensor.shape[1:]),
            (1, 1, *tensor.shape),
        ]
        for shape in shapes if EVERY else [shapes[i % 3]]:
            if tensor.name == "token_embd.weight" and shape[1:] == tuple(tensor.shape[1:]):
                continue  # its rows are the vocabulary, which another tensor contradicts
            with pytest.raises(ModelError) as caught:
                load(changed(file, {tensor.name: replace(tensor, shape=shape)}))
            said = str(caught.value)
            assert "shape" in said or "not a matrix" in said, f"{tensor.name} {shape}: {said}"
            assert str(file.path) in said


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_tensor_is_refused(name: str) -> None:
    file = opened(name)
    any_tensor = next(iter(file.tensors.values()))
    for unknown in ("blk.0.attn_mystery.weight", "blk.1.attn_output.scale", "mystery.bias"):
        extra = {unknown: replace(any_tensor, name=unknown)}
        with pytest.raises(UnsupportedError, match=unknown.replace(".", r"\.")):
            load(changed(file, extra))


@pytest.mark.alike(60)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("change", [-1, 1])
def test_a_wrong_block_count_is_refused(name: str, change: int) -> None:
    file = opened(name)
    key = f"{arch_of(file)}.block_count"
    with pytest.raises(
        ModelError, match=r"counts|missing|elements|shape|is a layer|predicts|shares"
    ):
        load(changed(file, keys={key: file.int(key) + change}))


@pytest.mark.parametrize(
    "name", [n for n in NAMES if f"{arch_of(opened(n))}.expert_count" in opened(n).metadata]
)
def test_a_wrong_expert_count_is_refused(name: str) -> None:
    file = opened(name)
    key = f"{arch_of(file)}.expert_count"
    count = file.int(key)
    if count == 0:
        pytest.skip("it has none, and says so")
    for other in (count - 1, count + 1, 2 * count):
        with pytest.raises(ModelError, match=r"shape|experts"):
            load(changed(file, keys={key: other}))
    gone = {n: None for n in file.tensors if "_exps" in n}
    with pytest.raises(ModelError, match=r"_exps.*(missing|any layer)|missing.*_exps"):
        load(changed(file, gone))


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "qwen35"])
def test_experts_in_a_dense_architecture_are_refused(name: str) -> None:
    file = opened(name)
    arch = arch_of(file)
    keys = {f"{arch}.expert_count": 8, f"{arch}.expert_used_count": 2}
    with pytest.raises(UnsupportedError, match="has 8 experts"):
        load(changed(file, keys=keys))


@pytest.mark.alike(30)
@pytest.mark.parametrize("name", NAMES)
def test_absurd_metadata_is_refused_or_has_no_effect(name: str) -> None:
    """Absurd numbers and values of other types raise an error or leave the graph unchanged."""
    file = opened(name)
    arch = arch_of(file)
    for key, value in file.metadata.items():
        if not key.startswith(f"{arch}.") or isinstance(value, GGUFArray):
            continue
        others: list[Any] = ["text", -1, 1 << 40, (1 << 64) - 1]
        if isinstance(value, float):
            others = ["text", -1.0, float("nan"), float("inf"), 0.0]
        for other in others:
            with suppress(ZincError):  # and nothing else
                load(changed(file, keys={key: other}))


# Keys that other families have a default for, and without which these would compute otherwise.
REQUIRED = [
    ("qwen3", "rope.freq_base"),
    ("qwen3moe", "rope.freq_base"),
    ("qwen3next", "rope.dimension_count"),
    ("qwen35", "rope.dimension_count"),
    ("qwen35moe", "rope.freq_base"),
    ("gemma3", "rope.freq_base"),
    ("gemma4", "rope.freq_base"),
    ("glm4", "rope.dimension_count"),
    ("glm4moe", "rope.dimension_count"),
    ("glm4moe", "expert_weights_scale"),
    ("glm4moe", "expert_weights_norm"),
    ("deepseek2v3", "expert_weights_norm"),
    ("deepseek2v2", "expert_weights_scale"),
    ("deepseek2v3", "expert_group_used_count"),
    ("deepseek2v3", "rope.scaling.type"),
    ("deepseek2v3", "rope.scaling.factor"),
    ("deepseek2v3", "rope.scaling.original_context_length"),
    ("gptoss", "rope.freq_base"),
    ("gptoss", "rope.scaling.type"),
    ("gptoss", "rope.scaling.factor"),
    ("gptoss", "expert_used_count"),
    ("gemma3long", "rope.scaling.factor"),
    ("qwen3yarn", "rope.scaling.factor"),
    ("phi3long", "rope.scaling.attn_factor"),
    ("phi3long", "rope.scaling.original_context_length"),
    ("afmoe", "expert_weights_scale"),
    ("afmoe", "attention.sliding_window"),
    ("bailingmoe2", "rope.dimension_count"),
    ("mimo2", "rope.dimension_count"),
    ("mimo2", "attention.sliding_window"),
    ("granite", "logit_scale"),
    ("dots1", "expert_gating_func"),
    ("exaonemoe", "expert_weights_scale"),
    ("exaonemoe", "attention.sliding_window"),
    ("minimaxm2", "rope.dimension_count"),
    ("llama", "attention.layer_norm_rms_epsilon"),
    ("starcoder2", "attention.layer_norm_epsilon"),
    ("llama", "context_length"),
]


@pytest.mark.parametrize(("name", "key"), REQUIRED)
def test_a_key_that_decides_the_result_has_no_default(name: str, key: str) -> None:
    file = opened(name)
    full = f"{arch_of(file)}.{key}"
    with pytest.raises(ModelError, match=f"{full.replace('.', '[.]')}"):
        load(changed(file, keys={full: None}))


# Keys with a default that is right for the family: without them the same is planned.
DEFAULTS = [
    ("llama", "rope.freq_base"),
    ("llama", "attention.value_length"),
    ("qwen2", "attention.head_count_kv"),
    ("gemma2", "attn_logit_softcapping"),
    ("gemma2", "final_logit_softcapping"),
    ("gemma3", "rope.freq_base_swa"),
    ("gemma4", "attention.sliding_window_pattern"),
    ("qwen35", "full_attention_interval"),
    ("qwen35moe", "expert_shared_feed_forward_length"),
    ("qwen3moe", "expert_feed_forward_length"),
    ("deepseek2v3", "expert_gating_func"),
    ("afmoe", "expert_gating_func"),
    ("exaone4", "attention.sliding_window_pattern"),
    ("gptneox", "use_parallel_residual"),
    ("gptoss", "rope.scaling.yarn_beta_fast"),
    ("gemma3long", "rope.scaling.type"),  # a factor alone is linear
]


@pytest.mark.parametrize(("name", "key"), DEFAULTS)
def test_a_key_with_a_default(name: str, key: str) -> None:
    file = opened(name)
    full = f"{arch_of(file)}.{key}"
    assert full in file.metadata
    assert plan_hash(changed(file, keys={full: None})) == plan_hash(file)


def test_starcoder2_has_a_window_that_converted_files_leave_out() -> None:
    file, key = opened("starcoder2"), "starcoder2.attention.sliding_window"
    long = {key: None, "starcoder2.context_length": 16384}
    assert {a.window for a in load(changed(file, keys=long))[0].attention} == {4096}
    assert {a.window for a in load(changed(file, keys={key: None}))[0].attention} == {0}


def test_an_optional_tensor_must_be_in_all_layers_or_in_none() -> None:
    file = opened("glm4")
    biases = [
        n for n in file.tensors if n.endswith((".attn_q.bias", ".attn_k.bias", "attn_v.bias"))
    ]
    assert load(changed(file, dict.fromkeys(biases)))
    with pytest.raises(ModelError, match=rf"tensor {biases[-1]} is missing, and other layers"):
        load(changed(file, {biases[-1]: None}))


def test_a_tokenizer_larger_than_the_embedding_is_refused() -> None:
    name = next(n for n in NAMES if "tokenizer.ggml.tokens" in opened(n).metadata)
    file = opened(name)
    table = file.tensors["token_embd.weight"]
    rows = len(file.array("tokenizer.ggml.tokens")) - 1
    small = {"token_embd.weight": replace(table, shape=(rows, table.shape[1]))}
    with pytest.raises(ModelError, match=f"rows for {rows:,}"):
        load(changed(file, small))


def test_a_key_switches_rope_off() -> None:
    file = opened("granite")
    assert load(file)[0].ropes()
    off = changed(file, keys={"granite.rope.scaling.finetuned": False})
    assert not load(off)[0].ropes()


def test_alternating_dense_layers_are_refused() -> None:
    keys = {"ernie4_5-moe.interleave_moe_layer_step": 2}
    with pytest.raises(UnsupportedError, match="dense layers alternate"):
        load(changed(opened("ernie4_5moe"), keys=keys))


def test_the_first_files_of_minicpm_do_not_state_its_scales() -> None:
    names = ("embedding_scale", "residual_scale", "logit_scale")
    spec = load(changed(opened("minicpm"), keys=dict.fromkeys(f"minicpm.{n}" for n in names)))[0]
    residual = 1.4 / spec.n_layers**0.5
    assert spec.logit_scale == 256 / spec.hidden
    assert spec.embed_scale == pytest.approx(12.0 / residual)
    assert spec.eps == pytest.approx(0.01 / residual**2)


def test_an_unknown_architecture_names_the_nearest() -> None:
    with pytest.raises(UnsupportedError, match="'qwen3m'; the nearest that it supports is 'qwen3'"):
        load(changed(opened("qwen3"), keys={"general.architecture": "qwen3m"}))
