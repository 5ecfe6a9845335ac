"""Compare `zinc serve` with llama-server: concurrent streams over HTTP on the same file.

    python benchmarks/streams.py --llama-bin FOLDER [--streams 1 8] [--out FILE] MODEL

FOLDER holds llama-server. Each pair runs, in alternating order, zinc and llama-server with and
without repacked weights, each in a new process with a warm-up. Every server decodes the same
prompts with each number of --streams. The rate counts tokens that arrive while all streams decode.
The ratio is zinc's rate divided by the faster llama-server rate of the pair. The last line of
output is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zinc
from zinc.core.processor import cpu_model

TEXTS = [
    "The old man walked down to the river and", "In the year 1850 the ship sailed north, and",
    "She opened the door, and there stood", "The king had three daughters. The eldest",
    "It was a dark night, and the wind", "The best way to learn a language is",
    "Deep in the forest there lived", "def parse(text):",
]  # fmt: skip
START_S = 120.0
ENGINES = ("zinc", "llama_repack", "llama_plain")


def command(engine: str, port: int, args: argparse.Namespace) -> list[str]:
    """Return the command that serves with `engine` on `port`, with equal context per stream."""
    context = 256 + args.tokens
    if engine == "zinc":
        return [
            sys.executable, "-m", "zinc", "serve", args.model, "--port", str(port),
            "--threads", str(args.threads), "--context", str(context),
            "--kv-dtype", args.kv_dtype,
        ]  # fmt: skip
    most = max(args.streams)
    return [
        str(Path(args.llama_bin) / "llama-server"), "-m", args.model, "--port", str(port),
        "-t", str(args.threads), "-tb", str(args.threads), "-c", str(context * most),
        "-np", str(most), "-fa", "on", "-ctk", args.kv_dtype, "-ctv", args.kv_dtype,
        "--no-webui", "--repack" if engine == "llama_repack" else "--no-repack",
    ]  # fmt: skip


@contextmanager
def served(engine: str, args: argparse.Namespace) -> Iterator[int]:
    """Run a server and yield its port once it is ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with open(args.log or "/dev/null", "ab") as log:
        process = subprocess.Popen(command(engine, port, args), stdout=log, stderr=log)
    try:
        until = time.monotonic() + START_S
        while not asyncio.run(is_ready(port)):
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"the server of {engine} did not start; see --log FILE")
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait(30)


async def is_ready(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
    except OSError:
        return False
    return answer.startswith(b"HTTP/1.1 200")


async def stream(port: int, text: str, n_tokens: int) -> list[tuple[float, int]]:
    """Stream one answer; return the time and the number of tokens of each event."""
    body = json.dumps({
        "prompt": text, "n_predict": n_tokens, "temperature": 0, "ignore_eos": True,
        "stream": True, "cache_prompt": False,
    }).encode()  # fmt: skip
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST /completion HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\n"
        b"Content-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body
    )
    arrivals: list[tuple[float, int]] = []
    async for line in reader:
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            if not event["stop"] and event["tokens"]:
                arrivals.append((time.perf_counter(), len(event["tokens"])))
    writer.close()
    if sum(n for _, n in arrivals) < n_tokens - 8:  # the last event carries held-back text
        raise SystemExit(f"an answer ended early after {sum(n for _, n in arrivals)} tokens")
    return arrivals


async def decode(port: int, n_streams: int, n_tokens: int) -> dict[str, float]:
    """Return the total tokens/s of `n_streams` and the median time to their first token."""
    # Prompts differ from earlier ones, so that no cache holds them.
    texts = [f"{n_tokens}-{n_streams}-{i}. {TEXTS[i % len(TEXTS)]}" for i in range(n_streams)]
    begun = time.perf_counter()
    answers = await asyncio.gather(*(stream(port, text, n_tokens) for text in texts))
    first = max(arrivals[0][0] for arrivals in answers)
    last = min(arrivals[-1][0] for arrivals in answers)
    if last <= first:
        raise SystemExit("the streams did not overlap: raise --tokens")
    # The clock starts at the arrival `first`, so its tokens are not counted.
    n = sum(n for arrivals in answers for at, n in arrivals if first < at <= last)
    return {
        "tokens_per_s": n / (last - first),
        "first_token_s": statistics.median(arrivals[0][0] - begun for arrivals in answers),
    }


def measure(engine: str, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the rates of one engine by number of streams."""
    with served(engine, args) as port:
        asyncio.run(decode(port, max(args.streams), 16))
        return {str(n): asyncio.run(decode(port, n, args.tokens)) for n in args.streams}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--llama-bin", required=True, help="folder of llama-server")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each answer")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--kv-dtype", default="q8_0", help="keys and values of both servers: f16 or q8_0"
    )
    parser.add_argument("--log", help="file for the output of the servers")
    parser.add_argument("--out", help="write the report as JSON")
    args = parser.parse_args()

    pairs: list[dict[str, Any]] = []
    for i in range(args.pairs):
        order = ENGINES if i % 2 == 0 else ENGINES[::-1]
        pair: dict[str, Any] = {engine: measure(engine, args) for engine in order}
        pair["ratio"] = {}
        for n in map(str, args.streams):
            peer = max(pair[e][n]["tokens_per_s"] for e in ENGINES[1:])
            pair["ratio"][n] = pair["zinc"][n]["tokens_per_s"] / peer
            print(
                f"pair {i + 1}, {n} streams: zinc {pair['zinc'][n]['tokens_per_s']:.1f} tokens/s, "
                f"llama-server {peer:.1f}",
                file=sys.stderr,
            )
        pairs.append(pair)

    version = subprocess.run(
        [str(Path(args.llama_bin) / "llama-server"), "--version"], capture_output=True, text=True
    )
    found = re.search(r"version: (.+)", version.stderr + version.stdout)
    median: dict[str, Any] = {
        engine: {
            n: {
                key: round(statistics.median(p[engine][n][key] for p in pairs), 3)
                for key in ("tokens_per_s", "first_token_s")
            }
            for n in map(str, args.streams)
        }
        for engine in ENGINES
    }
    few, many = str(min(args.streams)), str(max(args.streams))
    report = {
        "model": Path(args.model).name,
        "zinc": zinc.__version__,
        "llama_cpp": found[1] if found else "",
        "cpu": cpu_model(),
        "threads": args.threads,
        "kv_dtype": args.kv_dtype,
        "tokens": args.tokens,
        "median": median,
        "ratio": {
            n: round(statistics.median(p["ratio"][n] for p in pairs), 3)
            for n in map(str, args.streams)
        },
        "gain_of_many_over_one": round(
            statistics.median(
                p["zinc"][many]["tokens_per_s"] / p["zinc"][few]["tokens_per_s"] for p in pairs
            ),
            3,
        ),
        "pairs": pairs,
    }
    if args.out:
        Path(args.out).write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
