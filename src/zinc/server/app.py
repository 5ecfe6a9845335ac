"""The ASGI application: routes, middleware, and errors in the form of each API."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Scope

from zinc.core.native import is_panic
from zinc.server import page
from zinc.server.apis.shared.foreign_fields.rules import SOURCES, as_sent
from zinc.server.apis.shared.service import Service
from zinc.server.apis.shared.store import ResponseStore
from zinc.server.batch.queue import BatchQueue
from zinc.server.batch.store import BatchStore
from zinc.server.config import ServerConfig
from zinc.server.endpoints import ENDPOINTS, OPERATIONS, Endpoint
from zinc.server.errors import ApiError, from_exception
from zinc.server.http import openapi
from zinc.server.http.access import Access, RequestLog
from zinc.server.http.body import BodyMemory
from zinc.server.http.dialect import error_body
from zinc.server.http.log import report_failure
from zinc.server.http.responses import JSONResponse, record
from zinc.server.runtime.entry import Entry
from zinc.server.runtime.metrics import ServerMetrics
from zinc.server.runtime.pool import ModelPool


class Application:
    """The server without its sockets.

    asgi: the ASGI application. in_process: the same without access checks, for requests from within
    the process.
    pool: the models (None before the start). Raises FormatError if the file of a model does not
    exist, and RequestError if the folder of batches cannot be used.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.metrics = ServerMetrics()
        self.config = config
        self._entries = [Entry(source) for source in config.models]
        self._batches: BatchStore | None = None
        if config.batch_dir is not None:
            self._batches = BatchStore(config.batch_dir, config.batch_bytes)
        self.pool: ModelPool | None = None
        self._service: Service | None = None
        self._routes = self._make_routes()
        app: ASGIApp = Starlette(
            routes=self._routes,
            lifespan=self._lifespan,
            exception_handlers={HTTPException: _http_error},
        )
        self.body_memory = BodyMemory(app, config.body_memory_bytes)
        app = Access(self.body_memory, config, _is_public)
        self.asgi: ASGIApp = RequestLog(app, self.metrics, self._route_of)
        self.in_process: ASGIApp = RequestLog(self.body_memory, self.metrics, self._route_of)

    @asynccontextmanager
    async def started(self) -> AsyncGenerator[ModelPool]:
        """Start to load the first model; unload all models at the end."""
        self.pool = ModelPool(self.config, self._entries, self.metrics.observer)
        batches = self._batch_queue(self.pool)
        self._service = Service(self.config, self.pool, self.metrics, ResponseStore(), batches)
        self.pool.start()
        if batches is not None:
            batches.start()
        try:
            yield self.pool
        finally:
            if batches is not None:
                await batches.close()
            await self.pool.close()

    def _batch_queue(self, pool: ModelPool) -> BatchQueue | None:
        if self._batches is None:
            return None
        return BatchQueue(
            self._batches,
            self.in_process,
            self.config.api_keys,
            self.config.batch_in_flight,
            self.config.max_body_bytes,
            pool.until_started,
        )

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncGenerator[None]:
        async with self.started():
            yield

    def _make_routes(self) -> list[BaseRoute]:
        routes: list[BaseRoute] = []
        for endpoint in ENDPOINTS:
            for path in (endpoint.operation.path, *endpoint.aliases):
                route = Route(path, self._around(endpoint), methods=[endpoint.operation.method])
                routes.append(route)
        routes.extend(page.routes())
        routes.append(Route("/openapi.json", self._document, methods=["GET"]))
        routes.append(Route("/docs", _docs, methods=["GET"]))
        return routes

    def _around(self, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        """Return the handler of `endpoint`, with exceptions turned into error responses."""

        async def handle(request: Request) -> Response:
            if self._service is None:
                raise RuntimeError("the application was not started")
            try:
                return await endpoint.handler(self._service, request)
            except ClientDisconnect as error:
                report_failure(record(request), error)
                return Response(status_code=499)
            except BaseException as error:
                if not (isinstance(error, Exception) or is_panic(error)):
                    raise
                report_failure(record(request), error)
                sent = as_sent(from_exception(error), request.scope.get(SOURCES, {}))
                return _error_response(sent, request)

        return handle

    async def _document(self, request: Request) -> Response:
        return JSONResponse(_document(bool(self.config.api_keys)))

    def _route_of(self, scope: Scope) -> str:
        """Return the path pattern of the endpoint that handles a request, or "other"."""
        for route in self._routes:
            if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE:
                return route.path
        return "other"


def _is_public(path: str) -> bool:
    """Return whether a path needs no API key."""
    return path in ("/health", "/v1/health") or page.is_public(path)


@cache
def _document(with_key: bool) -> dict[str, Any]:
    return openapi.document(OPERATIONS, with_key)


async def _docs(request: Request) -> Response:
    return HTMLResponse(openapi.page(OPERATIONS))


def _error_response(error: ApiError, request: Request) -> Response:
    return JSONResponse(error_body(error, request.scope), error.status, error.headers)


# Endpoints of other servers that clients ask for: why they are missing, and what to use instead.
_MISSING = {
    ("/slots/",): (
        "the cache of a single slot cannot be saved or erased",
        "--cache-dir keeps the prefix cache across restarts",
    ),
    ("/api/v0/", "/api/v1/"): (
        "this endpoint of LM Studio's API is not supported",
        "use /api/v0/chat/completions, or the APIs under /v1",
    ),
    ("/api/",): (
        "this endpoint of Ollama's API is not supported",
        "models are added with zinc pull and zinc serve",
    ),
    ("/v1/audio/", "/v1/images/"): ("only text models are supported", ""),
}


def _missing_endpoint(path: str) -> tuple[str, str] | None:
    for known, reason in _MISSING.items():
        if any(path.startswith(name) if name.endswith("/") else path == name for name in known):
            return reason
    return None


async def _http_error(request: Request, error: Exception) -> Response:
    """Return the response to an error that Starlette raised: an unknown path or method."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    what = {
        404: f"there is no {request.method} {request.url.path[:120]}",
        405: f"{request.url.path[:120]} does not take {request.method[:20]}",
    }.get(status, "the request cannot be answered")
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    found = ApiError(status, what, "", "/docs lists the endpoints", headers=headers)
    if status == 404 and (reason := _missing_endpoint(request.url.path)):
        found = ApiError(status, what, *reason)
    report_failure(record(request), found)
    return _error_response(found, request)
