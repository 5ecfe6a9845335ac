"""Embeddings by encoders through `LLM`, compared with transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from data.encoder_texts import TEXTS
from effort import on_backends
from models.harness import Runner, planned, rewrite
from present import computing

from zinc import LLM, DeviceMap, RopeScaling
from zinc.core.errors import ModelError, RequestError, UnsupportedError
from zinc.formats.gguf import GGUFFile

ENCODERS = Path(__file__).parent / "data" / "encoders"
TOLERANCE = 1e-3
MATRICES = ("dense_2.weight", "dense_3.weight")


def wanted(name: str) -> np.ndarray:
    with np.load(ENCODERS / f"{name}.npz") as data:
        return data["embeddings"]


POOLING = {
    "bert": "cls",
    "nomicbert": "mean",
    "eurobert": "mean",
    "neobert": "cls",
    "modernbert": "cls",
    "gemmaembedding": "mean",
    "jinabert2": "mean",
    "jinabert3": "mean",
    "nomicbertmoe": "mean",
}


@pytest.mark.parametrize(
    ("name", "backend"),
    on_backends(
        POOLING, ("ref", *computing()), everywhere=("bert", "jinabert3"), always=("ref", "cpu")
    ),
)
def test_embeddings_are_those_of_transformers(name: str, backend: str) -> None:
    with LLM(ENCODERS / f"{name}.gguf", backend=backend, threads=2) as llm:
        assert llm.pooling == POOLING[name]
        assert np.abs(llm.embed(TEXTS) - wanted(name)).max() <= TOLERANCE
        for text, row in zip(TEXTS, wanted(name), strict=True):
            assert np.abs(llm.embed(text)[0] - row).max() <= TOLERANCE


@pytest.mark.parametrize("backend", ["ref", *computing()])
def test_a_task_of_jina_embeddings_is_an_adapter(backend: str) -> None:
    adapter = ENCODERS.parent / "adapters" / "jinabert3.gguf"
    with np.load(adapter.with_suffix(".npz")) as data:
        with_task = data["embeddings"]
    with LLM(ENCODERS / "jinabert3.gguf", backend=backend, threads=2, lora=adapter) as llm:
        (loaded,) = llm.adapters
        assert loaded.task_name == "retrieval.query"
        assert loaded.prompt_prefix == "Find what answers this: "
        assert np.abs(llm.embed(TEXTS) - with_task).max() <= TOLERANCE
        llm.set_lora_scales({})
        assert np.abs(llm.embed(TEXTS) - wanted("jinabert3")).max() <= TOLERANCE
    assert np.abs(with_task - wanted("jinabert3")).max() > 0.1


def test_matrices_after_pooling_make_the_embedding(tmp_path) -> None:
    path = ENCODERS / "gemmaembedding.gguf"
    with GGUFFile.open(path) as file:
        first, second = (file.tensors[f"dense_{i}.weight"].to_float32() for i in (2, 3))
    texts = ["a fox", "the river"]
    without = rewrite(path, tmp_path / "a.gguf", tensors=dict.fromkeys(MATRICES))
    one = rewrite(path, tmp_path / "b.gguf", tensors={MATRICES[1]: None})
    rows = [embedded(each, texts) for each in (without, one, path)]
    assert rows[1].shape == (2, len(first)) != rows[0].shape == rows[2].shape
    np.testing.assert_allclose(rows[0] @ first.T, rows[1], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(rows[1] @ second.T, rows[2], rtol=1e-4, atol=1e-4)
    with LLM(one, backend="ref") as llm, pytest.raises(RequestError, match=f"has {len(first)}"):
        llm.embed(texts, dimensions=len(first) + 1)


def test_matrices_after_pooling_that_do_not_fit_are_refused(tmp_path) -> None:
    path = ENCODERS / "gemmaembedding.gguf"
    for tensors in ({MATRICES[0]: None}, {MATRICES[1]: np.ones((8, 8), np.float32)}):
        wrong = rewrite(path, tmp_path / "a.gguf", tensors=tensors)
        with pytest.raises(ModelError, match=r"dense_[23]\.weight"):
            LLM(wrong, backend="ref")


def embedded(path: Path, texts: list[str]) -> np.ndarray:
    with LLM(path, backend="ref") as llm:
        return llm.embed(texts, normalize=False)


@pytest.fixture(scope="module")
def llm():
    with LLM(ENCODERS / "bert.gguf", backend="cpu", threads=2) as model:
        yield model


def test_embeddings_do_not_depend_on_batch_and_order(llm) -> None:
    texts = [" ".join(TEXTS[i % 4].split()[: 1 + i % 9]) for i in range(200)]
    together = llm.embed(texts)
    np.testing.assert_array_equal(llm.embed(texts[::-1]), together[::-1])
    for text, row in zip(texts[:12], together, strict=False):
        np.testing.assert_array_equal(llm.embed(text)[0], row)
    assert llm.engine.idle
    assert all(n == allocator.n_free for allocator in llm.engine.allocators for n in [_all(llm)])


def _all(llm: LLM) -> int:
    return llm.engine.pool.groups[0].n_blocks


def test_texts_of_a_batch_share_steps(llm, monkeypatch) -> None:
    steps: list[int] = []
    step = type(llm.program).step

    def counted(program, step_of):
        steps.append(step_of.n_sequences)
        return step(program, step_of)

    monkeypatch.setattr(type(llm.program), "step", counted)
    llm.embed(["a fox is running"] * 64)
    assert sum(steps) == 64
    assert len(steps) <= 3


def test_a_text_as_long_as_the_context_waits_for_no_one(llm) -> None:
    longest = [5] * llm.context
    rows = llm.embed([[5, 6, 7]] * 40 + [longest] + [[5, 6, 7]] * 40)
    np.testing.assert_array_equal(rows[40], llm.embed([longest])[0])


def test_small_steps_hold_the_longest_text_nevertheless(llm) -> None:
    with LLM(ENCODERS / "bert.gguf", backend="cpu", threads=2, batch_tokens=16) as small:
        np.testing.assert_array_equal(small.embed(TEXTS), llm.embed(TEXTS))


@pytest.mark.skipif("vulkan" not in computing(), reason="there is no Vulkan device")
@pytest.mark.parametrize("gpu_layers", [1, 2])
def test_layers_on_a_device_and_on_the_cpu_have_a_cache_each(gpu_layers: int) -> None:
    layers = DeviceMap(gpu_layers=gpu_layers)
    with LLM(ENCODERS / "bert.gguf", backend="vulkan", device_map=layers, threads=2) as divided:
        assert "on the device" in divided.choice.note
        assert np.abs(divided.embed(TEXTS) - wanted("bert")).max() <= TOLERANCE


def test_a_text_beyond_the_plain_context_runs_with_scaled_rope() -> None:
    path, rope = ENCODERS / "nomicbert.gguf", RopeScaling("yarn", 2.0)
    texts = [[5, 6, 7] * 10, [8, 9] * 70]
    with LLM(path, backend="ref", rope=rope, context=150) as llm:
        got = llm.embed(texts, normalize=False)
        assert llm.spec.plain_context == 96
    for ids, row, extended in zip(texts, got, (False, True), strict=True):
        loaded = planned(path, "ref", rope=rope, extended=extended, max_tokens=150)
        (rows,) = Runner(path, room=160, loaded=loaded).feed((0, np.array(ids, np.int32)))
        np.testing.assert_allclose(row, rows.mean(axis=0), atol=1e-5)


def test_a_text_longer_than_the_context_is_refused(llm) -> None:
    with pytest.raises(RequestError, match="too long"):
        llm.embed([[5] * (llm.context + 1)])


def test_an_encoder_does_not_generate_or_score(llm) -> None:
    for ask in (
        lambda: llm.generate("fox"),
        lambda: llm.chat([{"role": "user", "content": "fox"}]),
        lambda: llm.stream("fox"),
        lambda: llm.perplexity("the fox " * 60, window=64),
        lambda: llm.logits([5, 6]),
        lambda: llm.template,
    ):
        with pytest.raises(UnsupportedError, match="it is an encoder"):
            list(found) if (found := ask()) is not None else None
    assert llm.embed("fox").shape == (1, llm.spec.hidden)


def test_speculation_with_an_encoder_is_refused() -> None:
    with pytest.raises(RequestError, match="generates no text"):
        LLM(ENCODERS / "bert.gguf", backend="cpu", speculate="suffix")
