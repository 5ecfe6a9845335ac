"""The HTTP server of a front, without Ray.

For a short request, Ray Serve's own proxy would take longer than the rest of the path to a replica.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from zinc.cluster.listener import Sharing, open_listener
from zinc.core.errors import ZincError
from zinc.server.http.connection import AcceptFailures
from zinc.server.main import http_config

_POLL_S = 0.01


class Ingress:
    """HTTP server of an application, on the address that it shares with other fronts.

    folder: of all fronts of the cluster (see `open_listener`). drain_s: time for running answers
    when it stops.
    """

    def __init__(
        self,
        application: ASGIApp,
        host: str,
        port: int,
        folder: Path,
        drain_s: float,
        max_connections: int,
    ) -> None:
        self._host, self._port, self._folder = host, port, folder
        self._server = _Server(http_config(application, max_connections, drain_s, "off"))
        self._sharing: Sharing | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Accept connections. Raises RequestError if the address cannot be used."""
        listener = await asyncio.to_thread(open_listener, self._host, self._port, self._folder)
        try:
            self._sharing = Sharing(listener, self._host, self._port, self._folder)
        except ZincError:
            listener.close()
            raise
        asyncio.get_running_loop().set_exception_handler(AcceptFailures())
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        while not self._server.started and not self._serving.done():
            await asyncio.sleep(_POLL_S)

    async def stop(self) -> None:
        """Accept no more connections, and wait for running answers."""
        if self._sharing is not None:
            self._sharing.close()
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving


class _Server(uvicorn.Server):
    """uvicorn's server, which leaves signals to Ray."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield
