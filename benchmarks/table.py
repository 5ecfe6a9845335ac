"""Write the tables of docs/benchmarks.md that compare zinc with llama.cpp on the CPU.

    python benchmarks/table.py            # rewrite docs/benchmarks.md between its two markers
    python benchmarks/table.py --check    # change nothing; exit with 1 if they are out of date

Every number comes from benchmarks/results/compare-*.json, which benchmarks/compare.py writes.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- tables:begin -->", "<!-- tables:end -->"

# The limit of the machine that each kind of step is compared with.
LIMITS = {"prefill": "int8_peak", "decode": "bandwidth"}
# Reports that agree in these fields share a table.
SETTINGS = ("zinc", "llama_cpp", "llama_build", "cpu", "level", "threads", "kv_dtype")
# Titles of the processors that zinc reports, in the order of their tables.
PROCESSORS = {
    "AMD EPYC (family 26)": "AMD EPYC, Zen 5",
    "AMD EPYC (family 25, model 17)": "AMD EPYC, Zen 4",
    "Intel(R) Xeon(R) Processor (family 6, model 167)": "Intel Xeon with AMX",
}
COLUMNS = (
    *("model", "pairs", "read GB/s"),
    *("prefill", "llama.cpp", "ratio", "of int8 peak"),
    *("decode", "llama.cpp", "ratio", "of reads"),
)


def reports() -> list[dict[str, Any]]:
    """Return every committed report of compare.py, in order of file name."""
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob("compare-*.json"))]


def llama_rate(row: dict[str, Any], kind: str) -> float:
    """Return llama.cpp's tokens/s in a row of a report, with the faster of its two settings."""
    return max(row[f"llama_{setting}_{kind}_tokens_per_s"] for setting in ("repack", "plain"))


def cells(row: dict[str, Any]) -> list[str]:
    """Return the cells of one row of a report."""
    name = row["model"].removesuffix(".gguf")
    if row["depth"]:
        name += f" after {row['depth']:,} tokens"
    if row["streams"] > 1:
        name += f", {row['streams']} streams"
    reads = median(pair["zinc"]["bandwidth_gb_per_s"] for pair in row["pairs"])
    found = [name, str(len(row["pairs"])), f"{reads:.0f}"]
    for kind, limit in LIMITS.items():
        if f"{kind}_ratio" not in row:
            found += ["", "", "", ""]
            continue
        found += [
            f"{row[f'zinc_{kind}_tokens_per_s']:.0f}",
            f"{llama_rate(row, kind):.0f}",
            f"**{row[f'{kind}_ratio']:.2f}**",
            f"{row[f'{kind}_percent_of_{limit}']:.0f}%",
        ]
    return found


def line(values: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(values)} |"


def section(reports: list[dict[str, Any]]) -> str:
    """Return the heading, settings and table of reports that were made with the same settings."""
    first = reports[0]
    processor = PROCESSORS.get(first["cpu"], first["cpu"])
    level = f", SIMD level `{first['level']}`" if first.get("level") else ""
    build = f" built {first['llama_build']}" if first.get("llama_build") else ""
    prompt = max(report["prefill_tokens"] for report in reports)
    answers = sorted({report["decode_tokens"] for report in reports})
    decoded = " to ".join(str(n) for n in dict.fromkeys([answers[0], answers[-1]]))
    rows = [row for report in reports for row in report["rows"]]
    lines = [
        f"### {processor}{level}",
        "",
        f"{first['cpu']}, {first['threads']} threads, {first['kv_dtype'].upper()} keys and values, "
        f"llama.cpp {first['llama_cpp']}{build}; prefill of {prompt} tokens, decode of {decoded}.",
        "",
        line(COLUMNS),
        "|---" * len(COLUMNS) + "|",
        *(line(cells(row)) for row in sorted(rows, key=lambda r: (r["streams"], r["depth"]))),
    ]
    return "\n".join(lines)


def tables() -> str:
    """Return the text between the markers: a section for each machine and setting."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for report in reports():
        groups.setdefault(tuple(report.get(name) for name in SETTINGS), []).append(report)
    order = list(PROCESSORS)
    ordered = sorted(groups.values(), key=lambda group: order.index(group[0]["cpu"]))
    return "\n\n".join(section(group) for group in ordered)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, only compare")
    args = parser.parse_args()
    text = PAGE.read_text()
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    wanted = f"{head}{BEGIN}\n{tables()}\n{END}{tail}"
    if args.check:
        return int(wanted != text)
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
