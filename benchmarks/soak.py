"""Send malformed and interrupted requests to a server and check that it stays healthy.

    python benchmarks/soak.py [--requests 10000] [--out FILE]

Starts `zinc serve` with the embedded model. Clients send malformed bodies, stop within a request,
read slowly, disconnect within a stream, and in between send valid requests whose answers must be
correct. No answer may have a 5xx status except 503. At the end the server must be healthy and hold
no cache block and no connection, and its memory may grow by at most 5% in the second half. The last
line of output is one JSON object. The exit status is 1 if a condition is not met.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from socket import SO_LINGER, SO_RCVBUF, SOL_SOCKET
from typing import Any

MOST_GROWTH = 0.05
SAMPLES = 20
CONCURRENT = 24
CACHE = "16M"  # small enough to be full well before the second half
PATIENCE_S = 60.0

CHAT = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 8}
VALID: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {**CHAT, "temperature": 0.5, "tools": [], "stop": ["x"]},
    "/v1/completions": {"prompt": "Once", "max_tokens": 4, "echo": True, "logprobs": 1},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 4},
    "/v1/messages": {**CHAT, "system": "Be brief."},
    "/v1/messages/count_tokens": {"messages": CHAT["messages"]},
    "/v1/embeddings": {"input": ["a", "b"], "encoding_format": "base64"},
    "/completion": {"prompt": ["Once", 5], "n_predict": 4, "samplers": ["top_k"]},
    "/embedding": {"content": "a"},
    "/tokenize": {"content": "Hello", "with_pieces": True},
    "/detokenize": {"tokens": [1, 2, 3]},
    "/apply-template": {"messages": CHAT["messages"]},
}
ODD: list[Any] = [
    None, True, -1, 0, 10**30, 1e308, "", "x" * 5000, "\ud800", [], {}, [[]], [None] * 50,
    {"type": "text"}, [{"role": "user"}], [1, "a", None], {"a": {"b": {"c": [{}] * 9}}},
]  # fmt: skip
STORY = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "stream": True}
VALID_REQUEST = {"prompt": "Once upon a time", "max_tokens": 6, "temperature": 0}


class Client:
    """A client with one coroutine for each kind of behaviour.

    counts: runs by behaviour. statuses: answers by HTTP status. wrong: unexpected answers.
    """

    def __init__(self, port: int, seed: int) -> None:
        self._port = port
        self._random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.valid_text: str | None = None

    async def run(self, n_requests: int, each: Callable[[int], Awaitable[None]]) -> None:
        """Send `n_requests`, CONCURRENT at a time; call `each` with the number sent so far."""
        behaviours = [
            (60, self.malformed), (6, self.not_http), (8, self.half_closed),
            (6, self.slow_reader), (8, self.disconnects), (4, self.slow_body), (8, self.valid),
        ]  # fmt: skip
        weights = [weight for weight, _ in behaviours]
        made = 0

        async def work() -> None:
            nonlocal made
            while made < n_requests:
                made += 1
                await each(made)
                (_, act), *_ = self._random.choices(behaviours, weights)
                self.counts[act.__name__] += 1
                try:
                    async with asyncio.timeout(PATIENCE_S):
                        await act()
                except (ConnectionError, asyncio.IncompleteReadError):
                    self.statuses["closed"] += 1
                except TimeoutError:
                    self.wrong.append(f"{act.__name__} was not answered in {PATIENCE_S:g} s")

        await asyncio.gather(*(work() for _ in range(CONCURRENT)))

    # -- behaviours --------------------------------------------------------------------------------

    async def malformed(self) -> None:
        """Send a valid body with random damage."""
        path, valid = self._random.choice(list(VALID.items()))
        await self._exchange(_post(path, self._body(valid)))

    async def not_http(self) -> None:
        """Send bytes that are not a valid HTTP request."""
        kind = self._random.randrange(4)
        if kind == 0:
            data = self._random.randbytes(self._random.randrange(1, 400)) + b"\r\n\r\n"
        elif kind == 1:
            data = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000 + b"\r\n\r\n"
        elif kind == 2:
            data = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked"
            data += b"\r\n\r\nzz\r\n{}\r\n0\r\n\r\n"
        else:
            data = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n{}"
        await self._exchange(data, may_be_silent=True)

    async def half_closed(self) -> None:
        """Send part of a request, then close one side, close the connection, or reset it."""
        path, valid = self._random.choice(list(VALID.items()))
        data = _post(path, json.dumps(valid).encode())
        reader, writer = await self._connect()
        writer.write(data[: self._random.randrange(1, len(data))])
        await writer.drain()
        end = self._random.randrange(3)
        if end == 0:
            writer.write_eof()
            await reader.read()
        await self._close(writer, reset=end == 2)

    async def slow_reader(self) -> None:
        """Read a long stream in small pieces, then disconnect."""
        reader, writer = await self._connect(receive_bytes=4096)
        writer.write(_post("/v1/completions", json.dumps(STORY).encode()))
        for _ in range(self._random.randrange(2, 8)):
            if not await reader.read(64):
                break
            await asyncio.sleep(0.02)
        await self._close(writer, reset=False)

    async def disconnects(self) -> None:
        """Disconnect within a stream, or before the answer."""
        streams = self._random.random() < 0.7
        body = json.dumps({**STORY, "stream": streams}).encode()
        reader, writer = await self._connect()
        writer.write(_post(self._random.choice(["/v1/completions", "/completion"]), body))
        await writer.drain()
        if streams:
            await reader.read(self._random.randrange(1, 4000))
        else:
            await asyncio.sleep(0.05 * self._random.random())
        await self._close(writer, reset=self._random.random() < 0.5)

    async def slow_body(self) -> None:
        """Send a valid body in small pieces."""
        head, _, body = _post("/tokenize", b'{"content": "Hello"}').partition(b"\r\n\r\n")
        reader, writer = await self._connect()
        writer.write(head + b"\r\n\r\n")
        for at in range(0, len(body), 5):
            writer.write(body[at : at + 5])
            await writer.drain()
            await asyncio.sleep(0.005)
        self._note(await self._read(reader), "200")
        await self._close(writer, reset=False)

    async def valid(self) -> None:
        """Send a valid request; its answer must be the same every time."""
        answer = await self._exchange(
            _post("/v1/completions", json.dumps(VALID_REQUEST).encode()), "200"
        )
        text = json.loads(answer[1])["choices"][0]["text"]
        self.valid_text = self.valid_text or text
        if text != self.valid_text:
            self.wrong.append(f"a valid request was answered {text!r}")

    # -- requests and answers ----------------------------------------------------------------------

    def _body(self, valid: dict[str, Any]) -> bytes:
        """Return `valid` as JSON with random fields changed, or with damaged bytes."""
        rng = self._random
        fields = dict(valid)
        for _ in range(rng.randrange(1, 4)):
            name = rng.choice([*fields, "stream", "model", "no_such_field", "seed", "n"])
            if rng.random() < 0.25:
                fields.pop(name, None)
            else:
                fields[name] = rng.choice(ODD)
        data = json.dumps(fields, ensure_ascii=rng.random() < 0.9).encode("utf-8", "surrogatepass")
        kind = rng.randrange(12)
        if kind == 0:
            return data[: rng.randrange(len(data))]
        if kind == 1:
            at = rng.randrange(len(data))
            return data[:at] + rng.randbytes(3) + data[at:]
        if kind == 2:
            return rng.randbytes(rng.randrange(200))
        if kind == 3:
            return rng.choice(
                [b"", b"[]", b"null", b"[" * 50_000, b'{"a":' * 3000, b"NaN", b"1e999"]
            )
        return data

    async def _exchange(
        self, data: bytes, expected: str | None = None, may_be_silent: bool = False
    ) -> tuple[str, bytes]:
        reader, writer = await self._connect()
        try:
            writer.write(data)
            await writer.drain()
            if may_be_silent:
                writer.write_eof()
            answer = await self._read(reader, may_be_silent)
        finally:
            await self._close(writer, reset=False)
        self._note(answer, expected)
        return answer

    def _note(self, answer: tuple[str, bytes], expected: str | None = None) -> None:
        status, body = answer
        self.statuses[status] += 1
        # 503 reports a full queue; any other 5xx status is a failure of the server.
        wrong = status != expected if expected else status.startswith("5") and status != "503"
        if wrong:
            self.wrong.append(f"status {status}: {body[:300]!r}")

    async def _read(
        self, reader: asyncio.StreamReader, may_be_silent: bool = False
    ) -> tuple[str, bytes]:
        """Read to the end of the connection; return status and body."""
        data = await reader.read()
        head, _, body = data.partition(b"\r\n\r\n")
        found = re.match(rb"HTTP/1.1 (\d+)", head)
        if found is None:
            if not may_be_silent:
                raise asyncio.IncompleteReadError(data, None)
            return "silence", b""
        return found[1].decode(), body

    async def _connect(
        self, receive_bytes: int | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        limit = 1 << 16 if receive_bytes is None else receive_bytes
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=limit)
        if receive_bytes is not None:
            writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_RCVBUF, receive_bytes)
        return reader, writer

    async def _close(self, writer: asyncio.StreamWriter, reset: bool) -> None:
        if reset:
            socket = writer.get_extra_info("socket")
            socket.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _post(path: str, body: bytes) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


class Served:
    """A `zinc serve` process, and measurements of it from outside."""

    def __init__(self, threads: int) -> None:
        command = [sys.executable, "-m", "zinc", "serve", "--port", "0", "--threads", str(threads)]
        self.process = subprocess.Popen(
            [*command, "--context", "1024", "--cache-size", CACHE],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if found := re.search(r"serving on http://127.0.0.1:(\d+)", line):
                self.port = int(found[1])
                break
        else:
            raise SystemExit("the server did not start")

    async def drain_log(self) -> None:
        """Read the log continuously, so that the server never blocks on a full pipe."""
        assert self.process.stderr is not None
        while await asyncio.to_thread(self.process.stderr.readline):
            pass
        self.process.stderr.close()

    def resident_bytes(self) -> int:
        """Return the anonymous resident memory of the server; mapped files do not count."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"RssAnon:\s+(\d+)", status)
        if found is None:
            raise SystemExit("/proc has no RssAnon: run this on Linux")
        return int(found[1]) * 1024

    async def get(self, path: str) -> tuple[str, bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return head.split(b" ")[1].decode(), body

    async def gauge(self, name: str) -> int:
        _, body = await self.get("/metrics")
        found = re.search(rf"^zinc_{name}{{[^}}]*}} (\d+)$", body.decode(), re.MULTILINE)
        return int(found[1]) if found else -1

    def open_files(self) -> int:
        """Return the number of open files, without the pipes to processes that render templates."""
        links = (os.readlink(file) for file in Path(f"/proc/{self.process.pid}/fd").iterdir())
        return sum(not link.startswith("pipe:") for link in links)


async def soak(n_requests: int, threads: int, seed: int) -> dict[str, Any]:
    """Run a server and send it `n_requests`; return the report."""
    begun = time.perf_counter()
    server = Served(threads)
    log = asyncio.create_task(server.drain_log())
    try:
        while (await server.get("/health"))[0] != "200":
            await asyncio.sleep(0.1)
        files = server.open_files()
        client = Client(server.port, seed)
        rows: list[dict[str, int]] = []
        every = max(1, n_requests // SAMPLES)

        async def each(made: int) -> None:
            if made % every == 0:
                cached = await server.gauge("prefix_cache_bytes")
                row = {"requests": made, "resident_bytes": server.resident_bytes()}
                rows.append({**row, "cached_bytes": cached})
                print(rows[-1], file=sys.stderr)

        await client.run(n_requests, each)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            left = {
                "blocks_held": await server.gauge("kv_blocks_used"),
                "running": await server.gauge("requests_running"),
                "open_files": server.open_files() - files,
            }
            # The connection of this request is open too.
            if left["blocks_held"] == left["running"] == 0 and left["open_files"] <= 1:
                break
            await asyncio.sleep(0.2)
        health = (await server.get("/health"))[0]
    finally:
        server.process.terminate()
        await log
        exit_status = await asyncio.to_thread(server.process.wait)
    second = [r["resident_bytes"] for r in rows if 2 * r["requests"] >= n_requests]
    return {
        "requests": n_requests,
        "seconds": round(time.perf_counter() - begun, 1),
        "behaviours": dict(client.counts),
        "statuses": dict(sorted(client.statuses.items())),
        "wrong": client.wrong[:20],
        "n_wrong": len(client.wrong),
        "health": health,
        "exit_status": exit_status,
        "left": left,
        "rows": rows,
        "growth_of_second_half": round(second[-1] / second[0] - 1, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", help="write the report as JSON")
    args = parser.parse_args()
    report = asyncio.run(soak(args.requests, args.threads, args.seed))
    if args.out:
        Path(args.out).write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))
    left = report["left"]
    failed = (
        report["n_wrong"]
        or report["health"] != "200"
        or report["exit_status"] != 0
        or left["blocks_held"] != 0
        or left["running"] != 0
        or left["open_files"] > 1
        or report["growth_of_second_half"] > MOST_GROWTH
    )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
