"""A server with an encoder: it embeds, and says that it does nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from data.encoder_texts import DOCUMENTS, QUERY, TEXTS
from serving import Answer, Brake, Running, running, wait_for

from zinc.engine.load.options import LoadOptions
from zinc.engine.model_runner import ModelRunner
from zinc.engine.sequence import Sequence
from zinc.server.config import ModelSource

ENCODERS = Path(__file__).parents[2] / "data" / "encoders"
LOAD = LoadOptions(backend="cpu", threads=2)


@pytest.fixture(scope="module")
def encoder() -> Iterator[Running]:
    with running(models=(ModelSource("bert", ENCODERS / "bert.gguf"),), load=LOAD) as found:
        yield found


def test_embeddings_are_those_of_transformers(encoder: Running) -> None:
    found = encoder.post("/v1/embeddings", {"input": list(TEXTS)}).json
    with np.load(ENCODERS / "bert.npz") as data:
        got = np.array([row["embedding"] for row in found["data"]])
        assert np.abs(got - data["embeddings"]).max() <= 1e-3
        assert found["usage"]["prompt_tokens"] == data["lengths"].sum()


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect the number of texts in each step."""
    embed, found = ModelRunner.embed, list[int]()

    def counted(runner: ModelRunner, running: list[Sequence], counts: dict[int, int]) -> None:
        found.append(len(running))
        embed(runner, running, counts)

    monkeypatch.setattr(ModelRunner, "embed", counted)
    return found


def rows_of(answer: Answer) -> list[list[float]]:
    return [row["embedding"] for row in answer.json["data"]]


WORDS = [f"{a} {b}" for a in DOCUMENTS[0].split()[:4] for b in DOCUMENTS[1].split()[:6]]


def test_texts_of_one_request_share_steps(encoder: Running, steps: list[int]) -> None:
    found = rows_of(encoder.post("/v1/embeddings", {"input": WORDS * 2}))
    assert sum(steps) == 2 * len(WORDS)
    assert len(steps) <= 2  # two groups, which one step may run together
    alone = [rows_of(encoder.post("/v1/embeddings", {"input": text}))[0] for text in WORDS[::7]]
    assert found[: len(WORDS) : 7] == alone


def test_requests_that_wait_share_a_step(encoder: Running, brake: Brake, steps: list[int]) -> None:
    brake.hold()
    with ThreadPoolExecutor(len(WORDS)) as pool:
        answers = [pool.submit(encoder.post, "/v1/embeddings", {"input": text}) for text in WORDS]
        wait_for(lambda: encoder.live() == len(WORDS))
        brake.release()
        found = [rows_of(answer.result())[0] for answer in answers]
    assert sum(steps) == len(WORDS)
    assert len(steps) <= 2  # the first began with the requests that had come by then
    assert found == rows_of(encoder.post("/v1/embeddings", {"input": WORDS}))


def test_a_text_of_several_that_is_too_long_is_named_or_cut(encoder: Running) -> None:
    texts = ["fox", "fox " * 1000]
    error = encoder.post("/v1/embeddings", {"input": texts}).json["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input[1]")
    cut = rows_of(encoder.post("/v1/embeddings", {"input": texts, "truncate": True}))
    alone = [{"input": text, "truncate": True} for text in texts]
    assert cut == [rows_of(encoder.post("/v1/embeddings", each))[0] for each in alone]


MESSAGES = {"messages": [{"role": "user", "content": "fox"}], "model": "bert", "max_tokens": 4}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", MESSAGES),
        ("/v1/chat/completions", {**MESSAGES, "stream": True}),
        ("/v1/messages", MESSAGES),
        ("/v1/responses", {"input": "fox", "model": "bert"}),
        ("/v1/completions", {"prompt": "fox", "model": "bert"}),
        ("/completion", {"prompt": "fox"}),
        ("/api/chat", {"model": "bert", "messages": MESSAGES["messages"]}),
        ("/api/generate", {"model": "bert", "prompt": "fox"}),
    ],
)
def test_endpoints_that_generate_say_that_it_is_an_encoder(
    encoder: Running, path: str, fields: dict[str, object]
) -> None:
    answer = encoder.post(path, fields)
    assert answer.status == 400
    assert "it is an encoder, which turns texts into embeddings" in answer.body.decode()


def test_other_servers_names_for_what_it_can_do(encoder: Running) -> None:
    assert encoder.get("/v1/models").json["data"][0]["meta"]["kind"] == "encoder"
    assert encoder.post("/api/show", {"model": "bert"}).json["capabilities"] == ["embedding"]
    assert encoder.get("/api/v0/models/bert").json["type"] == "embeddings"


@pytest.fixture(scope="module")
def reranker() -> Iterator[Running]:
    with running(models=(ModelSource("r", ENCODERS / "reranker.gguf"),), load=LOAD) as found:
        yield found


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/reranking", "/v2/rerank"])
def test_documents_are_ranked(reranker: Running, path: str) -> None:
    with np.load(ENCODERS / "reranker.npz") as data:
        scores, lengths = data["scores"], data["lengths"]
    order = np.argsort(-scores).tolist()
    fields = {"model": "r", "query": QUERY, "documents": list(DOCUMENTS)}
    found = reranker.post(path, fields).json
    assert [each["index"] for each in found["results"]] == order
    for each in found["results"]:
        assert abs(each["relevance_score"] - scores[each["index"]]) <= 1e-4
        assert set(each) == {"index", "relevance_score"}
    assert found["model"] == "r"
    assert found["usage"] == {k: lengths.sum() for k in ("prompt_tokens", "total_tokens")}
    fields["documents"] = [{"text": text} for text in DOCUMENTS]
    best = reranker.post(path, {**fields, "top_n": 2, "return_documents": True}).json["results"]
    assert [each["index"] for each in best] == order[:2]
    assert [each["document"]["text"] for each in best] == [DOCUMENTS[i] for i in order[:2]]


def test_texts_are_ranked_in_the_form_of_text_embeddings_inference(reranker: Running) -> None:
    fields = {"query": QUERY, "texts": list(DOCUMENTS), "return_text": True}
    found = reranker.post("/rerank", fields).json
    assert {each["text"] for each in found} == set(DOCUMENTS)
    assert sorted(found, key=lambda each: -each["score"]) == found
    assert all(DOCUMENTS[each["index"]] == each["text"] for each in found)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"query": "x"}, "documents is missing"),
        ({"query": "x", "documents": []}, "documents"),
        ({"query": "x", "documents": [1]}, "documents"),
        ({"query": "x", "documents": ["a"], "texts": ["a"]}, "either documents or texts"),
        ({"documents": ["a"]}, "query"),
        ({"query": "x", "documents": ["a"], "top_n": -1}, "top_n"),
        ({"query": "x", "documents": ["a", "fox " * 200]}, "documents[1]"),
    ],
)
def test_impossible_requests_to_rank_are_refused(
    reranker: Running, fields: dict[str, object], said: str
) -> None:
    answer = reranker.post("/v1/rerank", fields)
    assert answer.status == 400
    assert said in answer.body.decode()


def test_a_reranker_only_ranks_and_others_do_not(reranker: Running, encoder: Running) -> None:
    for path, fields in (
        ("/v1/chat/completions", MESSAGES),
        ("/v1/embeddings", {"input": "fox"}),
        ("/api/generate", {"model": "r", "prompt": "fox"}),
    ):
        answer = reranker.post(path, {**fields, "model": "r"})
        assert answer.status == 400
        assert "it is a reranker, which scores documents for a query" in answer.body.decode()
    answer = encoder.post("/v1/rerank", {"query": "x", "documents": ["a"]})
    assert answer.status == 400
    assert "cannot rank documents" in answer.body.decode()
    assert reranker.post("/api/show", {"model": "r"}).json["capabilities"] == []
