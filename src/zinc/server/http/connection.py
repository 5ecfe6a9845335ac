"""Limits on HTTP connections: their number, and time limits for slow clients.

uvicorn closes connections that are idle between requests, and body.py limits the time of a body.
This module adds protection against clients that open connections and do little with them: the head
of a request must arrive in time, a response must be read, and connections beyond the limit get an
error.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import re
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol

from zinc.server.errors import ApiError
from zinc.server.http.responses import encode_json

try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None  # type: ignore[assignment]

log = logging.getLogger("zinc.server")

# The time limit for the head of a request, from the start of the connection or the last response;
# and for a client that reads nothing while data waits to be sent.
PATIENCE_S = 40.0
# Open files besides connections: models, the cache, and connections that are being refused.
RESERVED_FILES = 32
# Accepts fail by the hundred, so they are logged at most this often.
_COMPLAINT_S = 30.0
_ABSOLUTE_URL = re.compile(rb"https?://([^/?]*)(.*)", re.IGNORECASE)
_NO_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Connection(H11Protocol):
    """A connection with time limits for requests and for reading responses.

    At most `limit_concurrency` - 1 connections (uvicorn's setting) may be open at a time. Further
    ones get status 503 with Retry-After.
    """

    _deadline: asyncio.TimerHandle | None = None
    _unsent = 0  # bytes in the write buffer when the deadline was set

    def __init__(self, config: Config, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.conn = StrictConnection(h11.SERVER, config.h11_max_incomplete_event_size or 1 << 14)

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
        if self.cycle.response_complete:  # else a pipelined request is already running
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

    def send_400_response(self, msg: str) -> None:
        """Answer data that is not HTTP, unless a response has begun, and close the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            error = ApiError(400, "the request is not valid HTTP", "", "check the client or proxy")
            self.transport.write(_answer(b"400 Bad Request", error))
        self.transport.close()

    def _set_deadline(self) -> None:
        self._stop_waiting()
        self._unsent = self.transport.get_write_buffer_size()
        self._deadline = self.loop.call_later(PATIENCE_S, self._too_late)

    def _too_late(self) -> None:
        if self.transport.get_write_buffer_size() < self._unsent:  # the client reads, but slowly
            self._set_deadline()
        else:
            self.transport.abort()

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class AcceptFailures:
    """An exception handler for the event loop that logs failed accepts, at most every 30 s.

    asyncio tries again after a second, so the server recovers when connections close. If the
    server has closed its socket by then, nothing is logged. Other exceptions go to asyncio's
    default handler.
    """

    def __init__(self) -> None:
        self._complain_at = 0.0
        self._n_silent = 0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, ValueError) and "_start_serving" in context["message"]:
            return  # the second try found a closed socket
        accepts = isinstance(error, OSError) and error.errno in _NO_RESOURCES
        if not accepts or "socket" not in context:
            loop.default_exception_handler(context)
        elif loop.time() < self._complain_at:
            self._n_silent += 1
        else:
            self._complain_at = loop.time() + _COMPLAINT_S
            more = f" ({self._n_silent} times before)" if self._n_silent else ""
            log.error("connections cannot be accepted: %s%s", error, more)
            self._n_silent = 0


def connections_allowed(wanted: int) -> int:
    """Return how many connections the process can hold, at most `wanted`.

    Raises the process's limit of open files as far as needed and allowed.
    """
    if resource is None:
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + RESERVED_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(OSError, ValueError):  # macOS reports no limit but has one
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    allowed = max(1, soft - RESERVED_FILES)
    log.warning("at most %d connections: a process may have %d files open", allowed, soft)
    return allowed


class StrictConnection(h11.Connection):
    """An HTTP/1.1 parser that refuses requests with both Content-Length and Transfer-Encoding.

    A proxy may use the former and this server the latter. They would then disagree on where the
    body ends, and part of it would run as a second request (request smuggling). RFC 9112, section
    6.1 allows a server to refuse such a request. A request for an absolute URL is converted to one
    for a path and a host.
    """

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}  # in lower case
            if {b"content-length", b"transfer-encoding"} <= names:
                raise h11.RemoteProtocolError("both Content-Length and Transfer-Encoding")
            return _for_path(event)
        return event


def _for_path(request: h11.Request) -> h11.Request:
    """Return a request whose target is a path, also if it is an absolute URL.

    The host of the URL replaces the Host header, which RFC 9112, section 3.2.2 demands. Raises
    RemoteProtocolError if the URL has no host, or has a user name (RFC 9110, section 4.2.4).
    """
    found = _ABSOLUTE_URL.fullmatch(request.target)
    if found is None:
        return request
    host, path = found.groups()
    if host.startswith(b":") or not host or b"@" in host:
        raise h11.RemoteProtocolError("the request is for a URL without a valid host")
    headers = [(name, value) for name, value in request.headers if name != b"host"]
    return h11.Request(
        method=request.method,
        target=path if path.startswith(b"/") else b"/" + path,
        headers=[(b"host", host), *headers],
        http_version=request.http_version,
    )


def _refusal() -> bytes:
    error = ApiError(503, "the server has too many connections", "", "try again later")
    return _answer(b"503 Service Unavailable\r\nRetry-After: 5", error)


def _answer(status: bytes, error: ApiError) -> bytes:
    """Return the bytes of a whole response to a connection that is closed afterwards."""
    body = encode_json(error.openai())
    return (
        b"HTTP/1.1 " + status + b"\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body
    )
