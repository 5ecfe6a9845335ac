"""Writes README's table of numbers from the committed results.

python benchmarks/table.py            # rewrites README.md between its two markers
python benchmarks/table.py --check    # exits with 1 when README does not say what the files say
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- numbers:begin -->", "<!-- numbers:end -->"


def row(result: dict[str, Any]) -> str:
    name = result["model"].removesuffix(".gguf")
    if result["depth"]:
        name += f" after {result['depth']:,} tokens"
    cells = [name]
    for kind in ("prefill", "decode"):
        peer = max(
            result[f"llama_repack_{kind}_tokens_per_s"], result[f"llama_plain_{kind}_tokens_per_s"]
        )
        cells += [
            f"{result[f'zinc_{kind}_tokens_per_s']:.0f}",
            f"{peer:.0f}",
            f"**{result[f'{kind}_ratio']:.2f}**",
        ]
    return f"| {' | '.join(cells)} |"


def section(report: dict[str, Any]) -> list[str]:
    """One table for one run of compare.py."""
    return [
        f"{report['cpu']}, {report['threads']} threads, llama.cpp {report['llama_cpp']} with flash "
        f"attention at the better of its settings (weights repacked or not), {report['pairs']} "
        "interleaved runs, "
        f"prefill of {report['prefill_tokens']} and decode of {report['decode_tokens']} tokens, "
        "tokens/s and the median of the ratios:",
        "",
        "| file | prefill | llama.cpp | ratio | decode | llama.cpp | ratio |",
        "|---|---|---|---|---|---|---|",
        *(row(result) for result in report["rows"]),
    ]


def numbers() -> str:
    """The text between the markers, from every compare-*.json in order of name."""
    parts: list[str] = []
    for path in sorted(RESULTS.glob("compare-*.json")):
        report = json.loads(path.read_text())
        parts += [*section(report), ""]
    return "\n".join(parts).strip()


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
