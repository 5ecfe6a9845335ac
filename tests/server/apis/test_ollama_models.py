"""Ollama's endpoints that download, copy, create and delete models; the registry is on loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hub.fake_hub import FakeHub
from serving import MODEL, Running, running

from zinc.core.errors import RequestError
from zinc.engine.load.files import EMBEDDED_MODEL
from zinc.hub.names import registry_name
from zinc.server.apis.ollama import models
from zinc.server.endpoints import ENDPOINTS
from zinc.server.http.openapi import document
from zinc.server.runtime.entry import Entry

HELLO = [{"role": "user", "content": "Say hello."}]
GREEDY = {"temperature": 0, "num_predict": 4}


def empty_home(patch: pytest.MonkeyPatch, path: Path) -> None:
    """Make `path` the folder of the user and of everything that is downloaded."""
    for name in ("HF_HOME", "HF_HUB_CACHE", "OLLAMA_MODELS", "XDG_CACHE_HOME"):
        patch.setenv(name, str(path / name.lower()))
    patch.setenv("HOME", str(path))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A registry that has the embedded model, and an empty folder for downloads."""
    empty_home(monkeypatch, tmp_path)
    found = FakeHub()
    found.add_ollama("library/small", "1b", EMBEDDED_MODEL.read_bytes())
    yield found
    found.close()


@pytest.fixture
def managed(hub: FakeHub) -> Iterator[Running]:
    """A server that lets clients change its models."""
    with running(allow_pull=True) as found:
        yield found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server as `managed`, for tests that may create the model "own" but need no registry."""
    with pytest.MonkeyPatch.context() as patch:
        empty_home(patch, tmp_path_factory.mktemp("home"))
        with running(allow_pull=True) as found:
            yield found


def call(server: Running, method: str, path: str, body: object, status: int = 200) -> bytes:
    """Send a request whose answer has this status, which the OpenAPI document lists."""
    answer = server.request(method, path, body)
    assert answer.status == status, answer.body
    assert str(status) in documented()[path][method.lower()]["responses"]
    return answer.body


@cache
def documented() -> dict[str, Any]:
    """Return the paths of the OpenAPI document, which takes 0.1 s to make."""
    found = document([endpoint.operation for endpoint in ENDPOINTS], with_key=False)
    paths: dict[str, Any] = found["paths"]
    return paths


def names(server: Running) -> list[str]:
    return [row["model"] for row in server.get("/api/tags").json["models"]]


def chat(server: Running, model: str, **fields: Any) -> str:
    body = {"model": model, "messages": HELLO, "options": GREEDY, "stream": False, **fields}
    found: str = json.loads(call(server, "POST", "/api/chat", body))["message"]["content"]
    return found


def test_a_model_is_pulled_used_and_deleted(managed: Running, hub: FakeHub) -> None:
    name = f"ollama:{hub.url}/library/small:1b"
    rows = [
        json.loads(row)
        for row in call(managed, "POST", "/api/pull", {"model": name}).split(b"\n")
        if row
    ]
    assert rows[0] == {"status": "pulling manifest"}
    assert rows[-1] == {"status": "success"}
    assert any(row.get("completed") == EMBEDDED_MODEL.stat().st_size for row in rows)
    assert names(managed) == [MODEL, name]
    assert chat(managed, name) == chat(managed, MODEL)
    call(managed, "DELETE", "/api/delete", {"model": name})
    assert names(managed) == [MODEL]
    assert not list(Path.home().rglob("sha256-*"))


def test_a_second_pull_leaves_the_model_loaded(managed: Running, hub: FakeHub) -> None:
    body = {"model": f"ollama:{hub.url}/library/small:1b", "stream": False}
    call(managed, "POST", "/api/pull", body)
    chat(managed, body["model"])
    pool = managed.application.pool
    assert pool is not None
    before = pool.loaded
    call(managed, "POST", "/api/pull", body)
    assert len(before) == 2
    assert pool.loaded == before


def test_a_second_pull_replaces_a_model_that_has_changed(managed: Running, hub: FakeHub) -> None:
    body = {"model": f"ollama:{hub.url}/library/small:1b", "stream": False}
    call(managed, "POST", "/api/pull", body)
    chat(managed, body["model"])
    pool = managed.application.pool
    assert pool is not None
    old = pool.loaded[-1]
    hub.add_ollama("library/small", "1b", EMBEDDED_MODEL.read_bytes() + bytes(32))
    call(managed, "POST", "/api/pull", body)
    assert old not in pool.loaded
    with pytest.raises(RequestError, match="closed"):
        old.llm.generate("x", max_tokens=1)
    assert chat(managed, body["model"]) == chat(managed, MODEL)


def test_a_pull_that_fails_says_why(managed: Running, hub: FakeHub) -> None:
    name = f"ollama:{hub.url}/library/none:1b"
    rows = call(managed, "POST", "/api/pull", {"model": name}).splitlines()
    assert "error" in json.loads(rows[-1])
    error = json.loads(call(managed, "POST", "/api/pull", {"model": name, "stream": False}, 502))
    assert "none" in error["error"]


def test_a_copy_is_another_name(managed: Running) -> None:
    call(managed, "POST", "/api/copy", {"source": MODEL, "destination": "twin"})
    assert names(managed) == [MODEL, "twin"]
    assert chat(managed, "twin") == chat(managed, MODEL)
    call(managed, "DELETE", "/api/delete", {"model": "twin"})
    assert names(managed) == [MODEL]
    assert EMBEDDED_MODEL.exists()


@pytest.mark.parametrize("path", ["/api/tags", "/api/ps"])
def test_models_may_be_added_while_they_are_listed(
    path: str, managed: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, tag = managed.application.pool, models._tag
    assert pool is not None

    def slow_tag(entry: Entry) -> dict[str, Any]:
        managed.call(lambda: pool.add(replace(entry.source, name="new")))
        return tag(entry)

    monkeypatch.setattr(models, "_tag", slow_tag)
    assert [row["model"] for row in managed.get(path).json["models"]] == [MODEL]
    assert list(pool.entries) == [MODEL, "new"]


def test_a_created_model_has_its_own_system_prompt_and_sampling(managed: Running) -> None:
    system = "You are a pirate."
    fields = {"from": MODEL, "system": system, "parameters": {"temperature": 0}, "stream": False}
    call(managed, "POST", "/api/create", {"model": "pirate", **fields})
    own = chat(managed, "pirate", options={"num_predict": 8})
    messages = [{"role": "system", "content": system}, *HELLO]
    assert own == chat(managed, MODEL, messages=messages, options={**GREEDY, "num_predict": 8})


MODELFILE = f"""FROM {MODEL}
SYSTEM You are a pirate.
PARAMETER temperature 0
PARAMETER num_predict 8
PARAMETER num_ctx 512
MESSAGE user Hi
MESSAGE assistant Ahoy!
TEMPLATE {{{{ .Prompt }}}}
"""
PIRATE = [
    {"role": "system", "content": "You are a pirate."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Ahoy!"},
]


@pytest.mark.parametrize(
    "fields",
    [
        {"modelfile": MODELFILE},
        {
            "from": MODEL,
            "system": PIRATE[0]["content"],
            "parameters": {"temperature": 0, "num_predict": 8, "num_ctx": 512},
            "messages": PIRATE[1:],
            "template": "{{ .Prompt }}",
        },
    ],
)
def test_a_modelfile_and_the_fields_of_a_request_mean_the_same(
    managed: Running, fields: dict[str, Any]
) -> None:
    rows = call(managed, "POST", "/api/create", {"model": "pirate", **fields}).splitlines()
    assert "the template is not used" in json.loads(rows[0])["status"]
    assert json.loads(rows[-1]) == {"status": "success"}
    own = chat(managed, "pirate", options={})
    messages, options = [*PIRATE, *HELLO], {**GREEDY, "num_predict": 8}
    assert own == chat(managed, MODEL, messages=messages, options=options)
    shown = json.loads(call(managed, "POST", "/api/show", {"model": "pirate"}))
    assert (shown["system"], shown["messages"]) == (PIRATE[0]["content"], PIRATE[1:])
    assert {"num_ctx 512", "num_predict 8"} <= set(shown["parameters"].splitlines())
    ps = json.loads(managed.get("/api/ps").body)["models"]
    assert [row["context_length"] for row in ps if row["model"] == "pirate"] == [512]
    again = {"model": "parrot", "modelfile": "FROM pirate\nPARAMETER num_predict 3"}
    call(managed, "POST", "/api/create", again)
    assert own.startswith(chat(managed, "parrot", options={}))


CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
LIMITED = "PARAMETER num_predict 3\nPARAMETER temperature 0\n"


@pytest.mark.parametrize(
    ("path", "body", "count"),
    [
        ("/v1/chat/completions", {"messages": HELLO}, ("usage", "completion_tokens")),
        ("/v1/completions", {"prompt": "Once upon a"}, ("usage", "completion_tokens")),
        ("/v1/responses", {"input": "Say hello."}, ("usage", "output_tokens")),
        ("/completion", {"prompt": "Once upon a"}, ("timings", "predicted_n")),
        ("/api/generate", {"prompt": "Say hello.", "stream": False}, ("eval_count",)),
    ],
)
def test_every_api_follows_the_limit_of_a_created_model(
    shared: Running, path: str, body: dict[str, Any], count: tuple[str, ...]
) -> None:
    call(shared, "POST", "/api/create", {"model": "own", "modelfile": f"FROM {MODEL}\n{LIMITED}"})
    found = json.loads(call(shared, "POST", path, {"model": "own", **body}))
    for name in count:
        found = found[name]
    assert found == 3


def test_every_api_follows_the_stop_strings_of_a_created_model(shared: Running) -> None:
    body = {"messages": HELLO, "max_tokens": 8, "temperature": 0}
    whole = shared.request("POST", "/v1/messages", {"model": MODEL, **body}).json
    text = whole["content"][0]["text"]
    stop = text[len(text) // 2 :][:3]
    create = {"model": "own", "from": MODEL, "parameters": {"stop": stop}, "stream": False}
    call(shared, "POST", "/api/create", create)
    for path, pick in (
        ("/v1/messages", lambda found: found["content"][0]["text"]),
        ("/v1/chat/completions", lambda found: found["choices"][0]["message"]["content"]),
    ):
        found = json.loads(call(shared, "POST", path, {"model": "own", **body}))
        assert pick(found).strip() == text[: text.index(stop)].strip()


def test_a_loaded_model_can_be_created_again(shared: Running) -> None:
    for system in ("Be brief.", "Be verbose."):
        call(shared, "POST", "/api/create", {"model": "own", "from": MODEL, "system": system})
        chat(shared, "own")
    shown = json.loads(call(shared, "POST", "/api/show", {"model": "own"}))
    assert shown["system"] == "Be verbose."


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"model": "x"}, 400, "from is missing"),
        ({"model": "x", "from": MODEL, "parameters": {"num_cxt": 5}}, 400, "write num_ctx"),
        ({"model": "x", "from": MODEL, "parameters": {"temperature": -1}}, 400, "temperature"),
        ({"model": "x", "from": MODEL, "adapters": {"a": "b"}}, 400, "adapters"),
        ({"model": "x", "from": MODEL, "messages": [CALL]}, 400, "messages[0] has a tool"),
        ({"model": "x", "modelfile": f"FROM {MODEL}\nSTSTEM x"}, 400, "modelfile, line 2"),
        ({"model": "x", "from": "nonesuch:1b"}, 404, "zinc pull ollama:nonesuch:1b"),
        ({"model": "x", "modelfile": "FROM /etc/passwd"}, 404, "there is no model"),
    ],
)
def test_what_a_created_model_cannot_have_is_an_error(
    shared: Running, fields: dict[str, Any], status: int, said: str
) -> None:
    error = json.loads(call(shared, "POST", "/api/create", fields, status))["error"]
    assert said.lower() in error.lower()


def test_models_change_only_where_the_server_allows_it() -> None:
    with running() as own:
        for method, path in (
            ("POST", "/api/pull"), ("DELETE", "/api/delete"), ("POST", "/api/create"),
        ):  # fmt: skip
            body = {"model": MODEL, "from": MODEL} if path == "/api/create" else {"model": MODEL}
            assert "--pull" in json.loads(call(own, method, path, body, 403))["error"]


@pytest.mark.parametrize(
    ("given", "own"),
    [
        ("qwen3:8b", "qwen3:8b"),
        ("someone/model-GGUF:Q4_K_M", "someone/model-GGUF:Q4_K_M"),
        ("nonesuch:7b", "ollama:nonesuch:7b"),
    ],
)
def test_a_name_that_is_none_of_zincs_belongs_to_ollamas_registry(given: str, own: str) -> None:
    assert registry_name(given) == own
