"""Measure a cluster: prefix hits by router, overhead, lost replicas and fronts, rolling updates.

    ray start --head --num-cpus 8
    python benchmarks/cluster.py [--parts hits lost front update] [--replicas 3] [--out FILE]

`hits` runs conversations whose turns are interleaved at random, on one server and on clusters with
each router; all have the same memory for the prefix cache together. The replicas of `random+memory`
and `random+folder` share prefixes. The texts must be equal. `lost` kills a replica again and again
under load, `front` one of two fronts, and `update` replaces all replicas and the front under load.
Requests must end with the whole answer or, when replicas are killed, with an error that can be
retried, and when fronts are killed, with a lost connection. `expected` calculates the hit rates of
one server and of random routing for the conversations of `hits`, and needs no Ray.
The last line of output is one JSON object. Exit status 1 if a text differs or a request hangs.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import zinc
from zinc.core.processor import cpu_model
from zinc.engine.cache_layout import BLOCK_TOKENS
from zinc.engine.load.files import resolve_model
from zinc.llm import LLM

WORDS = [
    "river", "stone", "harbour", "evening", "letter", "garden", "window", "winter", "captain",
    "silver", "forest", "market", "bridge", "morning", "story", "shadow", "valley", "music",
    "teacher", "island", "summer", "doctor", "engine", "paper",
]  # fmt: skip
PORT = 18231
SYSTEM_WORDS, TURN_WORDS, ANSWER_TOKENS = 30, 40, 8
MAX_REFUSED = 5
PATIENCE_S = 180.0
START_S = 120.0
SEEDS = 10  # of calculated hit rates
OTHER_MEMORY = (0.25, 0.375, 0.5, 0.625, 0.75, 1.25, 1.5)  # of calculated hit rates
PROCESSES = {  # by their titles
    "front": "ray::FrontActor",
    "replicas": "ray::ServeReplica:zinc-",
}


def words(count: int, seed: str) -> str:
    """Return `count` random words."""
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(count))


@dataclass
class Conversation:
    """A conversation with its messages so far. texts: the answers."""

    number: int
    n_systems: int
    messages: list[dict[str, str]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        system = words(SYSTEM_WORDS, f"system {self.number % self.n_systems}")
        self.messages.append({"role": "system", "content": system})

    def ask(self) -> None:
        """Add the next message of the user."""
        text = words(TURN_WORDS, f"turn {self.number} {len(self.texts)}")
        self.messages.append({"role": "user", "content": text})

    def take(self, text: str) -> None:
        """Add an answer."""
        self.messages.append({"role": "assistant", "content": text})
        self.texts.append(text)


def body(messages: list[dict[str, str]], stream: bool = False, tokens: int = ANSWER_TOKENS) -> str:
    """Return a request body."""
    more: dict[str, Any] = {"stream": True} if stream else {}
    return json.dumps(
        {"messages": messages, "temperature": 0, "max_tokens": tokens, "ignore_eos": True, **more}
    )


def post(text: str) -> tuple[int, dict[str, str], bytes]:
    """Send a chat request; return status, headers and body."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=PATIENCE_S)
    try:
        connection.request("POST", "/v1/chat/completions", text)
        reply = connection.getresponse()
        return reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read()
    finally:
        connection.close()


def cluster(args: argparse.Namespace, *more: str) -> None:
    """Run `zinc cluster up` with the benchmark's options."""
    more = (*args.model, *more)
    context = str(args.context // args.replicas)
    subprocess.run(
        [
            sys.executable, "-m", "zinc", "cluster", "up", "--replicas", str(args.replicas),
            "--cpus", "1", "--port", str(PORT), "--address", args.address,
            "--context", context, "--max-waiting", "200", *more,
        ],
        check=True,
    )  # fmt: skip


def stop(args: argparse.Namespace) -> None:
    """Run `zinc cluster down`."""
    command = [sys.executable, "-m", "zinc", "cluster", "down", "--address", args.address]
    subprocess.run(command, check=False)


@contextmanager
def running(args: argparse.Namespace, router: str) -> Iterator[None]:
    """Run a cluster with this router, or one server if `router` is "single".

    ROUTER+memory and ROUTER+folder let its replicas share prefixes.
    """
    if router != "single":
        name, _, shared = router.partition("+")
        with TemporaryDirectory() as folder:
            share = ["--share-prefixes", "memory" if shared == "memory" else folder]
            cluster(args, "--router", name, *(share if shared else []))
            try:
                yield
            finally:
                stop(args)
        return
    server = subprocess.Popen(
        [
            sys.executable, "-m", "zinc", "serve", *args.model, "--port", str(PORT),
            "--threads", "1", "--context", str(args.context), "--max-waiting", "200",
        ],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            with suppress(OSError):
                if post(body([{"role": "user", "content": "hi"}]))[0] == 200:
                    break
            time.sleep(0.2)
        yield
    finally:
        server.terminate()
        server.wait()


def hits(args: argparse.Namespace, router: str) -> dict[str, Any]:
    """Run all conversations; return hit rate, overhead and the texts."""
    conversations = [Conversation(i, args.systems) for i in range(args.conversations)]
    rng = random.Random(7)
    left = {c.number: args.turns for c in conversations}
    idle = set(left)
    lock = threading.Lock()
    counts: Counter[str] = Counter()
    overhead: list[float] = []
    times: list[float] = []

    def work() -> None:
        while True:
            with lock:
                open_now = [number for number, n in left.items() if n or number not in idle]
                ready = [n for n in open_now[: args.open] if n in idle and left[n]]
                if not any(left.values()):
                    return
                number = rng.choice(ready) if ready else None
                if number is not None:
                    idle.discard(number)
                    left[number] -= 1
            if number is None:
                time.sleep(0.01)
                continue
            conversation = conversations[number]
            conversation.ask()
            started = time.perf_counter()
            status, headers, data = post(body(conversation.messages))
            n_refused = 0
            while status != 200 and n_refused < MAX_REFUSED:  # a busy machine stops templates
                n_refused += 1
                status, headers, data = post(body(conversation.messages))
            reply = json.loads(data)
            if status != 200:
                left.clear()
                raise RuntimeError(reply)
            conversation.take(reply["choices"][0]["message"]["content"])
            usage = reply["usage"]
            with lock:
                idle.add(number)
                times.append(1e3 * (time.perf_counter() - started))
                counts["prompt"] += usage["prompt_tokens"]
                counts["cached"] += usage["prompt_tokens_details"]["cached_tokens"]
                counts["refused"] += n_refused
                counts[headers.get("x-zinc-replica", "single")] += 1
                if "server-timing" in headers:
                    overhead.append(float(headers["server-timing"].rpartition("=")[2]))

    with running(args, router):
        started = time.perf_counter()
        with ThreadPoolExecutor(args.workers) as pool:
            for each in [pool.submit(work) for _ in range(args.workers)]:
                each.result()
        seconds = time.perf_counter() - started
        before = processor_s()
        calm = [alone() for _ in range(args.alone)]
        spent = {name: s - before.get(name, 0) for name, s in processor_s().items()}
    return {
        "hit_rate": counts["cached"] / counts["prompt"],
        "prompt_tokens": counts["prompt"],
        "seconds": seconds,
        "request_ms": statistics.median(times),
        "requests_refused": counts["refused"],
        "requests_by_replica": sorted(
            (n for name, n in counts.items() if name not in ("prompt", "cached", "refused")),
            reverse=True,
        ),
        "overhead_ms_under_load": statistics.median(overhead) if overhead else None,
        "overhead_ms_alone": statistics.median(o for _, o in calm) if router != "single" else None,
        "client_ms_alone": statistics.median(ms for ms, _ in calm),
        "processor_ms_alone": {name: 1e3 * s / args.alone for name, s in spent.items()},
        "texts": [c.texts for c in conversations],
    }


def alone() -> tuple[float, float]:
    """Send a request while nothing else runs.

    Return its milliseconds, and those spent in front, router and Ray (0 if unknown).
    """
    started = time.perf_counter()
    headers = post(body([{"role": "user", "content": words(40, "alone")}], tokens=1))[1]
    ms = 1e3 * (time.perf_counter() - started)
    return ms, float(headers.get("server-timing", "=0").rpartition("=")[2])


def processor_s() -> dict[str, float]:
    """Return the processor time that each kind of Serve process has taken, in seconds (Linux)."""
    found: defaultdict[str, float] = defaultdict(float)
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            title = (process / "cmdline").read_text()
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            for name, mark in PROCESSES.items():
                if title.startswith(mark):
                    found[name] += sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return dict(found)


class Load:
    """Workers that send requests, half of them streams, and compare the texts with `expected`.

    outcomes: how many requests ended in each way. errors: the first few other texts.
    """

    def __init__(self, n_workers: int) -> None:
        self.prompts = [[{"role": "user", "content": words(30, f"load {i}")}] for i in range(8)]
        self.expected = [self._whole(p) for p in self.prompts]
        self.outcomes: Counter[str] = Counter()
        self.errors: list[str] = []
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(i,)) for i in range(n_workers)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _whole(self, prompt: list[dict[str, str]]) -> str:
        data = json.loads(post(body(prompt, tokens=48))[2])
        text: str = data["choices"][0]["message"]["content"]
        return text

    def _work(self, number: int) -> None:
        rng = random.Random(number)
        while not self._ended.is_set():
            index, stream = rng.randrange(len(self.prompts)), rng.random() < 0.5
            try:
                status, _, data = post(body(self.prompts[index], stream, 48))
                found = self._outcome(status, data, stream, self.expected[index])
            except TimeoutError:
                found = "hung"
            except (OSError, http.client.HTTPException) as error:
                found = "connection lost"
                self.errors.append(repr(error))
            self.outcomes[found] += 1

    def _outcome(self, status: int, data: bytes, stream: bool, expected: str) -> str:
        if status != 200:
            self.errors.append(data[:200].decode(errors="replace"))
            return "retryable error" if status in (429, 503) else f"status {status}"
        if not stream:
            text = json.loads(data)["choices"][0]["message"]["content"]
            return "answer" if text == expected else "other text"
        text, n_ends = "", 0
        for line in data.decode().split("\n"):
            if line == "data: [DONE]":
                n_ends += 1
            elif line.startswith("data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    return "retryable error" if expected.startswith(text) else "other text"
                for choice in event["choices"]:
                    text += choice["delta"].get("content") or ""
        return "answer" if (text, n_ends) == (expected, 1) else "other text"


def lost(args: argparse.Namespace) -> dict[str, Any]:
    """Kill a replica `args.kills` times under load; return the outcomes of the requests."""
    import ray

    from zinc.cluster import control

    cluster(args)
    control.connect(args.address)
    n_killed = 0
    try:
        with Load(args.workers) as load:
            while n_killed < args.kills:
                time.sleep(args.pause)
                with suppress(OSError, ValueError, KeyError, StopIteration):
                    name = post(body(load.prompts[0], tokens=1))[1]["x-zinc-replica"]
                    actors = ray.util.list_named_actors(all_namespaces=True)
                    actor = next(each for each in actors if each["name"].endswith(f"#{name}"))
                    ray.kill(ray.get_actor(**actor))
                    n_killed += 1
            time.sleep(args.pause)
        return {"killed": n_killed, **load.outcomes, "errors": load.errors[:5]}
    finally:
        stop(args)


def front(args: argparse.Namespace) -> dict[str, Any]:
    """Kill one of two fronts `args.kills` times under load; return the outcomes of the requests."""
    import ray

    from zinc.cluster import control, front_actors

    cluster(args, "--fronts", "2")
    control.connect(args.address)
    rng = random.Random(7)
    try:
        with Load(args.workers) as load:
            for _ in range(args.kills):
                time.sleep(args.pause)
                while front_actors.state()[0] != "RUNNING":
                    time.sleep(0.1)
                names = [n for n in ray.util.list_named_actors() if n.startswith("front-")]
                ray.kill(ray.get_actor(rng.choice(sorted(names))), no_restart=False)
            time.sleep(args.pause)
        return {"killed": args.kills, **load.outcomes, "errors": load.errors[:5]}
    finally:
        stop(args)


def update(args: argparse.Namespace) -> dict[str, Any]:
    """Replace all replicas and the front under load; return the outcomes of the requests."""
    cluster(args)
    try:
        with Load(args.workers) as load:
            time.sleep(args.pause)
            started = time.perf_counter()
            # Other options, the first of replicas and the second of the front.
            cluster(args, "--ttl", "100000", "--max-connections", "9000")
            seconds = time.perf_counter() - started
            time.sleep(args.pause)
        return {"update_seconds": seconds, **load.outcomes, "errors": load.errors[:5]}
    finally:
        stop(args)


def expected(args: argparse.Namespace) -> dict[str, Any]:
    """Return hit rates that one server, and random routing, are expected to have.

    Turns are taken in a random order, as in `hits`, but one at a time. Caches keep the most
    recently used blocks. The rates are means over `SEEDS` orders.
    """
    path = resolve_model(args.model[0] if args.model else None)
    with LLM(path, context=args.context) as llm:
        room = kv_tokens(llm)
        prompts = [prompt_tokens(llm, i, args) for i in range(args.conversations)]
    n = args.replicas

    def rate(n_replicas: int, n_tokens: int) -> float:
        return statistics.mean(
            cached_share(prompts, args, n_replicas, n_tokens, seed) for seed in range(SEEDS)
        )

    def compared(n_tokens: int) -> dict[str, float]:
        single, at_random = rate(1, n_tokens), rate(n, n_tokens // n)
        return {
            "kv_tokens": n_tokens,
            "single": single,
            "random": at_random,
            "of_single": at_random / single,
        }

    found = compared(room)
    more = rate(n, room)
    return {
        **found,
        "random, a server's memory each": more,
        "of_single, a server's memory each": more / found["single"],
        "other memory": [compared(int(part * room)) for part in OTHER_MEMORY],
    }


def kv_tokens(llm: LLM) -> int:
    """Return the tokens of the KV cache of a model."""
    n_blocks: int = max(each.n_blocks for each in llm.engine.allocators)
    return n_blocks * BLOCK_TOKENS


def prompt_tokens(llm: LLM, number: int, args: argparse.Namespace) -> list[list[int]]:
    """Return the tokens of each prompt of a conversation, with answers of random words."""
    conversation, found = Conversation(number, args.systems), []
    for turn in range(args.turns):
        conversation.ask()
        found.append(llm.render(conversation.messages))
        conversation.take(words(ANSWER_TOKENS - 2, f"answer {number} {turn}"))
    return found


def cached_share(
    prompts: list[list[list[int]]], args: argparse.Namespace, replicas: int, room: int, seed: int
) -> float:
    """Return the share of prompt tokens in caches of `room` tokens, at random replicas."""
    rng = random.Random(seed)
    caches = [BlockCache(room // BLOCK_TOKENS) for _ in range(replicas)]
    left = [args.turns] * len(prompts)
    n_cached = n_tokens = 0
    while any(left):
        number = rng.choice([i for i, n in enumerate(left) if n][: args.open])
        turn = args.turns - left[number]
        left[number] -= 1
        tokens = prompts[number][turn]
        cache = rng.choice(caches)
        n_cached += cache.n_matching(tuple(tokens[:-1]))
        n_tokens += len(tokens)
        # The next prompt begins with this one and its answer, whose last token is not computed.
        kept = prompts[number][min(turn + 1, args.turns - 1)][: len(tokens) + ANSWER_TOKENS - 1]
        cache.add(tuple(kept))
    return n_cached / n_tokens


Tokens: TypeAlias = tuple[int, ...]


class BlockCache:
    """A prefix cache of `n_blocks` blocks, which drops the least recently used ones.

    A text takes a block of its own from the block in which it differs from all others.
    """

    def __init__(self, n_blocks: int) -> None:
        self._n_blocks = n_blocks
        self._blocks: OrderedDict[tuple[Tokens, Tokens], None] = OrderedDict()  # (before, tokens)
        self._after: defaultdict[Tokens, set[Tokens]] = defaultdict(set)

    def n_matching(self, tokens: Tokens) -> int:
        """Return how many of the first `tokens` are cached."""
        n = 0
        for before, block in blocks_of(tokens):
            found = max((n_common(block, other) for other in self._after[before]), default=0)
            n += found
            if found < BLOCK_TOKENS:
                break
        return n

    def add(self, tokens: Tokens) -> None:
        """Add the blocks of a text, or mark them as used."""
        for before, block in reversed(blocks_of(tokens)):  # the end of a text is dropped first
            others = self._after[before]
            whole = next((each for each in others if each[: len(block)] == block), block)
            for part in [each for each in others if whole != each == whole[: len(each)]]:
                self._remove(before, part)
            others.add(whole)
            self._blocks[before, whole] = None
            self._blocks.move_to_end((before, whole))
        while len(self._blocks) > self._n_blocks:
            self._remove(*next(iter(self._blocks)))

    def _remove(self, before: Tokens, block: Tokens) -> None:
        del self._blocks[before, block]
        self._after[before].remove(block)


def blocks_of(tokens: Tokens) -> list[tuple[Tokens, Tokens]]:
    """Return the tokens of each block, after those before it. The last block may be part of one."""
    starts = range(0, len(tokens), BLOCK_TOKENS)
    return [(tokens[:start], tokens[start : start + BLOCK_TOKENS]) for start in starts]


def n_common(one: Tokens, other: Tokens) -> int:
    """Return the length of the common prefix."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "lost": lost,
    "front": front,
    "update": update,
}
# Outcomes of requests that are allowed besides an answer.
ALLOWED = {"lost": "retryable error", "front": "connection lost"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--parts", nargs="+", default=["hits", *PARTS], choices=["hits", "expected", *PARTS]
    )
    routers = ["single", "prefix", "load", "random"]
    shared = [f"{name}+{where}" for name in routers[1:] for where in ("memory", "folder")]
    parser.add_argument("--routers", nargs="+", default=routers, choices=routers + shared)
    parser.add_argument("--model", nargs=1, default=[], help="file (default: the embedded model)")
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument(
        "--context",
        type=int,
        default=4032,
        help="context of the single server, and of the replicas together; a cache holds a multiple "
        "of its server's context",
    )
    parser.add_argument("--conversations", type=int, default=200)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--systems", type=int, default=5)
    parser.add_argument("--open", type=int, default=64, help="conversations that take turns")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--alone", type=int, default=100, help="requests that measure overhead")
    parser.add_argument("--pause", type=float, default=4.0, help="seconds between two kills")
    parser.add_argument("--address", default="auto", help="address of Ray")
    parser.add_argument("--out", type=Path, help="file for the JSON object")
    args = parser.parse_args()
    found: dict[str, Any] = {
        "version": zinc.__version__,
        "cpu": cpu_model(),
        "replicas": args.replicas,
        "context": args.context,
        "conversations": args.conversations,
        "turns": args.turns,
        "systems": args.systems,
        "open": args.open,
        "workers": args.workers,
    }
    is_good = True
    if "hits" in args.parts:
        runs = {router: hits(args, router) for router in args.routers}
        texts = {router: run.pop("texts") for router, run in runs.items()}
        found["texts_equal"] = all(each == texts["single"] for each in texts.values())
        is_good &= found["texts_equal"]
        for run in runs.values():
            run["of_single"] = run["hit_rate"] / runs["single"]["hit_rate"]
        found["hits"] = runs
    if "expected" in args.parts:
        found["expected"] = expected(args)
    for part, measure in PARTS.items():
        if part in args.parts:
            found[part] = measure(args)
            allowed = {"answer", ALLOWED.get(part)}
            numbers = {k for k, n in found[part].items() if isinstance(n, int)} - {"killed"}
            is_good &= numbers <= allowed
    if args.out is not None:
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
