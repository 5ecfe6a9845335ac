"""Requests with two lengths, and more connections than allowed open files."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from serving import LOAD, PATIENCE_S, Running, wait_for

import zinc

SOURCE = Path(zinc.__file__).parent.parent


def read_all(client: socket.socket) -> bytes:
    found = b""
    while part := client.recv(1 << 16):
        found += part
    return found


@pytest.mark.parametrize(
    "lengths",
    [
        b"Content-Length: 44\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 44\r\n",
        b"content-length: 44\r\ntransfer-encoding: identity, chunked\r\n",
        b"Content-Length: 44\r\nContent-Length: 5\r\n",
    ],
)
def test_a_request_with_two_lengths_gets_one_answer(server: Running, lengths):
    second = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with server.connect() as client:
        head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n" + lengths + b"\r\n"
        client.sendall(head + b"0\r\n\r\n" + second)
        answer = read_all(client)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"


def test_each_of_two_requests_with_one_length_is_answered(server: Running):
    health = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: %s\r\n\r\n"
    with server.connect() as client:
        client.sendall(health % b"keep-alive" + health % b"close")
        assert read_all(client).count(b"HTTP/1.1 200 ") == 2


@pytest.mark.skipif(sys.platform == "win32", reason="there is no limit of open files")
def test_more_connections_than_files_do_not_flood_the_log():
    """The process may open 64 files; 120 clients connect and disconnect."""
    command = f"ulimit -n 64; exec {sys.executable} -m zinc serve --port 0 --backend {LOAD.backend}"
    process = subprocess.Popen(
        ["sh", "-c", command],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    assert process.stderr is not None
    try:
        port = 0
        for line in process.stderr:
            if found := re.search(r"serving on http://127.0.0.1:(\d+)", line):
                port = int(found[1])
                break
        address = ("127.0.0.1", port)

        def is_ready() -> bool:
            with socket.create_connection(address, timeout=PATIENCE_S) as client:
                client.sendall(
                    b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                )
                return client.recv(64).startswith(b"HTTP/1.1 200 ")

        wait_for(is_ready)
        clients = [socket.create_connection(address, timeout=PATIENCE_S) for _ in range(120)]
        time.sleep(2.5)  # asyncio tries to accept again every second
        for client in clients:
            client.close()
        wait_for(is_ready)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "Traceback" not in err
    assert sum("accept" in line for line in err.splitlines()) <= 2
