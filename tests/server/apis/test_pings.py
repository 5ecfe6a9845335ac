"""Pings in silent streams: their form in each API, and the interval."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from serving import Brake, Running

from zinc.server.apis.shared import service

STORY = {"messages": [{"role": "user", "content": "Tell me a long story."}], "max_tokens": 4}
COMMENT = b"\n\n: ping\n\n"
STREAMS: list[tuple[str, dict[str, Any], bytes]] = [
    ("/v1/chat/completions", STORY, COMMENT),
    ("/v1/completions", {"prompt": "Once", "max_tokens": 4}, COMMENT),
    ("/v1/responses", {"input": "Hello", "max_output_tokens": 4}, COMMENT),
    ("/completion", {"prompt": "Once", "n_predict": 4}, COMMENT),
    ("/v1/messages", STORY, b'\n\nevent: ping\ndata: {"type":"ping"}\n\n'),
]


def stream_until(server: Running, brake: Brake, path: str, fields: object, wanted: bytes) -> bytes:
    """Return the data of a stream whose engine only runs after `wanted` was received."""
    body = json.dumps(fields).encode()
    brake.hold()
    with server.connect() as connection:
        connection.sendall(
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        received = b""
        while part := connection.recv(65536):
            received += part
            if wanted in plain(received):
                brake.release()
    return plain(received)


def plain(received: bytes) -> bytes:
    """Return the body of a chunked response, as far as it was received."""
    _, _, rest = received.partition(b"\r\n\r\n")
    body = b"\n\n"
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        n_bytes = int(size or b"0", 16)
        body, rest = body + rest[:n_bytes], rest[n_bytes + 2 :]
    return body


@pytest.mark.parametrize(("path", "fields", "ping"), STREAMS, ids=[s[0] for s in STREAMS])
def test_a_stream_sends_pings_while_its_prompt_waits(
    server: Running, brake: Brake, path: str, fields: dict[str, Any], ping: bytes
):
    asked = {**fields, "stream": True, "sse_ping_interval": 1, "ignore_eos": True}
    # Two pings in a row, with nothing between them; /v1/messages sends one at its start.
    twice = path in ("/completion", "/v1/messages")
    wanted = ping + ping.lstrip(b"\n") if twice else ping
    found = stream_until(server, brake, path, asked, wanted)
    assert found.endswith((b"data: [DONE]\n\n", b"}\n\n"))
    assert b'"error":{' not in found


def test_the_default_interval_equals_llama_cpps_and_can_be_turned_off(
    server: Running, brake: Brake, monkeypatch: pytest.MonkeyPatch
):
    assert service.PING_INTERVAL_S == 30
    monkeypatch.setattr(service, "PING_INTERVAL_S", 0.1)
    asked = {"prompt": "Once", "n_predict": 4, "stream": True}
    assert COMMENT in stream_until(server, brake, "/completion", asked, COMMENT)
    for interval in (0, -1):
        brake.hold()
        threading.Timer(0.5, brake.release).start()
        answer = server.post("/completion", {**asked, "sse_ping_interval": interval})
        assert COMMENT.strip() not in answer.body


def test_a_message_stream_pings_at_its_start(server: Running):
    events = server.post("/v1/messages", {**STORY, "stream": True}).events
    assert [each["type"] for each in events[:2]] == ["message_start", "ping"]


@pytest.mark.parametrize("path", ["/completion", "/v1/messages"])
def test_an_interval_that_is_not_valid_is_refused(server: Running, path: str):
    fields = STORY if path == "/v1/messages" else {"prompt": "Once"}
    found = server.post(path, {**fields, "stream": True, "sse_ping_interval": -2})
    assert found.status == 400
    assert "sse_ping_interval" in found.json["error"]["message"]
