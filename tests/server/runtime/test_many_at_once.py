"""Many clients at once: each gets the same text as alone; disconnects leave nothing behind."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from serving import MODEL, PATIENCE_S, Brake, Running, running, wait_for

import zinc.llm.model_text
from zinc import LLM, SamplingParams
from zinc.engine.engine import Engine
from zinc.engine.sequence import Sequence
from zinc.server import main

PROMPTS = [
    "Hello", "Tell me a story about a fox.", "What is 2 + 3?", "Who are you?",
    "Name three colours.", "What is the capital of France?", "Write a short poem.",
    "How do plants grow?",
]  # fmt: skip


def fields(i: int, **more: object) -> dict[str, object]:
    prompt = f"{PROMPTS[i % len(PROMPTS)]} ({i // len(PROMPTS)})"
    messages = [{"role": "user", "content": prompt}]
    return {"messages": messages, "temperature": 0, "max_tokens": 24 + i % 5, **more}


def content(server: Running, i: int) -> str:
    answer = server.post("/v1/chat/completions", fields(i, stream=True))
    assert answer.status == 200
    assert answer.events[-1] == "[DONE]"
    return "".join(e["choices"][0]["delta"].get("content") or "" for e in answer.events[:-1])


BEGINNING = 8  # steps after which an answer has begun


def open_stream(server: Running, **more: object) -> socket.socket:
    """Open a connection and start to stream a long answer on it."""
    story = [{"role": "user", "content": "Tell me a long story."}]
    body = json.dumps(
        {"messages": story, "stream": True, "ignore_eos": True, "max_tokens": 900, **more}
    ).encode()
    connection = server.connect()
    connection.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body
    )
    received = b""
    while b"data: " not in received:
        received += connection.recv(4096)
    return connection


def wait_left(server: Running, brake: Brake) -> None:
    """Wait until the server notices a disconnect during an answer and has freed everything."""
    wait_for(lambda: server.live() == 0)
    brake.release()
    server.wait_idle()


def test_32_interleaved_streams_give_the_same_text_as_alone(server: Running, brake: Brake):
    """32 complete streams and 12 cancelled ones arrive in random order."""
    alone = [content(server, i) for i in range(16)]
    chance = random.Random(7)
    kinds = [i % 16 for i in range(32)] + [None] * 12
    chance.shuffle(kinds)
    delays_s = [chance.random() * 0.1 for _ in kinds]

    def one(kind: int | None, delay_s: float) -> str | None:
        time.sleep(delay_s)
        if kind is None:
            with open_stream(server, max_tokens=40):
                return None
        return content(server, kind)

    brake.hold(BEGINNING)
    with ThreadPoolExecutor(len(kinds)) as pool:
        found = pool.map(one, kinds, delays_s)
        wait_for(lambda: server.live() > 8)
        brake.release()
    assert list(found) == [None if kind is None else alone[kind] for kind in kinds]


def test_a_disconnect_frees_the_blocks(
    server: Running, brake: Brake, cancelled: list[Sequence]
) -> None:
    for _ in range(3):
        brake.hold(BEGINNING)
        with open_stream(server):
            assert server.live() == 1
        wait_left(server, brake)
    wait_for(lambda: len(cancelled) == 3)


def test_a_client_that_resets_or_half_closes(
    server: Running, brake: Brake, cancelled: list[Sequence]
) -> None:
    brake.hold(BEGINNING)
    connection = open_stream(server)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()
    wait_left(server, brake)
    brake.hold(BEGINNING)
    with open_stream(server) as connection:
        connection.shutdown(socket.SHUT_WR)
        wait_left(server, brake)
    wait_for(lambda: len(cancelled) == 2)


def test_a_disconnect_during_an_answer_that_is_not_streamed(
    server: Running, brake: Brake, cancelled: list[Sequence]
) -> None:
    body = json.dumps({"prompt": "x", "n_predict": 900, "ignore_eos": True}).encode()
    for path in (b"/completion", b"/v1/completions"):
        data = body.replace(b"n_predict", b"max_tokens") if path != b"/completion" else body
        brake.hold(BEGINNING)
        with server.connect() as connection:
            connection.sendall(
                b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
                + str(len(data)).encode() + b"\r\n\r\n" + data
            )  # fmt: skip
            wait_for(lambda: server.live() == 1)
        wait_left(server, brake)
    wait_for(lambda: len(cancelled) == 2)


def test_a_client_that_does_not_read(server: Running):
    """Its answer is generated and kept; other clients are served meanwhile."""
    with open_stream(server, max_tokens=200, logprobs=True, top_logprobs=20) as slow:
        assert content(server, 0)
        wait_for(lambda: server.live() == 0)
        received = b""
        while b"[DONE]" not in received:
            part = slow.recv(65536)
            assert part
            received = received[-16:] + part


def test_dry_breakers_are_computed_outside_the_engine_thread(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes a scan of the vocabulary, which must not delay streams."""
    found, threads = zinc.llm.model_text.breaker_sequences, []

    def noting(*args: Any) -> Any:
        threads.append(threading.current_thread().name)
        return found(*args)

    monkeypatch.setattr(zinc.llm.model_text, "breaker_sequences", noting)
    dry = {"dry_multiplier": 0.8, "max_tokens": 2}
    for i, (path, more) in enumerate(
        [
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
            ("/v1/completions", {"prompt": "x"}),
            ("/completion", {"prompt": "x"}),
        ]
    ):
        breakers = [f"breaker {i}"]
        with monkeypatch.context() as patch:
            given: list[Any] = []
            submit = Engine.submit
            patch.setattr(
                Engine,
                "submit",
                lambda engine, asked, submit=submit, given=given: (
                    given.append(asked.dry_breakers) or submit(engine, asked)
                ),
            )
            answer = server.post(path, {**dry, **more, "dry_sequence_breakers": breakers})
        assert answer.status == 200
        assert given[0]
    assert len(threads) == 3
    assert "zinc-engine" not in threads


def test_the_queue_is_bounded(brake: Brake):
    with running(max_waiting=0) as server, ExitStack() as streams:
        (model,) = server.call(lambda: server.application.pool.loaded)
        model.llm.engine.max_sequences = 2
        for _ in range(2):
            brake.hold(BEGINNING)
            streams.enter_context(open_stream(server))
        with streams:
            refused = server.post("/v1/chat/completions", fields(0))
            assert refused.status == 429
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.json["error"]["type"] == "rate_limit_error"
            assert refused.json["error"]["code"] == "queue_full"
            anthropic = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5}
            assert server.post("/v1/messages", anthropic).json["error"]["type"] == (
                "rate_limit_error"
            )
            wait_for(lambda: all(slot["is_processing"] for slot in server.get("/slots").json))
            assert server.get("/slots?fail_on_no_slot=1").status == 503
            assert server.get("/health").status == 200
        wait_left(server, brake)
        assert server.post("/v1/chat/completions", fields(0)).status == 200
        many = server.post("/v1/chat/completions", fields(0, n=3))
        assert many.status == 400


def test_too_many_answers_are_refused_before_grammars_are_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Building thousands of grammars takes minutes."""
    made: list[object] = []
    monkeypatch.setattr(LLM, "constraint", lambda *args: made.append(args))
    several = {"prompt": ["x"] * 2, "grammar": 'root ::= "y"'}
    with running(max_waiting=10) as server:
        for path, fields in (
            ("/v1/completions", {**several, "n": 64}),
            ("/completion", {**several, "n_cmpl": 64}),
            (
                "/v1/chat/completions",
                {
                    "messages": [{"role": "user", "content": "x"}],
                    "response_format": {"type": "json_object"},
                    "n": 128,
                },
            ),
        ):
            found = server.post(path, fields)
            assert found.status == 400
            assert "asks for 128 answers" in found.json["error"]["message"]
    assert not made


class Panic(BaseException):
    """A panic like that of a Rust library, which is not an Exception."""


@pytest.mark.parametrize("kind", [RuntimeError, Panic])
def test_a_failed_step_fails_its_requests_and_not_the_server(
    server: Running,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[BaseException],
) -> None:
    step, calls = Engine.step, []

    def fail(engine: Engine) -> list[Sequence]:
        calls.append(1)
        if len(calls) == 5:
            raise kind("the secret cause")
        return step(engine)

    monkeypatch.setattr(Engine, "step", fail)
    answer = server.post("/v1/chat/completions", fields(0, stream=True))
    assert answer.status == 200
    assert answer.events[-1]["error"]["type"] == "server_error"
    assert b"secret" not in answer.body
    assert "the secret cause" in caplog.text
    server.wait_idle()
    assert content(server, 0)


def test_a_bug_in_a_command_does_not_end_the_engine(
    server: Running, brake: Brake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise every later request would wait forever."""
    (model,) = server.call(lambda: server.application.pool.loaded)
    cancel, calls = Engine.cancel, []

    def broken(*args: Any) -> None:
        calls.append(args)
        if len(calls) == 1:
            raise ValueError("a bug")
        cancel(*args)

    monkeypatch.setattr(Engine, "cancel", broken)
    brake.hold(BEGINNING)
    with open_stream(server):
        pass
    wait_for(lambda: server.live() == 0)
    brake.release()
    wait_for(lambda: calls)
    assert server.post("/v1/chat/completions", fields(1)).status == 200
    for _, sequence, *_ in calls:
        model.llm.worker.call(lambda e, s=sequence: cancel(e, s))


def test_shutdown_lets_short_answers_end(brake: Brake):
    brake.hold()
    with running(grace_s=PATIENCE_S) as server, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(
            server.post, "/completion",
            {"prompt": "x", "n_predict": 100, "ignore_eos": True, "stream": True},
        )  # fmt: skip
        wait_for(lambda: server.live() == 1)
        server.server.should_exit = True
        wait_for(lambda: server.application.pool.closing)
        brake.release()
        events = answer.result(PATIENCE_S).events
        assert events[-1]["stop"] is True
        assert events[-1]["tokens_predicted"] == 100


def test_shutdown_sends_an_error_event_to_running_streams(
    brake: Brake, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(main, "_ERROR_EVENT_S", PATIENCE_S)
    with running(grace_s=0.2) as server:
        (model,) = server.call(lambda: server.application.pool.loaded)
        brake.hold(BEGINNING)
        with open_stream(server) as connection:
            server.server.should_exit = True
            wait_for(lambda: model.runner._closing)  # the streams get an error event next
            brake.release()
            received = b""
            while part := connection.recv(65536):
                received += part
        assert b"the server is shutting down" in received
        assert b"unavailable_error" in received


def test_models_are_named(server: Running):
    assert server.post("/v1/chat/completions", fields(0, model=MODEL)).json["model"] == MODEL


def test_the_model_of_a_server_can_be_used_from_python(server: Running) -> None:
    (model,) = server.call(lambda: server.application.pool.loaded)
    params = SamplingParams(temperature=0, max_tokens=12)
    want = model.llm.generate("Once upon a time", params).text
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(content, server, i) for i in range(4)]
        assert model.llm.generate("Once upon a time", params).text == want
        assert "".join(c.text for c in model.llm.stream("Once upon a time", params)) == want
        assert all(answer.result(PATIENCE_S) for answer in answers)
