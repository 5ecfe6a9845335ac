"""The answer of the front to a client, made of the messages of one replica or several."""

from __future__ import annotations

import asyncio
import time

from starlette.types import Message, Receive, Scope, Send

from zinc.cluster.messages import Part
from zinc.server.apis.anthropic.messages import ANTHROPIC
from zinc.server.apis.ollama.common import OLLAMA
from zinc.server.apis.openai.common import OPENAI
from zinc.server.apis.openai.responses.endpoints import RESPONSES
from zinc.server.apis.shared.service import StreamEvents
from zinc.server.errors import ApiError
from zinc.server.http.dialect import error_body, speaks_anthropic, speaks_ollama
from zinc.server.http.responses import JSONResponse

_EVENTS, _LINES = b"text/event-stream", b"application/x-ndjson"


class ClientAnswer:
    """The answer to a client.

    The start of the response is held until its first bytes, so that another replica can still
    answer. is_streaming: whether a part has been sent. is_complete: whether all have.
    """

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope, self._send = scope, send
        self._start: Message | None = None
        self._received = time.perf_counter()
        self._content_type = b""
        self.is_streaming = False
        self.is_complete = False

    def until_complete(self, receive: Receive) -> Receive:
        """Return `receive`, which does not return any more when the answer is complete.

        Servers report the end of an answer like a client that disconnects.
        """

        async def received() -> Message:
            message = await receive()
            if self.is_complete:
                await asyncio.Event().wait()
            return message

        return received

    async def write(self, part: Part) -> None:
        """Send the messages of a part."""
        for message in part.messages:
            if message["type"] == "http.response.start":
                own_s = max(0.0, time.perf_counter() - self._received - part.seconds)
                headers = [
                    *message["headers"],
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
            self.is_complete = not message.get("more_body", False)
            await self._send(message)

    def forget(self) -> None:
        """Discard the start of a response, because another replica will answer."""
        self._start = None

    async def fail(self, error: ApiError, receive: Receive) -> None:
        """End the answer with an error."""
        if not self.is_streaming:
            await refuse(error, self._scope, receive, self._send)
            return
        if not self._content_type.startswith((_EVENTS, _LINES)):
            raise error  # the client sees that the body is shorter than announced
        events = _stream_events(self._scope)
        await self._send(
            {"type": "http.response.body", "body": events.error_event(error), "more_body": False}
        )


def _stream_events(scope: Scope) -> StreamEvents:
    """Return the events of the API that a request belongs to."""
    if speaks_ollama(scope):
        return OLLAMA
    if speaks_anthropic(scope):
        return ANTHROPIC
    return RESPONSES if scope["path"].endswith("/responses") else OPENAI


async def refuse(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Send an error in the form of the API that a request belongs to."""
    response = JSONResponse(error_body(error, scope), error.status, error.headers)
    await response(scope, receive, send)
