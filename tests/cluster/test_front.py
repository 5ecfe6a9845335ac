"""Tests of the front and the replica in one process, without Ray."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from server.serving import LOAD, MODEL

from zinc.cluster.front import Front, ReplicaLostError
from zinc.cluster.merged_metrics import merge
from zinc.cluster.messages import Forwarded, Part
from zinc.cluster.replica import Replica
from zinc.server.config import ModelSource, ServerConfig

PATIENCE_S = 120.0
CHAT = {"messages": [{"role": "user", "content": "Tell me a story."}], "temperature": 0}


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop whose time stands still while it has work, and skips to the next timer else.

    Time limits expire only for what never comes, however late this process runs.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now, select = 0.0, self._selector.select

        def skip(timeout: float | None) -> Any:
            events = select(timeout if timeout is None else 0)
            if not events:
                self._now += timeout or 0
            return events

        self._selector.select = skip

    def time(self) -> float:
        return self._now


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that waits for no thread and no other process, in a `SkippingLoop`."""
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        return runner.run(main)


class Local:
    """Replicas of this process. lost: replicas that are lost before this many parts, by name."""

    def __init__(self, replicas: list[Replica]) -> None:
        self.replicas = replicas
        self.lost: dict[str, int] = {}
        self.asked: list[str] = []

    async def answer(self, request: Forwarded) -> AsyncGenerator[Part]:
        free = [r for r in self.replicas if r.name not in request.avoid]
        replica = (free or self.replicas)[0]
        self.asked.append(replica.name)
        n_parts = 0
        async with aclosing(replica.answer(request)) as parts:
            async for part in parts:
                if self.lost.get(replica.name) == n_parts:
                    self.replicas.remove(replica)
                    raise ReplicaLostError
                n_parts += 1
                yield part


class Reply:
    """A response. messages: as the front sent them."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.messages = messages
        self.status = messages[0]["status"] if messages else 0
        self.body = b"".join(m.get("body", b"") for m in messages)
        self.headers = (
            {} if not messages else {k.decode(): v.decode() for k, v in messages[0]["headers"]}
        )

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def call(
    front: Front,
    method: str,
    path: str,
    body: object = None,
    gone: asyncio.Event | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    path, _, query = path.partition("?")
    data = b"" if body is None else json.dumps(body).encode()
    received = [{"type": "http.request", "body": data, "more_body": False}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if received:
            return received.pop()
        await (gone or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(),
        "query_string": query.encode(), "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 9), "server": ("127.0.0.1", 80), "http_version": "1.1",
        "scheme": "http", "root_path": "", "unsendable": object(),
    }  # fmt: skip
    scope["headers"] += [(k.encode(), v.encode()) for k, v in (headers or {}).items()]
    await front(scope, receive, send)
    return Reply(sent)


@asynccontextmanager
async def cluster(count: int = 2, **settings: Any) -> AsyncGenerator[tuple[Front, Local]]:
    replicas = []
    for number in range(count):
        config = ServerConfig((ModelSource(MODEL, None),), LOAD, **settings)
        replicas.append(Replica(f"r{number}", config))
        await replicas[-1].start()
    local = Local(list(replicas))
    try:
        yield Front({MODEL: local}, 1 << 20, pause_s=0.0), local
    finally:
        for each in replicas:
            await each.close()


def test_all_apis_answer_and_lost_replicas_are_replaced():
    """One test, because each replica loads a model."""
    asyncio.run(_all_apis_answer())


async def _all_apis_answer() -> None:
    async with cluster(3) as (front, local):
        ask = {**CHAT, "max_tokens": 12}
        expected = await call(front, "POST", "/v1/chat/completions", ask)
        assert expected.status == 200
        assert expected.headers["x-zinc-replica"] == "r0"
        assert float(expected.headers["server-timing"].removeprefix("cluster;dur=")) >= 0
        text = expected.json["choices"][0]["message"]["content"]
        message = (await call(front, "POST", "/v1/messages", ask)).json
        assert message["content"][0]["text"] == text
        assert (await call(front, "POST", "/api/chat", {**CHAT, "model": "x"})).status == 200
        assert (await call(front, "GET", "/health")).json == {"status": "ok"}
        await _responses_are_found(front, local)
        await _metrics_are_merged(front)
        await _a_stream_that_was_begun_ends_with_an_error(front, local)
        await _a_request_of_a_lost_replica_is_repeated(front, local, text)


async def _responses_are_found(front: Front, local: Local) -> None:
    local.replicas.reverse()
    made = await call(front, "POST", "/v1/responses", {"input": "Hi", "max_output_tokens": 16})
    assert made.headers["x-zinc-replica"] == "r2"
    local.replicas.reverse()
    path = f"/v1/responses/{made.json['id']}"
    assert (await call(front, "GET", path)).json["id"] == made.json["id"]
    more = {"input": "More", "previous_response_id": made.json["id"], "max_output_tokens": 16}
    assert (await call(front, "POST", "/v1/responses", more)).headers["x-zinc-replica"] == "r2"
    local.asked.clear()
    missing = await call(front, "GET", "/v1/responses/resp_missing")
    assert missing.status == 404
    assert local.asked == ["r0", "r1", "r2", "r0"]


async def _metrics_are_merged(front: Front) -> None:
    reply = await call(front, "GET", "/metrics")
    lines = reply.body.decode().splitlines()
    assert reply.headers["content-length"] == str(len(reply.body))
    for name in ("r0", "r1", "r2"):
        assert f'zinc_model_loaded{{replica="{name}",model="{MODEL}"}} 1' in lines
    assert len(lines) == len(set(lines))


async def _a_stream_that_was_begun_ends_with_an_error(front: Front, local: Local) -> None:
    for path, mark in (
        ("/v1/chat/completions", b'data: {"error":{"message":"the replica that answered was lost'),
        ("/v1/messages", b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"'),
        ("/api/chat", b'{"error":"the replica that answered was lost'),
    ):
        replicas, local.lost = list(local.replicas), {"r0": 3}
        local.asked.clear()
        more = {"model": "x", "stream": True, "options": {"num_predict": 200}}
        if not path.startswith("/api"):
            more = {"stream": True, "max_tokens": 200}
        reply = await call(front, "POST", path, {**CHAT, **more})
        assert reply.status == 200
        assert mark in reply.body
        assert not reply.messages[-1].get("more_body", False)
        assert local.asked == ["r0"]
        local.replicas[:], local.lost = replicas, {}


async def _a_request_of_a_lost_replica_is_repeated(front: Front, local: Local, text: str) -> None:
    local.asked.clear()
    local.lost = {"r0": 0, "r1": 0}
    ask = {**CHAT, "max_tokens": 12}
    reply = await call(front, "POST", "/v1/chat/completions", ask)
    assert local.asked == ["r0", "r1", "r2"]
    assert reply.json["choices"][0]["message"]["content"] == text
    assert [m["type"] for m in reply.messages].count("http.response.start") == 1


class Scripted:
    """Replicas that answer with prepared parts; an exception is raised, and None never ends.

    n_calls, n_ended: answers that began and ended. n_steps: parts that were taken.
    """

    def __init__(self, *steps: Part | Exception | None) -> None:
        self.steps = steps
        self.n_calls = self.n_steps = self.n_ended = 0

    async def answer(self, request: Forwarded) -> AsyncGenerator[Part]:
        self.n_calls += 1
        try:
            for step in self.steps:
                if step is None:
                    await asyncio.Event().wait()
                elif isinstance(step, Exception):
                    raise step
                else:
                    yield step
                    self.n_steps += 1
        finally:
            self.n_ended += 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/metrics", "/models/load"])
def test_a_client_gets_a_retryable_error_when_no_replica_answers(path):
    front = Front({MODEL: Scripted(ReplicaLostError())}, 1 << 20, pause_s=0.0)
    reply = asyncio.run(call(front, "POST", path, CHAT))
    assert reply.status == 503
    assert reply.headers["retry-after"] == "1"
    assert reply.json["error"]["code"] == "replica_lost"


def test_a_request_is_repeated_when_a_replica_is_lost_that_had_begun():
    replicas = Scripted(Part("r0", 0.0), ReplicaLostError())
    reply = asyncio.run(
        call(Front({MODEL: replicas}, 1 << 20, pause_s=0.0), "POST", "/completion", CHAT)
    )
    assert (reply.status, replicas.n_calls) == (503, 5)


def test_a_request_that_no_replica_begins_ends():
    replicas = Scripted(None)
    reply = run(call(Front({MODEL: replicas}, 1 << 20, start_s=60.0), "POST", "/completion", CHAT))
    assert (reply.status, replicas.n_calls) == (503, 1)
    assert reply.json["error"]["code"] == "no_replica"


def test_a_client_that_goes_ends_the_answer_of_the_replica():
    replicas = Scripted(Part("r0", 0.0), None)

    async def run() -> Reply:
        gone = asyncio.Event()
        ask = asyncio.create_task(
            call(Front({MODEL: replicas}, 1 << 20), "POST", "/completion", CHAT, gone)
        )
        while not replicas.n_calls:
            await asyncio.sleep(0)
        assert replicas.n_ended == 0
        gone.set()
        return await asyncio.wait_for(ask, PATIENCE_S)

    assert asyncio.run(run()).messages == []
    assert replicas.n_ended == 1


def test_an_answer_is_complete_before_its_replica_ends():
    """Servers report the end of an answer like a client that goes."""
    start = {"type": "http.response.start", "status": 200, "headers": []}
    whole = Part("r0", 0.0, (start, {"type": "http.response.body", "body": b"all"}))
    replicas = Scripted(whole, whole)

    async def run() -> None:
        front, ended = Front({MODEL: replicas}, 1 << 20), asyncio.Event()
        body = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> dict[str, Any]:
            if body:
                return body.pop()
            await ended.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                ended.set()
                await asyncio.sleep(0.01)

        scope = {"type": "http", "method": "POST", "path": "/completion", "headers": []}
        await front({**scope, "query_string": b""}, receive, send)

    asyncio.run(run())
    assert (replicas.n_steps, replicas.n_ended) == (2, 1)


def test_a_body_that_is_late_is_refused():
    statuses: list[int] = []

    async def ask_in_vain() -> None:
        async def send(message: Any) -> None:
            statuses.append(message.get("status", 0))

        scope = {"type": "http", "method": "POST", "path": "/completion", "headers": []}
        await Front({MODEL: Scripted()}, 100)(scope, asyncio.Event().wait, send)

    run(ask_in_vain())
    assert statuses[0] == 408


def test_a_body_that_is_too_large_is_refused():
    reply = asyncio.run(
        call(Front({MODEL: Scripted()}, 100), "POST", "/completion", {"prompt": "x" * 100})
    )
    assert reply.status == 413


class Named:
    """Replicas of one model, which answer with its name and the path that was asked for.

    status: of all answers, 0 for none.
    """

    def __init__(self, name: str, status: int = 200) -> None:
        self.name, self.status = name, status
        self.paths: list[str] = []

    async def answer(self, request: Forwarded) -> AsyncGenerator[Part]:
        self.paths.append(request.scope["path"])
        if not self.status:
            await asyncio.Event().wait()
        row = {"id": self.name, "name": self.name}
        body = json.dumps({"object": "list", "data": [row], "models": [row]}).encode()
        start = {"type": "http.response.start", "status": self.status, "headers": []}
        if self.name not in request.avoid:
            sent = (start, {"type": "http.response.body", "body": body})
            yield Part(self.name, 0.0, sent)
        else:
            yield Part(self.name, 0.0)


def ask(front: Front, method: str, path: str, body: object = None, **headers: str) -> Reply:
    reply: Reply = run(call(front, method, path, body, headers=headers))
    return reply


@pytest.mark.parametrize(
    ("method", "path", "body", "model"),
    [
        ("POST", "/v1/chat/completions", {"model": "b"}, "b"),
        ("POST", "/v1/chat/completions", {}, "a"),
        ("POST", "/v1/messages", {"model": "c/d:7b"}, "c/d:7b"),
        ("POST", "/api/chat", {"model": "b:latest"}, "b"),
        ("POST", "/api/show", {"name": "b"}, "b"),
        ("GET", "/v1/models/c/d:7b", None, "c/d:7b"),
        ("GET", "/props?model=b", None, "b"),
        ("POST", "/lora-adapters?model=b", [{"id": 0}], "b"),
        ("POST", "/models/load", {"model": "b"}, "b"),
        ("GET", "/", None, "a"),
        ("OPTIONS", "/v1/models", None, "a"),
    ],
)
def test_a_request_goes_to_the_model_that_it_names(method, path, body, model):
    models = {name: Named(name) for name in ("a", "b", "c/d:7b")}
    reply = ask(Front(models, 1000), method, path, body)
    assert (reply.status, reply.headers["x-zinc-replica"]) == (200, model)
    assert [name for name, each in models.items() if each.paths] == [model]


def test_a_model_that_nobody_has_is_an_error_in_the_form_of_the_api():
    front = Front({"a": Named("a"), "b": Named("b")}, 1000)
    for path in ("/v1/chat/completions", "/v1/messages", "/api/chat"):
        reply = ask(front, "POST", path, {"model": "c"})
        assert reply.status == 404
        error = reply.json["error"]
        text = error if path == "/api/chat" else error["message"]
        assert text == "there is no model 'c': this server has a, b."
    assert ask(front, "POST", "/v1/completions", {"model": "b:latest"}).status == 404
    assert ask(Front({"a": Named("a")}, 1000), "POST", "/completion", {"model": "c"}).status == 200


def test_a_client_without_a_key_does_not_learn_the_names_of_models():
    refused = Named("a", status=401)
    front = Front({"a": refused, "b": Named("b", status=401)}, 1000)
    reply = ask(front, "POST", "/v1/chat/completions", {"model": "c"})
    assert reply.status == 401
    assert "message" not in reply.json
    assert refused.paths == ["/v1/models"]
    assert ask(front, "GET", "/v1/models").status == 401


def test_lists_have_the_models_of_all_replicas():
    models = {"a": Named("a"), "gone": Named("gone", status=0), "b": Named("b")}
    front = Front(models, 1000)
    for path, field in (("/v1/models", "data"), ("/api/tags", "models"), ("/api/ps", "models")):
        reply = ask(front, "GET", path)
        assert [row["name"] for row in reply.json[field]] == ["a", "b"]
        assert reply.headers["content-length"] == str(len(reply.body))
    version = {"anthropic-version": "2023-06-01"}
    page = ask(front, "GET", "/v1/models?limit=1", **version).json
    assert (page["first_id"], page["last_id"], page["has_more"]) == ("a", "a", True)
    page = ask(front, "GET", "/v1/models?after_id=a", **version).json
    assert ([row["id"] for row in page["data"]], page["has_more"]) == (["b"], False)
    assert ask(front, "GET", "/v1/models?after_id=x", **version).status == 400


def test_a_cluster_is_well_while_one_model_answers():
    models = {"gone": Named("gone", status=0), "bad": Named("bad", status=503), "a": Named("a")}
    front = Front(models, 1000)
    assert ask(front, "GET", "/health").status == 200
    del models["a"]
    front = Front({**models}, 1000)
    assert ask(front, "GET", "/health").status == 503


def test_stored_responses_are_looked_for_among_all_models():
    models = {"a": Named("a", status=404), "b": Named("b")}
    assert ask(Front(models, 1000), "GET", "/v1/responses/r").headers["x-zinc-replica"] == "b"
    models = {"a": Named("a", status=404), "b": Named("b", status=404)}
    assert ask(Front(models, 1000), "GET", "/v1/responses/r").status == 404


def test_metrics_of_all_models_are_merged():
    class Metrics(Named):
        async def answer(self, request: Forwarded) -> AsyncGenerator[Part]:
            async with aclosing(super().answer(request)) as parts:
                async for part in parts:
                    body = {"type": "http.response.body", "body": b"x 1\n"}
                    yield replace(part, messages=(*part.messages[:1], body))

    front = Front({"a": Metrics("a"), "b": Metrics("b")}, 1000)
    text = 'x{replica="a"} 1\nx{replica="b"} 1\n'
    assert ask(front, "GET", "/metrics").body.decode() == text


def test_a_replica_says_that_it_has_begun_when_the_answer_takes_longer(monkeypatch):
    async def run() -> list[Part]:
        async with cluster(1) as (front, local):
            made = await call(front, "POST", "/v1/responses", {"input": "Hi"})
            monkeypatch.setattr("zinc.cluster.replica._BEGIN_S", 0.0)
            path = f"/v1/responses/{made.json['id']}"  # is looked for on all replicas
            assert (await call(front, "GET", path)).json == made.json
            scope = {
                "type": "http", "method": "GET", "path": "/health", "query_string": b"",
                "headers": [(b"host", b"localhost")], "http_version": "1.1", "scheme": "http",
                "client": ("x", 1),
            }  # fmt: skip
            return [part async for part in local.replicas[0].answer(Forwarded(scope, b""))]

    first, *rest = asyncio.run(run())
    assert first == Part("r0", 0.0)
    assert rest[0].messages[0]["type"] == "http.response.start"


def test_closing_an_answer_cancels_its_sequence():
    async def run() -> None:
        config = ServerConfig((ModelSource(MODEL, None),), LOAD)
        replica = Replica("r", config)
        await replica.start()
        pool = replica._application.pool
        assert pool is not None
        model = pool.default.model
        assert model is not None
        body = json.dumps({**CHAT, "stream": True, "ignore_eos": True, "max_tokens": 3000}).encode()
        scope = {
            "type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": [],
            "query_string": b"", "http_version": "1.1", "scheme": "http", "client": ("x", 1),
        }  # fmt: skip
        scope["headers"] = [(b"host", b"localhost")]
        async with aclosing(replica.answer(Forwarded(scope, body))) as parts:
            n_parts = 0
            async for _ in parts:
                n_parts += 1
                if n_parts == 4:
                    assert len(model.runner.live) == 1
                    break
        async with asyncio.timeout(PATIENCE_S):
            while model.runner.live:
                await asyncio.sleep(0.01)
        await replica.close()

    asyncio.run(run())


def test_metrics_of_replicas_are_merged_by_family():
    text = (
        "# HELP a Things.\n# TYPE a counter\na 1\n"
        "# HELP h Times.\n# TYPE h histogram\n"
        'h_bucket{model="m",le="+Inf"} 2\nh_sum{model="m"} 0.5\nh_count{model="m"} 2\n'
    )
    assert merge({"x": text, "y": text}) == (
        '# HELP a Things.\n# TYPE a counter\na{replica="x"} 1\na{replica="y"} 1\n'
        "# HELP h Times.\n# TYPE h histogram\n"
        'h_bucket{replica="x",model="m",le="+Inf"} 2\nh_sum{replica="x",model="m"} 0.5\n'
        'h_count{replica="x",model="m"} 2\n'
        'h_bucket{replica="y",model="m",le="+Inf"} 2\nh_sum{replica="y",model="m"} 0.5\n'
        'h_count{replica="y",model="m"} 2\n'
    )
