"""Run a real server with the embedded model in a thread, and send raw requests to it."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from present import of_embedded_model

from zinc.engine.engine import Engine
from zinc.engine.load.options import LoadOptions
from zinc.engine.sequence import Sequence
from zinc.server.app import Application
from zinc.server.config import ModelSource, ServerConfig
from zinc.server.main import Server, bind

MODEL = "demo"


# Without speculation, so that the number of steps of an answer is known.
LOAD = LoadOptions(backend=of_embedded_model(), threads=2, speculate="off")

PATIENCE_S = 120  # for events that take a moment, longer on a busy machine


def wait_for(condition: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    """Wait until `condition()` is true; fail after `seconds`."""
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    assert condition()


def brake_engines(monkeypatch: pytest.MonkeyPatch) -> Brake:
    """Return a brake on the steps of every engine; `monkeypatch` removes it after the test."""
    found, step = Brake(), Engine.step

    def held(engine: Engine) -> list[Sequence]:
        found.wait()
        return step(engine)

    monkeypatch.setattr(Engine, "step", held)
    return found


class Brake:
    """A brake that stops engines before a step, so that a test can look at a running answer."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._n_steps: int | None = None  # steps that engines may still run; None: any number

    def hold(self, n_steps: int = 0) -> None:
        """Stop engines after `n_steps` more steps."""
        self._set(n_steps)

    def release(self) -> None:
        self._set(None)

    def _set(self, n_steps: int | None) -> None:
        with self._changed:
            self._n_steps = n_steps
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait until a step is allowed; engines call this before each step."""
        with self._changed:
            may_go_on = self._changed.wait_for(lambda: self._n_steps != 0, PATIENCE_S)
            assert may_go_on, "the brake was not released"
            if self._n_steps is not None:
                self._n_steps -= 1


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """Data of each server-sent event of the response, parsed if it is JSON."""
        found = []
        for block in self.body.decode().split("\n\n"):
            for line in block.split("\n"):
                if line.startswith("data: "):
                    data = line[6:]
                    found.append(data if data == "[DONE]" else json.loads(data))
        return found


@dataclass
class Running:
    """A running server. loop: its event loop."""

    application: Application
    port: int
    loop: asyncio.AbstractEventLoop
    server: Server
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def call(self, work: Callable[[], Any]) -> Any:
        """Return the result of `work`, called in the server's event loop."""

        async def run() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(PATIENCE_S)

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: dict[str, str] | None = None,
        timeout: float = PATIENCE_S,
    ) -> Answer:
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, data, {**self.headers, **(headers or {})})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()

    def post(self, path: str, body: object, **more: Any) -> Answer:
        return self.request("POST", path, body, **more)

    def get(self, path: str, **more: Any) -> Answer:
        return self.request("GET", path, **more)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)

    def blocks_used(self) -> int:
        assert self.application.pool is not None
        engines = [model.llm.engine for model in self.application.pool.loaded]
        return sum(a.n_held for engine in engines for a in engine.allocators)

    def live(self) -> int:
        assert self.application.pool is not None
        return sum(len(model.runner.live) for model in self.application.pool.loaded)

    def wait_idle(self) -> None:
        """Wait until no sequence runs; fail if blocks remain in use."""
        wait_for(lambda: (self.blocks_used(), self.live()) == (0, 0))
        assert self.application.pool is not None
        for model in self.application.pool.loaded:
            model.llm.engine.pool.check()


@contextmanager
def running(wait: bool = True, **settings: Any) -> Iterator[Running]:
    """Run a server with these settings; stop it at the end."""
    settings.setdefault("models", (ModelSource(MODEL, None),))
    settings.setdefault("load", LOAD)
    config = ServerConfig(port=0, **settings)
    application = Application(config)
    ready = threading.Event()
    failure: list[BaseException] = []
    holder: dict[str, Any] = {}
    listener = bind(config.host, config.port)

    def run() -> None:
        async def main() -> None:
            holder["loop"] = asyncio.get_running_loop()
            holder["server"] = server = Server(application, ready.set)
            await server.serve(sockets=[listener])

        try:
            asyncio.run(main())
        except BaseException as error:
            failure.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(PATIENCE_S)
        assert not failure, failure
        found = Running(application, listener.getsockname()[1], holder["loop"], holder["server"])
        if config.api_keys:
            found.headers["Authorization"] = f"Bearer {config.api_keys[0]}"
        if wait:
            wait_for(lambda: found.get("/health").status == 200)
        yield found
    finally:
        if "server" in holder:
            holder["server"].should_exit = True
        thread.join(PATIENCE_S)
        listener.close()
    assert not failure, failure
    assert not thread.is_alive()


def function(name: str, description: str, **properties: str) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {
                    key: {"type": "string", "description": text} for key, text in properties.items()
                },
                "required": list(properties),
            },
        },
    }


WEATHER = function("get_weather", "Get the current weather in a city", city="Name of the city")
TIME = function("get_time", "Get the current time in a city", city="Name of the city")
