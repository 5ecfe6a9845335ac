"""A server for page tests: it serves the page's files and sends scripted answers byte by byte.

Tests use it for answers that a small model cannot be made to write or a real server would not
send: hostile Markdown, tool calls, a character cut in two, a broken connection. An answer can
contain gates, where it waits until the test opens them.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

from serving import PATIENCE_S

from zinc.server import page

ASSETS = page.assets()

Gate: TypeAlias = threading.Event
Part: TypeAlias = bytes | float | Gate
"""A part of an answer: bytes to send, seconds to wait, or a gate to wait at."""


@dataclass
class Failure:
    """An error response."""

    status: int
    message: str
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Script:
    """The state of the server: queued answers, and the requests it received."""

    answers: list[Iterable[Part] | Failure] = field(default_factory=list)
    models: list[dict[str, Any]] = field(
        default_factory=lambda: [
            {"id": "demo", "object": "model", "state": "loaded", "meta": {"n_ctx": 4096}}
        ]
    )
    key: str | None = None
    params: dict[str, Any] = field(default_factory=lambda: {"temperature": 0.8, "top_k": 40})
    asked: list[dict[str, Any]] = field(default_factory=list)
    gates: list[Gate] = field(default_factory=list)
    gone: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def say(self, *parts: Part | Failure) -> None:
        """Queue an answer: its parts, or an error."""
        if parts and isinstance(parts[0], Failure):
            self.answers.append(parts[0])
        else:
            self.say_all(part for part in parts if not isinstance(part, Failure))

    def say_all(self, parts: Iterable[Part]) -> None:
        """Queue an answer, which may be endless."""
        self.answers.append(parts)

    def gate(self) -> Gate:
        """Return a gate, where an answer waits until the test calls `set`."""
        self.gates.append(Gate())
        return self.gates[-1]


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    """Return an event of a streamed chat completion."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    body = {"object": "chat.completion.chunk", "model": "demo", "choices": [choice], **more}
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def answer(
    text: str | Iterable[str | Gate] = "",
    *,
    reasoning: Iterable[str | Gate] = (),
    calls: Iterable[tuple[str, str]] = (),
    finish: str = "stop",
) -> list[Part]:
    """Return a whole stream: reasoning, content and calls in pieces, timings, usage and its end.

    Between the pieces there may be gates.
    """

    def pieces(name: str, given: Iterable[str | Gate]) -> list[Part]:
        return [piece if isinstance(piece, Gate) else chunk({name: piece}) for piece in given]

    parts: list[Part] = [chunk({"role": "assistant", "content": ""})]
    parts += pieces("reasoning_content", reasoning)
    parts += pieces("content", [text] if isinstance(text, str) else text)

    for index, (name, arguments) in enumerate(calls):
        head = {"index": index, "id": f"call_{index}", "type": "function"}
        begin = {**head, "function": {"name": name, "arguments": ""}}
        parts.append(chunk({"tool_calls": [begin]}))
        for start in range(0, len(arguments), 5):
            function = {"arguments": arguments[start : start + 5]}
            parts.append(chunk({"tool_calls": [{"index": index, "function": function}]}))
    n = sum(isinstance(part, bytes) for part in parts)
    timings = {
        "prompt_n": 100, "prompt_ms": 250.0, "prompt_per_second": 400.0,
        "predicted_n": n, "predicted_ms": n * 20.0, "predicted_per_second": 50.0,
    }  # fmt: skip
    usage = {"prompt_tokens": 100, "completion_tokens": n, "total_tokens": 100 + n}
    parts.append(chunk({}, finish, timings=timings))
    parts.append(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n")
    parts.append(b"data: [DONE]\n\n")
    return parts


class Server(ThreadingHTTPServer):
    """A server that follows one script after another."""

    daemon_threads = True
    script: Script

    @contextmanager
    def following(self) -> Iterator[Script]:
        """Follow a new script."""
        self.script = script = Script(url=f"http://127.0.0.1:{self.server_address[1]}/")
        try:
            yield script
        finally:
            for gate in script.gates:
                gate.set()


@contextmanager
def script_server(port: int = 0) -> Iterator[Server]:
    """Run a scripted server on `port`, by default a free one."""
    server = Server(("127.0.0.1", port), _Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE_S)


@contextmanager
def scripted(port: int = 0) -> Iterator[Script]:
    """Run a scripted server on `port`, by default a free one, for one script."""
    with script_server(port) as server, server.following() as script:
        yield script


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def setup(self) -> None:
        super().setup()
        self.script = self.server.script  # later requests may belong to the next one

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in ASSETS:
            asset = ASSETS[path]
            headers = {**page.HEADERS, "Content-Type": asset.media_type}
            headers["Cache-Control"] = "max-age=3600"  # the same for all tests
            self._send(200, asset.body, headers)
        elif not self._has_key():
            self._send_failure(Failure(401, "the API key is missing or wrong"))
        elif path == "/v1/models":
            self._send_json(200, {"object": "list", "data": self.script.models})
        elif path == "/props":
            self._send_json(200, {"default_generation_settings": {"params": self.script.params}})
        else:
            self._send_failure(Failure(404, "there is no such thing"))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._has_key():
            self._send_failure(Failure(401, "the API key is missing or wrong"))
            return
        self.script.asked.append(body)
        found = self.script.answers.pop(0)
        if isinstance(found, Failure):
            self._send_failure(found)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            for part in found:
                if isinstance(part, float):
                    time.sleep(part)
                elif isinstance(part, Gate):
                    assert part.wait(PATIENCE_S), "nobody has opened the gate"
                else:
                    self.wfile.write(part)
                    self.wfile.flush()
        except OSError:
            self.script.gone.set()

    def _has_key(self) -> bool:
        key = self.script.key
        return key is None or self.headers.get("Authorization") == f"Bearer {key}"

    def _send_failure(self, failure: Failure) -> None:
        error = {"message": failure.message, "code": failure.code}
        self._send_json(failure.status, {"error": error}, failure.headers)

    def _send_json(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        given = {"Content-Type": "application/json", **(headers or {})}
        self._send(status, json.dumps(body).encode(), given)

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
