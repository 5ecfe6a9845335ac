"""Measure how much decode speed zinc and llama.cpp keep while other processes use the cores.

    python benchmarks/neighbours.py --llama-bench PATH --out benchmarks/results/NAME.json FILE

Each round runs both engines, in alternating order and in new processes, beside zero, one and two
spinning processes. A share is the rate beside spinning processes divided by the rate without them
in the same round. The last number is the CPU time that a loaded, idle model uses.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zinc
from zinc.core.processor import cpu_model

IDLE_S = 3.0
IDLE = """
import sys, time
from zinc import LLM, SamplingParams
with LLM(sys.argv[1], context=64) as llm:
    llm.generate("Once", SamplingParams(max_tokens=4))
    start = time.process_time()
    time.sleep(float(sys.argv[2]))
    print(time.process_time() - start)
"""


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Run `count` spinning processes, each bound to one of the cores this process may use."""
    cores = sorted(os.sched_getaffinity(0))
    spin = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
    processes = [
        subprocess.Popen([sys.executable, "-c", spin, str(cores[i % len(cores)])])
        for i in range(count)
    ]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run_zinc(model: str, args: argparse.Namespace) -> float:
    command = [
        sys.executable, "-m", "zinc", "bench", model, "--json", "--prefill", "0", "--reps", "1",
        "--decode", str(args.decode), "--threads", str(args.threads),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["decode_tokens_per_s"])


def run_llama(model: str, args: argparse.Namespace) -> float:
    command = [
        args.llama_bench, "-m", model, "-t", str(args.threads), "-fa", "1", "-o", "json",
        "-p", "0", "-n", str(args.decode), "-r", "1",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)[0]["avg_ts"])


def idle_cpu_s(model: str) -> float:
    """Return the CPU seconds that a loaded model uses in IDLE_S seconds without requests."""
    command = [sys.executable, "-c", IDLE, model, str(IDLE_S)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--llama-bench", required=True, help="path of llama.cpp's llama-bench")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--decode", type=int, default=32)
    parser.add_argument("--out", help="write the report as JSON")
    args = parser.parse_args()
    engines = {"zinc": run_zinc, "llama_cpp": run_llama}
    rounds: list[dict[str, list[float]]] = []
    for i in range(args.rounds):
        rates: dict[str, list[float]] = {}
        for name in sorted(engines, reverse=i % 2 == 0):
            rates[name] = []
            for count in range(3):
                with neighbours(count):
                    rates[name].append(engines[name](args.model, args))
        rounds.append(rates)
        print(f"round {i + 1}: {rates}", file=sys.stderr)
    report: dict[str, Any] = {
        "zinc": zinc.__version__,
        "cpu": cpu_model(),
        "threads": args.threads,
        "model": Path(args.model).name,
        "decode_tokens": args.decode,
        "rounds": rounds,
        "idle_cpu_s_per_s": idle_cpu_s(args.model) / IDLE_S,
    }
    for name in engines:
        for count in (1, 2):
            shares = [rates[name][count] / rates[name][0] for rates in rounds]
            report[f"{name}_share_with_{count}"] = statistics.median(shares)
            print(f"{name} beside {count}: {statistics.median(shares):.0%} of its rate alone")
    print(f"idle: {report['idle_cpu_s_per_s']:.1%} of one core")
    if args.out:
        Path(args.out).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
