"""Run the application under uvicorn, and stop it gracefully.

`serve` listens, loads the first model and blocks until a signal arrives. After the first signal the
server refuses new requests and gives running ones `grace_s` seconds; those still running then end
with an error event. A second signal ends the grace time, a third one the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator
from types import FrameType
from typing import Literal

import uvicorn
from starlette.types import ASGIApp

from zinc.core.errors import RequestError, ZincError
from zinc.server.app import Application
from zinc.server.config import ServerConfig
from zinc.server.errors import ApiError
from zinc.server.http import log
from zinc.server.http.connection import AcceptFailures, Connection, connections_allowed

_SIGNALS = [signal.SIGINT, signal.SIGTERM]
_HANG_UP = getattr(signal, "SIGHUP", None)  # the terminal was closed; not on Windows
OLLAMA_PORT = 11434
_PORT_HINT = "choose another --port, or stop what uses it"
_BIND_HINTS = {
    errno.EACCES: "choose a --port of at least 1024: lower ones need privileges",
    errno.EADDRNOTAVAIL: "choose a --host that is an address of this machine",
}
_OLLAMA_HINT = "stop the program that uses it (another Ollama?), or leave --ollama out"
_BACKLOG = 512  # connections that the system queues until they are accepted
_ERROR_EVENT_S = 3.0  # after the grace time, for error events to reach clients
_SECOND_SIGNAL_S = 0.5  # the same after a second signal
_LOAD_END_S = 1.0  # for a cancelled load to stop


class Server(uvicorn.Server):
    """uvicorn's server, with a shutdown that ends running answers after the grace time.

    listening: called when connections are accepted. loaded: called when the first model is loaded,
    or has failed and there are others. failure: why the server stopped by itself, if it did.
    """

    def __init__(
        self,
        application: Application,
        listening: Callable[[], None] = lambda: None,
        loaded: Callable[[], None] = lambda: None,
    ) -> None:
        config = application.config
        grace_s = config.grace_s + _ERROR_EVENT_S
        super().__init__(http_config(application.asgi, config.max_connections, grace_s, "on"))
        self._application = application
        self._listening, self._loaded = listening, loaded
        self._start: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._n_signals = 0
        self.failure: ZincError | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, and wait for the first model in the background."""
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(AcceptFailures())
        await super().startup(sockets)
        if self.started:
            self._listening()
            self._start = asyncio.create_task(self._wait_for_model())

    async def _wait_for_model(self) -> None:
        pool = self._application.pool
        assert pool is not None
        try:
            await pool.until_started()
        except ZincError as error:
            self.failure, self.should_exit = error, True
        else:
            if pool.closing is None:
                self._loaded()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End running answers within the grace time, then close all connections."""
        pool = self._application.pool
        ends: asyncio.TimerHandle | None = None
        if pool is not None:
            pool.closing = pool.closing or _stopping()
            grace_s = self._application.config.grace_s
            ends = asyncio.get_running_loop().call_later(grace_s, self._end, _ERROR_EVENT_S)
        await super().shutdown(sockets)
        if ends is not None:
            ends.cancel()

    def _end(self, patience_s: float) -> None:
        """End running answers now, and close the connections that are open `patience_s` later.

        A client that does not read would otherwise keep its connection, which uvicorn then cancels
        with a traceback.
        """
        if self._application.pool is not None:
            self._application.pool.abort(_stopping())
        asyncio.get_running_loop().call_later(patience_s, self._disconnect)

    def _disconnect(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Stop on a signal. Unlike uvicorn, do not raise the signal again: the exit status is 0."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        signals = list(_SIGNALS)
        # Keep ignoring SIGHUP if the process was started with `nohup`.
        if _HANG_UP is not None and signal.getsignal(_HANG_UP) is not signal.SIG_IGN:
            signals.append(_HANG_UP)
        before = {number: signal.signal(number, self.handle_exit) for number in signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; at the second signal without grace time, at the third without an orderly end."""
        self._n_signals += 1
        self.should_exit = True
        self.force_exit = self._n_signals > 2
        if self._n_signals == 2 and self._loop is not None:
            self._loop.call_soon_threadsafe(self._end, _SECOND_SIGNAL_S)


def _stopping() -> ApiError:
    return ApiError(503, "the server is shutting down", headers={"Retry-After": "30"})


def http_config(
    application: ASGIApp, max_connections: int, grace_s: float, lifespan: Literal["on", "off"]
) -> uvicorn.Config:
    """Return the settings of an HTTP server.

    grace_s: time for running answers when it stops. lifespan: whether the application has a start
    and an end.
    """
    return uvicorn.Config(
        application,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan=lifespan,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=int(grace_s) + 1,
        h11_max_incomplete_event_size=64 << 10,
        http=Connection,
        ws="none",
        limit_concurrency=connections_allowed(max_connections) + 1,
        backlog=_BACKLOG,
    )


def bind(host: str, port: int, hint: str = _PORT_HINT) -> socket.socket:
    """Return a socket that listens on `host` and `port`.

    hint: what to do if the port is in use. Raises RequestError if it cannot listen.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise RequestError(
            f"cannot serve on {host}", error.strerror or "no such address", "check --host"
        ) from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        if sys.platform != "win32":  # on Windows, two servers could share a port then
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise RequestError(
            f"cannot serve on {host}, port {port}",
            error.strerror or str(error),
            _BIND_HINTS.get(error.errno or 0, hint),
        ) from None
    return listener


def serve(config: ServerConfig, loaded: Callable[[str], None] = lambda url: None) -> bool:
    """Serve until a signal arrives.

    loaded: called with each URL of the server when the first model is loaded. Requests before that
    get status 503. Returns False if a model is still being loaded by native code, which cannot be
    stopped. Raises RequestError if the address cannot be used, FormatError for a missing file, and
    the ZincError that keeps the only model from loading.
    """
    log.set_up(config.json_log)
    application = Application(config)
    hint = _OLLAMA_HINT if config.ollama and config.port == OLLAMA_PORT else _PORT_HINT
    listeners = [bind(config.host, config.port, hint)]
    if config.ollama and config.port != OLLAMA_PORT:
        listeners.append(bind(config.host, OLLAMA_PORT, _OLLAMA_HINT))
    host = f"[{config.host}]" if ":" in config.host else config.host
    urls = [f"http://{host}:{listener.getsockname()[1]}" for listener in listeners]

    def all_loaded() -> None:
        for url in urls:
            loaded(url)

    server = Server(application, loaded=all_loaded)
    with contextlib.ExitStack() as stack:
        for listener in listeners:
            stack.enter_context(listener)
        asyncio.run(server.serve(sockets=listeners))
    if server.failure is not None:
        raise server.failure
    return application.pool is None or application.pool.loads_end_within(_LOAD_END_S)
