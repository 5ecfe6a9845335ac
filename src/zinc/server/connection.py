"""Connections of HTTP clients: how many there may be, and how long each may take to ask.

uvicorn closes a connection that is idle between requests, and bodies are timed where they are read
(body.py); this adds what is missing against clients that open connections and do little with them:
a request has to begin within a time, an answer has to be read, and beyond a number of connections
new ones are turned away.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

from zinc.server.errors import ApiError
from zinc.server.http import encode_json

# From the start of a connection, or the last answer on it, to the whole head of the next request;
# and how long a client may take in nothing of an answer that waits to be sent.
PATIENCE_S = 40.0


class Connection(H11Protocol):
    """A connection that has to ask in time, and to read what it is answered.

    As many as uvicorn's `limit_concurrency` less one may be open at a time: what comes then gets
    503 and Retry-After.
    """

    _deadline: asyncio.TimerHandle | None = None
    _unsent = 0  # bytes that were not sent yet when the deadline was set

    def connection_made(  # type: ignore[override]
        self, transport: asyncio.Transport
    ) -> None:
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            transport.write(_refusal())
            transport.close()
        self._set_deadline()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:  # else the next request was here already, and runs
            self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._set_deadline()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()

    def _set_deadline(self) -> None:
        self._stop_waiting()
        self._unsent = self.transport.get_write_buffer_size()
        self._deadline = self.loop.call_later(PATIENCE_S, self._too_late)

    def _too_late(self) -> None:
        if self.transport.get_write_buffer_size() < self._unsent:  # it reads, if slowly
            self._set_deadline()
        else:
            self.transport.abort()

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _refusal() -> bytes:
    error = ApiError(503, "the server has too many connections", "", "try again later")
    body = encode_json(error.openai())
    return (
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 5\r\n"
        b"Connection: close\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body
    )
