"""Clients that connect and say little, read little, or are too many."""

from __future__ import annotations

import socket
import time

import pytest
from serving import PATIENCE_S, Running, running, wait_for

from zinc.server import connection

BEFORE_OTHERS_S = 20  # long after the limits set here, before the server's own

REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def ends(client: socket.socket, seconds: float) -> bool:
    """Whether the server closes a connection within a time."""
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
    """Sends a small request and takes in its whole answer."""
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


@pytest.fixture
def patience_s(monkeypatch: pytest.MonkeyPatch) -> float:
    """Long enough for a client on a busy machine to be punctual."""
    monkeypatch.setattr(connection, "PATIENCE_S", 2.0)
    return 2.0


def is_ended_by_trickling(client: socket.socket, data: bytes) -> bool:
    """Sends data again and again until the server closes; whether it does."""
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
def test_a_head_that_trickles_in_is_not_waited_for(server: Running):
    for start, more in ((b"", b"G"), (REQUEST[:-2], b"X: y\r\n")):
        with server.connect() as client:
            client.sendall(start)
            assert is_ended_by_trickling(client, more)


def test_a_second_head_has_a_limit_of_its_own(server: Running, patience_s: float):
    with server.connect() as client:
        for _ in range(3):
            time.sleep(0.4 * patience_s)
            assert is_answered(client)
        client.sendall(REQUEST[:20])
        assert ends(client, BEFORE_OTHERS_S)


@pytest.mark.usefixtures("impatient")
def test_an_answer_may_take_longer_than_a_head(server: Running):
    fields = {"prompt": "x", "max_tokens": 300, "temperature": 0, "ignore_eos": True}
    answer = server.post("/v1/completions", {**fields, "stream": True})
    assert answer.events[-1] == "[DONE]"


@pytest.mark.usefixtures("impatient")
def test_an_answer_that_nobody_reads_is_dropped(server: Running):
    with server.connect() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200)
        time.sleep(0.2)
        assert connections(server) == 1
        wait_for(lambda: connections(server) == 0, BEFORE_OTHERS_S)


def test_an_answer_that_is_read_slowly_arrives(server: Running, patience_s: float):
    whole = server.get("/openapi.json").body
    with server.connect() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        client.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 40)
        received = 0
        for _ in range(15):
            time.sleep(0.1 * patience_s)
            received += len(client.recv(1 << 18))
        client.settimeout(PATIENCE_S)
        while received < 40 * len(whole):
            part = client.recv(1 << 20)
            assert part
            received += len(part)


def test_too_many_connections():
    with running(max_connections=4) as server:
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
