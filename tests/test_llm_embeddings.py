"""Embeddings, compared with hidden states of transformers and embeddings of llama.cpp."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from effort import on_backends
from present import computing

from zinc import LLM, SamplingParams
from zinc.core.errors import RequestError

DATA = Path(__file__).parent / "data"
# 8-bit activations, and keys and values that are rounded, against float32.
TOLERANCE = {"ref": 1e-5}
ROUNDED = 1e-2


@pytest.mark.parametrize(
    ("name", "backend"),
    on_backends(
        ["qwen3", "gemma2"], ["ref", *computing()], everywhere=["qwen3"], always=("ref", "cpu")
    ),
)
def test_pooled_rows_are_those_of_transformers(name, backend):
    want = np.load(DATA / "oracle" / "hidden.npz")[name].astype(np.float64)
    ids = np.load(DATA / "fixtures" / f"{name}.npz")["tokens"].tolist()
    path = DATA / "fixtures" / f"{name}.gguf"
    tolerance = TOLERANCE.get(backend, ROUNDED)
    with LLM(path, backend=backend, threads=2, batch_tokens=16, kv_dtype="f16") as llm:
        for pooling, row in (("mean", want.mean(axis=0)), ("cls", want[0]), ("last", want[-1])):
            got = llm.embed([ids], pooling=pooling, normalize=False)[0]
            assert np.linalg.norm(got - row) <= tolerance * np.linalg.norm(row)
            unit = row[:7] / np.linalg.norm(row[:7])
            got = llm.embed([ids], pooling=pooling, dimensions=7)[0]
            assert np.linalg.norm(got - unit) <= tolerance


@pytest.fixture(scope="module")
def llm():
    with LLM(backend="cpu", threads=2) as model:
        yield model


def test_embeddings_are_those_of_llama_cpp(llm):
    data = np.load(DATA / "oracle" / "embeddings.npz")
    got = llm.embed(data["texts"].tolist())
    # Both round activations to 8 bits, each in its own way; other texts are at 0.3 or less.
    assert (got * data["rows"]).sum(axis=1).min() > 0.998
    apart = got @ data["rows"].T
    assert apart[~np.eye(len(got), dtype=bool)].max() < 0.9


def test_embeddings_do_not_depend_on_batch_and_order(llm):
    texts = ["A dog", "Once upon a time " * 80, "x", "The ship sailed north."]
    together = llm.embed(texts)
    assert together.shape == (4, llm.spec.hidden)
    for text, row in zip(texts, together, strict=True):
        np.testing.assert_array_equal(llm.embed(text)[0], row)
    as_ids = [llm.tokenizer.encode(t) for t in reversed(texts)]
    np.testing.assert_array_equal(llm.embed(as_ids), together[::-1])
    assert llm.embed([]).shape[0] == 0
    assert llm.engine.idle


def test_answers_do_not_change_after_an_embedding(llm):
    greedy = SamplingParams(temperature=0, max_tokens=12)
    before = llm.generate("Once upon a time", greedy).text
    llm.embed(["Once upon a time", "Once upon a time there"])
    assert llm.generate("Once upon a time", greedy).text == before


def test_impossible_embeddings_are_refused(llm):
    with pytest.raises(RequestError, match="too long"):
        llm.embed(["fine", [1] * (llm.context + 1)])
    with pytest.raises(RequestError, match="empty"):
        llm.embed([[]])
    with pytest.raises(RequestError, match="dimensions"):
        llm.embed("x", dimensions=100_000)
    with pytest.raises(RequestError, match="pooling"):
        llm.embed("x", pooling="max")
    with pytest.raises(RequestError, match="without pooling"):
        llm.embed("x", pooling="none")
    with pytest.raises(RequestError, match="pooling"):
        LLM(backend="cpu", pooling="rank")
    assert llm.engine.idle
