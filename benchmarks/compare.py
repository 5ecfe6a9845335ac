"""Compare zinc with llama.cpp on the same file, in interleaved runs.

    python benchmarks/compare.py --llama-bin FOLDER --out benchmarks/results/NAME.json FILE...

FOLDER holds llama-bench, and llama-batched-bench for --streams. Each pair runs, in alternating
order, zinc and llama.cpp with and without repacked weights, each in a new process with a warm-up.
A ratio is zinc's rate divided by the faster llama.cpp rate of the same pair, and the report holds
the median over pairs: a shared machine changes less within a pair than between pairs. --level
restricts zinc to a SIMD level; build llama.cpp for the same one and describe it by --llama-build.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import table

import zinc
from zinc.core import env
from zinc.core.processor import cpu_model

# The limit of the machine that each kind of step is compared with.
LIMITS = {"prefill": "int8_peak", "decode": "bandwidth"}


def run(command: list[str], variables: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | (variables or {})
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def run_zinc(model: str, args: argparse.Namespace) -> dict[str, Any]:
    command = [
        sys.executable, "-m", "zinc", "bench", model, "--json",
        "--threads", str(args.threads), "--reps", str(args.reps),
        "--prefill", str(args.prefill), "--decode", str(args.decode),
        "--depth", str(args.depth), "--kv-dtype", args.kv_dtype, "--streams", str(args.streams),
    ]  # fmt: skip
    level = {env.LEVEL.name: args.level} if args.level else {}
    result: dict[str, Any] = json.loads(run(command, level))
    result["model"] = Path(model).name  # the report names the file, not its folder
    return result


def run_llama(model: str, args: argparse.Namespace, repack: int) -> dict[str, Any]:
    rates, build = llama_bench(model, args, repack)
    if args.streams > 1:
        rates["decode_tokens_per_s"] = llama_streams(model, args, repack)
    return {**rates, "build": build}


def llama_bench(model: str, args: argparse.Namespace, repack: int) -> tuple[dict[str, float], str]:
    """Return prefill and decode tokens/s of one stream, and llama.cpp's version."""
    command = [
        str(Path(args.llama_bin) / "llama-bench"), "-m", model, "-t", str(args.threads),
        "-fa", "1", "-o", "json", "-r", str(args.reps), "-p", str(args.prefill),
        "-n", str(args.decode), "-d", str(args.depth), "--repack", str(repack),
        "-ctk", args.kv_dtype, "-ctv", args.kv_dtype,
    ]  # fmt: skip
    rows = json.loads(run(command))
    rates = {}
    for row in rows:
        kind = "prefill" if row["n_prompt"] else "decode"
        rates[f"{kind}_tokens_per_s"] = row["avg_ts"]
    return rates, rows[0]["build_commit"]


def llama_streams(model: str, args: argparse.Namespace, repack: int) -> float:
    """Return tokens/s of all streams together, each after a prompt of `depth` tokens or one."""
    prompt = max(1, args.depth)
    context = args.streams * (prompt + args.decode)
    command = [
        str(Path(args.llama_bin) / "llama-batched-bench"), "-m", model, "-c", str(context),
        "-npp", str(prompt), "-ntg", str(args.decode), "-npl", str(args.streams),
        "-t", str(args.threads), "-tb", str(args.threads), "-fa", "on",
        "-ctk", args.kv_dtype, "-ctv", args.kv_dtype, "--output-format", "jsonl",
        *([] if repack else ["--no-repack"]),
    ]  # fmt: skip
    line = next(x for x in run(command).splitlines() if x.startswith("{"))
    return float(json.loads(line)["speed_tg"])


def compare(model: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return the row of the report for one model: all pairs, and their medians."""
    kinds = [kind for kind in LIMITS if getattr(args, kind)]
    pairs: list[dict[str, Any]] = []
    for i in range(args.pairs):
        jobs = [
            ("zinc", lambda: run_zinc(model, args)),
            ("llama_repack", lambda: run_llama(model, args, 1)),
            ("llama_plain", lambda: run_llama(model, args, 0)),
        ]
        pair = {name: job() for name, job in (jobs if i % 2 == 0 else reversed(jobs))}
        for kind in kinds:
            key = f"{kind}_tokens_per_s"
            peer = max(pair["llama_repack"][key], pair["llama_plain"][key])
            pair[f"{kind}_ratio"] = pair["zinc"][key] / peer
        pairs.append(pair)
        print(
            f"{Path(model).name} pair {i + 1}: "
            + ", ".join(
                f"{kind} {pair['zinc'][f'{kind}_tokens_per_s']:.1f} ({pair[f'{kind}_ratio']:.2f}x)"
                for kind in kinds
            ),
            file=sys.stderr,
        )
    row: dict[str, Any] = {
        "model": Path(model).name, "depth": args.depth, "streams": args.streams, "pairs": pairs
    }  # fmt: skip
    for kind in kinds:
        key = f"{kind}_tokens_per_s"
        share = f"{kind}_percent_of_{LIMITS[kind]}"
        row[share] = statistics.median(p["zinc"][share] for p in pairs)
        row[f"{kind}_ratio"] = statistics.median(p[f"{kind}_ratio"] for p in pairs)
        for engine in ("zinc", "llama_repack", "llama_plain"):
            row[f"{engine}_{key}"] = statistics.median(p[engine][key] for p in pairs)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--llama-bin", required=True, help="folder of llama.cpp's programs")
    parser.add_argument("--pairs", type=int, default=5, help="interleaved runs")
    parser.add_argument("--reps", type=int, default=1, help="repetitions inside one run")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--decode", type=int, default=128)
    parser.add_argument("--depth", type=int, default=0)
    parser.add_argument("--streams", type=int, default=1, help="concurrent sequences")
    parser.add_argument(
        "--kv-dtype", default="f16", help="keys and values of both engines: f16, q8_0 or q4_0"
    )
    parser.add_argument("--level", help="SIMD level of zinc (default: the best available)")
    parser.add_argument("--llama-build", help="description of llama.cpp's build, for the report")
    parser.add_argument("--out", help="write the report as JSON")
    args = parser.parse_args()
    rows = [compare(model, args) for model in args.models]
    report = {
        "zinc": zinc.__version__,
        "llama_cpp": rows[0]["pairs"][0]["llama_repack"]["build"],
        "cpu": cpu_model(),
        "threads": args.threads,
        "pairs": args.pairs,
        "kv_dtype": args.kv_dtype,
        "prefill_tokens": args.prefill,
        "decode_tokens": args.decode,
        **({"level": args.level} if args.level else {}),
        **({"llama_build": args.llama_build} if args.llama_build else {}),
        "rows": rows,
    }
    if args.out:
        Path(args.out).write_text(json.dumps(report, indent=1) + "\n")
    print(table.section([report]))


if __name__ == "__main__":
    main()
