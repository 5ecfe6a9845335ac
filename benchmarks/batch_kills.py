"""Kill a batch again and again, and check that each row is in the output exactly once.

    python benchmarks/batch_kills.py [--rows 10000] [--kills 5] [--kinds command ray] [--out FILE]

`command` is `zinc batch`, `ray` a driver of `zinc.cluster.batch` on a Ray that runs (`ray start
--head --num-cpus 8`). Each is killed with SIGKILL after about equal parts of the rows, and then
started again. Prompts repeat, so texts of different runs must be equal. The last line of output is
one JSON object. Exit status 1 if a row is missing, repeated, failed or different.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import zinc
from zinc.core.processor import cpu_model

PROMPTS = 50  # different ones
PATIENCE_S = 900.0
DRIVER = """
import sys
import ray
from zinc.cluster import batch

source, output, address, replicas = sys.argv[1:]
ray.init(address, log_to_driver=False, logging_level="error")
ray.data.DataContext.get_current().enable_progress_bars = False
batch(ray.data.read_text(source), output, replicas=int(replicas))
"""


def write_rows(path: Path, count: int) -> None:
    """Write the input of a batch."""
    with path.open("w") as file:
        for i in range(count):
            body = {"prompt": f"Story {i % PROMPTS}. Once", "max_tokens": 4, "temperature": 0}
            row = {"custom_id": f"row {i}", "method": "POST", "url": "/v1/completions"}
            file.write(json.dumps({**row, "body": body}) + "\n")


def command(kind: str, source: Path, output: Path, args: argparse.Namespace) -> list[str]:
    """Return the command that answers the rows."""
    if kind == "command":
        return [sys.executable, "-m", "zinc", "batch", str(source), str(output)]
    more = [args.address, str(args.replicas)]
    return [sys.executable, "-c", DRIVER, str(source), str(output), *more]


def n_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def killed(words: list[str], output: Path, at: int, log: Any) -> bool:
    """Run a command until the output has `at` lines, and kill it; return whether it still ran."""
    process = subprocess.Popen(words, stdout=log, stderr=log)
    until = time.monotonic() + PATIENCE_S
    while process.poll() is None and n_lines(output) < at and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def check(output: Path, rows: int) -> dict[str, int]:
    """Return how many rows are missing, repeated, failed or different from equal ones."""
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    ids = Counter(line["custom_id"] for line in lines)
    texts: dict[int, Counter[str]] = {}
    n_failed = 0
    for line in lines:
        if (line["response"] or {}).get("status_code") != 200:
            n_failed += 1
            continue
        number = int(line["custom_id"].split()[1]) % PROMPTS
        text = line["response"]["body"]["choices"][0]["text"]
        texts.setdefault(number, Counter())[text] += 1
    return {
        "lines": len(lines),
        "missing": sum(f"row {i}" not in ids for i in range(rows)),
        "repeated": sum(n > 1 for n in ids.values()),
        "failed": n_failed,
        "different": sum(found.total() - max(found.values()) for found in texts.values()),
    }


def measure(kind: str, args: argparse.Namespace) -> dict[str, Any]:
    """Run the rows with kills; return what the output has."""
    rng = random.Random(3)
    with tempfile.TemporaryDirectory() as name:
        source, output = Path(name) / "in.jsonl", Path(name) / "out.jsonl"
        write_rows(source, args.rows)
        words = command(kind, source, output, args)
        started, killed_at = time.perf_counter(), []
        with open(args.log or os.devnull, "ab") as log:
            for i in range(args.kills):
                part = args.rows * (i + 0.5 + rng.random() / 2) / (args.kills + 1)
                if killed(words, output, int(part), log):
                    killed_at.append(n_lines(output))
            status = subprocess.run(words, stdout=log, stderr=log, check=False).returncode
        seconds = time.perf_counter() - started
        found = {"killed_after_rows": killed_at, "status": status, "seconds": round(seconds, 1)}
        return {**found, **check(output, args.rows)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=5)
    kinds = ["command", "ray"]
    parser.add_argument("--kinds", nargs="+", default=kinds, choices=kinds)
    parser.add_argument("--address", default="auto", help="address of Ray")
    parser.add_argument("--replicas", type=int, default=2, help="engines on Ray")
    parser.add_argument("--log", help="file for the output of the batches")
    parser.add_argument("--out", type=Path, help="file for the JSON object")
    args = parser.parse_args()
    found: dict[str, Any] = {
        "version": zinc.__version__,
        "cpu": cpu_model(),
        "rows": args.rows,
        "kills": args.kills,
        "runs": {kind: measure(kind, args) for kind in args.kinds},
    }
    if args.out is not None:
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))
    wanted = {"lines": args.rows, "missing": 0, "repeated": 0, "failed": 0, "different": 0}
    is_good = all(
        {**run, **wanted, "status": 0} == run and len(run["killed_after_rows"]) == args.kills
        for run in found["runs"].values()
    )
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
