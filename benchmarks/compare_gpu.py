"""Compare zinc with llama.cpp on one GPU and the same files, in interleaved runs.

    python benchmarks/compare_gpu.py results.json --llama-bin FOLDER --backend cuda --rounds 3

FOLDER holds llama-bench and llama-batched-bench of a build for the same GPU. Each round runs both
engines on a file with random weights, in alternating order, each in a new process with a warm-up:
prompts, decode at each depth, and concurrent greedy answers. A row has the median rates of the
rounds and the median of their ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import make_model

HERE = Path(__file__).parent
STREAM_TOKENS = 128  # of prompt and of answer of each stream
DECODE_TOKENS = 64

Rates = dict[str, float]  # tokens/s by name of the row


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
    return done.stdout


def texts(values: list[int]) -> list[str]:
    return [str(value) for value in values]


def decode_name(depth: int) -> str:
    return f"decode after {depth:,}" if depth else "decode"


def streams_name(n: int) -> str:
    return "1 stream" if n == 1 else f"{n} streams"


def run_zinc(shape: str, args: argparse.Namespace) -> tuple[Rates, dict[str, Any]]:
    """Return the rates of zinc, and its reports of one stream and of several.

    Several streams have a process of their own, because deep caches for all may not fit.
    """
    steps = gpu_report(
        shape, args, "--streams", "--depths", *texts(args.depths),
        "--prefill", *texts(args.prefill), "--decode", str(DECODE_TOKENS),
    )  # fmt: skip
    (found,) = steps["shapes"]
    rates: Rates = {}
    for row in found["prefill"]:
        if row["depth"] == 0:
            rates[f"prompt of {row['tokens']:,}"] = row["tokens_per_s"]
    for row in found["decode"]:
        rates[decode_name(row["depth"])] = row["tokens_per_s"]
    if not args.streams:
        return rates, {"steps": steps}
    answers = gpu_report(
        shape, args, "--depths", "0", "--prefill", "0", "--decode", "0",
        "--answer", str(STREAM_TOKENS), "--streams", *texts(args.streams),
        "--chains", "greedy", "--sampled-by", "device",
    )  # fmt: skip
    for row in answers["shapes"][0]["answers"]:
        rates[streams_name(row["streams"])] = row["tokens_per_s"]
    return rates, {"steps": steps, "answers": answers}


def gpu_report(shape: str, args: argparse.Namespace, *options: str) -> dict[str, Any]:
    """Return the report of gpu.py, run with `options`."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "zinc.json"
        run([
            sys.executable, str(HERE / "gpu.py"), str(result), "--backend", args.backend,
            "--shapes", shape, "--keep", "--folder", args.folder, "--device", args.device, *options,
        ])  # fmt: skip
        report: dict[str, Any] = json.loads(result.read_text())
    return report


def run_llama(shape: str, args: argparse.Namespace) -> tuple[Rates, dict[str, Any]]:
    """Return the rates of llama.cpp, and its version."""
    model = ["-m", str(Path(args.folder) / f"{shape}.gguf"), "-ngl", "99", "-fa", "1"]
    bench = [str(Path(args.llama_bin) / "llama-bench"), *model, "-o", "json", "-r", "3"]
    prompts = [*bench, "-n", "0", "-p", ",".join(texts(args.prefill))]
    decode = [
        *bench, "-p", "0", "-n", str(DECODE_TOKENS), "-d", ",".join(texts(args.depths)),
    ]  # fmt: skip
    rates: Rates = {}
    rows = json.loads(run(prompts)) + json.loads(run(decode))
    for row in rows:
        prompt = row["n_prompt"]
        name = f"prompt of {prompt:,}" if prompt else decode_name(row["n_depth"])
        rates[name] = row["avg_ts"]
    batched = [
        str(Path(args.llama_bin) / "llama-batched-bench"), *model, "-c",
        str(2 * STREAM_TOKENS * max(args.streams, default=0)), "-npp", str(STREAM_TOKENS),
        "-ntg", str(STREAM_TOKENS), "-npl", ",".join(texts(args.streams)),
        "--output-format", "jsonl",
    ]  # fmt: skip
    if args.streams:
        lines = [line for line in run(batched).splitlines() if line.startswith("{")]
        for row in map(json.loads, lines):
            rates[streams_name(row["pl"])] = row["speed_tg"]
    return rates, {"build": rows[0]["build_commit"], "device": rows[0]["gpu_info"]}


def compare(shape: str, args: argparse.Namespace) -> dict[str, Any]:
    """Measure one shape with both engines in `args.rounds` rounds."""
    path = Path(args.folder) / f"{shape}.gguf"
    if not path.exists():
        make_model.write(str(path), make_model.SHAPES[shape], "q4_k_m", repeat=True)
    rounds: list[dict[str, Rates]] = []
    reports: dict[str, dict[str, Any]] = {}
    for number in range(args.rounds):
        rates = {}
        for engine in ("zinc", "llama.cpp") if number % 2 == 0 else ("llama.cpp", "zinc"):
            measure = run_zinc if engine == "zinc" else run_llama
            rates[engine], reports[engine] = measure(shape, args)
            print(shape, engine, {name: round(rate, 1) for name, rate in rates[engine].items()})
            sys.stdout.flush()
        rounds.append(rates)
    names = [name for name in rounds[0]["zinc"] if name in rounds[0]["llama.cpp"]]
    return {
        "shape": shape,
        "rows": [_row(name, rounds) for name in names],
        "zinc": reports["zinc"],
        "llama.cpp": reports["llama.cpp"],
    }


def _row(name: str, rounds: list[dict[str, Rates]]) -> dict[str, Any]:
    zinc, llama = ([found[engine][name] for found in rounds] for engine in ("zinc", "llama.cpp"))
    ratios = [ours / theirs for ours, theirs in zip(zinc, llama, strict=True)]
    return {
        "name": name,
        "zinc": statistics.median(zinc),
        "llama.cpp": statistics.median(llama),
        "ratio": statistics.median(ratios),
        "all_zinc": zinc,
        "all_llama.cpp": llama,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("result")
    parser.add_argument("--llama-bin", required=True, metavar="FOLDER")
    parser.add_argument("--backend", default="cuda", choices=("vulkan", "cuda"))
    parser.add_argument("--device", default="")
    parser.add_argument(
        "--shapes", nargs="+", default=["qwen3-8b", "qwen36-35b-a3b"], choices=make_model.SHAPES
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prefill", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--depths", type=int, nargs="+", default=[0, 16384])
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--folder", default="/dev/shm")
    args = parser.parse_args()
    report: dict[str, Any] = {"method": "benchmarks/compare_gpu.py", "shapes": []}
    for shape in args.shapes:
        report["shapes"].append(compare(shape, args))
        Path(args.result).write_text(json.dumps(report, indent=1) + "\n")
        for row in report["shapes"][-1]["rows"]:
            print(
                f"  {row['name']:20} zinc {row['zinc']:10,.1f}  llama.cpp {row['llama.cpp']:10,.1f}"
                f"  ratio {row['ratio']:.2f}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
