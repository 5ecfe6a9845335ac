"""Compare two checkouts of zinc: first token, prefill and decode, by `LLM` and by server.

    python benchmarks/checkouts.py --before FOLDER --after FOLDER --out FILE [--rounds 40] MODEL...

Each FOLDER is a checkout with its extension built in place. Both keep a model loaded and a server
running, and requests alternate between them, so that load on the machine affects both. A ratio is
the time before divided by the time after in the same round: above 1 is faster. The last line of
output is one JSON object with the median ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROMPT_TOKENS, SHORT_TOKENS, ANSWER_TOKENS = 512, 8, 64
SETTINGS: dict[str, Any] = {"context": 2048, "kv_dtype": "f16", "prefix_cache": False}
OPTIONS = ["--context", "2048", "--kv-dtype", "f16", "--no-prefix-cache"]
TEXT = "Tell me a story about a fox and a bear."


def answer_requests(model: str) -> None:
    """Load `model` and print the seconds of each request named on stdin."""
    from zinc import LLM, SamplingParams

    llm = LLM(model, **SETTINGS)
    ids = [100 + 7 * i % 400 for i in range(PROMPT_TOKENS)]
    one = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    many = SamplingParams(temperature=0, max_tokens=ANSWER_TOKENS, ignore_eos=True)
    requests = {
        "first token": (ids[:SHORT_TOKENS], one),
        "prefill": (ids, one),
        "decode": (ids[:SHORT_TOKENS], many),
    }
    for line in sys.stdin:
        begin = time.perf_counter()
        llm.generate(*requests[line.strip()])
        print(time.perf_counter() - begin, flush=True)
    llm.close()


class Checkout:
    """A checkout with a loaded model and a running server; measurements return seconds."""

    def __init__(self, folder: Path, model: str) -> None:
        path = [str(folder / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
        self._llm = subprocess.Popen(
            [sys.executable, __file__, "--answer", model],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._server = subprocess.Popen(
            [sys.executable, "-m", "zinc", "serve", model, "--port", "0", *OPTIONS],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert self._server.stdout is not None
        words = (word for line in self._server.stdout for word in line.split())
        self._url = next(word for word in words if word.startswith("http://"))
        threading.Thread(
            target=self._server.stdout.read, daemon=True
        ).start()  # drains the log of the server
        while True:
            try:
                urllib.request.urlopen(f"{self._url}/health").read()
                break
            except OSError:
                time.sleep(0.05)

    def llm(self, request: str) -> dict[str, float]:
        """Send a request to the process of `answer_requests`; return its seconds by name."""
        assert self._llm.stdin is not None
        assert self._llm.stdout is not None
        self._llm.stdin.write(f"{request}\n")
        self._llm.stdin.flush()
        return {request: float(self._llm.stdout.readline())}

    def stream(self, name: str, path: str) -> dict[str, float]:
        """Stream an answer: seconds to its first token, and from there to the last."""
        prompt = {"messages": [{"role": "user", "content": TEXT}]}
        body = {
            **(prompt if "chat" in path else {"prompt": TEXT}),
            "stream": True, "temperature": 0, "max_tokens": ANSWER_TOKENS, "ignore_eos": True,
        }  # fmt: skip
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._url}{path}", json.dumps(body).encode(), headers)
        times = [time.perf_counter()]
        with urllib.request.urlopen(request) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    choice = json.loads(line[6:])["choices"][0]
                    piece = choice.get("delta", choice)
                    if piece.get("content") or piece.get("reasoning_content") or piece.get("text"):
                        times.append(time.perf_counter())
        return {f"{name} first token": times[1] - times[0], f"{name} decode": times[-1] - times[1]}

    def close(self) -> None:
        for process in (self._llm, self._server):
            process.terminate()
            process.wait()


def compare(before: Path, after: Path, model: str, rounds: int) -> dict[str, Any]:
    """Return the seconds of all rounds and the medians of their ratios."""
    checkouts = [Checkout(before, model), Checkout(after, model)]
    works: list[Callable[[Checkout], dict[str, float]]] = [
        lambda c: c.llm("first token"),
        lambda c: c.llm("prefill"),
        lambda c: c.llm("decode"),
        lambda c: c.stream("completion", "/v1/completions"),
    ]
    try:
        checkouts[0].stream("chat", "/v1/chat/completions")
        works.append(lambda c: c.stream("chat", "/v1/chat/completions"))
    except urllib.error.HTTPError:
        pass  # a model without a chat template
    seconds: dict[str, list[list[float]]] = {}
    try:
        for number in range(-2, rounds):  # the first two rounds warm up
            for work in works:
                order = (0, 1) if number % 2 else (1, 0)
                found = {each: work(checkouts[each]) for each in order}
                for name in found[0] if number >= 0 else ():
                    seconds.setdefault(name, []).append([found[0][name], found[1][name]])
    finally:
        for checkout in checkouts:
            checkout.close()
    ratios = {name: statistics.median(b / a for b, a in each) for name, each in seconds.items()}
    return {"model": Path(model).name, "ratios": ratios, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--before", type=Path)
    parser.add_argument("--after", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--answer", metavar="MODEL", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.answer:
        answer_requests(args.answer)
        return
    if args.before is None or args.after is None or not args.models:
        parser.error("--before, --after and a MODEL are needed")
    report = [compare(args.before, args.after, model, args.rounds) for model in args.models]
    if args.out is not None:
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps([{"model": each["model"], **each["ratios"]} for each in report]))


if __name__ == "__main__":
    main()
