"""LM Studio's API: OpenAI's answers with statistics, and the list of models."""

from __future__ import annotations

from typing import Any

import pytest
from serving import MODEL, Running, running

from zinc.engine.sequence import Timings
from zinc.server.apis.lmstudio.generate import stop_reason
from zinc.server.apis.shared.chat.answer import Finished
from zinc.server.config import ModelSource

HELLO = [{"role": "user", "content": "Say hello."}]
GREEDY = {"temperature": 0, "max_tokens": 6}
ADDED = {"stats", "model_info", "runtime"}


def check_members(found: dict[str, Any], server: Running) -> None:
    stats = found["stats"]
    assert stats["tokens_per_second"] > 0
    assert stats["time_to_first_token"] > 0
    assert stats["generation_time"] > 0
    was_cut = found["choices"][0]["finish_reason"] == "length"
    assert stats["stop_reason"] == ("maxPredictedTokensReached" if was_cut else "eosFound")
    row = server.get(f"/api/v0/models/{MODEL}").json
    assert found["model_info"] == {
        "arch": row["arch"],
        "quant": row["quantization"],
        "format": "gguf",
        "context_length": row["loaded_context_length"],
    }
    assert found["runtime"]["supported_formats"] == ["gguf"]


@pytest.mark.parametrize(
    ("path", "prompt"),
    [("chat/completions", {"messages": HELLO}), ("completions", {"prompt": "The sky is"})],
)
def test_an_answer_is_openais_with_statistics(
    server: Running, path: str, prompt: dict[str, Any]
) -> None:
    body = {"model": MODEL, **prompt, **GREEDY}
    found = server.post(f"/api/v0/{path}", body).json
    openai = server.post(f"/v1/{path}", body).json
    assert found["choices"] == openai["choices"]
    assert set(found) - set(openai) == ADDED
    check_members(found, server)


@pytest.mark.parametrize(
    ("path", "prompt"),
    [("chat/completions", {"messages": HELLO}), ("completions", {"prompt": "The sky is"})],
)
def test_the_last_chunk_of_a_stream_has_the_statistics(
    server: Running, path: str, prompt: dict[str, Any]
) -> None:
    body = {"model": MODEL, "stream": True, "ttl": 300, **prompt, **GREEDY}
    *chunks, done = server.post(f"/api/v0/{path}", body).events
    assert done == "[DONE]"
    assert [bool(ADDED & set(chunk)) for chunk in chunks] == [*[False] * (len(chunks) - 1), True]
    check_members(chunks[-1], server)


def test_a_stop_string_is_a_reason(server: Running) -> None:
    prompt = {"prompt": "The sky is", **GREEDY}
    text = server.post("/api/v0/completions", prompt).json["choices"][0]["text"]
    found = server.post("/api/v0/completions", {**prompt, "stop": text[-3:]}).json
    assert found["stats"]["stop_reason"] == "stopStringFound"


def test_every_end_has_a_name_of_lm_studio() -> None:
    timings = Timings(10, 0, 6, 0.1, 0.1, 0.1)

    def name(reason: str, stop: str | None = None, context: int = 100) -> str:
        return stop_reason(Finished(reason, stop, timings, 0), context)

    assert name("stop") == "eosFound"
    assert name("stop", "END") == "stopStringFound"
    assert name("calls") == "toolCalls"
    assert name("length") == "maxPredictedTokensReached"
    assert name("length", context=16) == "contextLengthReached"


def test_embeddings_are_openais(server: Running) -> None:
    body = {"model": MODEL, "input": ["one", "two"]}
    assert server.post("/api/v0/embeddings", body).json == server.post("/v1/embeddings", body).json


def test_models_are_listed_with_their_state() -> None:
    with running(models=(ModelSource("org/first", None), ModelSource("second", None))) as server:
        rows = server.get("/api/v0/models").json["data"]
        assert [(row["id"], row["state"]) for row in rows] == [
            ("org/first", "loaded"),
            ("second", "not-loaded"),
        ]
        assert rows[0]["quantization"] == "Q4_K_M"
        assert rows[0]["max_context_length"] >= rows[0]["loaded_context_length"] > 0
        assert "loaded_context_length" not in rows[1]
        assert server.get("/api/v0/models/org/first").json == rows[0]


def test_errors_have_openais_form(server: Running) -> None:
    for path in ("/api/v0/models/none", "/api/v0/none", "/api/v1/chat"):
        answer = server.get(path)
        assert answer.status == 404
        assert answer.json["error"]["message"]
    answer = server.post("/api/v0/chat/completions", {"messages": HELLO, "temperature": "hot"})
    assert answer.status == 400
    assert answer.json["error"]["param"] == "temperature"
