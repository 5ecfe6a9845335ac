"""Bodies that are large, unfinished or full of small values must not stop other requests."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import LOAD, PATIENCE_S, Running, running, wait_for

import zinc
from zinc import LLM
from zinc.core.errors import RequestError, TextTooLongError
from zinc.server.config import ModelSource, ServerConfig
from zinc.server.errors import ApiError
from zinc.server.http import body
from zinc.server.http.body import MAX_MEMBERS, MAX_VALUES, count_values

SOURCE = Path(zinc.__file__).parent.parent
HEALTHY_S = 10  # of CPU time

# -- values ---------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('a,[]{}:"\\\\ü'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('a,[]{}:"\\\\'), inner),
    max_leaves=30,
)


def n_values(value: Any) -> int:
    inner = value if isinstance(value, list) else value.values() if isinstance(value, dict) else []
    return 1 + sum(map(n_values, inner))


@settings(max_examples=examples(400))
@given(JSON, st.booleans(), st.integers(1, 9))
def test_values_are_counted_before_parsing(value, ascii, size):
    """The count is never too low, and characters in strings do not count in long texts."""
    data = json.dumps(value, ensure_ascii=ascii).encode()
    assert count_values(data) >= n_values(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body, "FREE_BYTES", 0)
        patch.setattr(body, "_COUNTED_BYTES", size)
        exact = count_values(data)
    emptied = json.dumps(_without_text(value)).encode()
    assert exact == 1 + sum(emptied.count(mark) for mark in (b",", b"[", b"{"))


def _without_text(value: Any) -> Any:
    match value:
        case str():
            return ""
        case list():
            return [_without_text(each) for each in value]
        case dict():  # distinct keys without commas and brackets
            return {str(i): _without_text(each) for i, each in enumerate(value.values())}
        case _:
            return value


@pytest.mark.parametrize(
    "data",
    [
        b"[" + b"1," * MAX_VALUES + b"1]",
        b"[" + b"[]," * MAX_MEMBERS + b"1]",
        b"[" + b'{"a":1},' * (MAX_MEMBERS // 2) + b"{}]",
        b"{" + b'"a":1,' * MAX_MEMBERS + b'"b":1}',
    ],
    ids=["numbers", "arrays", "objects", "members"],
)
def test_too_many_values_are_refused_before_parsing(data):
    with pytest.raises(ApiError, match="too many values") as error:
        count_values(data)
    assert error.value.status == 413


def test_text_may_contain_any_number_of_commas_and_brackets():
    text = json.dumps({"content": 'a["b"], {c: \\d}' * (1 << 18)}).encode()
    assert count_values(text) < 10


def test_a_prompt_of_as_many_tokens_as_the_context_is_accepted():
    assert count_values(json.dumps({"prompt": [1000] * 1_000_000}).encode()) <= MAX_VALUES


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("/v1/completions", b'{"prompt":[' + b"[]," * 8_000_000 + b"[]]}"),
        ("/v1/chat/completions", b'{"messages":[' + b'{"role":"user"},' * 1_500_000 + b"{}]}"),
        ("/v1/chat/completions", b'{"messages":[' + b'{"role":"user"},' * 30_000 + b"{}]}"),
        ("/completion", b'{"prompt":' + b"[" * 8_000_000),
        ("/v1/messages", b"{" + b'"a":0,' * 4_000_000 + b'"b":1}'),
    ],
    ids=["arrays", "messages", "fewer messages", "nested", "members"],
)
def test_a_body_of_small_values_delays_no_other_request(server: Running, path, data):
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(server.post(path, data)))
    slowest = 0.0
    thread.start()
    while thread.is_alive():
        begun = time.process_time()  # a request that waits for another one waits for its work
        assert server.get("/health").status == 200
        slowest = max(slowest, time.process_time() - begun)
    thread.join()
    assert answers[0].status in (400, 413)
    assert slowest < HEALTHY_S


# -- unfinished bodies ----------------------------------------------------------------------------


def test_unfinished_bodies_share_a_memory_limit():
    """24 clients send most of a large body and then stop; others are still answered."""
    part = b'{"prompt": "' + b"a " * (500 << 10)
    with running(max_body_bytes=2 << 20, max_body_memory_bytes=6 << 20) as server:
        memory = server.application.body_memory
        head = (
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000000\r\n\r\n"
        )
        clients = [server.connect() for _ in range(24)]
        refused = []
        for client in clients:
            # Some are refused before the whole body is sent.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                client.sendall(head + part)
        wait_for(lambda: memory.n_bytes > 4 << 20)
        assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).status == 200
        assert memory.n_bytes <= 6 << 20
        # The server waits for the rest of the others.
        wait_for(lambda: len(select.select(clients, [], [], 0)[0]) >= 24 - 6)
        for client in select.select(clients, [], [], 0)[0]:
            try:
                refused.append(client.recv(4096))
            except ConnectionResetError:
                refused.append(b"")
        (answer, *_) = [each for each in refused if each]
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: " in answer.lower()
        assert b"body_memory_exceeded" in answer
        for client in clients:
            client.close()
        wait_for(lambda: memory.n_bytes == 0)
        assert server.post("/v1/completions", part + b'", "max_tokens": 1}').status == 400


def test_memory_is_counted_until_a_request_is_answered(server: Running):
    memory = server.application.body_memory
    fields = {"prompt": "a", "max_tokens": 1, "metadata": {"a": "b" * 200_000}}
    answer = server.post("/v1/completions", fields | {"stream": True})
    assert answer.status == 200
    server.post("/v1/completions", {"prompt": [0] * 50_000})
    wait_for(lambda: memory.n_bytes == 0)


def test_the_memory_limit_must_allow_one_body():
    model = (ModelSource("demo", None),)
    with pytest.raises(RequestError, match="--max-body-memory is less than --max-body"):
        ServerConfig(model, max_body_bytes=2 << 20, max_body_memory_bytes=1 << 20)
    assert ServerConfig(model, max_body_bytes=1 << 30).body_memory_bytes == 4 << 30


# -- memory of a request --------------------------------------------------------------------------

# Limits that docs/server.md documents.
TIMES_THE_BODY, AND_BYTES = 24, 256 << 20
BODY_BYTES = 8 << 20


@dataclass
class Process:
    """A server in a separate process."""

    process: subprocess.Popen[str]
    port: int
    headers: dict[str, str] = field(default_factory=dict)
    idle_bytes: int = 0
    largest_body_bytes: int = 0  # of all requests so far

    def resident_bytes(self, name: str) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) << 10

    def growth_bytes(self, path: str, data: bytes) -> tuple[int, int]:
        """Return the status of a request, and the peak memory above that of an idle server.

        Freed memory that the process has not given back to the system counts, also that of earlier
        requests. It is therefore compared with the limit of the largest body (`limit_bytes`).
        """
        self.largest_body_bytes = max(self.largest_body_bytes, len(data))
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")  # reset the peak
        answer = Running.request(self, "POST", path, data)  # type: ignore[arg-type]
        return answer.status, self.resident_bytes("VmHWM") - self.idle_bytes

    def limit_bytes(self) -> int:
        return TIMES_THE_BODY * self.largest_body_bytes + AND_BYTES


@pytest.fixture(scope="module")
def process() -> Iterator[Process]:
    command = [sys.executable, "-m", "zinc", "serve", "--port", "0", "--backend", LOAD.backend]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "MALLOC_ARENA_MAX": "2"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as found:
        try:
            assert found.stderr is not None
            for line in found.stderr:
                if match := re.search(r"serving on http://127.0.0.1:(\d+)", line):
                    break
            log = threading.Thread(target=found.stderr.read)
            log.start()
            server = Process(found, int(match[1]))
            wait_for(lambda: Running.request(server, "GET", "/health").status == 200)
            for path, text in PATHS.items():
                Running.request(server, "POST", path, json.dumps(text("a")).encode())
            server.idle_bytes = server.resident_bytes("VmRSS")
            yield server
            found.send_signal(signal.SIGTERM)
            assert found.wait(PATIENCE_S) == 0
        finally:
            found.kill()
            log.join()


def _message(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 1}


PATHS = {
    "/v1/chat/completions": _message,
    "/v1/chat/completions/input_tokens": _message,
    "/v1/completions": lambda text: {"prompt": text, "max_tokens": 1},
    "/v1/embeddings": lambda text: {"input": text},
    "/v1/responses": lambda text: {"input": text, "max_output_tokens": 1},
    "/v1/responses/input_tokens": lambda text: {"input": text},
    "/v1/messages": _message,
    "/v1/messages/count_tokens": _message,
    "/completion": lambda text: {"prompt": text, "n_predict": 1},
    "/infill": lambda text: {"input_prefix": text, "input_suffix": text, "n_predict": 1},
    "/embedding": lambda text: {"content": text},
    "/tokenize": lambda text: {"content": text},
    "/apply-template": _message,
}
TEXTS = {
    "words": "some words of a text ",
    "spaces": " ",
    "letters": "x",
    "wide": "a" * 1000 + "\U0001f600",  # one such character makes Python store four bytes for each
    "ideographs": "字典",
    "specials": "<|im_end|>",
    "escapes": "\x01",
}


def _check(process: Process, path: str, kind: str) -> None:
    text = TEXTS[kind]
    ascii = kind == "escapes"
    each = len(json.dumps(text, ensure_ascii=ascii).encode()) - 2
    data = json.dumps(PATHS[path](text * (BODY_BYTES // each)), ensure_ascii=ascii).encode()
    status, growth = process.growth_bytes(path, data)
    print(f"{path} {kind}: {status}, {growth / len(data):.1f} times {len(data) >> 20} MiB")
    assert status in (200, 400, 501)
    assert growth < process.limit_bytes()


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="needs Linux to tell a process's memory"
)


@needs_proc
@pytest.mark.alike(5)
@pytest.mark.parametrize("path", PATHS)
def test_memory_of_a_request_is_bounded_by_its_body(process: Process, path):
    _check(process, path, "wide")


@needs_proc
@pytest.mark.every
@pytest.mark.parametrize("kind", [kind for kind in TEXTS if kind != "wide"])
@pytest.mark.parametrize("path", PATHS)
def test_memory_of_a_request_is_bounded_whatever_its_text(process: Process, path, kind):
    _check(process, path, kind)


@needs_proc
@pytest.mark.parametrize("path", ["/tokenize", "/v1/chat/completions/input_tokens"])
def test_memory_of_a_million_tokens_is_bounded(process: Process, path):
    text = "word " * 600_000  # slightly below the limit of counted tokens
    fields = PATHS[path](text) | ({"with_pieces": True} if path == "/tokenize" else {})
    data = json.dumps(fields).encode()
    status, growth = process.growth_bytes(path, data)
    print(f"{status}, {growth >> 20} MiB for {len(data) >> 20} MiB")
    assert status == 200
    assert growth < process.limit_bytes()


@needs_proc
@pytest.mark.parametrize(
    "data",
    [
        b'{"prompt":[' + b"1000," * 1_000_000 + b"1]}",
        b'{"prompt":"a","logit_bias":{' + b",".join(b'"%d":1' % i for i in range(65_000)) + b"}}",
        b'{"prompt":"a","x":[' + b"{}," * 65_000 + b"1]}",
        b'{"prompt":"a","x":[' + b"1.5," * 1_000_000 + b"1]}",
    ],
    ids=["ids", "biases", "objects", "numbers"],
)
def test_memory_of_many_values_is_bounded(process: Process, data):
    status, growth = process.growth_bytes("/v1/completions", data)
    print(f"{status}, {growth >> 20} MiB for {len(data) >> 20} MiB")
    assert status == 400
    assert growth < process.limit_bytes()


# -- the Python API -------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["x", " ", "字", "some words\n"])
def test_the_python_api_refuses_a_text_that_cannot_fit(unit, monkeypatch: pytest.MonkeyPatch):
    with LLM(backend=LOAD.backend, threads=LOAD.threads) as llm:
        monkeypatch.setattr(
            llm.tokenizer._encoder, "encode", None
        )  # fails if the text is tokenized
        text = unit * (3_000_000 // len(unit))
        with pytest.raises(TextTooLongError, match="it has at least"):
            llm.generate(text)
        with pytest.raises(TextTooLongError, match="it has at least"):
            llm.embed([text])
