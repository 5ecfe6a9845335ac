"""The front of a cluster: an ASGI application that forwards each request to a replica.

A request whose replica is lost is sent to another one, unless a part of the answer has reached the
client; then the answer ends with an error in the form of its API. Metrics of all replicas are
merged, and requests that concern every replica go to each. Stored responses are looked for on all
replicas, since each keeps its own.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope, Send

from zinc.cluster import merged_metrics
from zinc.cluster.messages import Forwarded, Part, sendable
from zinc.cluster.prompt_blocks import prompt_blocks
from zinc.server.apis.anthropic.messages import ANTHROPIC
from zinc.server.apis.ollama.common import OLLAMA
from zinc.server.apis.openai.common import OPENAI
from zinc.server.apis.openai.responses.endpoints import RESPONSES
from zinc.server.apis.shared.service import StreamEvents
from zinc.server.errors import ApiError
from zinc.server.http.access import key_in
from zinc.server.http.dialect import error_body, speaks_anthropic, speaks_ollama
from zinc.server.http.responses import JSONResponse

_ATTEMPTS = 5
_PAUSE_S = 0.2  # before the second attempt; doubles with each further one
_START_S = 60.0  # for a replica to begin with a request
_UNKNOWN = (400, 404)  # statuses of a replica that does not have a stored response
_BROADCAST = ("/models/load", "/models/unload")
_EVENTS, _LINES = b"text/event-stream", b"application/x-ndjson"


class ReplicaLostError(Exception):
    """The replica of a request ended before its answer did."""


class Replicas(Protocol):
    """The replicas of a cluster."""

    def answer(self, request: Forwarded) -> AsyncGenerator[Part]:
        """Yield the parts of the answer of a replica. Raises ReplicaLostError."""


class Front:
    """The application.

    max_body_bytes: the largest request body. separates_keys: prompts share a prefix cache only with
    those of the same API key. start_s: time for a replica to begin with a request. pause_s: before
    a request is repeated.
    """

    def __init__(
        self,
        replicas: Replicas,
        max_body_bytes: int,
        separates_keys: bool = False,
        start_s: float = _START_S,
        pause_s: float = _PAUSE_S,
    ) -> None:
        self._replicas = replicas
        self._max_body_bytes = max_body_bytes
        self._separates_keys = separates_keys
        self._start_s, self._pause_s = start_s, pause_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        try:
            request = await self._read(scope, receive)
        except ClientDisconnect:
            return
        except ApiError as error:
            await _refuse(error, scope, receive, send)
            return
        answer = _Answer(scope, send)
        try:
            if scope["path"] == "/metrics":
                await self._metrics(request, answer)
            elif scope["path"] in _BROADCAST:
                await self._try_each(request, answer, lambda status: status < 400)
            elif _needs_stored_response(request):
                await self._try_each(request, answer, lambda status: status in _UNKNOWN)
            else:
                await self._forward(request, answer)
        except ApiError as error:
            await answer.fail(error, receive)

    async def _read(self, scope: Scope, receive: Receive) -> Forwarded:
        """Return the request to forward. Raises ApiError 413."""
        body = bytearray()
        async for part in Request(scope, receive).stream():
            body += part
            if len(body) > self._max_body_bytes:
                raise ApiError(
                    413,
                    "the request is too large",
                    f"it may have {self._max_body_bytes} bytes",
                    "send less, or start the cluster with a larger --max-body",
                    code="request_too_large",
                    headers={"Connection": "close"},
                )
        key = key_in(Headers(scope=scope)) if self._separates_keys else ""
        data = bytes(body)
        blocks = prompt_blocks(data, key.encode("utf-8", "replace")) if data else b""
        return Forwarded(sendable(scope), data, blocks)

    async def _forward(self, request: Forwarded, answer: _Answer) -> None:
        """Send the request to a replica, and to others while replicas are lost. Raises ApiError."""
        pause_s = self._pause_s
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(pause_s)
                pause_s *= 2
            try:
                async with aclosing(self._parts(request)) as parts:
                    async for part in parts:
                        await answer.write(part)
                return
            except ReplicaLostError:
                if answer.is_streaming:
                    raise _lost(during=True) from None
                answer.forget()
        raise _lost(during=False)

    async def _parts(self, request: Forwarded) -> AsyncGenerator[Part]:
        """Yield the parts of one attempt. Raises ReplicaLostError, and ApiError 503."""
        async with aclosing(self._replicas.answer(request)) as parts:
            try:
                async with asyncio.timeout(self._start_s):
                    first = await anext(parts)
            except (TimeoutError, StopAsyncIteration):
                raise ApiError(
                    503,
                    "no replica could begin with the request",
                    f"none was ready within {self._start_s:g} s",
                    "try again later; `zinc cluster status` shows the replicas",
                    code="no_replica",
                    headers={"Retry-After": "10"},
                ) from None
            yield first
            async for part in parts:
                yield part

    async def _metrics(self, request: Forwarded, answer: _Answer) -> None:
        """Answer with the metrics of all replicas. Raises ApiError 503."""
        texts: dict[str, str] = {}
        avoid: tuple[str, ...] = ()
        reply: list[Part] = []
        while True:
            found = await self._whole(replace(request, avoid=avoid))
            if found[0].replica in avoid:
                break
            reply = found
            avoid = (*avoid, reply[0].replica)
            if _status(reply) != 200:
                break
            texts[reply[0].replica] = _body(reply).decode()
        if _status(reply) == 200:
            reply = _with_body(reply, merged_metrics.merge(texts).encode())
        for part in reply:
            await answer.write(part)

    async def _try_each(
        self, request: Forwarded, answer: _Answer, goes_on: Callable[[int], bool]
    ) -> None:
        """Send the request to one replica after the other while `goes_on(status)`.

        The last reply is the answer. Raises ApiError 503 if a replica is lost.
        """
        avoid: tuple[str, ...] = ()
        reply: list[Part] = []
        while True:
            try:
                async with aclosing(self._parts(replace(request, avoid=avoid))) as parts:
                    first = await anext(parts)
                    if first.replica in avoid:
                        break
                    avoid = (*avoid, first.replica)
                    if not first.messages:
                        first = await anext(parts)
                    if goes_on(_status([first])):
                        reply = [first, *[part async for part in parts]]
                        continue
                    await answer.write(first)
                    async for part in parts:
                        await answer.write(part)
                    return
            except ReplicaLostError:
                raise _lost(during=answer.is_streaming) from None
        for part in reply:
            await answer.write(part)

    async def _whole(self, request: Forwarded) -> list[Part]:
        """Return all parts of an answer. Raises ApiError 503."""
        try:
            async with aclosing(self._parts(request)) as parts:
                return [part async for part in parts]
        except ReplicaLostError:
            raise _lost(during=False) from None


class _Answer:
    """The answer to a client.

    The start of the response is held until its first bytes, so that another replica can still
    answer. is_streaming: whether a part has been sent.
    """

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope, self._send = scope, send
        self._start: Message | None = None
        self._received = time.perf_counter()
        self.is_streaming = False

    async def write(self, part: Part) -> None:
        """Send the messages of a part."""
        for message in part.messages:
            if message["type"] == "http.response.start":
                own_s = max(0.0, time.perf_counter() - self._received - part.seconds)
                # Serve sets an X-Request-Id of its own; Request-Id is that of the replica's log.
                headers = [
                    *(each for each in message["headers"] if each[0] != b"x-request-id"),
                    (b"x-zinc-replica", part.replica.encode()),
                    (b"server-timing", b"cluster;dur=%.2f" % (1e3 * own_s)),
                ]
                self._start = {**message, "headers": headers}
                continue
            if self._start is not None:
                start, self._start = self._start, None
                self.is_streaming = True
                self._content_type = dict(start["headers"]).get(b"content-type", b"")
                await self._send(start)
            await self._send(message)

    def forget(self) -> None:
        """Forget the start of an answer that another replica will give."""
        self._start = None

    async def fail(self, error: ApiError, receive: Receive) -> None:
        """End the answer with an error."""
        if not self.is_streaming:
            await _refuse(error, self._scope, receive, self._send)
            return
        if not self._content_type.startswith((_EVENTS, _LINES)):
            raise error  # the client sees that the body is shorter than announced
        events = _stream_events(self._scope)
        await self._send(
            {"type": "http.response.body", "body": events.error_event(error), "more_body": False}
        )


def _needs_stored_response(request: Forwarded) -> bool:
    """Return whether a request refers to a stored response, which one replica has."""
    path: str = request.scope["path"]
    if path.startswith("/v1/responses/") and path != "/v1/responses/input_tokens":
        return True
    if not path.endswith("/responses") or b"previous_response_id" not in request.body:
        return False
    try:
        return bool(json.loads(request.body).get("previous_response_id"))
    except (ValueError, RecursionError, AttributeError):
        return False


def _status(parts: list[Part]) -> int:
    """Return the HTTP status of an answer, 503 if it has none."""
    for part in parts:
        for message in part.messages:
            if message["type"] == "http.response.start":
                status: int = message["status"]
                return status
    return 503


def _body(parts: list[Part]) -> bytes:
    return b"".join(message.get("body", b"") for part in parts for message in part.messages)


def _with_body(parts: list[Part], body: bytes) -> list[Part]:
    """Return the answer `parts` with another body."""
    start = next(m for p in parts for m in p.messages if m["type"] == "http.response.start")
    headers = [(k, v) for k, v in start["headers"] if k.lower() != b"content-length"]
    headers.append((b"content-length", str(len(body)).encode()))
    messages: tuple[Message, ...] = (
        {**start, "headers": headers},
        {"type": "http.response.body", "body": body},
    )
    return [replace(parts[-1], messages=messages)]


def _stream_events(scope: Scope) -> StreamEvents:
    """Return the events of the API that a request belongs to."""
    if speaks_ollama(scope):
        return OLLAMA
    if speaks_anthropic(scope):
        return ANTHROPIC
    return RESPONSES if scope["path"].endswith("/responses") else OPENAI


def _lost(during: bool) -> ApiError:
    return ApiError(
        503,
        "the replica that answered was lost",
        "a part of the answer had been sent" if during else "so were others that were tried",
        "send the request again",
        code="replica_lost",
        headers={"Retry-After": "1"},
    )


async def _refuse(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    response = JSONResponse(error_body(error, scope), error.status, error.headers)
    await response(scope, receive, send)


async def _lifespan(receive: Receive, send: Send) -> None:
    """Answer the messages of ASGI's lifespan protocol."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
