"""Writes README's table of numbers from the committed results.

python benchmarks/table.py            # rewrites README.md between its two markers
python benchmarks/table.py --check    # exits with 1 when README does not say what the files say
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- numbers:begin -->", "<!-- numbers:end -->"


LIMITS = {"prefill": "int8_peak", "decode": "bandwidth"}
# What runs have in common that stand in one table.
SAME = ("zinc", "llama_cpp", "llama_build", "cpu", "level", "threads", "kv_dtype")


def row(result: dict[str, Any]) -> str:
    name = result["model"].removesuffix(".gguf")
    if result["depth"]:
        name += f" after {result['depth']:,} tokens"
    if result["streams"] > 1:
        name += f", {result['streams']} streams"
    reads = median(pair["zinc"]["bandwidth_gb_per_s"] for pair in result["pairs"])
    cells = [name, str(len(result["pairs"])), f"{reads:.0f}"]
    for kind, limit in LIMITS.items():
        if f"{kind}_ratio" not in result:
            cells += ["", "", "", ""]
            continue
        peer = max(
            result[f"llama_repack_{kind}_tokens_per_s"], result[f"llama_plain_{kind}_tokens_per_s"]
        )
        cells += [
            f"{result[f'zinc_{kind}_tokens_per_s']:.0f}",
            f"{peer:.0f}",
            f"**{result[f'{kind}_ratio']:.2f}**",
            f"{result[f'{kind}_percent_of_{limit}']:.0f}%",
        ]
    return f"| {' | '.join(cells)} |"


def section(reports: list[dict[str, Any]]) -> str:
    """One table for runs of compare.py on the same machine in the same way."""
    first = reports[0]
    level = f" at SIMD level {first['level']}" if first.get("level") else ""
    build = f" built {first['llama_build']}" if first.get("llama_build") else ""
    prompt = max(report["prefill_tokens"] for report in reports)
    answers = sorted({report["decode_tokens"] for report in reports})
    lines = [
        f"{first['cpu']}{level}, {first['threads']} threads, {first['kv_dtype']} keys and values, "
        f"llama.cpp {first['llama_cpp']}{build} with flash attention at the better of its settings "
        f"(weights repacked or not): prefill of {prompt} and decode of "
        f"{' to '.join(str(n) for n in dict.fromkeys([answers[0], answers[-1]]))} tokens in "
        "tokens/s, the median of the ratios of interleaved runs, what memory gave to reads in "
        "these runs, in GB/s, and zinc's part of it and of the int8 peak:",
        "",
        "| file | runs | reads | prefill | llama.cpp | ratio | of peak "
        "| decode | llama.cpp | ratio | of reads |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *(row(result) for report in reports for result in report["rows"]),
    ]
    return "\n".join(lines)


def numbers() -> str:
    """The text between the markers, from every compare-*.json in order of name."""
    alike: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for path in sorted(RESULTS.glob("compare-*.json")):
        report = json.loads(path.read_text())
        alike.setdefault(tuple(report.get(name) for name in SAME), []).append(report)
    return "\n\n".join(section(reports) for reports in alike.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, compare")
    args = parser.parse_args()
    text = README.read_text()
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    wanted = f"{head}{BEGIN}\n{numbers()}\n{END}{tail}"
    if args.check:
        return int(wanted != text)
    README.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
