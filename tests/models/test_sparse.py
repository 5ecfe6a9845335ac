"""Sparse attention: dense up to the number of positions that are selected, and beyond it not.

`test_fixtures.py` compares longer prompts with the published model code.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import on_backends
from models.harness import (
    BACKENDS,
    FIXTURES,
    MAX_TOKENS,
    Ids,
    Logits,
    Runner,
    expected,
    fixture_names,
    relative_error,
    rewrite,
)
from present import computing

from zinc.backends import api
from zinc.backends.vulkan import VulkanKernels
from zinc.core.errors import ModelError, UnsupportedError
from zinc.engine.load import planning as loading
from zinc.engine.load.options import LoadOptions
from zinc.engine.load.planning import plan_model
from zinc.formats.gguf import GGUFFile
from zinc.models import architecture, load
from zinc.models.parts.indexer import Indexer
from zinc.models.parts.spec import ModelSpec
from zinc.plan.planner import make_plan
from zinc.plan.weights import tensor_data

ON_CPU = pytest.mark.skipif("cpu" not in computing(), reason="the CPU backend is not built")
SPARSE = ("deepseek32", "glmdsa")
NAMES = pytest.mark.parametrize("name", SPARSE)


def spec_of(path: Path) -> ModelSpec:
    with GGUFFile.open(path) as file:
        return load(file)[0]


def dense_runner(path: Path, backend_name: str, context: int) -> Runner:
    """Return a runner of the graph for a context within which attention is dense."""
    backend = api.create(backend_name)
    with GGUFFile.open(path) as file:
        graph = load(file, context=context)[1]
        assert "select_keys" not in {node.op for node in graph.nodes}
        plan = make_plan(graph, backend, max_tokens=MAX_TOKENS, max_outputs=MAX_TOKENS)
        for w in plan.weights:
            backend.upload(w, tensor_data(w, file.tensors[w.tensor]))
    return Runner(path, loaded=(backend, plan))


def with_top_k(name: str, folder: Path, top_k: int) -> Path:
    """Write a fixture whose queries see `top_k` positions."""
    arch = spec_of(FIXTURES / f"{name}.gguf").arch
    key = f"{arch}.attention.indexer.top_k"
    return rewrite(FIXTURES / f"{name}.gguf", folder / "m.gguf", metadata={key: top_k})


def test_sparse_fixtures_are_known() -> None:
    found = [n for n in fixture_names() if spec_of(FIXTURES / f"{n}.gguf").dense_context]
    assert tuple(found) == SPARSE


@pytest.mark.parametrize(
    ("name", "backend"), on_backends(SPARSE, BACKENDS, everywhere=(), always=("ref", "cpu"))
)
def test_a_short_context_is_dense_on_every_backend(name: str, backend: str) -> None:
    ids, logits = expected(name)
    path = FIXTURES / f"{name}.gguf"
    n = spec_of(path).dense_context
    assert 0 < n < len(ids) / 4
    got = dense_runner(path, backend, n).feed_in_chunks(ids[:n], 5)
    assert relative_error(got, logits[:n]) <= (1e-5 if backend == "ref" else 2e-3)


@NAMES
@pytest.mark.parametrize("backend", ["ref", pytest.param("cpu", marks=ON_CPU)])
def test_a_selection_of_all_positions_changes_no_bit(
    name: str, backend: str, tmp_path: Path
) -> None:
    ids, logits = expected(name)
    path = with_top_k(name, tmp_path, len(ids))
    sparse = Runner(path, backend).feed_in_chunks(ids, 7)
    dense = dense_runner(path, backend, len(ids)).feed_in_chunks(ids, 7)
    np.testing.assert_array_equal(sparse, dense)
    assert relative_error(dense, logits) > 0.1  # the fixture is sparse


@ON_CPU
@pytest.mark.parametrize("top_k", [8, 300])
def test_the_cpu_gives_the_same_bits_in_every_step(top_k: int, tmp_path: Path) -> None:
    """With several splits of a selection too, for which few tokens use several threads."""
    path = with_top_k("glmdsa", tmp_path, top_k)
    ids = np.random.default_rng(3).integers(0, 96, 400 if top_k > 64 else 90).astype(np.int32)

    def run(sizes: list[int], threads: int, others: bool) -> Logits:
        runner = long_runner(path, threads)
        parts, at = [], 0
        for n in sizes:
            beside: list[tuple[int, Ids]] = [(1, ids[-at - 2 :][: n // 2 + 1])] if others else []
            parts.append(runner.feed((0, ids[at : at + n]), *beside)[0])
            at += n
        return np.concatenate(parts)[-24:]

    whole = run([len(ids)], 1, False)
    assert np.isfinite(whole).all()
    ends = len(ids) - 24
    for sizes, threads, others in (
        ([ends, *[1] * 24], 3, False),
        ([ends - 7, 31], 2, True),
        ([*[16] * (ends // 16), ends % 16, 7, 17], 1, True),
    ):
        np.testing.assert_array_equal(run([n for n in sizes if n], threads, others), whole)


@ON_CPU
@pytest.mark.every
@pytest.mark.parametrize("backend", [name for name in computing() if name != "cpu"])
def test_devices_become_sparse_within_a_sequence(backend: str, tmp_path: Path) -> None:
    """Steps of up to 256 positions are dense; later ones attend to 256 of them."""
    path = with_top_k("glmdsa", tmp_path, 256)
    ids = np.random.default_rng(5).integers(0, 96, 330).astype(np.int32)
    logits = []
    for runner in (long_runner(path, 2), long_runner(path, 1, backend)):
        cuts = np.split(ids, [200, 240, 243, 250, 253, 300, 326, 327, 328, 329])
        logits.append(np.concatenate([runner.feed((0, part))[0] for part in cuts]))
    want, got = logits
    assert relative_error(got, want) <= 2e-3


def long_runner(path: Path, threads: int, backend_name: str = "cpu") -> Runner:
    """Return a runner of two sequences of up to 416 tokens."""
    backend = api.create(backend_name, threads)
    with GGUFFile.open(path) as file:
        plan = make_plan(load(file)[1], backend, max_tokens=512, max_outputs=512)
        for w in plan.weights:
            backend.upload(w, tensor_data(w, file.tensors[w.tensor]))
    return Runner(path, n_sequences=2, room=416, loaded=(backend, plan))


@pytest.mark.skipif("vulkan" not in computing(), reason="there is no Vulkan device")
def test_a_backend_without_the_kernel_limits_the_context_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(VulkanKernels, "supports", lambda _, kernel: kernel != "select_keys")
    options = LoadOptions(FIXTURES / "deepseek32.gguf", backend="vulkan")
    with plan_model(options) as planned:
        assert planned.cache_size().context == 8
        (note,) = planned.choice.messages
        assert note.startswith("the context is 8 tokens (attention over more than 8 tokens is")
    with plan_model(replace(options, context=6)) as planned:
        assert planned.choice.messages == []
    with pytest.raises(UnsupportedError, match="a context of 9 tokens is not possible") as caught:
        plan_model(replace(options, context=9))
    assert "context=8" in str(caught.value)
    # Without memory for drafts the model is planned again.
    monkeypatch.setattr(loading, "_has_room", lambda *_: False)
    with plan_model(options) as planned:
        assert planned.cache_size().context == 8


@pytest.mark.parametrize(
    ("drop", "context", "own"),
    [
        ("", 256, [True, False, True]),
        ("types", 1 << 17, [True] * 11),
        ("types", 1 << 20, [True, True, *[True, False, False, False] * 2, True]),
    ],
)
def test_layers_with_an_indexer_of_their_own(
    tmp_path: Path, drop: str, context: int, own: list[bool]
) -> None:
    """Files list them; those of GLM 5.2 that do not are known by their context."""
    path = rewrite(
        FIXTURES / "glmdsa.gguf",
        tmp_path / "m.gguf",
        metadata={"glm-dsa.block_count": len(own), "glm-dsa.context_length": context},
        drop=[f"glm-dsa.attention.indexer.{drop}"],
    )
    with GGUFFile.open(path) as file:
        spec = architecture("glm-dsa").spec(file)
    indexers = [getattr(a, "index", None) for a in spec.attention]
    assert [isinstance(index, Indexer) and not index.shared for index in indexers] == own


INDEXER = "deepseek32.attention.indexer."


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("deepseek32", {f"{INDEXER}top_k": 0}, "top_k is 0"),
        ("deepseek32", {f"{INDEXER}key_length": 16}, "indexer.attn_q_b"),
        ("deepseek32", {f"{INDEXER}key_length": 8}, "8 dimensions, and 16 of them are rotary"),
        ("deepseek32", {f"{INDEXER}head_count": 4}, "indexer.attn_q_b"),
        ("deepseek32", {f"{INDEXER}head_count": 1 << 20}, "head_count is 1048576"),
        ("deepseek32", {"deepseek32.attention.q_lora_rank": 0}, "q_lora_rank is 0"),
        ("glmdsa", {"glm-dsa.attention.indexer.types": [False, True, True]}, "its first layer"),
        ("glmdsa", {"glm-dsa.attention.indexer.types": [True, True, True]}, "blk.1.indexer"),
        ("glmdsa", {"glm-dsa.attention.indexer.types": [True]}, "1 elements for 3 layers"),
    ],
)
def test_contradictions_are_named(
    tmp_path: Path, name: str, changes: dict[str, Any], says: str
) -> None:
    path = rewrite(FIXTURES / f"{name}.gguf", tmp_path / "m.gguf", metadata=changes)
    with pytest.raises(ModelError, match=says):
        spec_of(path)


def test_a_missing_number_of_positions_is_named(tmp_path: Path) -> None:
    path = rewrite(FIXTURES / "deepseek32.gguf", tmp_path / "m.gguf", drop=[f"{INDEXER}top_k"])
    with pytest.raises(ModelError, match=r"deepseek32\.attention\.indexer\.top_k"):
        spec_of(path)
