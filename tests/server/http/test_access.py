"""Access checks (keys, hosts, origins), body limits, and invalid bodies."""

from __future__ import annotations

import gzip
import json
import random
import re

import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from serving import WEATHER, Running, running

from zinc.cli import serve
from zinc.cli.main import build_parser
from zinc.core.errors import RequestError
from zinc.server.config import ModelSource, ServerConfig
from zinc.server.endpoints import ENDPOINTS
from zinc.server.http import body

HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
MODELS = (ModelSource("demo", None),)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_a_public_address_needs_a_key(host):
    with pytest.raises(RequestError, match="without an API key"):
        ServerConfig(MODELS, host=host)
    ServerConfig(MODELS, host=host, api_keys=("secret",))
    ServerConfig(MODELS, host=host, allow_public=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
def test_a_loopback_address_needs_no_key(host):
    ServerConfig(MODELS, host=host)


def test_other_invalid_configurations():
    with pytest.raises(RequestError, match="no model"):
        ServerConfig(())
    with pytest.raises(RequestError, match="'demo'"):
        ServerConfig((*MODELS, *MODELS))
    with pytest.raises(RequestError, match="API key"):
        ServerConfig(MODELS, api_keys=("",))


def test_keys():
    with running(api_keys=("first key", "second")) as server:
        server.headers.clear()
        for path in ("/health", "/v1/health", "/", "/page/icon.svg"):
            assert server.get(path).status == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "first key"}):
            found = server.post("/v1/chat/completions", HELLO, headers=headers)
            assert found.status == 401
            assert found.json["error"]["code"] == "invalid_api_key"
            assert found.headers["www-authenticate"] == "Bearer"
        assert server.get("/metrics").status == 401
        assert server.post("/v1/messages", HELLO).json["error"]["type"] == "authentication_error"
        for headers in (
            {"Authorization": "Bearer first key"},
            {"authorization": "bearer second"},
            {"x-api-key": "second"},
        ):
            assert server.post("/v1/chat/completions", HELLO, headers=headers).status == 200
        assert server.get("/openapi.json", headers={"x-api-key": "second"}).json["security"]


def test_other_host_names_are_refused(server: Running):
    for host in ("evil.example", "evil.example:8080", "127.0.0.1.evil.example", ""):
        assert server.get("/health", headers={"Host": host}).status == 421
    for host in ("localhost", "localhost:1", "[::1]:5", "127.0.0.1"):
        assert server.get("/health", headers={"Host": host}).status == 200


@pytest.mark.parametrize("name", ["host.docker.internal", "host.containers.internal"])
def test_containers_may_call_this_machine(server: Running, name: str):
    host = f"{name}:{server.port}"
    assert server.post("/v1/chat/completions", HELLO, headers={"Host": host}).status == 200
    page = {"Host": host, "Origin": f"http://{host}"}
    assert server.post("/v1/chat/completions", HELLO, headers=page).status == 200


def test_other_origins_are_refused(server: Running):
    for origin in ("https://evil.example", "null", "http://localhost.evil.example"):
        found = server.post("/v1/chat/completions", HELLO, headers={"Origin": origin})
        assert found.status == 403
        assert "access-control-allow-origin" not in found.headers
    for origin in ("http://localhost:3000", "http://127.0.0.1:5173", server.url):
        found = server.post("/v1/chat/completions", HELLO, headers={"Origin": origin})
        assert found.status == 200
        assert found.headers["access-control-allow-origin"] == origin
    preflight = {
        "Origin": "http://localhost:3000",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type",
    }
    found = server.request("OPTIONS", "/v1/chat/completions", headers=preflight)
    assert found.status == 200
    assert found.headers["access-control-allow-headers"] == "authorization, content-type"


@pytest.mark.parametrize(
    "origin",
    [
        "vscode-webview://0a1b2c3d4e5f", "vscode-file://vscode-app", "app://obsidian.md",
        "file://", "tauri://localhost", "http://tauri.localhost",
    ],
)  # fmt: skip
def test_apps_may_call(server: Running, origin: str):
    found = server.post("/v1/chat/completions", HELLO, headers={"Origin": origin})
    assert found.status == 200
    assert found.headers["access-control-allow-origin"] == origin


EXTENSION = "chrome-extension://abcdefghijklmnop"


def test_browser_extensions_may_not_call_unless_they_are_allowed(server: Running):
    for origin in (EXTENSION, "moz-extension://0a1b", "safari-web-extension://0A1B"):
        found = server.post("/v1/chat/completions", HELLO, headers={"Origin": origin})
        assert found.status == 403
        assert f"--allow-origin {origin}" in found.json["error"]["message"]


@pytest.mark.parametrize("allowed", [EXTENSION, "chrome-extension://*", "*"])
def test_a_browser_extension_can_be_allowed(allowed: str):
    with running(origins=(allowed,)) as server:
        for origin, status in ((EXTENSION, 200), ("moz-extension://0a1b", 403)):
            found = server.post("/v1/chat/completions", HELLO, headers={"Origin": origin})
            assert found.status == (200 if allowed == "*" else status)


def test_both_names_of_the_option_allow_an_origin():
    for option in ("--allow-origin", "--cors-origin"):
        args = build_parser().parse_args(["serve", option, EXTENSION])
        assert serve.config(args).origins == (EXTENSION,)


def test_strict_model_names_are_an_option():
    for options, strict in (([], False), (["--strict-model-names"], True)):
        args = build_parser().parse_args(["serve", *options])
        assert serve.config(args).strict_model_names is strict


def test_allowed_origins():
    with running(origins=("https://chat.example",), api_keys=("k",)) as server:
        for origin, status in (("https://chat.example", 200), ("https://other.example", 403)):
            found = server.post("/v1/chat/completions", HELLO, headers={"Origin": origin})
            assert found.status == status
            preflight = {
                "Origin": origin,
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Private-Network": "true",
            }
            found = server.request("OPTIONS", "/v1/chat/completions", headers=preflight)
            private = found.headers.get("access-control-allow-private-network")
            assert (found.status, private) == (status, "true" if status == 200 else None)


def test_large_bodies():
    with running(max_body_bytes=5000) as server:
        large = {"messages": [{"role": "user", "content": "x" * 6000}]}
        found = server.post("/v1/chat/completions", large)
        assert found.status == 413
        assert found.json["error"]["code"] == "request_too_large"
        chunked = (
            b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        with server.connect() as connection:
            connection.sendall(chunked)
            for _ in range(3):
                connection.sendall(b"800\r\n" + b" " * 2048 + b"\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 413")
        assert server.post("/v1/chat/completions", HELLO).status == 200


def test_a_compressed_body_is_refused_by_its_name(server: Running):
    data = gzip.compress(json.dumps(HELLO).encode())
    found = server.post("/v1/chat/completions", data, headers={"Content-Encoding": "gzip"})
    assert found.status == 415
    assert "gzip" in found.json["error"]["message"]
    plain = server.post("/v1/chat/completions", HELLO, headers={"Content-Encoding": "identity"})
    assert plain.status == 200


def test_a_body_that_never_arrives(server: Running, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(body, "BODY_TIMEOUT_S", 0.2)
    with server.connect() as connection:
        head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
        connection.sendall(head + b"Content-Length: 9\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 408")
        while connection.recv(4096):
            pass


def test_unknown_fields_can_be_ignored():
    with running(ignore_unknown_fields=True) as server:
        assert server.post("/v1/chat/completions", {**HELLO, "some_field": 1}).status == 200


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"nul", b"\xff\xfe", b"[]", b"1", b'"x"', b"null", b"{}", b'{"a":NaN}',
        b'{"messages":[{"role":"user","content":"x"}],"temperature":Infinity}',
        b"[" * 50_000, b'{"a":' * 3000 + b"1" + b"}" * 3000,
        b'{"messages":' + b"9" * 5000 + b"}",
        b'{"messages":[{"role":"user","content":"x"}],"temperature":1e999}',
        b'{"messages":[{"role":"user","content":"x"}],"seed":' + b"9" * 40 + b"}",
        b'{"messages":[' + b"1," * 100_000 + b"1]}",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/messages", "/completion", "/v1/responses"]
)
def test_invalid_bodies(server: Running, path, data):
    found = server.post(path, data)
    assert found.status == 400
    assert found.json["error"]["message"]
    assert b"Traceback" not in found.body


def test_lone_surrogates_become_the_replacement_character(server: Running):
    found = server.post("/tokenize", b'{"content":"a\\ud83db"}')
    ids = found.json["tokens"]
    assert server.post("/detokenize", {"tokens": ids}).json["content"] == "a\ufffdb"


TOOL_CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
BASES: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {
        **HELLO, "tools": [WEATHER], "stop": ["x"], "logit_bias": {"1": 1}, "seed": 1, "n": 1,
        "stream": False, "response_format": {"type": "text"}, "top_p": 0.5, "tool_choice": "auto",
        "chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "low",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "x"}]},
            {"role": "assistant", "content": "y", "tool_calls": [TOOL_CALL]},
            {"role": "tool", "content": "z", "tool_call_id": "1"},
            {"role": "user", "content": "x"},
        ],
    },
    "/v1/completions": {"prompt": ["x", "y"], "max_tokens": 2, "logprobs": 1, "echo": False},
    "/v1/responses": {
        "input": [{"role": "user", "content": "x"},
                  {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                  {"type": "function_call_output", "call_id": "1", "output": "x"},
                  {"type": "reasoning", "summary": []}, {"role": "user", "content": "y"}],
        "max_output_tokens": 2, "instructions": "x", "reasoning": {"effort": "low"},
    },
    "/v1/messages": {
        "max_tokens": 2, "system": [{"type": "text", "text": "x"}],
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "1", "name": "f", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": "x"}]},
        ],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
    },
    "/completion": {"prompt": ["x", 5], "n_predict": 2, "n_probs": 1, "samplers": ["top_k"]},
    "/tokenize": {"content": "x", "with_pieces": True},
    "/detokenize": {"tokens": [1, 2]},
    "/apply-template": {"messages": [{"role": "user", "content": "x"}]},
    "/models/load": {"model": "demo"},
}  # fmt: skip

ODD = [
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**70), 0.5, -1e300, 1e300, "", "x", "\x00",
    "\ufdd0", "a" * 5000, [], {}, [[]], [{}], {"": ""}, ["x"], [0], [None], "<|im_end|>", "{{x}}",
    {"type": "text"}, {"type": "function"}, "\u202e", "ä",
]  # fmt: skip


def mutated(value: object, chance: random.Random) -> object:
    """Return a copy of `value` with one place replaced, removed or duplicated."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        key = chance.choice(list(value))
        action = chance.random()
        if action < 0.1:
            return {k: v for k, v in value.items() if k != key}
        if action < 0.15:
            return {**value, chance.choice(["", "x", "stream", "n", "model"]): chance.choice(ODD)}
        return {**value, key: mutated(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.7:
        at = chance.randrange(len(value))
        if chance.random() < 0.1:
            return value + value
        return [*value[:at], mutated(value[at], chance), *value[at + 1 :]]
    return chance.choice(ODD)


def test_mutated_requests_never_fail_the_server(server: Running):
    chance = random.Random(20)
    seen: dict[int, int] = {}
    n = examples(1000)
    for _ in range(n):
        path = chance.choice(list(BASES))
        sent = mutated(BASES[path], chance)
        if chance.random() < 0.3:
            sent = mutated(sent, chance)
        if isinstance(sent, dict) and path not in ("/tokenize", "/detokenize"):
            limit = {"/completion": "n_predict", "/v1/responses": "max_output_tokens"}
            name = limit.get(path, "max_tokens")
            if isinstance(sent.get(name), int | None) and path not in ("/models/load",):
                sent[name] = 2
        found = server.post(path, sent)
        assert found.status in (200, 400, 404), (path, sent, found.body)
        if found.status != 200:
            error = found.json["error"]
            assert error["message"], sent
            assert "Traceback" not in error["message"]
        seen[found.status] = seen.get(found.status, 0) + 1
    assert seen[200] > n / 10
    assert seen[400] > n / 5


@settings(
    max_examples=examples(120),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.sampled_from(sorted(BASES)),
    st.one_of(
        st.binary(max_size=200),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
            lambda each: st.lists(each, max_size=4) | st.dictionaries(st.text(), each, max_size=4),
            max_leaves=20,
        ).map(lambda value: json.dumps(value).encode()),
    ),
)
def test_arbitrary_bodies_never_fail_the_server(server: Running, path, data):
    assert server.post(path, data).status in (400, 404)


def test_data_that_is_not_http(server: Running):
    chance = random.Random(3)
    for _ in range(50):
        with server.connect() as connection:
            connection.sendall(chance.randbytes(chance.randrange(1, 300)))
            if chance.random() < 0.5:
                connection.sendall(b"\r\n\r\n")
    with server.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 200_000)
    assert server.get("/health").status == 200


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://localhost/v1/models", "localhost", 200),
        ("HTTP://LOCALHOST:8080/v1/models?limit=1", "localhost", 200),
        ("https://[::1]/v1/models", "", 200),
        ("http://127.0.0.1", "localhost", 200),  # the page
        ("http://127.0.0.1?a=/b", "localhost", 200),
        ("http://localhost/v1/models", "example.org", 200),  # the URL counts, not the header
        ("http://example.org/v1/models", "localhost", 421),
        ("http://localhost/v1/nothing", "localhost", 404),
        ("http:///v1/models", "localhost", 400),
        ("http://:80/v1/models", "localhost", 400),
        ("http://localhost@example.org/v1/models", "localhost", 400),
    ],
)
def test_the_target_of_a_request_may_be_a_url(
    server: Running, target: str, host: str, status: int
) -> None:
    head = f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    with server.connect() as client:
        client.sendall(head.encode())
        answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
    assert int(answer.split()[1]) == status
    if "/v1/models" in target and status == 200:
        assert b'"object":"list"' in answer


def test_unknown_paths_and_methods(server: Running):
    for method, path, status in (
        ("GET", "/none", 404),
        ("POST", "/v1/images/generations", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/health", 405),
        ("GET", "/v1/models/none", 404),
        ("GET", "/v1/responses/none", 404),
    ):
        found = server.request(method, path)
        assert (found.status, found.json["error"]["type"] != "") == (status, True)


def test_the_openapi_document(server: Running):
    found = server.get("/openapi.json").json
    assert found["openapi"].startswith("3.1")
    schemas = found["components"]["schemas"]

    def references(value: object) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
            return own.union(*(references(v) for v in value.values()))
        if isinstance(value, list):
            return set().union(*(references(v) for v in value))
        return set()

    for reference in references(found):
        assert reference.removeprefix("#/components/schemas/") in schemas
    ids = [o["operationId"] for methods in found["paths"].values() for o in methods.values()]
    assert len(set(ids)) == len(ids)
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            assert "200" in operation["responses"]
            names = [p["name"] for p in operation.get("parameters", []) if p["in"] == "path"]
            assert names == re.findall(r"{(\w+)}", path)
            keeps_none = path in ("/v1/files", "/v1/batches")  # this server has no folder for them
            if "requestBody" in operation:
                answer = server.request(method.upper(), path, {"no_such_field": 1})
                assert answer.status == (501 if keeps_none else 400)
            elif "{" not in path:
                answer = server.request(method.upper(), path)
                assert answer.status == (501 if keeps_none else 200)
    page = server.get("/docs")
    assert page.status == 200
    assert b"/v1/chat/completions" in page.body
    assert b"http://" not in page.body.replace(b"http://localhost", b"")
    assert b"https://" not in page.body


def test_every_response_has_a_request_id(server: Running):
    ids = {server.get("/health").headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3


MANY = 1000
WRONG: dict[str, object] = {
    "nothing": [None] * MANY,
    "objects": [{}] * MANY,
    "texts": ["x"] * MANY,
    "numbers": [1.5] * MANY,
    "lists": [[None]] * MANY,
    "mapping": {str(i): "x" for i in range(MANY)},
    "parts": [{"role": "user", "content": [{}] * MANY}],
    "calls": [{"role": "assistant", "content": "x", "tool_calls": [{}] * MANY}],
    "tools": [{"type": "namespace", "name": "x", "tools": [{}] * MANY}],
    "edits": {"edits": [None] * MANY},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_validation_stops_at_the_first_error_of_a_list(wrong: str) -> None:
    """A list of millions of errors would block the server for minutes."""
    counts = {}
    kinds = {e.operation.fields for e in ENDPOINTS if e.operation.fields is not None}
    for kind in kinds:
        for name, field in kind.model_fields.items():
            try:
                kind.model_validate({field.alias or name: WRONG[wrong]})
            except ValidationError as error:
                counts[f"{kind.__name__}.{name}"] = error.error_count()
    assert counts
    assert not {name for name, n in counts.items() if n > 20}
