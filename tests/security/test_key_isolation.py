"""An API key can learn nothing about the prompts and responses of another key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from serving import Answer, Brake, Running, brake_engines, running

VICTIM, ATTACKER = "key-of-the-victim", "key-of-the-attacker"
SECRET = "My bank has given me a new card, and the number that goes with it is 4711. " * 8

# path, fields with a text, path in the answer to the number of cached prompt tokens
CHAT = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 1}
ENDPOINTS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "/v1/chat/completions": (CHAT, ("usage", "prompt_tokens_details", "cached_tokens")),
    "/v1/messages": (CHAT, ("usage", "cache_read_input_tokens")),
    "/v1/responses": (
        {"input": SECRET, "max_output_tokens": 1},
        ("usage", "input_tokens_details", "cached_tokens"),
    ),
    "/v1/completions": (
        {"prompt": SECRET, "max_tokens": 1},
        ("usage", "prompt_tokens_details", "cached_tokens"),
    ),
    "/completion": ({"prompt": SECRET, "n_predict": 1}, ("tokens_cached",)),
}


@pytest.fixture(scope="module")
def guarded() -> Iterator[Running]:
    """Run a server with two API keys."""
    with running(api_keys=(VICTIM, ATTACKER)) as found:
        yield found


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def ask(server: Running, path: str, key: str | None, **more: Any) -> Answer:
    headers = {} if key is None else bearer(key)
    answer = server.post(path, {**ENDPOINTS[path][0], **more}, headers=headers)
    assert answer.status == 200, answer.body
    server.wait_idle()
    return answer


def cached(answer: Answer, path: str) -> int:
    found = answer.json
    for name in ENDPOINTS[path][1]:
        found = found[name]
    return int(found)


@pytest.mark.parametrize("path", ENDPOINTS)
def test_a_key_shares_the_prefix_cache_only_with_itself(guarded: Running, path):
    (name,) = {"messages", "input", "prompt"} & ENDPOINTS[path][0].keys()
    text = f"To {path}: {SECRET}"
    own = {name: [{"role": "user", "content": text}] if name == "messages" else text}
    ask(guarded, path, VICTIM, **own)
    assert cached(ask(guarded, path, VICTIM, **own), path) > 50
    assert cached(ask(guarded, path, ATTACKER, **own), path) < 20  # only the part it sent itself
    assert cached(ask(guarded, path, ATTACKER, **own), path) > 50


def test_both_headers_of_a_key_share_the_cache(guarded: Running):
    path = "/v1/completions"
    ask(guarded, path, VICTIM, cache_salt="ways")
    fields = {**ENDPOINTS[path][0], "cache_salt": "ways"}
    theirs = {"Authorization": f"Basic {VICTIM}", "x-api-key": ATTACKER}
    assert cached(guarded.post(path, fields, headers=theirs), path) == 0
    ours = {"Authorization": "", "x-api-key": VICTIM}
    assert cached(guarded.post(path, fields, headers=ours), path) > 50


@pytest.mark.parametrize("path", ENDPOINTS)
def test_a_salt_divides_the_cache_of_a_key(guarded: Running, path):
    ask(guarded, path, VICTIM, cache_salt=f"a{path}")
    assert cached(ask(guarded, path, VICTIM, cache_salt=f"a{path}"), path) > 50
    assert cached(ask(guarded, path, VICTIM, cache_salt=f"b{path}"), path) == 0
    assert cached(ask(guarded, path, ATTACKER, cache_salt=f"a{path}"), path) == 0


def test_a_salt_works_without_keys(server: Running):
    path = "/v1/completions"
    ask(server, path, None)
    assert cached(ask(server, path, None), path) > 50
    assert cached(ask(server, path, None, cache_salt="a"), path) == 0
    assert cached(ask(server, path, None, cache_salt="a"), path) > 50
    assert cached(ask(server, path, "whatever"), path) > 50


@pytest.mark.parametrize("salt", ["", 1, [], "x" * 2000])
def test_an_invalid_salt_is_refused(server: Running, salt):
    answer = server.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "cache_salt": salt})
    assert (answer.status, answer.json["error"]["param"]) == (400, "cache_salt")


def test_share_cache_shares_the_cache_between_keys():
    path = "/v1/completions"
    with running(api_keys=(VICTIM, ATTACKER), share_cache=True) as server:
        ask(server, path, VICTIM)
        assert cached(ask(server, path, ATTACKER), path) > 50
        assert cached(ask(server, path, ATTACKER, cache_salt="a"), path) == 0


def test_progress_and_timings_reveal_nothing_about_another_key(guarded: Running):
    path = "/completion"
    ask(guarded, path, VICTIM, cache_salt="progress")
    more = {"cache_salt": "progress", "return_progress": True, "stream": True}
    answer = ask(guarded, path, ATTACKER, **more)
    first = answer.events[0]
    assert first["prompt_progress"]["cache"] == 0
    assert answer.events[-1]["timings"]["cache_n"] == 0


def test_a_stored_response_belongs_to_its_key(guarded: Running):
    path = "/v1/responses"
    id = ask(guarded, path, VICTIM).json["id"]
    for method, tail in (("GET", ""), ("GET", "/input_items"), ("DELETE", "")):
        answer = guarded.request(method, f"{path}/{id}{tail}", headers=bearer(ATTACKER))
        assert answer.status == 404
        unknown = guarded.request(method, f"{path}/resp_0{tail}", headers=bearer(ATTACKER))
        assert unknown.body.replace(b"resp_0", id.encode()) == answer.body
    for each in (path, f"{path}/input_tokens"):
        fields = {"input": "Go on", "previous_response_id": id, "max_output_tokens": 1}
        answer = guarded.post(each, fields, headers=bearer(ATTACKER))
        assert (answer.status, answer.json["error"]["param"]) == (400, "previous_response_id")
        assert guarded.post(each, fields, headers=bearer(VICTIM)).status == 200
    items = guarded.get(f"{path}/{id}/input_items", headers=bearer(VICTIM)).json["data"]
    assert SECRET in str(items)
    assert guarded.request("DELETE", f"{path}/{id}", headers=bearer(VICTIM)).status == 200
    assert guarded.get(f"{path}/{id}", headers=bearer(VICTIM)).status == 404


@pytest.fixture
def brake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Brake]:
    """Return a brake that can stop every engine until the end of the test."""
    found = brake_engines(monkeypatch)
    yield found
    found.release()


def test_slots_show_settings_only_of_the_same_key(guarded: Running, brake: Brake):
    brake.hold()
    fields = {"prompt": "a", "max_tokens": 1, "stop": ["4711"], "stream": True}
    with guarded.connect() as client:
        body = json.dumps(fields).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {VICTIM}"
        client.sendall(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        client.recv(64)  # the stream has begun
        mine = guarded.get("/slots", headers=bearer(VICTIM)).json[0]
        theirs = guarded.get("/slots", headers=bearer(ATTACKER)).json[0]
    brake.release()
    assert mine["params"]["stop"] == ["4711"]
    assert theirs["is_processing"]
    assert "4711" not in str(theirs)
    guarded.wait_idle()
