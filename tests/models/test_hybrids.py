"""Gated DeltaNet hybrids beyond the fixtures.

Long runs, shared slots, other ways to store the same weights, and inconsistent files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models.harness import BACKENDS, FIXTURES, Runner, expected, planned, relative_error, rewrite

from zinc.backends.api import CacheLayout
from zinc.core.errors import ModelError
from zinc.engine.cache_layout import kv_bytes_per_token, state_bytes_per_sequence
from zinc.engine.engine import Engine
from zinc.engine.request import Request
from zinc.engine.sampling import SamplingParams
from zinc.formats.gguf import GGUFFile
from zinc.models import load
from zinc.ops.values import KVState, RecurrentState

HYBRIDS = ["qwen35", "qwen35moe", "qwen3next"]
HOSTS = ("ref", "cpu")
GREEDY = SamplingParams(temperature=0.0, max_tokens=10)


def tensors(name: str) -> dict[str, np.ndarray]:
    with GGUFFile.open(FIXTURES / f"{name}.gguf") as file:
        return {key: tensor.to_float32() for key, tensor in file.tensors.items()}


def logits(path: Path, name: str) -> np.ndarray:
    ids, _ = expected(name)
    return Runner(path).feed((0, ids))[0]


def assert_same_model(path: Path, name: str) -> None:
    assert relative_error(logits(path, name), expected(name)[1]) <= 1e-5


# -- State ----------------------------------------------------------------------------------------


LONG_RUNS = [
    pytest.param(
        name,
        backend,
        n,
        marks=()
        if backend == "cpu" or (name, n < 1024) == ("qwen35moe", True)
        else pytest.mark.every,
    )
    for name in ("qwen35moe", "granitehybrid", "lfm2", "kimilinear", "rwkv7")
    for backend in BACKENDS
    for n in (512 if backend == "cpu" else 128, 1024)
]


@pytest.mark.alike(5)
@pytest.mark.parametrize(("name", "backend", "n"), LONG_RUNS)
def test_a_long_run_does_not_drift(name: str, backend: str, n: int) -> None:
    """Steps of 96 tokens and of one give finite states and the same logits."""
    path = FIXTURES / f"{name}.gguf"
    ids = np.random.default_rng(3).integers(96, size=n).astype(np.int32)
    runner = Runner(path, backend, n_sequences=2, room=n)
    in_chunks = runner.feed_in_chunks(ids, 96)
    singly = runner.feed_in_chunks(ids, 1, sequence=1)
    assert np.isfinite(in_chunks).all()
    assert relative_error(singly, in_chunks) <= 5e-3
    # An error that grows with the position would be largest in the last rows.
    assert relative_error(singly[-32:], in_chunks[-32:]) <= 5e-3
    if backend == "ref":
        assert relative_error(singly, in_chunks) <= 1e-5
        assert runner.cache.recurrent
        assert all(np.isfinite(view.slots).all() for view in runner.cache.recurrent.values())


def engine(backend: str, slots: int) -> Engine:
    device, plan = planned(FIXTURES / "qwen35moe.gguf", backend)
    layout = CacheLayout(block_tokens=16, n_blocks=(64,), state_slots=slots)
    cache = device.allocate(plan.states, layout)
    return Engine(device.prepare(plan, cache), cache, n_vocab=512, context=96, prefix_cache=False)


@pytest.mark.parametrize(
    "backend", [pytest.param(x, marks=() if x in HOSTS else pytest.mark.every) for x in BACKENDS]
)
def test_more_requests_than_slots_give_the_same_logits_as_alone(backend: str) -> None:
    rng = np.random.default_rng(5)
    prompts = [rng.integers(512, size=n).tolist() for n in (30, 3, 41, 1, 17)]
    alone = []
    for prompt in prompts:
        one = engine(backend, slots=1)
        sequence = one.submit(Request(prompt, GREEDY))
        while not one.idle:
            one.step()
        alone.append(sequence.generated)

    shared = engine(backend, slots=2)
    sequences = [shared.submit(Request(prompt, GREEDY)) for prompt in prompts]
    shared.step()
    assert [s.n_run > 0 for s in sequences] == [True, True, False, False, False]
    shared.cancel(sequences[1])
    while not shared.idle:
        shared.step()
    for i in (0, 2, 3, 4):
        assert sequences[i].generated == alone[i]
    shared.pool.check()
    assert shared.pool.slots.n_free == 2


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_layer_has_either_keys_and_values_or_a_recurrent_state(name: str) -> None:
    _, plan = planned(FIXTURES / f"{name}.gguf", "ref")
    kinds = {
        layer: {type(s) for s in plan.states if s.name.split(".")[1] == str(layer)}
        for layer in range(4)
    }
    assert kinds == {0: {RecurrentState}, 1: {RecurrentState}, 2: {RecurrentState}, 3: {KVState}}
    # 2 KV heads of 32 and 32, in one layer
    assert kv_bytes_per_token(plan.states, "f16") == 2 * (32 + 32) * 2
    tail, matrices = 3 * 256, 4 * 32 * 32
    least = 3 * 4 * (tail + matrices)
    assert least < state_bytes_per_sequence(plan.states) < 3 * least


# -- The same weights, stored otherwise -----------------------------------------------------------


def test_projections_stacked_for_each_key_head(tmp_path: Path) -> None:
    """Early conversions of Qwen3-Next keep [q | k | v | z] of each key head together, as ssm_in."""
    source = tensors("qwen3next")
    changes: dict[str, np.ndarray | None] = {}
    for i in range(3):
        qkv, z = f"blk.{i}.attn_qkv.weight", f"blk.{i}.attn_gate.weight"
        q, k, v = (part.reshape(2, -1, 64) for part in np.split(source[qkv], [64, 128]))
        stacked = np.concatenate([q, k, v, source[z].reshape(2, -1, 64)], axis=1)
        changes |= {qkv: None, z: None, f"blk.{i}.ssm_in.weight": stacked.reshape(-1, 64)}
    path = rewrite(FIXTURES / "qwen3next.gguf", tmp_path / "m.gguf", tensors=changes)
    assert_same_model(path, "qwen3next")


def test_head_orders_of_qwen3next_and_qwen35moe_are_equivalent(tmp_path: Path) -> None:
    """qwen3next with reordered value heads and split stacks equals qwen35moe."""
    source = tensors("qwen3next")
    apart = [0, 2, 1, 3]  # 4 value heads, of 2 key heads

    def heads(x: np.ndarray, axis: int = 0) -> np.ndarray:
        x = np.moveaxis(x, axis, 0)
        moved = x.reshape(4, -1, *x.shape[1:])[apart].reshape(x.shape)
        return np.moveaxis(moved, 0, axis)

    changes: dict[str, np.ndarray | None] = {}
    for i in range(3):
        at = f"blk.{i}."
        qkv, conv = source[f"{at}attn_qkv.weight"], source[f"{at}ssm_conv1d.weight"]
        ba = source[f"{at}ssm_ba.weight"].reshape(2, 2, 2, 64)  # key head, b or a, value head
        changes |= {
            f"{at}attn_qkv.weight": np.concatenate([qkv[:128], heads(qkv[128:])]),
            f"{at}ssm_conv1d.weight": np.concatenate([conv[:128], heads(conv[128:])]),
            f"{at}attn_gate.weight": heads(source[f"{at}attn_gate.weight"]),
            f"{at}ssm_out.weight": heads(source[f"{at}ssm_out.weight"], axis=1),
            f"{at}ssm_a": heads(source[f"{at}ssm_a"]),
            f"{at}ssm_dt.bias": heads(source[f"{at}ssm_dt.bias"]),
            f"{at}ssm_ba.weight": None,
            f"{at}ssm_beta.weight": heads(ba[:, 0].reshape(4, 64)),
            f"{at}ssm_alpha.weight": heads(ba[:, 1].reshape(4, 64)),
        }
    with GGUFFile.open(FIXTURES / "qwen3next.gguf") as file:
        keys = {k: v for k, v in file.metadata.items() if k.startswith("qwen3next.")}
        renamed = {k.replace("qwen3next", "qwen35moe", 1): v for k, v in keys.items()}
        path = rewrite(
            FIXTURES / "qwen3next.gguf",
            tmp_path / "m.gguf",
            metadata={"general.architecture": "qwen35moe", **renamed},
            drop=keys,
            tensors=changes,
        )
    assert_same_model(path, "qwen3next")


@pytest.mark.parametrize("name", ["qwen35", "qwen35moe"])
def test_layers_attend_at_an_interval_unless_the_file_lists_them(name: str, tmp_path: Path) -> None:
    keys = [f"{name}.attention.recurrent_layers", f"{name}.full_attention_interval"]
    path = rewrite(FIXTURES / f"{name}.gguf", tmp_path / "m.gguf", drop=keys)
    assert_same_model(path, name)


# -- Bad files ------------------------------------------------------------------------------------

BAD: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("qwen35", {"ssm.inner_size": 130}, {}, "4 value heads cannot share 130 inner columns"),
    ("qwen35", {"ssm.group_count": 3}, {}, "and 3 key heads evenly"),
    ("qwen35", {"ssm.group_count": 0}, {}, "ssm.group_count is 0"),
    ("qwen35", {"ssm.conv_kernel": 4_000_000}, {}, "must lie between 1 and 16"),
    ("qwen35", {"ssm.conv_kernel": 5}, {}, "blk.0.ssm_conv1d.weight has shape [256, 4], but"),
    ("qwen35", {"ssm.state_size": 16}, {}, "blk.0.attn_qkv.weight has shape [256, 64], but"),
    ("qwen35", {"ssm.time_step_rank": 8}, {}, "blk.0.ssm_beta.weight has shape [4, 64], but"),
    ("qwen3next", {"ssm.time_step_rank": 8}, {}, "blk.0.ssm_ba.weight has shape [8, 64], but"),
    ("qwen35", {"attention.head_count": 8}, {}, "blk.3.attn_q.weight has shape [256, 64], but"),
    ("qwen35moe", {"expert_count": 3}, {}, "has shape [4, 64], but the metadata implies [3, 64]"),
    ("qwen35", {}, {"blk.0.ssm_a": None}, "blk.0.ssm_a of shape [4] is missing"),
    ("qwen35", {}, {"blk.1.ssm_dt.bias": None}, "blk.1.ssm_dt.bias of shape [4] is missing"),
    ("qwen35", {}, {"blk.2.ssm_norm.weight": None}, "blk.2.ssm_norm.weight of shape [32] is"),
    ("qwen35", {}, {"blk.0.attn_gate.weight": None}, "blk.0.attn_gate.weight of shape [128, 64]"),
    ("lfm2", {"shortconv.l_cache": 1}, {}, "shortconv.l_cache is 1, and a convolution needs 2"),
    ("lfm2", {"shortconv.l_cache": 4}, {}, "shortconv.conv.weight has shape [32, 3], but"),
    ("lfm2", {"attention.head_count_kv": [0] * 4}, {}, "[0, 0, 0, 0] heads for the layers"),
    ("lfm2", {"attention.head_count_kv": [0, 1, 1, 0]}, {}, "blk.1.attn_q.weight of shape"),
    ("lfm2", {"attention.head_count_kv": [0, 1]}, {}, "has 2 elements for 4 layers"),
    ("granitehybrid", {"ssm.inner_size": 66}, {}, "4 heads cannot share 66 inner columns and 1"),
    ("granitehybrid", {"ssm.group_count": 3}, {}, "inner columns and 3 groups evenly"),
    ("granitehybrid", {"ssm.state_size": 8}, {}, "blk.0.ssm_in.weight has shape [164, 32], but"),
    ("granitehybrid", {}, {"blk.0.ssm_d": None}, "blk.0.ssm_d of shape [4, 1] is missing"),
    (
        "granitehybrid",
        {},
        {"blk.2.ssm_conv1d.bias": None},
        "blk.2.ssm_conv1d.bias of shape [96] is",
    ),
    ("kimilinear", {"kda.head_dim": 32}, {}, "blk.0.attn_q.weight has shape [64, 32], but"),
    ("kimilinear", {}, {"blk.2.ssm_dt.bias": None}, "blk.2.ssm_dt.bias of shape [64] is missing"),
    ("bailingmoe3", {"kda.gate_lower_bound": 1.0}, {}, "is 1.0, and it must be a negative number"),
    (
        "bailingmoe3",
        {},
        {"blk.2.attn_gate.weight": None},
        "blk.2.attn_gate.weight of shape [4, 32]",
    ),
    ("rwkv7", {"wkv.head_size": 24}, {}, "heads of 24 columns do not divide 32 evenly"),
    (
        "rwkv7",
        {"attention.gate_lora_rank": 0},
        {},
        "lerp_fused.weight has shape [6, 1, 1, 32], but",
    ),
    ("rwkv7", {}, {"blk.1.time_mix_v0.weight": None}, "blk.1.time_mix_v0.weight of shape [32] is"),
    ("nemotronh", {"feed_forward_length": [0, 32, 16, 0]}, {}, "need one width, not {"),
    ("nemotronh", {"feed_forward_length": [0] * 4}, {}, "need one width, not set()"),
    ("nemotronh", {"feed_forward_length": [0, 0, 0, 32]}, {}, "blk.1.ssm_in.weight of shape"),
    ("qwen35", {}, {"blk.3.attn_q_norm.weight": None}, "blk.3.attn_q_norm.weight of shape [32] is"),
]


@pytest.mark.parametrize(
    ("name", "keys", "changes", "message"), BAD, ids=[message for *_, message in BAD]
)
def test_a_file_that_contradicts_itself_is_refused(
    name: str, keys: dict[str, Any], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with GGUFFile.open(FIXTURES / f"{name}.gguf") as file:
        arch = file.str("general.architecture")
    metadata = {f"{arch}.{key}": value for key, value in keys.items()}
    path = rewrite(
        FIXTURES / f"{name}.gguf", tmp_path / "bad.gguf", metadata=metadata, tensors=changes
    )
    refused(path, message)


def test_layer_kinds_that_the_tensors_contradict(tmp_path: Path) -> None:
    path = rewrite(
        FIXTURES / "qwen35.gguf",
        tmp_path / "bad.gguf",
        metadata={"qwen35.full_attention_interval": 2},
        drop=["qwen35.attention.recurrent_layers"],
    )
    refused(path, "blk.1.attn_q.weight of shape [256, 64] is missing")


def test_a_list_of_layer_kinds_that_is_too_short(tmp_path: Path) -> None:
    path = rewrite(
        FIXTURES / "qwen35.gguf",
        tmp_path / "bad.gguf",
        metadata={"qwen35.attention.recurrent_layers": [True, True, True]},
    )
    refused(path, "recurrent_layers has 3 elements for 4 layers")


def refused(path: Path, message: str) -> None:
    with GGUFFile.open(path) as file, pytest.raises(ModelError) as caught:
        load(file)
    assert message in str(caught.value)
    assert path.name in str(caught.value)
