"""Hold `zinc cluster simulate` to a cluster that runs.

    ray start --head --num-cpus 8
    python benchmarks/simulation.py MODEL [--replicas 3] [--out FILE]

Measures the times of steps with `zinc bench`, and the overhead with single tokens. Then the same
requests go to a cluster with each router, at the times of a Poisson process and from --clients
clients one after the other, and to the simulator. ZINC_LEVEL=scalar, for Ray and this program,
makes a small model take as long as a large one. The last line of output is one JSON object.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import zinc
from zinc.cluster.simulation.events import SimulatedCluster, simulate
from zinc.cluster.simulation.rates import step_times
from zinc.cluster.simulation.result import Result
from zinc.cluster.simulation.workload import Traffic, generate, requests
from zinc.core.processor import cpu_model
from zinc.engine.cache_layout import BLOCK_TOKENS

PORT = 18241
PATIENCE_S = 300.0
BENCHES = (  # streams, prefill, depth
    (1, 32, 0), (1, 256, 0), (2, 32, 0), (4, 32, 0), (8, 32, 0), (1, 32, 700),
)  # fmt: skip


def bench(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the reports of `zinc bench` on one thread."""
    reports = []
    for streams, prefill, depth in BENCHES:
        command = [
            sys.executable, "-m", "zinc", "bench", args.model, "--json", "--threads", "1",
            "--streams", str(streams), "--prefill", str(prefill), "--depth", str(depth),
            "--decode", "16", "--reps", "3",
        ]  # fmt: skip
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        report = json.loads(done.stdout)
        known = ("level", "streams", "depth", "prefill_tokens", "decode_tokens", "step_tokens")
        speeds = ("prefill_tokens_per_s", "decode_tokens_per_s")
        reports.append({name: report[name] for name in (*known, *speeds)})
    return reports


@dataclass
class Answer:
    """An answer of the cluster, with the times of its tokens."""

    sent_s: float
    status: int = 0
    times_s: list[float] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    replica: str = ""


def ask(messages: list[dict[str, str]], max_tokens: int) -> Answer:
    """Stream an answer."""
    answer = Answer(time.perf_counter())
    body = {
        "messages": messages, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
        "enable_thinking": False, "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=PATIENCE_S)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body))
        reply = connection.getresponse()
        answer.status = reply.status
        answer.replica = reply.getheader("x-zinc-replica", "")
        for line in reply:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if event.get("usage"):
                answer.usage = event["usage"]
            for choice in event.get("choices", ()):
                delta = choice["delta"]
                if delta.get("content") or delta.get("reasoning_content"):
                    answer.times_s.append(time.perf_counter())
                    answer.text += delta.get("content") or ""
    finally:
        connection.close()
    if answer.status != 200 or not answer.times_s:
        raise SystemExit(f"an answer failed with status {answer.status}: {answer}")
    return answer


class Replay:
    """Client that sends the lines of a trace; earlier answers in prompts are the cluster's own."""

    def __init__(self, lines: list[dict[str, Any]], clients: int) -> None:
        self._lines, self._clients = lines, clients
        self._messages: list[list[dict[str, str]]] = [[] for _ in lines]
        self.answers: list[Answer | None] = [None] * len(lines)
        self._followers = {line.get("follows"): i for i, line in enumerate(lines)}
        self._ready = threading.Condition()
        self._queue: list[int] = []

    def run(self) -> list[Answer]:
        """Send all lines, and return the answers."""
        firsts = [i for i, line in enumerate(self._lines) if line.get("follows") is None]
        if self._clients:
            self._queue = firsts
            threads = [threading.Thread(target=self._client) for _ in range(self._clients)]
        else:
            threads = [threading.Thread(target=self._conversation, args=(i,)) for i in firsts]
        self._begun_s = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [answer for answer in self.answers if answer is not None]

    def _conversation(self, index: int | None) -> None:
        """Send a conversation at its times."""
        until_s = self._begun_s + self._lines[index or 0].get("at", 0.0)
        while index is not None:
            time.sleep(max(0.0, until_s - time.perf_counter()))
            self._send(index)
            index = self._followers.get(index)
            until_s = time.perf_counter() + (0 if index is None else self._lines[index]["wait"])

    def _client(self) -> None:
        """Send lines in order, one after the other."""
        while True:
            with self._ready:
                self._ready.wait_for(lambda: self._queue or self._is_done())
                if not self._queue:
                    return
                index = self._queue.pop(0)
            self._send(index)
            with self._ready:
                if index in self._followers:
                    self._queue.append(self._followers[index])
                    self._queue.sort()
                self._ready.notify_all()

    def _is_done(self) -> bool:
        return all(answer is not None for answer in self.answers)

    def _send(self, index: int) -> None:
        line = self._lines[index]
        messages = [dict(message) for message in line["body"]["messages"]]
        if (previous := line.get("follows")) is not None:
            said = self._messages[previous]
            before = self.answers[previous]
            assert before is not None
            messages = [*said, {"role": "assistant", "content": before.text}, messages[-1]]
        self._messages[index] = messages
        self.answers[index] = ask(messages, line["answer_tokens"])


def measured(answers: list[Answer], args: argparse.Namespace, router: str) -> dict[str, Any]:
    """Return the figures of a run, as `Result.summary` has them."""
    result = Result(args.replicas, router)
    for each in answers:
        details = each.usage["prompt_tokens_details"]
        result.prompt_tokens += each.usage["prompt_tokens"]
        result.cached_tokens += details["cached_tokens"]
        result.answer_tokens += each.usage["completion_tokens"]
        result.first_tokens_s.append(each.times_s[0] - each.sent_s)
        result.gaps += [(after - before, 1) for before, after in pairwise(each.times_s)]
        result.begins_s = min(result.begins_s, each.sent_s)
        result.ends_s = max(result.ends_s, each.times_s[-1])
    return result.summary()


def kv_tokens() -> int:
    """Return the tokens of the KV cache of a replica."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=PATIENCE_S)
    connection.request("GET", "/metrics")
    found = re.search(
        r"^zinc_kv_blocks\{.*\} (\S+)$", connection.getresponse().read().decode(), re.M
    )
    assert found is not None
    return int(float(found[1])) * BLOCK_TOKENS


def overhead_s(step_s: float) -> float:
    """Return the time that a request takes beside its step, from requests that are cached."""
    times = []
    for _ in range(30):
        answer = ask([{"role": "user", "content": "hi"}], 1)
        times.append(answer.times_s[0] - answer.sent_s - step_s)
    return statistics.median(times[5:])


def zinc_cluster(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "zinc", "cluster", *words], check=True)


def compare(
    args: argparse.Namespace, lines: list[dict[str, Any]], router: str, clients: int, times: Any
) -> dict[str, Any]:
    """Run the lines on a new cluster and in the simulator; return both results."""
    zinc_cluster(
        "up", args.model, "--replicas", str(args.replicas), "--cpus", "1", "--router", router,
        "--port", str(PORT), "--context", str(args.context),
    )  # fmt: skip
    try:
        for _ in range(5 * args.replicas):
            ask([{"role": "user", "content": "hello"}], 2)
        spent_s, tokens = overhead_s(times.step_s(1)), kv_tokens()
        answers = Replay(lines, clients).run()
    finally:
        zinc_cluster("down")
    counts = [each.usage["prompt_tokens"] for each in answers]
    known = [{**line, "prompt_tokens": n} for line, n in zip(lines, counts, strict=True)]
    cluster = SimulatedCluster(args.replicas, router, times, tokens, spent_s, clients)
    found = {
        "router": router,
        "clients": clients,
        "overhead_s": spent_s,
        "kv_tokens": tokens,
        "prompt_tokens": counts,
        "measured": measured(answers, args, router),
        "simulated": simulate(cluster, requests(known)).summary(),
    }
    print({k: found[k] for k in ("router", "clients", "measured", "simulated")}, file=sys.stderr)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--rate", type=float, default=0.7)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--runs", nargs="+", default=["prefix", "random", "clients"])
    parser.add_argument("--out", type=Path, help="file for the JSON object")
    args = parser.parse_args()
    traffic = Traffic(
        args.requests, args.rate, systems=4, turns=5, think_s=8.0, system_tokens=150,
        turn_tokens=50, answer_tokens=24, even=True,
    )  # fmt: skip
    lines = generate(traffic)
    begun_load = os.getloadavg()[0]
    reports = bench(args)
    runs = []
    for name in args.runs:
        router, clients = ("prefix", args.clients) if name == "clients" else (name, 0)
        runs.append(compare(args, lines, router, clients, step_times(reports)))
    found = {
        "version": zinc.__version__,
        "cpu": cpu_model(),
        "model": Path(args.model).name,
        "load_average": [begun_load, os.getloadavg()[0]],
        "replicas": args.replicas,
        "traffic": asdict(traffic),
        "bench": reports,
        "runs": runs,
    }
    if args.out is not None:
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
