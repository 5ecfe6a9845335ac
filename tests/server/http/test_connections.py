"""Clients that send slowly, read slowly, or open too many connections."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from serving import PATIENCE_S, Brake, Running, running, wait_for

from zinc.server.http import connection

BEFORE_OTHERS_S = 20  # longer than the limits set here, shorter than the server's own
NEVER_S = 1e7
SMALL_BYTES = 1 << 14

DOCUMENT, N_DOCUMENTS = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n", 20  # large
REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def ends(client: socket.socket, seconds: float) -> bool:
    """Return whether the server closes the connection within a time limit."""
    client.settimeout(seconds)
    try:
        while client.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


def is_answered(client: socket.socket) -> bool:
    """Send a small request and read the whole response."""
    client.sendall(REQUEST)
    answer = b""
    while not answer.endswith(b'{"status":"ok"}'):
        part = client.recv(4096)
        assert part
        answer += part
    return answer.startswith(b"HTTP/1.1 200")


def connections(server: Running) -> int:
    return int(server.call(lambda: len(server.server.server_state.connections)))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PATIENCE_S", 0.4)


class Deadlines:
    """The deadlines of connections, which expire when a test says so."""

    def __init__(self, server: Running) -> None:
        self._server = server
        self._call_later = server.loop.call_later
        self._set: list[Deadline] = []

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, **more: Any
    ) -> asyncio.TimerHandle:
        """Replace the event loop's `call_later`."""
        handle = self._call_later(delay, callback, *args, **more)
        if delay == NEVER_S:
            self._set.append(Deadline(handle, callback))
        return handle

    @property
    def waiting(self) -> list[Deadline]:
        return self._server.call(lambda: [each for each in self._set if each.is_waiting])

    def wait_for_unsent(self) -> Deadline:
        """Wait for the deadline of a connection whose client does not read."""
        found: list[Deadline] = []
        wait_for(lambda: found.extend(each for each in self.waiting if each.n_unsent) or found)
        return found[0]

    def come(self) -> None:
        """Let all current deadlines expire."""
        self._server.call(lambda: [each.come() for each in list(self._set)])


class Deadline:
    """The deadline of a connection. n_unsent: bytes in its write buffer when it was set."""

    def __init__(self, handle: asyncio.TimerHandle, too_late: Any) -> None:
        self._handle, self._too_late = handle, too_late
        self._transport = too_late.__self__.transport
        self.n_unsent = self._transport.get_write_buffer_size()
        # Otherwise the system buffers megabytes of the response.
        own = self._transport.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BYTES)

    @property
    def is_waiting(self) -> bool:
        return not self._handle.cancelled()

    @property
    def is_being_read(self) -> bool:
        return not self.is_waiting or self._transport.get_write_buffer_size() < self.n_unsent

    def come(self) -> bool:
        """Let the deadline expire if it is still set; return whether it was."""
        is_waiting = self.is_waiting
        if is_waiting:
            self._handle.cancel()
            self._too_late()
        return is_waiting


@pytest.fixture
def deadlines(server: Running, monkeypatch: pytest.MonkeyPatch) -> Deadlines:
    wait_for(lambda: connections(server) == 0)
    found = Deadlines(server)
    monkeypatch.setattr(connection, "PATIENCE_S", NEVER_S)
    monkeypatch.setattr(server.loop, "call_later", found.call_later)
    return found


def is_ended_by_trickling(client: socket.socket, data: bytes) -> bool:
    """Send data repeatedly; return whether the server closes the connection."""
    until = time.monotonic() + BEFORE_OTHERS_S
    while time.monotonic() < until:
        try:
            client.sendall(data)
        except OSError:
            return True
        if ends(client, 0.02):
            return True
    return False


@pytest.mark.usefixtures("impatient")
def test_a_slow_request_head_ends_the_connection(server: Running):
    for start, more in ((b"", b"G"), (REQUEST[:-2], b"X: y\r\n")):
        with server.connect() as client:
            client.sendall(start)
            assert is_ended_by_trickling(client, more)


def test_the_second_request_head_has_its_own_deadline(server: Running, deadlines: Deadlines):
    with server.connect() as client:
        for _ in range(3):
            wait_for(lambda: len(deadlines.waiting) == 1)
            before = deadlines.waiting
            assert is_answered(client)
            wait_for(lambda before=before: deadlines.waiting not in ([], before))
        client.sendall(REQUEST[:20])
        deadlines.come()
        assert ends(client, PATIENCE_S)


def test_a_response_may_take_longer_than_a_request_head(
    server: Running, deadlines: Deadlines, brake: Brake
) -> None:
    fields = {"prompt": "x", "max_tokens": 3, "temperature": 0, "ignore_eos": True}
    brake.hold()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.post, "/v1/completions", {**fields, "stream": True})
        wait_for(lambda: server.live() == 1)
        deadlines.come()
        brake.release()
        assert answer.result().events[-1] == "[DONE]"


def test_a_response_that_is_not_read_is_dropped(server: Running, deadlines: Deadlines):
    with server.connect() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BYTES)
        client.sendall(DOCUMENT)
        deadlines.wait_for_unsent()
        assert connections(server) == 1
        # At the first deadline, the network may have taken some more bytes.
        wait_for(lambda: deadlines.come() or connections(server) == 0)


def test_a_response_that_is_read_slowly_arrives(server: Running, deadlines: Deadlines):
    whole = server.get("/openapi.json").body
    wait_for(lambda: connections(server) == 0)
    with server.connect() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BYTES)
        client.sendall(N_DOCUMENTS * DOCUMENT)
        received = n_come = 0
        while received < (N_DOCUMENTS - 5) * len(whole):
            deadline = deadlines.wait_for_unsent()
            while not deadline.is_being_read:
                received += len(client.recv(SMALL_BYTES))
            n_come += server.call(deadline.come)
        assert n_come > 2
        while received < N_DOCUMENTS * len(whole):
            part = client.recv(1 << 20)
            assert part
            received += len(part)


def test_too_many_connections():
    with running(max_connections=4) as server:
        wait_for(lambda: connections(server) == 0)
        held = [server.connect() for _ in range(4)]
        for each in held:
            assert is_answered(each)
        with server.connect() as client:
            answer = b"".join(iter(lambda: client.recv(4096), b""))
            assert answer.startswith(b"HTTP/1.1 503")
            assert b"retry-after: 5" in answer.lower()
        held.pop().close()
        wait_for(lambda: server.get("/health").status == 200)
        for each in held:
            assert is_answered(each)
            each.close()


class Exhausted(socket.socket):
    """A socket that accepts nothing, because the process has no file descriptors left."""

    def accept(self) -> tuple[socket.socket, Any]:
        raise OSError(errno.EMFILE, "Too many open files")


def test_a_server_may_close_between_a_failed_accept_and_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """asyncio would then log a traceback for each failed accept."""
    logged: list[Any] = []
    unexpected: list[Any] = []
    monkeypatch.setattr("asyncio.constants.ACCEPT_RETRY_DELAY", 0.01)
    monkeypatch.setattr(connection.log, "error", lambda *message: logged.append(message))

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "default_exception_handler", unexpected.append)
        loop.set_exception_handler(connection.AcceptFailures())
        listening = Exhausted()
        listening.bind(("127.0.0.1", 0))
        server = await asyncio.start_server(lambda reader, writer: None, sock=listening)
        with socket.create_connection(listening.getsockname()):
            while not logged:
                await asyncio.sleep(0)
        server.close()
        await asyncio.sleep(0.1)

    asyncio.run(serve())
    assert len(logged) == 1
    assert not unexpected
