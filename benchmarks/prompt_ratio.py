"""Compare a prompt with decode: how much less time a token takes in one step of many rows.

    python benchmarks/prompt_ratio.py [results.json] [--backend cuda] [--shapes mamba2-1.3b ...]

For each shape it writes a file with random weights to --folder and runs `zinc bench` in a process
of its own, in which prompts of --rows tokens and --decode single tokens alternate. The ratio is the
time of a token of decode divided by that of a token of a prompt. Below it are the ops that take
most of the prompt. The last line of output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import make_model

SHAPES = ("mamba2-1.3b", "granite4-h-1b", "lfm2-1.2b", "kimi-linear-1b", "rwkv7-1.5b")
SHOWN_OPS = 3


def measured(path: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Return the report of `zinc bench` for a model file, with the ratio."""
    command = [sys.executable, "-m", "zinc", "bench", str(path), "--json", "--profile"]
    command += ["--prefill", str(args.rows), "--decode", str(args.decode)]
    command += ["--reps", str(args.reps), "--backend", args.backend]
    command += ["--device", args.device] if args.device else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(done.returncode)
    report: dict[str, Any] = json.loads(done.stdout)
    report["ratio"] = report["prefill_tokens_per_s"] / report["decode_tokens_per_s"]
    return report


def show(name: str, report: dict[str, Any], rows: int) -> None:
    prompt, decode = (1e3 / report[f"{step}_tokens_per_s"] for step in ("prefill", "decode"))
    print(
        f"{name} on {report['description']}: {decode:.3f} ms a token one by one, "
        f"{prompt:.3f} ms in {rows} rows, ratio {report['ratio']:.1f}"
    )
    ops = sorted(report["prefill_profile"], key=lambda op: -op["seconds"])[:SHOWN_OPS]
    print("  the prompt: " + ", ".join(f"{op['kernel']} {op['percent']:.1f}%" for op in ops))
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", nargs="?", help="file for the JSON object")
    parser.add_argument("--backend", default="auto", help="as of zinc bench, such as cpu or cuda")
    parser.add_argument("--device", help="as of zinc bench, such as cuda:0")
    parser.add_argument("--shapes", nargs="+", default=SHAPES, choices=make_model.SHAPES)
    parser.add_argument("--rows", type=int, default=512, help="tokens of a prompt")
    parser.add_argument("--decode", type=int, default=64, help="single tokens of a repetition")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--type", default="q4_k_m", help="as of make_model.py")
    parser.add_argument("--folder", default="/dev/shm", help="where model files are written")
    parser.add_argument("--keep", action="store_true", help="keep the model files")
    args = parser.parse_args()

    reports = {}
    for name in args.shapes:
        path = Path(args.folder) / f"{name}-{args.type}.gguf"
        if not path.exists():
            make_model.write(str(path), make_model.SHAPES[name], args.type, repeat=True)
        try:
            reports[name] = measured(path, args)
        finally:
            if not args.keep:
                path.unlink()
        show(name, reports[name], args.rows)
    text = json.dumps({"rows": args.rows, "shapes": reports})
    if args.result:
        Path(args.result).write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
