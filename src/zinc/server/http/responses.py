"""HTTP responses: JSON, event streams, and cancellation when a client disconnects.

Event streams and long requests watch the connection while they wait. When it closes, the work is
cancelled, and with it the sequences in the engine.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from zinc.core.dataclass import dataclass
from zinc.server.errors import ApiError, from_exception
from zinc.server.http.body import Json

T = TypeVar("T")

PING_INTERVAL_S = 30.0  # llama.cpp's default
SEND_TIMEOUT_S = 120.0
RECORD = "zinc.record"
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


@dataclass(slots=True)
class Record:
    """Facts about a request for the request log. It holds no text of prompts or answers."""

    id: str
    model: str | None = None
    stream: bool = False
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    first_token_s: float | None = None
    finish: str | None = None
    error: str | None = None


def record(request: Request) -> Record:
    """Return the log record of `request`."""
    found: Record = request.scope[RECORD]
    return found


def encode_json(value: Json) -> bytes:
    """Return `value` as compact JSON in UTF-8. Raises ValueError for NaN and infinity."""
    return _JSON.encode(value).encode()


class JSONResponse(Response):
    """A response whose body is JSON."""

    media_type = "application/json"

    def __init__(
        self, value: Json, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(encode_json(value), status, headers)


def event(data: Json, name: str | None = None) -> bytes:
    """Return the bytes of a server-sent event.

    https://html.spec.whatwg.org/multipage/server-sent-events.html
    """
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + (data if isinstance(data, bytes) else encode_json(data)) + b"\n\n"


class EventStream(Response):
    """A stream of server-sent events, or of JSON lines if `media_type` says so.

    events: the encoded events. close: awaited at the end, also after an error or a disconnect.
    on_error: returns the event that reports a failure during the stream. ping: sent after every
    `ping_interval_s` seconds without an event (0 or less: never), so that clients and proxies with
    a read timeout keep the connection while a long prompt is processed. report: called with a
    failure, to log it.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes],
        *,
        close: Callable[[], Awaitable[Any]],
        on_error: Callable[[ApiError], bytes],
        ping: bytes = b": ping\n\n",
        ping_interval_s: float = PING_INTERVAL_S,
        report: Callable[[Exception], None] = lambda error: None,
        media_type: str = "text/event-stream",
    ) -> None:
        super().__init__(
            media_type=media_type,
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )
        del self.headers["content-length"]
        self._events = events
        self._close = close
        self._on_error = on_error
        self._ping = ping
        self._ping_interval_s = ping_interval_s
        self._report = report
        self._last_write = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await _first_of(self._send_all(send), _disconnected(receive))
        finally:
            await self._close()

    async def _send_all(self, send: Send) -> None:
        async def write(body: bytes, more: bool = True) -> None:
            self._last_write = asyncio.get_running_loop().time()
            # A client that stops reading must not keep the memory of its answer.
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await send({"type": "http.response.body", "body": body, "more_body": more})

        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        pings = asyncio.create_task(self._send_pings(write))
        try:
            async with aclosing(self._events) as events:
                async for chunk in events:
                    await write(chunk)
        except (TimeoutError, OSError):
            return
        except Exception as error:
            self._report(error)
            await write(self._on_error(from_exception(error)))
        finally:
            await stop([pings])
        await write(b"", more=False)

    async def _send_pings(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Write a ping whenever nothing was written for the interval."""
        clock = asyncio.get_running_loop().time
        self._last_write = clock()
        while self._ping_interval_s > 0:
            silent_s = clock() - self._last_write
            if silent_s >= self._ping_interval_s:
                await write(self._ping)
            else:
                await asyncio.sleep(self._ping_interval_s - silent_s)


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, or cancel it and raise ClientDisconnect if the client goes.

    The body of `request` must have been read.
    """
    return await _first_of(work, _disconnected(request.receive))


async def merge(streams: Sequence[AsyncGenerator[T]]) -> AsyncGenerator[tuple[int, T]]:
    """Yield the items of several streams as they arrive, each with the index of its stream."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for item in only:
                yield 0, item
        return
    arrived: asyncio.Queue[tuple[int, T] | BaseException | None] = asyncio.Queue()

    async def pump(index: int, stream: AsyncGenerator[T]) -> None:
        try:
            async with aclosing(stream) as items:
                async for item in items:
                    arrived.put_nowait((index, item))
            arrived.put_nowait(None)
        except Exception as error:
            arrived.put_nowait(error)

    tasks = [asyncio.create_task(pump(i, stream)) for i, stream in enumerate(streams)]
    try:
        left = len(tasks)
        while left:
            found = await arrived.get()
            if found is None:
                left -= 1
            elif isinstance(found, BaseException):
                raise found
            else:
                yield found
    finally:
        await stop(tasks)


async def _first_of(work: Coroutine[Any, Any, T], other: Coroutine[Any, Any, None]) -> T:
    """Return the result of `work`. If `other` ends first, cancel `work`; raise ClientDisconnect."""
    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(other)
    try:
        await asyncio.wait([task, watch], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        await stop([task, watch])


async def stop(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel `tasks` and wait for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
