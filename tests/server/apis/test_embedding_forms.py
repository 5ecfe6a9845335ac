"""Embeddings in the forms of Cohere and Jina, and prompts for queries and documents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from serving import Running, running

from zinc.engine.load.options import LoadOptions
from zinc.server.config import ModelSource

ENCODERS = Path(__file__).parents[2] / "data" / "encoders"
LOAD = LoadOptions(backend="cpu", threads=2)
NAMES = ("bert", "nomicbert", "gemmaembedding")


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    models = tuple(ModelSource(name, ENCODERS / f"{name}.gguf") for name in NAMES)
    with running(models=models, load=LOAD) as found:
        yield found


def rows(server: Running, model: str, texts: object, **fields: object) -> np.ndarray:
    answer = server.post("/v1/embeddings", {"model": model, "input": texts, **fields})
    assert answer.status == 200, answer.body
    return np.array([each["embedding"] for each in answer.json["data"]])


@pytest.mark.parametrize(
    ("model", "fields", "prompt"),
    [
        ("nomicbert", {"input_type": "query"}, "search_query: "),
        ("nomicbert", {"input_type": "passage"}, "search_document: "),
        ("nomicbert", {"task": "separation"}, "clustering: "),
        ("nomicbert", {"task": "text-matching"}, ""),
        ("gemmaembedding", {"task": "retrieval.query"}, "task: search result | query: "),
        ("gemmaembedding", {"prompt_name": "document"}, "title: none | text: "),
        ("bert", {"input_type": "search_query"}, ""),
    ],
)
def test_the_prompt_of_a_purpose_comes_before_each_text(
    server: Running, model: str, fields: dict[str, str], prompt: str
) -> None:
    texts = ["a fox", "the river"]
    got = rows(server, model, texts, **fields)
    np.testing.assert_array_equal(got, rows(server, model, [prompt + text for text in texts]))
    if prompt:
        assert np.abs(got - rows(server, model, texts)).max() > 1e-3
    np.testing.assert_array_equal(  # token ids have no prompt
        rows(server, model, [[5, 6, 7]], **fields), rows(server, model, [[5, 6, 7]])
    )


def test_a_file_that_does_not_say_that_it_is_not_causal_is_an_encoder(server: Running) -> None:
    assert server.post("/api/show", {"model": "gemmaembedding"}).json["capabilities"] == [
        "embedding"
    ]
    assert server.get("/api/v0/models/gemmaembedding").json["type"] == "embeddings"


def test_fields_of_jina(server: Running) -> None:
    plain = rows(server, "bert", ["a fox"])
    np.testing.assert_array_equal(rows(server, "bert", [{"text": "a fox"}], truncate=True), plain)
    signs = rows(server, "bert", ["a fox"], embedding_type="ubinary")
    np.testing.assert_array_equal(np.unpackbits(signs.astype(np.uint8), axis=1), plain > 0)
    longer = rows(server, "bert", ["a fox"], normalized=False)
    assert abs(np.linalg.norm(longer) - 1) > 1e-2
    np.testing.assert_allclose(longer / np.linalg.norm(longer), plain, atol=1e-6)


LONG = "a fox runs " * 60


def test_a_text_longer_than_the_context_is_cut(server: Running) -> None:
    context, frame = 96, 2  # CLS and SEP
    ids = server.post("/tokenize", {"model": "bert", "content": LONG}).json["tokens"]
    cls, *body, sep = ids if ids[-1] == 3 else [2, *ids, 3]
    first = [cls, *body[: context - frame], sep]
    last = [cls, *body[-(context - frame) :], sep]
    want = rows(server, "bert", [first, last])
    np.testing.assert_array_equal(rows(server, "bert", LONG, truncate=True)[0], want[0])
    for truncate, row in (("END", want[0]), ("START", want[1])):
        fields = {"model": "bert", "texts": [LONG, "fox"], "truncate": truncate}
        found = server.post("/v2/embed", fields).json["embeddings"]["float"]
        np.testing.assert_array_equal(found[0], row)
    for fields in ({}, {"truncate": True}):
        asked = {"model": "bert", "input": [LONG], **fields}
        found = server.post("/api/embed", asked).json["embeddings"]
        np.testing.assert_array_equal(found[0], want[0])


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/embeddings", {"input": LONG}),
        ("/api/embed", {"input": LONG, "truncate": False}),
        ("/v2/embed", {"texts": [LONG], "truncate": "NONE"}),
    ],
)
def test_a_text_longer_than_the_context_is_refused(
    server: Running, path: str, fields: dict[str, object]
) -> None:
    answer = server.post(path, {"model": "bert", **fields})
    assert answer.status == 400
    assert "exceeds the available context size of 96" in answer.body.decode()


def test_a_prompt_stays_before_a_text_that_is_cut(server: Running) -> None:
    fields = {"model": "nomicbert", "texts": [LONG], "input_type": "query", "truncate": "START"}
    found = server.post("/v2/embed", fields).json
    assert found["meta"]["billed_units"]["input_tokens"] == 96
    other = server.post("/v2/embed", {**fields, "input_type": None}).json
    assert found["embeddings"] != other["embeddings"]


def test_the_first_version_of_cohere_answers_with_a_list(server: Running) -> None:
    fields = {"model": "bert", "texts": ["a fox"], "input_type": "search_query"}
    first = server.post("/v1/embed", fields).json
    second = server.post("/v2/embed", fields).json
    assert first["response_type"] == "embeddings_floats"
    assert first["embeddings"] == second["embeddings"]["float"]
    assert first["embeddings"] == rows(server, "bert", ["a fox"]).tolist()
    assert second["meta"]["billed_units"]["input_tokens"] > 2


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v2/embed", {}, "texts"),
        ("/v2/embed", {"texts": ["a"], "inputs": [{"content": []}]}, "texts"),
        ("/v2/embed", {"texts": ["a"], "embedding_types": ["int8"]}, "embedding_types"),
        ("/v2/embed", {"texts": ["a"], "output_dimension": 33}, "output_dimension"),
        ("/v2/embed", {"texts": ["a"], "input_type": "poem"}, "input_type"),
        ("/v1/embeddings", {"input": "a", "task": "poem"}, "task"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "int8"}, "encoding_format"),
    ],
)
def test_what_cannot_be_done_is_refused(
    server: Running, path: str, fields: dict[str, object], param: str
) -> None:
    answer = server.post(path, {"model": "bert", **fields})
    assert answer.status == 400
    assert param in answer.body.decode()
