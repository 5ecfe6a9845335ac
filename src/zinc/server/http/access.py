"""Access checks around every endpoint, as ASGI middleware: API key, Host header, Origin header.

A browser lets any web page send simple requests to 127.0.0.1. A request with an Origin header is
therefore answered only if the origin is this server, another server on this machine, an app (such
as an editor's panel), or allowed by the configuration. The origin "null" counts as a web page,
since any page can get it from a sandboxed frame.
"""

from __future__ import annotations

import hmac
import time
import uuid
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from zinc.server.config import ServerConfig, is_loopback
from zinc.server.errors import ApiError
from zinc.server.http.dialect import error_body
from zinc.server.http.log import log_request, report_failure
from zinc.server.http.responses import RECORD, JSONResponse, Record
from zinc.server.runtime.metrics import ServerMetrics

APP_SCHEMES = ("app", "file", "tauri", "vscode-file", "vscode-webview")
"""URL schemes of apps such as VS Code and Obsidian, which web pages cannot have as origin."""

HOST_NAMES = ("host.docker.internal", "gateway.docker.internal", "host.containers.internal")
"""Names that containers use for this machine. Domains under .internal cannot be registered."""

_METHODS = "GET, POST, DELETE, OPTIONS"
_PREFLIGHT_S = 600


class RequestLog:
    """The outermost middleware: gives each request an id, logs it and counts it."""

    def __init__(
        self, app: ASGIApp, metrics: ServerMetrics, route_of: Callable[[Scope], str]
    ) -> None:
        self._app, self._metrics, self._route_of = app, metrics, route_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = scope[RECORD] = Record(f"req_{uuid.uuid4().hex}")
        started = time.perf_counter()
        status = 499  # nginx's code for a client that disconnected before the response

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = headers["Request-Id"] = record.id
                headers.setdefault("X-Content-Type-Options", "nosniff")
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception as error:
            report_failure(record, error)
        finally:
            # Only known paths become labels, so that clients cannot grow the metrics.
            self._metrics.requests.add(1, _method(scope), self._route_of(scope), str(status))
            client = scope.get("client") or ("-",)
            log_request(
                record,
                scope["method"],
                scope["path"],
                status,
                time.perf_counter() - started,
                client[0],
            )


def _method(scope: Scope) -> str:
    return scope["method"] if scope["method"] in _METHODS else "other"


class Access:
    """Middleware that checks Host, Origin and API key of requests, and answers CORS preflights.

    is_public: whether a path needs no API key.
    """

    def __init__(
        self, app: ASGIApp, config: ServerConfig, is_public: Callable[[str], bool]
    ) -> None:
        self._app, self._config = app, config
        self._is_public = is_public
        self._keys = [key.encode() for key in config.api_keys]
        self._origins = frozenset(origin.rstrip("/").lower() for origin in config.origins)
        self._hosts = frozenset(host.lower() for host in config.hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        error = self._refusal(scope, headers, origin)
        if error is not None:
            report_failure(scope[RECORD], error)
            answer = JSONResponse(error_body(error, scope), error.status, error.headers)
        elif scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            answer = JSONResponse({}, 200)
            answer.headers["Access-Control-Allow-Methods"] = _METHODS
            asked = headers.get("access-control-request-headers", "*")
            answer.headers["Access-Control-Allow-Headers"] = asked
            answer.headers["Access-Control-Max-Age"] = str(_PREFLIGHT_S)
            if headers.get("access-control-request-private-network") == "true":
                # A web page calls localhost (https://wicg.github.io/private-network-access).
                answer.headers["Access-Control-Allow-Private-Network"] = "true"
        else:
            await self._app(scope, receive, self._allowing(origin, send))
            return
        # A page whose origin is refused must not read the error either.
        allowed = origin if error is None or error.status != 403 else None
        await answer(scope, receive, self._allowing(allowed, send))

    def _refusal(self, scope: Scope, headers: Headers, origin: str | None) -> ApiError | None:
        host = headers.get("host", "")
        if self._config.checks_host and not self._knows_host(host):
            return ApiError(
                421,
                "this server does not accept that host name",
                "the Host header is not a name of this machine",
                "call it as localhost, set --api-key, or allow the name with --allow-host",
            )
        if origin is not None and not self._knows_origin(origin, host):
            return ApiError(
                403,
                "this page may not call the server",
                "its origin is not allowed",
                f"start the server with --allow-origin {origin[:200]}",
            )
        if scope["method"] == "OPTIONS" or not self._keys or self._is_public(scope["path"]):
            return None
        if not self._knows_key(headers):
            return ApiError(
                401,
                "the API key is missing or wrong",
                "",
                "send it as `Authorization: Bearer KEY` or `x-api-key: KEY`",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return None

    def _knows_host(self, host: str) -> bool:
        name = _host_name(host)
        return is_loopback(name) or name in HOST_NAMES or name in self._hosts

    def _knows_origin(self, origin: str, host: str) -> bool:
        try:
            parts = urlsplit(origin)
            name = parts.hostname or ""
        except ValueError:
            return False
        allowed = ("*", origin.lower(), f"{parts.scheme}://*")
        if not self._origins.isdisjoint(allowed) or parts.scheme in APP_SCHEMES:
            return True
        return parts.netloc.lower() == host.lower() != "" or is_loopback(name)

    def _knows_key(self, headers: Headers) -> bool:
        given = key_in(headers)
        # Constant time: the duration must not reveal how much of the key is right.
        return any(hmac.compare_digest(given.encode(), key) for key in self._keys)

    def _allowing(self, origin: str | None, send: Send) -> Send:
        if origin is None:
            return send

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Access-Control-Allow-Origin"] = origin
                headers["Access-Control-Expose-Headers"] = "X-Request-Id, Retry-After"
                headers.add_vary_header("Origin")
            await send(message)

        return with_headers


def key_in(headers: Headers) -> str:
    """Return the API key that a request carries, or "" if it carries none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def _host_name(host: str) -> str:
    """Return the name in a Host header, without the port."""
    if host.startswith("["):
        return host.partition("]")[0].strip("[").lower()
    return host.partition(":")[0].lower()
