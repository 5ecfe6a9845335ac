"""Measure the time to the first token from process start, and the peak memory of loading.

    python benchmarks/startup.py --out benchmarks/results/NAME.json [--before FOLDER] [FILE...]

One run fills the page cache. Then, as medians over --runs processes for each file (default: the
embedded model): seconds from process start to the first bytes of `zinc run`'s answer, CPU seconds
of that process, seconds for import and loading (and for the upload of weights, a part of loading),
and peak resident memory divided by the size of file and KV cache. CPU time depends less on what
else the machine runs. FOLDER is another checkout, with its extension built in place. The first
tokens of both are measured in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import zinc
from zinc.core.processor import cpu_model
from zinc.engine.load.files import resolve_model

CONTEXT = 512
# The first run of a checkout compiles its modules, and an installation has them compiled.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
LOADING = """
import json, sys, time
start = time.perf_counter()
from zinc import LLM
from zinc.engine.load import model
imported, upload, uploads = time.perf_counter(), model.upload, []
def timed(*args):
    began = time.perf_counter()
    upload(*args)
    uploads.append(time.perf_counter() - began)
model.upload = timed
with LLM(sys.argv[1], context=int(sys.argv[2])) as llm:
    loaded = time.perf_counter()
    print(json.dumps({"import_s": imported - start, "load_s": loaded - imported,
                      "upload_s": sum(uploads), "kv_bytes": llm.memory.kv_bytes,
                      "backend": llm.backend.describe()}))
"""


def first_token(model: Path, checkout: Path | None = None) -> tuple[float | None, float]:
    """Return the seconds from the start of `zinc run` to its first output, and its CPU seconds.

    The former is None if the answer is empty, which random weights can cause. checkout: folder of
    the code to run, by default the code that runs this.
    """
    environment = ENVIRONMENT
    if checkout is not None:
        path = [str(checkout / "src"), *filter(None, [ENVIRONMENT.get("PYTHONPATH")])]
        environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(path)}
    command = [
        sys.executable, "-m", "zinc", "run", "-m", str(model), "--context", str(CONTEXT),
        "--raw", "--temperature", "0", "--max-tokens", "8", "Once upon a time",
    ]  # fmt: skip
    start = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    )
    assert process.stdout is not None
    first = process.stdout.read(1)
    seconds = time.perf_counter() - start
    process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"zinc run {model} failed")
    return seconds if first.strip() else None, usage.ru_utime + usage.ru_stime


def loading(model: Path) -> dict[str, Any]:
    """Run LOADING on `model`; return its JSON object and the `peak_bytes` of its process."""
    command = [sys.executable, "-c", LOADING, str(model), str(CONTEXT)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=ENVIRONMENT)
    assert process.stdout is not None
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"loading {model} failed")
    return {**json.loads(text), "peak_bytes": usage.ru_maxrss * 1024}


def measure(model: Path, runs: int, before: Path | None) -> dict[str, Any]:
    """Return the row of the report for one model. before: another checkout to compare with."""
    for checkout in {None, before}:
        first_token(model, checkout)  # compiles kernels
    answers, cpu, earlier = list[float | None](), list[float](), list[float | None]()
    for _ in range(runs):
        if before is not None:
            earlier.append(first_token(model, before)[0])
        seconds, cpu_s = first_token(model)
        answers.append(seconds)
        cpu.append(cpu_s)
    loads = [loading(model) for _ in range(runs)]
    file_bytes, kv_bytes = model.stat().st_size, loads[0]["kv_bytes"]
    peak = statistics.median(load["peak_bytes"] for load in loads)
    return {
        "model": model.name,
        "file_bytes": file_bytes,
        "kv_bytes": kv_bytes,
        "backend": loads[0]["backend"],
        "first_token_s": _median(answers),
        "all_first_token_s": answers,
        "before_first_token_s": _median(earlier) if earlier else None,
        "all_before_first_token_s": earlier,
        "run_cpu_s": statistics.median(cpu),
        "import_s": statistics.median(load["import_s"] for load in loads),
        "load_s": statistics.median(load["load_s"] for load in loads),
        "upload_s": statistics.median(load["upload_s"] for load in loads),
        "peak_bytes": peak,
        "peak_of_file_and_kv": peak / (file_bytes + kv_bytes),
    }


def _median(seconds: Sequence[float | None]) -> float | None:
    return None if None in seconds else statistics.median(filter(None, seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help="GGUF files (default: the embedded model)")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--before", metavar="FOLDER", type=Path, help="a checkout to compare with")
    parser.add_argument("--out", help="write the report as JSON")
    args = parser.parse_args()
    rows = [measure(resolve_model(name), args.runs, args.before) for name in args.models or [None]]
    report = {"zinc": zinc.__version__, "cpu": cpu_model(), "runs": args.runs, "rows": rows}
    if args.out:
        Path(args.out).write_text(json.dumps(report, indent=1) + "\n")
    for row in rows:
        print(
            f"{row['model']} ({row['file_bytes'] / 1e6:,.0f} MB): "
            + (f"first token after {row['first_token_s']:.2f} s, " if row["first_token_s"] else "")
            + (f"before {x:.2f} s, " if (x := row["before_first_token_s"]) else "")
            + f"{row['run_cpu_s']:.2f} s of CPU time, "
            f"imported in {row['import_s']:.2f} s, loaded in {row['load_s']:.2f} s "
            f"(weights uploaded in {row['upload_s']:.2f} s), "
            f"peak {row['peak_bytes'] / 1e6:,.0f} MB, "
            f"{row['peak_of_file_and_kv']:.2f} times file and KV cache"
        )


if __name__ == "__main__":
    main()
