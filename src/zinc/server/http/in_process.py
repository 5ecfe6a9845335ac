"""Requests from within the process: they pass through the ASGI application, without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Scope

from zinc.core.dataclass import dataclass
from zinc.server.errors import ApiError
from zinc.server.http.body import Json

HIGHEST_PRIORITY = "zinc.highest_priority"  # scope key: a request cannot have a higher one
_CLIENT = "batch"


@dataclass(frozen=True, slots=True)
class Reply:
    """The response to a request from within. retry_after_s: the header Retry-After, or 1."""

    status: int
    request_id: str
    body: Json
    retry_after_s: float = 1.0


async def post(
    app: ASGIApp,
    path: str,
    body: bytes,
    headers: Sequence[tuple[bytes, bytes]] = (),
    highest_priority: int | None = None,
) -> Reply:
    """Send `body`, JSON text, to the POST endpoint `path` of `app`, and return its reply.

    headers: further request headers. highest_priority: upper limit of the priority, and its
    default. Cancelling the caller cancels the request.
    """
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), *headers],
        "client": (_CLIENT, 0),
        "server": (_CLIENT, 0),
        HIGHEST_PRIORITY: highest_priority,
    }
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    start: Message = {"status": 0, "headers": []}
    parts: list[bytes] = []

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()  # there is no client that could disconnect
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    found = Headers(raw=list(start["headers"]))
    request_id = found.get("x-request-id", "")
    try:
        value = json.loads(b"".join(parts))
    except ValueError:  # a bug ended the response before its end
        error = ApiError(500, "the server failed on this request", code="internal_error")
        return Reply(500, request_id, error.openai())
    wait = found.get("retry-after", "")
    return Reply(start["status"], request_id, value, float(wait) if wait.isdecimal() else 1.0)
