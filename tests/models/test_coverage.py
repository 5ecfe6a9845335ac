"""Completeness of the tests: fixtures, op cases and block formats cover the code.

Otherwise the support page could list an architecture without a fixture, a kernel without a case or
a format without a matrix product.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from models.harness import ENCODERS, FIXTURES, expected, fixture_names

from zinc.backends import api
from zinc.core.errors import ZincError
from zinc.formats.gguf import GGUFFile
from zinc.models import architectures, load
from zinc.models.parts.indexer import Indexer
from zinc.models.parts.spec import ModelSpec, Norm
from zinc.ops.moe import SPARSE_MIXER
from zinc.ops.values import ActivationFn, KVState, RecurrentState
from zinc.plan.planner import make_plan
from zinc.quant.blocks import GGMLType
from zinc.testing.parity import every_case

NAMES = fixture_names()


@cache
def spec_of(path: Path) -> ModelSpec:
    with GGUFFile.open(path) as file:
        return load(file)[0]


def specs() -> list[ModelSpec]:
    return [spec_of(FIXTURES / f"{name}.gguf") for name in NAMES]


def test_every_architecture_has_a_fixture() -> None:
    encoders = {spec_of(path).arch for path in ENCODERS.glob("*.gguf")}
    assert {spec.arch for spec in specs()} | encoders == set(architectures())
    assert {path.stem for path in FIXTURES.glob("*.gguf")} == set(NAMES)


# Vectors that the converter makes, of one number.
CONSTANT = {("muse-glimmer", f"attn_{x}_norm.weight") for x in "qk"}


@pytest.mark.parametrize("name", NAMES)
def test_a_fixture_exposes_missing_weights_and_windows(name: str) -> None:
    """No vector is neutral, and the prompt is longer than all windows within the context."""
    ids, logits = expected(name)
    assert np.isfinite(logits).all()
    assert len(ids) == len(logits) >= 32
    spec = spec_of(FIXTURES / f"{name}.gguf")
    for a in spec.attention:
        assert a.window < len(ids) or a.window >= spec.context
    with GGUFFile.open(FIXTURES / f"{name}.gguf") as file:
        for tensor in file.tensors.values():
            is_given = tensor.name.startswith("rope_") or (spec.arch, tensor.name[-18:]) in CONSTANT
            if len(tensor.shape) == 1 and not is_given:
                values = tensor.to_float32()
                assert len(values) == 1 or values.std() > 1e-3, tensor.name
                assert not np.isin(values, (0.0, 1.0)).all(), tensor.name


# Differences between architectures, and how a spec shows them.
FEATURES = {
    "sliding window beside full attention": lambda s: len({a.window > 0 for a in s.attention}) == 2,
    "sinks": lambda s: any(a.sinks for a in s.attention),
    "capped scores": lambda s: any(a.softcap for a in s.attention),
    "capped logits": lambda s: s.logit_softcap > 0,
    "layers of different head sizes": lambda s: len({a.head_dim for a in s.attention}) > 1,
    "layers of different KV heads": lambda s: len({a.n_kv_heads for a in s.attention}) > 1,
    "K = V": lambda s: any(a.k_is_v for a in s.attention),
    "shared KV": lambda s: any(a.kv_layer is not None for a in s.attention),
    "q and k norms": lambda s: any(a.qk_norm for a in s.attention),
    "norms of all q and k heads together": lambda s: any(
        a.qk_norm and a.qk_norm.joint for a in s.attention
    ),
    "norms of q and k after RoPE": lambda s: any(
        a.qk_norm and a.qk_norm.after_rope for a in s.attention
    ),
    "latent attention without RoPE": lambda s: any(
        hasattr(a, "q_rank") and a.rope is None for a in s.attention
    ),
    "latent attention with gates": lambda s: any(
        hasattr(a, "q_rank") and a.gate for a in s.attention
    ),
    "layers without RoPE": lambda s: len({a.rope is None for a in s.attention}) == 2,
    "scaled logits": lambda s: s.logit_scale != 1.0,
    "no norms before mixer and MLP": lambda s: not s.pre_norms,
    "norms of q and k heads that subtract the mean": lambda s: (
        s.norm is not Norm.RMS and any(a.qk_norm for a in s.attention)
    ),
    "layer norms": lambda s: s.norm is Norm.LAYER,
    "layer norms with biases": lambda s: s.norm is Norm.LAYER_WITH_BIAS,
    "attention and MLP of the same rows": lambda s: s.parallel and s.mlp_norm == s.mixer_norm,
    "a norm each for attention and MLP": lambda s: s.parallel and s.mlp_norm != s.mixer_norm,
    "an MLP without gate": lambda s: not s.gated_mlp,
    "the exact GELU": lambda s: s.activation is ActivationFn.GELU_ERF,
    "learned positions": lambda s: s.learned_positions,
    "gated output": lambda s: any(a.gate and a.gate.in_query for a in s.attention),
    "gated output by another matrix": lambda s: any(
        a.gate and not a.gate.in_query for a in s.attention
    ),
    "a gate for each head": lambda s: any(a.gate and a.gate.per_head for a in s.attention),
    "layers of different query heads": lambda s: len({a.n_heads for a in s.attention}) > 1,
    "limits in some MLPs": lambda s: len(set(s.mlp_limits)) > 1,
    "limits in some experts": lambda s: s.experts is not None and len(set(s.experts.limits)) > 1,
    "scaled values": lambda s: any(a.v_scale != 1.0 for a in s.attention),
    "values shorter or longer than keys": lambda s: any(
        a.head_dim != a.head_dim_v for a in s.attention
    ),
    "a normalised embedding": lambda s: s.embed_norm,
    "another eps after mixer and MLP": lambda s: s.post_eps is not None,
    "norms after experts": lambda s: s.experts is not None and s.post_norms,
    "latent attention": lambda s: any(hasattr(a, "q_rank") for a in s.attention),
    "sparse attention": lambda s: s.dense_context > 0 and all(a.top_k for a in s.attention),
    "a selection that layers share": lambda s: len(_shares(s)) == 2,
    "index heads that pair halves": lambda s: any(i.neox for i in _indexers(s)),
    "index heads that pair neighbours": lambda s: any(not i.neox for i in _indexers(s)),
    "queries through a rank": lambda s: any(getattr(a, "q_rank", 0) for a in s.attention),
    "YaRN at every length": lambda s: s.plain_context == 0 and _scaled(s, "yarn"),
    "YaRN beyond a context": lambda s: s.plain_context > 0 and s.scaling_is_optional,
    "linear scaling": lambda s: _scaled(s, "linear"),
    "LongRoPE": lambda s: any(r.long_divisors for r in s.ropes()),
    "frequency divisors": lambda s: any(r.divisors and not r.long_divisors for r in s.ropes()),
    "partial rotation": lambda s: any(a.rope and a.rope.dims < a.head_dim for a in s.attention),
    "a RoPE base a kind of layer": lambda s: len({r.base for r in s.ropes()}) > 1,
    "pairs in a row": lambda s: any(not r.neox for r in s.ropes()),
    "softmax, then top-k": lambda s: _experts(s, scoring=0),
    "sigmoid with groups": lambda s: _experts(s, scoring=1, groups=True),
    "top-k, then softmax": lambda s: _experts(s, scoring=2),
    "a sparse mixer": lambda s: _experts(s, scoring=SPARSE_MIXER),
    "shared experts": lambda s: s.experts is not None and s.experts.shared_ffn > 0,
    "a gate on them": lambda s: s.experts is not None and s.experts.shared_gate,
    "biases of experts": lambda s: s.experts is not None and s.experts.biases,
    "leading dense layers": lambda s: s.n_dense_layers > 0,
    "NextN": lambda s: s.n_nextn > 0,
    "neighbouring value heads": lambda s: getattr(s.recurrence, "grouped", None) is True,
    "value heads apart": lambda s: getattr(s.recurrence, "grouped", None) is False,
    "softplus gates": lambda s: any(a.gate and a.gate.softplus for a in s.attention),
    "softplus gates for each column": lambda s: any(
        a.gate and a.gate.softplus and not a.gate.per_head for a in s.attention
    ),
    "token shifts": lambda s: hasattr(s.recurrence, "gate_rank"),
    "decays of channels": lambda s: hasattr(s.recurrence, "low_rank"),
    "decays with a floor": lambda s: getattr(s.recurrence, "floor", 0.0) < 0.0,
    "decays of channels from one matrix": lambda s: (
        getattr(s.recurrence, "low_rank", None) is False
    ),
    "per-layer token embeddings": lambda s: getattr(s, "token_width", 0) > 0,
}


def _indexers(spec: ModelSpec) -> list[Indexer]:
    return [a.index for a in spec.attention if getattr(a, "index", None)]


def _shares(spec: ModelSpec) -> set[bool]:
    return {index.shared for index in _indexers(spec)}


def _scaled(spec: ModelSpec, kind: str) -> bool:
    return any(rope.scaling == kind for rope in spec.ropes())


def _experts(spec: ModelSpec, scoring: int, groups: bool = False) -> bool:
    e = spec.experts
    return e is not None and e.scoring == scoring and (e.n_groups > 1 or not groups)


@pytest.mark.parametrize("feature", FEATURES)
def test_a_fixture_has_the_feature(feature: str) -> None:
    assert any(FEATURES[feature](spec) for spec in specs())


def test_fixtures_have_every_kind_of_state() -> None:
    kinds = set()
    for name in NAMES:
        with GGUFFile.open(FIXTURES / f"{name}.gguf") as file:
            plan = make_plan(load(file)[1], api.kernels("ref"), max_tokens=1, max_outputs=1)
        for state in plan.states:
            if isinstance(state, RecurrentState):
                kinds.add("recurrent")
            elif isinstance(state, KVState):
                kinds.add("latent" if state.v_from_k else "window" if state.window else "full")
    assert kinds == {"full", "window", "latent", "recurrent"}


@pytest.mark.parametrize("op", ["linear", "embed", "moe_glu", "moe_down"])
def test_every_block_format_of_the_cpu_has_a_case(op: str) -> None:
    cpu, tested = api.kernels("cpu"), set()
    for case in (case for of, case in every_case() if of.name == op):
        tested |= {weight.type for weight in case.weights if not weight.is_vector}
    claimed = set()
    for type in GGMLType:
        try:
            cpu.row_format(type)
        except ZincError:
            continue
        claimed.add(type)
    assert not claimed - tested
