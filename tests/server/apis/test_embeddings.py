"""POST /v1/embeddings through OpenAI's own client, and llama.cpp's /embedding."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import openai
import pytest
from effort import EVERY
from serving import LOAD, MODEL, Brake, Running, running, wait_for

from zinc import LLM
from zinc.engine.engine import Engine
from zinc.engine.load.options import LoadOptions
from zinc.engine.readout import Pooled
from zinc.engine.request import Request
from zinc.engine.sequence import Sequence
from zinc.server.apis.shared.embeddings import encode_row, json_row, json_rows

TEXTS = ["Once upon a time", "The ship sailed north.", "x"]


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def test_floats_in_json_are_exact_as_float32():
    tiny, huge = np.finfo(np.float32).tiny, np.finfo(np.float32).max
    row = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    row[:5] = 0, 1, tiny, -huge, 1 / 3
    text = json_row(row, "float")
    np.testing.assert_array_equal(np.array(json.loads(text), np.float32), row)
    for form in ("base64", "binary", "ubinary"):
        assert json.loads(json_row(row, form)) == encode_row(row, form)
    assert json.loads(json_rows([row, row], "binary")) == [encode_row(row, "binary")] * 2
    row[3] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        json_row(row, "float")


def test_texts_and_tokens(client, llm: LLM):
    want = llm.embed(TEXTS)
    for encoding in ("float", "base64", None):
        extra = {} if encoding is None else {"encoding_format": encoding}
        found = client.embeddings.create(model=MODEL, input=TEXTS, **extra)
        assert [d.index for d in found.data] == [0, 1, 2]
        rows = [d.embedding for d in found.data]
        if encoding == "base64":
            rows = [np.frombuffer(base64.b64decode(r), "<f4") for r in rows]
        np.testing.assert_array_equal(np.array(rows, np.float32), want)
    ids = [llm.tokenizer.encode(t) for t in TEXTS]
    found = client.embeddings.create(model=MODEL, input=ids)
    np.testing.assert_array_equal(np.array([d.embedding for d in found.data], np.float32), want)
    assert found.usage.prompt_tokens == found.usage.total_tokens == sum(map(len, ids))
    one = client.embeddings.create(model=MODEL, input=TEXTS[0])
    np.testing.assert_array_equal(np.array(one.data[0].embedding, np.float32), want[0])


def test_dimensions(client, llm: LLM):
    found = client.embeddings.create(model=MODEL, input="Hello", dimensions=32).data[0].embedding
    np.testing.assert_allclose(found, llm.embed("Hello", dimensions=32)[0])
    assert np.linalg.norm(found) == pytest.approx(1, abs=1e-6)


def test_many_texts_at_once_and_during_streams(server: Running, client, llm: LLM):
    many = [f"Text number {i} is about {'a fox ' * (i % 7)}" for i in range(200 if EVERY else 80)]
    fields = {"prompt": TEXTS[0], "temperature": 0, "max_tokens": 60}
    alone = server.post("/v1/completions", fields).json["choices"][0]["text"]
    with ThreadPoolExecutor(2) as pool:
        stream = pool.submit(server.post, "/v1/completions", fields)
        found = pool.submit(client.embeddings.create, model=MODEL, input=many).result()
        assert stream.result().json["choices"][0]["text"] == alone
    got = np.array([d.embedding for d in found.data], np.float32)
    np.testing.assert_array_equal(got[::40], llm.embed(many[::40]))


def test_a_disconnect_cancels_embeddings(
    server: Running, brake: Brake, cancelled: list[Sequence]
) -> None:
    body = json.dumps({"input": ["a long text " * 300] * 60}).encode()
    brake.hold(1)
    with server.connect() as client:
        client.sendall(
            b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body
        )
        wait_for(server.live)
    wait_for(lambda: server.live() == 0)
    brake.release()
    wait_for(lambda: cancelled)
    server.wait_idle()


def test_texts_that_wait_are_slots_and_count_as_answers(server: Running, brake: Brake, llm: LLM):
    def answers() -> float:
        text = server.get("/metrics").body.decode()
        found = re.findall(r"^zinc_answers_total{.*} (\S+)$", text, re.MULTILINE)
        return sum(map(float, found))

    before = answers()
    brake.hold()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.post, "/v1/embeddings", {"input": TEXTS})
        wait_for(lambda: server.live() == len(TEXTS))
        slots = [each for each in server.get("/slots").json if each["is_processing"]]
        assert [each["n_prompt_tokens"] for each in slots] == [
            len(llm.tokenizer.encode(text)) for text in TEXTS
        ]
        assert {each["next_token"]["n_decoded"] for each in slots} == {0}
        brake.release()
        found = answer.result()
    assert found.status == 200
    server.wait_idle()
    assert answers() == before + len(TEXTS)


@pytest.mark.parametrize("in_step", [True, False])
def test_a_text_that_fails_fails_its_request_and_no_other(
    server: Running,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    in_step: bool,
):
    take, submit = Pooled.read, Engine.submit

    def read(pool: Pooled, ids: list[int], *args: Any) -> None:
        if ids == [5]:
            raise RuntimeError("the secret cause")
        take(pool, ids, *args)

    def refuse(engine: Engine, request: Request) -> Sequence:
        if request.ids == [5]:
            raise RuntimeError("the secret cause")
        return submit(engine, request)

    if in_step:
        monkeypatch.setattr(Pooled, "read", read)
    else:
        monkeypatch.setattr(Engine, "submit", refuse)
    found = server.post("/v1/embeddings", {"input": [[4], [5], [6]]})
    assert found.status == 500
    assert b"secret" not in found.body
    assert "the secret cause" in caplog.text
    server.wait_idle()
    assert server.post("/v1/embeddings", {"input": [[4], [6]]}).status == 200


def test_the_form_of_llama_cpp(server: Running, llm: LLM):
    rows = llm.embed(TEXTS[:2], normalize=False)
    for path in ("/embedding", "/embeddings"):
        found = server.post(path, {"content": TEXTS[:2]}).json
        assert [each["index"] for each in found] == [0, 1]
        got = np.array([each["embedding"][0] for each in found])
        np.testing.assert_allclose(got, rows / np.linalg.norm(rows, axis=1)[:, None], rtol=1e-5)
    for kind, want in (
        (-1, rows[0]),
        (0, rows[0] / np.abs(rows[0]).max() * 32760),
        (1, rows[0] / np.abs(rows[0]).sum()),
        (3, rows[0] / (np.abs(rows[0]) ** 3).sum() ** (1 / 3)),
    ):
        found = server.post("/embedding", {"input": TEXTS[0], "embd_normalize": kind}).json
        np.testing.assert_allclose(found[0]["embedding"][0], want, rtol=1e-4, atol=1e-7)
    mixed = ["Once upon", *llm.tokenizer.encode(" a time", add_special=False)]
    found = server.post("/embedding", {"content": mixed, "embd_normalize": -1}).json
    np.testing.assert_allclose(found[0]["embedding"][0], rows[0], rtol=1e-5)


def test_prompts_may_be_objects(server: Running):
    parts = [{"type": "text", "text": TEXTS[0][:5]}, {"type": "text", "text": TEXTS[0][5:]}]
    inputs = [TEXTS[0], {"prompt_string": TEXTS[0]}, {"content": parts}]
    rows = [e["embedding"] for e in server.post("/v1/embeddings", {"input": inputs}).json["data"]]
    assert rows[0] == rows[1] == rows[2]
    for one in inputs:
        found = server.post("/v1/embeddings", {"input": one}).json["data"]
        np.testing.assert_allclose(found[0]["embedding"], rows[0], rtol=1e-5, atol=1e-7)


def test_an_empty_text_has_the_embedding_of_its_first_token(
    server: Running, monkeypatch: pytest.MonkeyPatch
):
    assert server.application.pool is not None
    tokenizer = server.application.pool.loaded[0].tokenizer
    monkeypatch.setattr(tokenizer, "bos_id", 7)
    monkeypatch.setattr(tokenizer, "add_bos", True)
    found = server.post("/v1/embeddings", {"input": ["", [7]]}).json["data"]
    assert found[0]["embedding"] == found[1]["embedding"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": {"content": "x"}}, "input.content"),
        ({"input": ["x", {"content": [{"type": "text", "text": 1}]}]}, "input[1].content[0]"),
        ({"input": {"content": [{"type": "image_url"}]}}, "input.content[0]"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["x", ""]}, "input[1]"),
        ({"input": [[1], [10**9]]}, "input[1]"),
        ({"input": [1, True]}, "input"),
        ({"input": {"a": 1}}, "input"),
        ({"input": ["x", 1.5]}, "input[1]"),
        ({"input": ["x"] * 2049}, "input"),
        ({"input": "x", "dimensions": 0}, "dimensions"),
        ({"input": "x", "dimensions": 10**6}, "dimensions"),
        ({"input": "x", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "x", "no_such": 1}, "no_such"),
    ],
)
def test_errors_name_the_field(server: Running, fields, param):
    found = server.post("/v1/embeddings", fields)
    assert (found.status, found.json["error"]["param"]) == (400, param)


def test_limits(server: Running, llm: LLM):
    found = server.post("/v1/embeddings", {"input": [[1] * (llm.context + 1)]})
    assert found.json["error"]["code"] == "context_length_exceeded"
    assert server.post("/v1/embeddings", {"input": "x", "model": "any"}).json["model"] == MODEL
    for fields in ({}, {"content": "x", "input": "y"}):
        assert server.post("/embedding", fields).json["error"]["param"] == "content"


def test_pooling_is_an_option_of_the_server(llm: LLM):
    load = LoadOptions(backend=LOAD.backend, threads=2, pooling="last")
    with running(load=load) as server:
        found = server.post("/v1/embeddings", {"input": TEXTS[0]}).json["data"][0]["embedding"]
        np.testing.assert_allclose(found, llm.embed(TEXTS[0], pooling="last")[0], rtol=1e-6)


def test_without_pooling_every_token_has_a_row():
    load = LoadOptions(backend=LOAD.backend, threads=2, pooling="none")
    with running(load=load) as server, LLM(backend=LOAD.backend, threads=2) as llm:
        ids = llm.tokenizer.encode(TEXTS[0])
        (found,) = server.post("/embedding", {"content": TEXTS[0]}).json
        rows = np.array(found["embedding"])
        assert len(rows) == len(ids)
        pooled = llm.embed(TEXTS[0], pooling="mean", normalize=False)[0]
        np.testing.assert_allclose(rows.mean(axis=0), pooled, rtol=1e-4, atol=1e-6)
        refused = server.post("/v1/embeddings", {"input": TEXTS[0]})
        assert refused.status == 400
        assert "--pooling none" in refused.json["error"]["message"]
