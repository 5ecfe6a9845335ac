"""Ollama's API: its endpoints over raw HTTP, and scripted conversations of its official client."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
from serving import MODEL, Running, running, wait_for

from zinc.chat.events import Answer, Call, CallArguments, CallEnd, CallStart
from zinc.server.apis.ollama.chat import Reply, whole_message
from zinc.server.apis.ollama.common import keep_alive_seconds
from zinc.server.apis.ollama.messages import Message, plain_messages
from zinc.server.apis.shared.chat.answer import Piece
from zinc.server.errors import ApiError

HELLO = [{"role": "user", "content": "Say hello."}]
GREEDY = {"temperature": 0, "num_predict": 8}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def ask(server: Running, path: str, body: object = None, status: int = 200) -> Any:
    """Return the JSON body of the response to a GET, or to a POST of `body`."""
    answer = server.get(path) if body is None else server.post(path, body)
    assert answer.status == status, answer.body
    return answer.json


def stream_lines(server: Running, path: str, body: object) -> list[Any]:
    """Return the rows of a streamed answer."""
    answer = server.post(path, body)
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(row) for row in answer.body.splitlines()]


def test_chat_streams_by_default_and_equals_the_whole_answer(server: Running) -> None:
    body = {"model": MODEL, "messages": HELLO, "options": GREEDY}
    lines = stream_lines(server, "/api/chat", body)
    whole = ask(server, "/api/chat", {**body, "stream": False})
    assert [row["done"] for row in lines] == [*[False] * (len(lines) - 1), True]
    assert "".join(row["message"]["content"] for row in lines) == whole["message"]["content"]
    assert whole["message"]["content"]
    for end in (lines[-1], whole):
        assert end["done_reason"] in ("stop", "length")
        assert end["eval_count"] <= 8
        assert end["prompt_eval_count"] > 0
        assert end["total_duration"] >= end["prompt_eval_duration"] + end["eval_duration"] > 0
    datetime.fromisoformat(whole["created_at"])


def test_chat_equals_the_answer_of_openais_api(server: Running) -> None:
    whole = ask(server, "/api/chat", {"messages": HELLO, "options": GREEDY, "stream": False})
    other = ask(
        server, "/v1/chat/completions", {"messages": HELLO, "temperature": 0, "max_tokens": 8}
    )
    assert whole["message"]["content"] == other["choices"][0]["message"]["content"]


def test_generate_uses_the_chat_template_unless_raw(server: Running) -> None:
    base = {"prompt": "Say hello.", "options": GREEDY, "stream": False}
    templated = ask(server, "/api/generate", base)
    chat = ask(server, "/api/chat", {"messages": HELLO, "options": GREEDY, "stream": False})
    assert templated["response"] == chat["message"]["content"]
    raw = ask(server, "/api/generate", {**base, "raw": True})
    completion = ask(
        server, "/v1/completions", {"prompt": "Say hello.", "temperature": 0, "max_tokens": 8}
    )
    assert raw["response"] == completion["choices"][0]["text"]
    lines = stream_lines(server, "/api/generate", {**base, "raw": True, "stream": True})
    assert "".join(row["response"] for row in lines) == raw["response"]


def test_format_is_a_schema_that_the_answer_follows(server: Running) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    body = {"messages": HELLO, "format": schema, "options": {"temperature": 0}, "stream": False}
    found = json.loads(ask(server, "/api/chat", body)["message"]["content"])
    assert isinstance(found["ok"], bool)


def test_logprobs_are_those_of_openais_api(server: Running) -> None:
    body = {"messages": HELLO, "options": GREEDY, "stream": False, "logprobs": True}
    found = ask(server, "/api/chat", {**body, "top_logprobs": 2})["logprobs"]
    assert all(len(row["top_logprobs"]) == 2 and row["logprob"] <= 0 for row in found)


def test_a_request_without_content_loads_and_unloads(server: Running) -> None:
    with running() as own:
        assert ask(own, "/api/generate", {"model": MODEL})["done_reason"] == "load"
        assert [row["model"] for row in ask(own, "/api/ps")["models"]] == [MODEL]
        assert ask(own, "/api/chat", {"model": MODEL, "keep_alive": 0})["done_reason"] == "unload"
        assert ask(own, "/api/ps")["models"] == []
        body = {"messages": HELLO, "options": GREEDY, "stream": False, "keep_alive": "10m"}
        ask(own, "/api/chat", body)
        (row,) = ask(own, "/api/ps")["models"]
        left = datetime.fromisoformat(row["expires_at"]) - datetime.now().astimezone()
        assert 500 < left.total_seconds() <= 600


def test_a_model_that_was_unloaded_by_a_request_stays_loaded_next_time() -> None:
    """`keep_alive` of one request must not make all later ones load the model again."""
    body = {"messages": HELLO, "options": GREEDY, "stream": False}
    with running() as own:
        ask(own, "/api/chat", {**body, "keep_alive": 0})
        wait_for(lambda: ask(own, "/api/ps")["models"] == [])
        ask(own, "/api/chat", body)
        (row,) = ask(own, "/api/ps")["models"]
        assert row["expires_at"].startswith("2318")


def test_tags_and_show_describe_the_model(server: Running) -> None:
    (row,) = ask(server, "/api/tags")["models"]
    assert row["name"] == MODEL
    assert row["size"] > 1 << 20
    assert len(row["digest"]) == 64
    assert row["details"]["format"] == "gguf"
    shown = ask(server, "/api/show", {"model": f"{MODEL}:latest"})
    assert shown["details"] == row["details"]
    assert "completion" in shown["capabilities"]
    family = shown["details"]["family"]
    assert shown["model_info"]["general.architecture"] == family
    assert shown["model_info"]["tokenizer.ggml.tokens"] is None
    verbose = ask(server, "/api/show", {"model": MODEL, "verbose": True})
    assert len(verbose["model_info"]["tokenizer.ggml.tokens"]) > 64


@pytest.mark.parametrize("text", ["", []])
def test_a_request_without_text_has_no_embedding(server: Running, text: Any) -> None:
    found = ask(server, "/api/embed", {"model": MODEL, "input": text, "dimensions": 4})
    assert found["embeddings"] == []
    assert found["prompt_eval_count"] == 0
    assert ask(server, "/api/embeddings", {"model": MODEL, "prompt": ""}) == {"embedding": []}


def test_fields_without_a_value_ask_for_nothing(server: Running) -> None:
    """Older versions of the official client send all fields."""
    plain = {"prompt": "Say hello.", "options": GREEDY, "stream": False}
    empty = {"suffix": "", "system": "", "template": "", "context": [], "images": [], "format": ""}
    want = ask(server, "/api/generate", plain)["response"]
    assert ask(server, "/api/generate", {**plain, **empty})["response"] == want
    assert not want.startswith("{")


def test_whole_numbers_may_have_a_fraction(server: Running) -> None:
    body = {"prompt": "Say hello.", "stream": False, "shift": True}
    options = {"temperature": 0, "num_predict": 3.0, "top_k": 40.0, "seed": 1.0}
    found = ask(server, "/api/generate", {**body, "options": {**options, "ignore_eos": True}})
    assert found["eval_count"] == 3
    wrong = {**body, "options": {**options, "num_predict": 3.5}}
    assert "options.num_predict" in ask(server, "/api/generate", wrong, status=400)["error"]


def test_embeddings_equal_those_of_openais_api(server: Running) -> None:
    texts = ["one", "two"]
    found = ask(server, "/api/embed", {"model": MODEL, "input": texts})
    other = ask(server, "/v1/embeddings", {"input": texts})
    assert found["embeddings"] == [row["embedding"] for row in other["data"]]
    assert found["prompt_eval_count"] == other["usage"]["prompt_tokens"]
    single = ask(server, "/api/embeddings", {"model": MODEL, "prompt": "one"})
    assert single["embedding"] == found["embeddings"][0]


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/api/chat", {"messages": [{**HELLO[0], "images": ["aGk="]}]}, "only text is supported"),
        ("/api/chat", {"messages": HELLO, "keep_alive": "soon"}, "keep_alive"),
        ("/api/chat", {"messages": HELLO, "options": {"temperature": "1"}}, "options.temperature"),
        ("/api/chat", {"messages": HELLO, "options": {"num_predict": "1"}}, "options.num_predict"),
        ("/api/generate", {"prompt": "x", "template": "{{ .Prompt }}"}, "template"),
        ("/api/generate", {"prompt": "x", "context": [1, 2]}, "/api/chat"),
        ("/api/show", {}, "model is missing"),
        ("/api/chat", {"messages": HELLO, "top_logprobs": 2}, "Set logprobs"),
    ],
)
def test_what_cannot_be_done_is_one_clear_error(
    server: Running, path: str, body: dict[str, Any], said: str
) -> None:
    error = ask(server, path, body, status=400)["error"]
    assert isinstance(error, str)
    assert said in error


def test_a_missing_endpoint_and_a_missing_model_are_errors_in_ollamas_form() -> None:
    with running(strict_model_names=True) as own:
        assert "/api/push" in ask(own, "/api/push", {}, status=404)["error"]
        assert "nobody" in ask(own, "/api/show", {"model": "nobody"}, status=404)["error"]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(None, None), (0, 0), ("0", 0), (300, 300), ("5m", 300), ("1h30m", 5400), ("250ms", 0.25)],
)
def test_keep_alive_is_seconds_or_a_duration(value: Any, seconds: float | None) -> None:
    assert keep_alive_seconds(value) == seconds


@pytest.mark.parametrize("value", [-1, "-1", "-1m"])
def test_a_negative_keep_alive_keeps_the_model_loaded(value: Any) -> None:
    assert keep_alive_seconds(value) == float("inf")


@pytest.mark.parametrize("value", ["soon", "5x", "m", "1h-", "", "-", "nan"])
def test_other_texts_are_no_durations(value: str) -> None:
    with pytest.raises(ApiError, match="keep_alive"):
        keep_alive_seconds(value)


def test_a_call_that_the_token_limit_cuts_off_is_left_out(server: Running) -> None:
    asked = [{"role": "user", "content": "What is the weather in Oslo?"}]
    function = {**TOOL["function"], "name": "get_weather"}
    function["description"] = "Get the weather of a city"
    function["parameters"] = {**function["parameters"], "required": ["city"]}
    tools = [{"type": "function", "function": function}]
    body = {"messages": asked, "tools": tools, "options": {"temperature": 0, "num_predict": 16}}
    whole = ask(server, "/api/chat", {**body, "stream": False})
    assert whole["message"] == {"role": "assistant", "content": ""}
    *rows, last = stream_lines(server, "/api/chat", body)
    assert [row["message"] for row in (*rows, last) if "tool_calls" in row["message"]] == []
    assert "".join(row["message"]["content"] for row in (*rows, last)) == ""
    assert whole["done_reason"] == last["done_reason"] == "length"
    body["options"]["num_predict"] = 100
    (call,) = ask(server, "/api/chat", {**body, "stream": False})["message"]["tool_calls"]
    assert call["function"] == {"index": 0, "name": "get_weather", "arguments": {"city": "Oslo"}}


def test_a_call_that_is_not_valid_becomes_content() -> None:
    calls = [
        Call("a", "f", '{"x": 1', False, '<tool_call>{"x": 1!</tool_call>'),
        Call("b", "g", "", True, "<tool_call>g</tool_call>"),
    ]
    complete = {"function": {"index": 0, "name": "g", "arguments": {}}}
    assert whole_message(Answer("Hm.", "", calls), "stop") == {
        "role": "assistant",
        "content": 'Hm.<tool_call>{"x": 1!</tool_call>',
        "tool_calls": [complete],
    }
    reply = Reply(None, None)  # type: ignore[arg-type]
    events = [
        event
        for i, call in enumerate(calls)
        for event in (
            CallStart(i, call.id, call.name),
            CallArguments(i, call.arguments),
            CallEnd(i, call.complete, call.source),
        )
    ]
    messages = [reply.message(Piece(event)) for event in events]
    assert [m["tool_calls"] for m in messages if m is not None] == [[complete]]
    assert reply.unparsed("stop") == calls[0].source
    assert reply.unparsed("length") == ""


def test_results_of_tools_get_the_ids_of_their_calls() -> None:
    call = {"function": {"name": "weather", "arguments": {"city": "Rome"}}}
    other = {"function": {"name": "time", "arguments": {}}}
    found = plain_messages(
        [
            Message(role="user", content="?"),
            Message.model_validate({"role": "assistant", "tool_calls": [call, other]}),
            Message(role="tool", content="noon", tool_name="time"),
            Message(role="tool", content="sunny"),
        ]
    )
    ids = [each["id"] for each in found[1]["tool_calls"]]
    assert [row["tool_call_id"] for row in found[2:]] == [ids[1], ids[0]]
    assert json.loads(found[1]["tool_calls"][0]["function"]["arguments"]) == {"city": "Rome"}


def test_the_server_listens_on_ollamas_port_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from zinc.server import main
    from zinc.server.config import ModelSource, ServerConfig

    free = main.bind("127.0.0.1", 0)
    port = free.getsockname()[1]
    free.close()
    monkeypatch.setattr(main, "OLLAMA_PORT", port)
    found: list[int] = []
    urls: list[str] = []

    async def serve(self: main.Server, sockets: list[Any]) -> None:
        found.extend(each.getsockname()[1] for each in sockets)
        self._loaded()

    monkeypatch.setattr(main.Server, "serve", serve)
    monkeypatch.setattr(main.log, "set_up", lambda json_lines: None)
    main.serve(ServerConfig((ModelSource(MODEL, None),), port=0, ollama=True), urls.append)
    assert len(found) == 2
    assert found[1] == port
    assert urls == [f"http://127.0.0.1:{each}" for each in found]
