"""Embeddings and reranking with cohere, the official client of Cohere's API."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clients.installed import needs
from data.encoder_texts import DOCUMENTS, QUERY, TEXTS
from server.serving import Running, running

from zinc.engine.load.options import LoadOptions
from zinc.server.config import ModelSource

pytestmark = needs("cohere", "cohere")

ENCODERS = Path(__file__).parents[1] / "data" / "encoders"
LOAD = LoadOptions(backend="cpu", threads=2)
MODELS = ("bert", "nomicbert", "reranker")


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    models = tuple(ModelSource(name, ENCODERS / f"{name}.gguf") for name in MODELS)
    with running(models=models, load=LOAD) as found:
        yield found


def wanted(name: str, key: str) -> np.ndarray:
    with np.load(ENCODERS / f"{name}.npz") as data:
        return data[key]


def test_embeddings_of_both_versions(server: Running) -> None:
    import cohere

    texts = [text for text in TEXTS if text]
    rows = [row for text, row in zip(TEXTS, wanted("bert", "embeddings"), strict=True) if text]
    first = cohere.Client("key", base_url=server.url).embed(
        texts=texts, model="bert", input_type="search_document"
    )
    assert np.abs(np.array(first.embeddings) - rows).max() <= 1e-3
    assert first.texts == texts
    second = cohere.ClientV2("key", base_url=server.url).embed(
        texts=texts,
        model="bert",
        input_type="search_query",
        embedding_types=["float", "base64", "binary", "ubinary"],
    )
    found = second.embeddings
    assert np.abs(np.array(found.float_) - rows).max() <= 1e-3
    raw = np.array([np.frombuffer(base64.b64decode(each), "<f4") for each in found.base64])
    np.testing.assert_array_equal(raw, np.array(found.float_, np.float32))
    bits = np.unpackbits(np.array(found.ubinary, np.uint8), axis=1)
    np.testing.assert_array_equal(bits, raw > 0)
    np.testing.assert_array_equal(np.array(found.binary) + 128, found.ubinary)


def test_dimensions_and_parts_of_content(server: Running) -> None:
    import cohere

    client = cohere.ClientV2("key", base_url=server.url)
    content = [{"type": "text", "text": "a fox"}, {"type": "text", "text": " runs"}]
    asked: dict[str, Any] = {"model": "bert", "input_type": "search_query"}
    found = client.embed(inputs=[{"content": content}], output_dimension=8, **asked)
    (row,) = found.embeddings.float_
    (whole,) = client.embed(texts=["a fox runs"], **asked).embeddings.float_
    np.testing.assert_allclose(row, np.array(whole[:8]) / np.linalg.norm(whole[:8]), atol=1e-6)
    with pytest.raises(cohere.BadRequestError, match="output_dimension"):
        client.embed(texts=["fox"], output_dimension=33, **asked)
    with pytest.raises(cohere.BadRequestError, match="embedding_types"):
        client.embed(texts=["fox"], embedding_types=["int8"], **asked)


def test_a_query_and_a_document_have_their_prompts(server: Running) -> None:
    import cohere

    client = cohere.ClientV2("key", base_url=server.url)
    for purpose, prompt in (("search_query", "search_query: "), ("clustering", "clustering: ")):
        asked = client.embed(texts=["a fox"], model="nomicbert", input_type=purpose)
        plain = server.post("/v1/embeddings", {"model": "nomicbert", "input": f"{prompt}a fox"})
        assert asked.embeddings.float_ == [plain.json["data"][0]["embedding"]]


@pytest.mark.parametrize("version", ["Client", "ClientV2"])
def test_reranking(server: Running, version: str) -> None:
    import cohere

    client = getattr(cohere, version)("key", base_url=server.url)
    found = client.rerank(model="reranker", query=QUERY, documents=list(DOCUMENTS), top_n=3)
    scores = wanted("reranker", "scores")
    assert [each.index for each in found.results] == np.argsort(-scores)[:3].tolist()
    for each in found.results:
        assert abs(each.relevance_score - scores[each.index]) <= 1e-4
