"""A replica: the ASGI application of the server, called with whole requests instead of sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Any

from starlette.types import ASGIApp, Message, Scope

from zinc.cluster.messages import Forwarded, Part
from zinc.cluster.prompt_blocks import BLOCK_BYTES, split
from zinc.cluster.routing import REPORTED_BLOCKS, Sketch
from zinc.core.errors import ZincError
from zinc.server.app import Application
from zinc.server.config import ServerConfig
from zinc.server.http.responses import stop
from zinc.server.runtime.entry import State

_BEGIN_S = 0.5  # after which a replica says that it has begun, as the answer takes longer
_BYTES_PER_TOKEN = 4.0  # of text, until prompts have been counted


class Replica:
    """The server's application with its models. name: tells replicas apart."""

    def __init__(self, name: str, config: ServerConfig) -> None:
        self.name = name
        self._application = Application(config)
        self._running = AsyncExitStack()
        self._sketch = Sketch(REPORTED_BLOCKS)
        self._n_prompts = 0
        self._text_bytes = 0

    async def start(self) -> None:
        """Load the first model. Raises a ZincError."""
        pool = await self._running.enter_async_context(self._application.started())
        try:
            await pool.until_started()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End all answers and unload the models."""
        await self._running.aclose()

    def check_health(self) -> None:
        """Raise ZincError if no model of this replica can answer."""
        pool = self._application.pool
        if pool is None or all(each.state is State.FAILED for each in pool.entries.values()):
            raise ZincError("the replica has no model that can answer")

    @property
    def in_process(self) -> ASGIApp:
        """The application for requests from within, without access checks."""
        return self._application.in_process

    async def answer(self, request: Forwarded) -> AsyncGenerator[Part]:
        """Yield the parts of the answer to a request. Closing the generator cancels the request."""
        if self.name in request.avoid:  # all replicas have had the request
            yield Part(self.name, 0.0)
            return
        started = time.perf_counter()
        blocks = split(request.blocks)
        if blocks:
            self._n_prompts += 1
            self._text_bytes += len(blocks) * BLOCK_BYTES
            self._sketch.capacity = min(REPORTED_BLOCKS, self._cached_blocks())
            self._sketch.add(blocks)
        call = _Call(self._application.asgi, request)
        try:
            has_begun, is_open = False, True
            while is_open:
                try:
                    async with asyncio.timeout(None if has_begun else _BEGIN_S):
                        messages, is_open = await call.next_messages()
                except TimeoutError:
                    has_begun = True
                    yield Part(self.name, 0.0)
                    continue
                has_begun = True
                yield Part(self.name, time.perf_counter() - started, tuple(messages))
            await call.end()
        finally:
            await call.cancel()

    def routing_stats(self) -> dict[str, Any]:
        """Return the sketch of the prefix cache for routers, and a number that changes with it."""
        return {"number": self._n_prompts, "blocks": self._sketch.newest(REPORTED_BLOCKS)}

    def _cached_blocks(self) -> int:
        """Return how many blocks of text the prefix cache of the first model has room for."""
        pool = self._application.pool
        model = None if pool is None else pool.default.model
        if model is None:
            return REPORTED_BLOCKS
        counted = self._application.metrics.prompt_tokens.value(model.name)
        per_token = self._text_bytes / counted if counted else _BYTES_PER_TOKEN
        engine = model.llm.engine
        n_tokens = engine.pool.block_tokens * max(
            (a.n_blocks for a in engine.allocators), default=0
        )
        return int(n_tokens * per_token) // BLOCK_BYTES


class _Call:
    """A call of an ASGI application with a whole request, whose messages are collected."""

    def __init__(self, application: ASGIApp, request: Forwarded) -> None:
        self._request: list[Message] = [
            {"type": "http.request", "body": request.body, "more_body": False}
        ]
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()  # None is the end
        self._cancelled = asyncio.Event()
        self._task = asyncio.create_task(self._run(application, {**request.scope}))

    async def next_messages(self) -> tuple[list[Message], bool]:
        """Wait for a message; return all that are ready, and whether others may follow."""
        ready = [await self._messages.get()]
        while not self._messages.empty():
            ready.append(self._messages.get_nowait())
        return [message for message in ready if message is not None], None not in ready

    async def end(self) -> None:
        """Wait for the end of the call. Raises the error of the application."""
        await self._task

    async def cancel(self) -> None:
        """Let the application see that the client disconnected, and stop it."""
        self._cancelled.set()
        await stop([self._task])

    async def _run(self, application: ASGIApp, scope: Scope) -> None:
        try:
            await application(scope, self._receive, self._send)
        finally:
            self._messages.put_nowait(None)

    async def _receive(self) -> Message:
        if self._request:
            return self._request.pop()
        await self._cancelled.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self._messages.put_nowait(message)
