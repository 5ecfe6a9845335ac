"""The front of a cluster: an ASGI application that forwards each request to a replica.

A request whose replica is lost is sent to another one, unless a part of the answer has reached the
client; then the answer ends with an error in the form of its API. The model that a request names
decides whose replicas get it. Lists of models and metrics are merged from the replicas of all
models, and requests that concern every replica go to each. Stored responses are looked for on all
replicas, since each keeps its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from zinc.cluster import merged_metrics
from zinc.cluster.client_answer import ClientAnswer, refuse
from zinc.cluster.messages import Forwarded, Part, body_of, sendable, status_of, with_body
from zinc.cluster.model_routes import (
    LISTS,
    access_probe,
    asked_model,
    find_model,
    merged_list,
)
from zinc.cluster.prompt_blocks import prompt_blocks, request_fields
from zinc.server.errors import ApiError, unknown_model
from zinc.server.http.access import key_in
from zinc.server.http.body import BODY_TIMEOUT_S, late_body
from zinc.server.http.responses import stop, unless_disconnected

_ATTEMPTS = 5
_PAUSE_S = 0.2  # before the second attempt; doubles with each further one
_START_S = 60.0  # time for a replica to start a request
_UNKNOWN = (400, 404)  # statuses of a replica that does not have a stored response
_BROADCAST = ("/models/load", "/models/unload")
_HEALTH = ("/health", "/v1/health")
_EACH_START_S = 5.0  # time for a replica of each model to start a request to all models
_REFUSED = (401, 403, 421)  # statuses with which a replica denies access
_Reply = TypeVar("_Reply")


class ReplicaLostError(Exception):
    """The replica of a request ended before its answer did."""


class Replicas(Protocol):
    """The replicas of a cluster."""

    def answer(self, request: Forwarded) -> AsyncGenerator[Part]:
        """Yield the parts of the answer of a replica. Raises ReplicaLostError."""


class Front:
    """The application.

    models: the replicas of each model by its name, those of the default model first. It may be
    replaced. max_body_bytes: the largest request body. separates_keys: prompts share a prefix cache
    only with those of the same API key. start_s: time for a replica to start a request.
    pause_s: before a request is repeated.
    """

    def __init__(
        self,
        models: Mapping[str, Replicas],
        max_body_bytes: int,
        separates_keys: bool = False,
        start_s: float = _START_S,
        pause_s: float = _PAUSE_S,
    ) -> None:
        self.models = models
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
            body = await self._read(scope, receive)
        except ClientDisconnect:
            return
        except ApiError as error:
            await refuse(error, scope, receive, send)
            return
        answer = ClientAnswer(scope, send)
        with suppress(ClientDisconnect):  # ends the answer of the replica
            await unless_disconnected(
                Request(scope, answer.until_complete(receive)),
                self._whole_answer(scope, body, answer, receive),
            )

    async def _whole_answer(
        self, scope: Scope, body: bytes, answer: ClientAnswer, receive: Receive
    ) -> None:
        """Answer a request, with an error if it cannot be answered."""
        try:
            await self._answer(scope, body, answer)
        except ApiError as error:
            await answer.fail(error, receive)

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        """Return the body of a request. Raises ApiError 408 and 413, and ClientDisconnect."""
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                async for part in Request(scope, receive).stream():
                    body += part
                    if len(body) > self._max_body_bytes:
                        raise _too_large(self._max_body_bytes)
        except TimeoutError:
            raise late_body() from None
        return bytes(body)

    async def _answer(self, scope: Scope, body: bytes, answer: ClientAnswer) -> None:
        """Answer a request. Raises ApiError."""
        fields = request_fields(body)
        key = key_in(Headers(scope=scope)) if self._separates_keys else ""
        blocks = prompt_blocks(fields, key.encode("utf-8", "replace")) if fields else b""
        request = Forwarded(sendable(scope), body, blocks)
        models, path = self.models, scope["path"]
        if path == "/metrics":
            await self._metrics(request, answer)
        elif path in LISTS and scope["method"] == "GET" and len(models) > 1:
            await self._list(request, answer)
        elif path in _HEALTH and len(models) > 1:
            await self._health(request, answer)
        elif path.startswith("/v1/responses/") and path != "/v1/responses/input_tokens":
            await self._try_each(request, answer, models.values(), _is_unknown)
        else:
            replicas = await self._replicas(request, fields, answer)
            if replicas is None:
                return
            if path in _BROADCAST:
                await self._try_each(request, answer, [replicas], lambda status: status < 400)
            elif path.endswith("/responses") and fields.get("previous_response_id"):
                await self._try_each(request, answer, [replicas], _is_unknown)
            else:
                await self._forward(request, answer, replicas)

    async def _replicas(
        self, request: Forwarded, fields: Mapping[str, Any], answer: ClientAnswer
    ) -> Replicas | None:
        """Return the replicas of the model that a request names.

        Return None if the request was refused. Raises ApiError 404 for an unknown model.
        """
        models, scope = self.models, request.scope
        asked = asked_model(scope, fields)
        name = find_model(scope, asked, models)
        if name is not None:
            return models[name]
        # Replicas check API keys. A client without a key must not learn model names either.
        probe = Forwarded(access_probe(scope), b"")
        reply = await self._whole(probe, next(iter(models.values())))
        if status_of(reply) not in _REFUSED:
            raise unknown_model(asked, models)
        for part in reply:
            await answer.write(part)
        return None

    async def _forward(self, request: Forwarded, answer: ClientAnswer, replicas: Replicas) -> None:
        """Send the request to a replica, and to others while replicas are lost. Raises ApiError."""
        pause_s = self._pause_s
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(pause_s)
                pause_s *= 2
            try:
                async with aclosing(self._parts(request, replicas)) as parts:
                    async for part in parts:
                        await answer.write(part)
                return
            except ReplicaLostError:
                if answer.is_streaming:
                    raise _lost(during=True) from None
                answer.forget()
        raise _lost(during=False)

    async def _parts(
        self, request: Forwarded, replicas: Replicas, start_s: float | None = None
    ) -> AsyncGenerator[Part]:
        """Yield the parts of one attempt. Raises ReplicaLostError, and ApiError 503.

        start_s: time for a replica to start it (default: as for all requests).
        """
        start_s = self._start_s if start_s is None else min(start_s, self._start_s)
        async with aclosing(replicas.answer(request)) as parts:
            try:
                async with asyncio.timeout(start_s):
                    first = await anext(parts)
            except (TimeoutError, StopAsyncIteration):
                raise ApiError(
                    503,
                    "no replica started the request",
                    f"none was ready within {start_s:g} s",
                    "try again later; `zinc cluster status` shows the replicas",
                    code="no_replica",
                    headers={"Retry-After": "10"},
                ) from None
            yield first
            async for part in parts:
                yield part

    async def _list(self, request: Forwarded, answer: ClientAnswer) -> None:
        """Answer with a list of all models. Those without a replica are left out."""
        # Pages are cut from the whole list.
        whole = replace(request, scope={**request.scope, "query_string": b""})
        replies = await self._of_each(lambda replicas: self._whole(whole, replicas, _EACH_START_S))
        reply = next((each for each in replies if status_of(each) != 200), None)
        if reply is None:
            body = merged_list(request.scope, [body_of(each) for each in replies])
            reply = with_body(replies[0], body)
        for part in reply:
            await answer.write(part)

    async def _health(self, request: Forwarded, answer: ClientAnswer) -> None:
        """Answer whether a replica of any model is healthy."""
        replies = [
            asyncio.create_task(self._whole(request, replicas, _EACH_START_S))
            for replicas in self.models.values()
        ]
        try:
            for ended in asyncio.as_completed(replies):
                try:
                    reply, error = await ended, None
                except ApiError as raised:
                    reply, error = [], raised
                if reply and status_of(reply) == 200:
                    break
            if error is not None:
                raise error
            for part in reply:
                await answer.write(part)
        finally:
            await stop(replies)

    async def _metrics(self, request: Forwarded, answer: ClientAnswer) -> None:
        """Answer with the metrics of all replicas. Raises ApiError 503."""
        start_s = _EACH_START_S if len(self.models) > 1 else None
        replies = await self._of_each(
            lambda replicas: self._of_replicas(request, replicas, start_s)
        )
        found = [reply for each in replies for reply in each]
        reply = next((each for each in found if status_of(each) != 200), None)
        if reply is None:
            texts = {each[0].replica: body_of(each).decode() for each in found}
            reply = with_body(found[-1], merged_metrics.merge(texts).encode())
        for part in reply:
            await answer.write(part)

    async def _of_replicas(
        self, request: Forwarded, replicas: Replicas, start_s: float | None
    ) -> list[list[Part]]:
        """Return the answers of all replicas of a model. Raises ApiError 503."""
        found: list[list[Part]] = []
        avoid: tuple[str, ...] = ()
        while True:
            reply = await self._whole(replace(request, avoid=avoid), replicas, start_s)
            if reply[0].replica in avoid:
                return found
            found.append(reply)
            avoid = (*avoid, reply[0].replica)

    async def _of_each(self, ask: Callable[[Replicas], Awaitable[_Reply]]) -> list[_Reply]:
        """Return the answers of models whose replicas answer. Raises ApiError if none do."""
        results = await asyncio.gather(
            *(ask(replicas) for replicas in self.models.values()), return_exceptions=True
        )
        errors = [each for each in results if isinstance(each, BaseException)]
        unexpected = next((each for each in errors if not isinstance(each, ApiError)), None)
        found = [each for each in results if not isinstance(each, BaseException)]
        if unexpected is not None or not found:
            raise unexpected or errors[0]
        return found

    async def _try_each(
        self,
        request: Forwarded,
        answer: ClientAnswer,
        models: Iterable[Replicas],
        goes_on: Callable[[int], bool],
    ) -> None:
        """Send the request to one replica after the other while `goes_on(status)`.

        models: the replicas to try, of one or several models. The last reply is the answer. Raises
        ApiError 503 if a replica is lost.
        """
        reply: list[Part] = []
        for replicas in models:
            avoid: tuple[str, ...] = ()
            while True:
                attempt = replace(request, avoid=avoid)
                name, found = await self._attempt(attempt, answer, replicas, goes_on)
                if found is None:
                    return
                if name in avoid:  # all replicas have had the request
                    break
                avoid, reply = (*avoid, name), found
        for part in reply:
            await answer.write(part)

    async def _attempt(
        self,
        request: Forwarded,
        answer: ClientAnswer,
        replicas: Replicas,
        goes_on: Callable[[int], bool],
    ) -> tuple[str, list[Part] | None]:
        """Send the request to one replica; write its reply to the client unless `goes_on(status)`.

        Returns the name of the replica and its reply: None if it was written, nothing if the
        replica is in `request.avoid`. Raises ApiError 503 if the replica is lost.
        """
        try:
            async with aclosing(self._parts(request, replicas)) as parts:
                first = await anext(parts)
                if first.replica in request.avoid:
                    return first.replica, []
                if not first.messages:
                    first = await anext(parts)
                if goes_on(status_of([first])):
                    return first.replica, [first, *[part async for part in parts]]
                await answer.write(first)
                async for part in parts:
                    await answer.write(part)
                return first.replica, None
        except ReplicaLostError:
            raise _lost(during=answer.is_streaming) from None

    async def _whole(
        self, request: Forwarded, replicas: Replicas, start_s: float | None = None
    ) -> list[Part]:
        """Return all parts of an answer. Raises ApiError 503."""
        try:
            async with aclosing(self._parts(request, replicas, start_s)) as parts:
                return [part async for part in parts]
        except ReplicaLostError:
            raise _lost(during=False) from None


def _is_unknown(status: int) -> bool:
    """Return whether a replica lacks the stored response that a request is about."""
    return status in _UNKNOWN


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413,
        "the request is too large",
        f"the cluster reads bodies of up to {max_bytes} bytes",
        "send less, or start the cluster with a larger --max-body",
        code="request_too_large",
        headers={"Connection": "close"},
    )


def _lost(during: bool) -> ApiError:
    return ApiError(
        503,
        "the replica that answered was lost",
        "a part of the answer had been sent" if during else "so were others that were tried",
        "send the request again",
        code="replica_lost",
        headers={"Retry-After": "1"},
    )


async def _lifespan(receive: Receive, send: Send) -> None:
    """Answer the messages of ASGI's lifespan protocol."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
