"""Compares two checkouts of zinc: loading, first token, prefill and decode, by `LLM` and by server.

    python benchmarks/checkouts.py --before FOLDER --after FOLDER --out FILE [--pairs 9] MODEL...

Each folder is a checkout whose extension is built in place. Every pair runs both in alternating
order, each in a process of its own with a warm-up. A ratio is the rate after over the rate before
in the same pair; of times it is the time before over the time after, so above 1 is better
throughout. The last line is one JSON object with the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

PROMPT_TOKENS, ANSWER_TOKENS, REPETITIONS = 512, 128, 5

Figures = dict[str, float]


def measure_llm(model: str) -> Figures:
    """Return the figures of `LLM` in this process."""
    from zinc import LLM, SamplingParams

    begin = time.perf_counter()
    llm = LLM(model, context=2048, kv_dtype="f16", prefix_cache=False)
    found = {"load_s": time.perf_counter() - begin}
    ids = [100 + 7 * i % 400 for i in range(PROMPT_TOKENS)]
    one = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    many = SamplingParams(temperature=0, max_tokens=ANSWER_TOKENS, ignore_eos=True)
    llm.generate(ids[:64], many)
    prefill, first, decode = [], [], []
    for _ in range(REPETITIONS):
        begin = time.perf_counter()
        llm.generate(ids, one)
        prefill.append(PROMPT_TOKENS / (time.perf_counter() - begin))
        begin = time.perf_counter()
        llm.generate(ids[:8], one)
        first.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        n_tokens = len(llm.generate(ids[:8], many).token_ids)
        decode.append(n_tokens / (time.perf_counter() - begin))
    llm.close()
    return {
        **found,
        "prefill_tokens_per_s": max(prefill),
        "first_token_s": min(first),
        "decode_tokens_per_s": max(decode),
    }


def measure_server(model: str) -> Figures:
    """Return the figures of a stream of `zinc serve`, which runs in a process of its own."""
    command = [sys.executable, "-m", "zinc", "serve", model, "--port", "0", "--context", "2048"]
    command += ["--kv-dtype", "f16", "--no-prefix-cache"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert server.stdout is not None
        url = next(w for line in server.stdout for w in line.split() if w.startswith("http://"))
        while True:
            try:
                urllib.request.urlopen(f"{url}/health").read()
                break
            except OSError:
                time.sleep(0.05)
        found = {}
        for name, path in (("completion", "completions"), ("chat", "chat/completions")):
            try:
                _stream(f"{url}/v1/{path}", 32)
            except urllib.error.HTTPError:  # a model without a chat template
                continue
            runs = [_stream(f"{url}/v1/{path}", ANSWER_TOKENS) for _ in range(REPETITIONS)]
            found[f"{name}_first_token_s"] = min(first for first, _ in runs)
            found[f"{name}_decode_tokens_per_s"] = max(rate for _, rate in runs)
    finally:
        server.terminate()
        server.wait()
    return found


def _stream(url: str, n_tokens: int) -> tuple[float, float]:
    """Return the seconds to the first token of a stream, and the rate behind it."""
    text = "Tell me a story about a fox and a bear."
    chat = {"messages": [{"role": "user", "content": text}]}
    body = {
        **(chat if "chat" in url else {"prompt": text}),
        "stream": True, "temperature": 0, "max_tokens": n_tokens, "ignore_eos": True,
    }  # fmt: skip
    headers = {"Content-Type": "application/json"}
    begin = time.perf_counter()
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    times = []
    with urllib.request.urlopen(request) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                choice = json.loads(line[6:])["choices"][0]
                delta = choice.get("delta", choice)
                if delta.get("content") or delta.get("reasoning_content") or delta.get("text"):
                    times.append(time.perf_counter())
    return times[0] - begin, (n_tokens - 1) / (times[-1] - times[0])


def measure(checkout: Path, model: str) -> Figures:
    """Return the figures of a checkout."""
    path = [str(checkout / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, __file__, "--measure", model]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found: Figures = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(before: Path, after: Path, model: str, pairs: int) -> dict[str, Any]:
    """Return the figures of all pairs and the medians of their ratios."""
    runs = []
    measure(before, model)  # fills the page cache
    for pair in range(pairs):
        order = [("before", before), ("after", after)]
        found = {name: measure(checkout, model) for name, checkout in order[:: 1 - 2 * (pair % 2)]}
        runs.append(found)
        print(f"{Path(model).name} {pair}: {json.dumps(found)}", file=sys.stderr, flush=True)
    ratios = {}
    for name in runs[0]["before"]:
        is_time = name.endswith("_s") and not name.endswith("_per_s")
        each = [run["after"][name] / run["before"][name] for run in runs]
        ratios[name] = statistics.median(1 / r if is_time else r for r in each)
    return {"model": Path(model).name, "ratios": ratios, "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--before", type=Path)
    parser.add_argument("--after", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--measure", metavar="MODEL", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps({**measure_llm(args.measure), **measure_server(args.measure)}))
        return
    if args.before is None or args.after is None or not args.models:
        parser.error("--before, --after and a MODEL are needed")
    report = [compare(args.before, args.after, model, args.pairs) for model in args.models]
    if args.out is not None:
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps([{"model": each["model"], **each["ratios"]} for each in report]))


if __name__ == "__main__":
    main()
