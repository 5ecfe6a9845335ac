"""Tests of the HTTP server of fronts, and of the socket that fronts share. They need no Ray."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from zinc.cluster.ingress import Ingress
from zinc.cluster.listener import open_listener, user_folder
from zinc.core.errors import RequestError

HOST = "127.0.0.1"
PATIENCE_S = 120
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="fronts share a Unix socket")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name, as those of Unix sockets must be."""
    with TemporaryDirectory() as path:
        yield Path(path)


def named(name: str, end: asyncio.Event | None = None) -> ASGIApp:
    """Return an application that answers with its name, and at /slow with more after `end`."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/slow":
            begun = {"type": "http.response.body", "body": f"{name} begins ".encode()}
            await send({**begun, "more_body": True})
            assert end is not None
            await end.wait()
        await send({"type": "http.response.body", "body": name.encode()})

    return run


def free_port() -> int:
    with socket.create_server((HOST, 0)) as server:
        return int(server.getsockname()[1])


def ingress(application: ASGIApp, port: int, folder: Path) -> Ingress:
    return Ingress(application, HOST, port, folder, drain_s=30.0, max_connections=100)


async def connect(port: int, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    return reader, writer


async def get(port: int) -> str:
    """Return the name of the application that answers."""
    reader, writer = await connect(port, "/")
    reply = await reader.read()
    writer.close()
    return reply.partition(b"\r\n\r\n")[2].decode().split("\r\n")[1]


def test_no_connection_is_refused_while_fronts_are_replaced(folder):
    asyncio.run(_fronts_are_replaced(folder))
    assert not list(folder.iterdir())


async def _fronts_are_replaced(folder: Path) -> None:
    port, end, is_over = free_port(), asyncio.Event(), asyncio.Event()
    first = ingress(named("first", end), port, folder)
    await first.start()
    answers: list[str] = []

    async def ask() -> None:
        while not is_over.is_set():
            answers.append(await get(port))

    clients = [asyncio.create_task(ask()) for _ in range(4)]
    reader, writer = await connect(port, "/slow")
    await reader.readuntil(b"first begins")
    second = ingress(named("second"), port, folder)
    await second.start()
    stopping = asyncio.create_task(first.stop())
    async with asyncio.timeout(PATIENCE_S):
        while answers[-20:] != ["second"] * 20:
            await asyncio.sleep(0.01)
    assert not stopping.done()  # its answer runs
    end.set()
    assert (await reader.read()).rstrip().endswith(b"first\r\n0")
    writer.close()
    await stopping
    is_over.set()
    await asyncio.gather(*clients)  # raises ConnectionError if one was refused
    await second.stop()


def test_an_address_in_use_is_one_sentence(folder):
    with socket.create_server((HOST, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(RequestError) as error:
            asyncio.run(ingress(named("a"), port, folder).start())
    assert f"cannot serve on {HOST}, port {port}: Address already in use" in str(error.value)
    assert "choose another --port" in error.value.in_options().lower()


def test_the_socket_of_a_front_that_crashed_is_opened_again(folder):
    port = free_port()
    stale = folder / f"{HOST}-{port}-0.sock"
    with socket.socket(socket.AF_UNIX) as crashed:
        crashed.bind(str(stale))
    with open_listener(HOST, port, folder) as listener:
        assert listener.getsockname() == (HOST, port)
    assert not stale.exists()


def test_files_of_fronts_that_crashed_are_removed(folder):
    asyncio.run(_files_are_removed(folder))


async def _files_are_removed(folder: Path) -> None:
    port = free_port()
    first = ingress(named("first"), port, folder)
    await first.start()
    for name in ("!", "~"):  # before and after the file of the first
        with socket.socket(socket.AF_UNIX) as crashed:
            crashed.bind(str(folder / f"{HOST}-{port}-{name}.sock"))
    second = ingress(named("second"), port, folder)
    await second.start()
    assert len(list(folder.iterdir())) == 2
    await first.stop()
    assert await get(port) == "second"
    await second.stop()


def test_a_folder_of_other_users_is_refused(folder):
    folder.chmod(0o777)
    with pytest.raises(RequestError, match="other users can access it"):
        user_folder(folder)
    assert user_folder(folder / "own").stat().st_mode & 0o777 == 0o700
