"""Write the tables of docs/benchmarks.md from the results of compare.py and gpu.py.

    python benchmarks/table.py            # rewrite docs/benchmarks.md between its markers
    python benchmarks/table.py --check    # change nothing; exit with 1 if they are out of date

Every number comes from benchmarks/results: compare-*.json for the tables of the CPU, GPU_COMPARISON
for the table of both engines on a GPU, and the files of VULKAN for those of the H200.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from make_model import SHAPES

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "benchmarks" / "results"

# Files of gpu.py, by the title of the model.
VULKAN = {
    "Qwen3 8B Q4_K_M": "vulkan-h200-qwen3-8b.json",
    "Qwen3 8B Q4_K_M, Q8_0 keys and values": "vulkan-h200-qwen3-8b-q8_0.json",
    "Qwen3.6 35B-A3B Q4_K_M": "vulkan-h200-qwen36-35b-a3b.json",
}
# Files of gpu.py --rows by backend, for a device.
ROWS = {"CUDA": "cuda-{}-rows.json", "Vulkan": "vulkan-{}-rows.json"}
# The files of compare_gpu.py, the device of README's chart, and titles of its shapes.
GPU_COMPARISON = "gpu-compare-{}.json"
GPU_NAME = "NVIDIA H100"
GPU_MODELS = {"qwen3-8b": "Qwen3 8B", "qwen36-35b-a3b": "Qwen3.6 35B-A3B"}
SAMPLED_BY = {
    "host": "host samples from the logits",
    "device, in step": "device samples, host waits for each token",
    "device": "device samples, one step ahead of the host",
}

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
    rates: list[float] = [
        row[f"llama_{setting}_{kind}_tokens_per_s"] for setting in ("repack", "plain")
    ]
    return max(rates)


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


def line(values: Sequence[str]) -> str:
    return f"| {' | '.join(values)} |"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join([line(columns), "|---" * len(columns) + "|", *map(line, rows)])


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
    rows.sort(key=lambda row: (row["streams"], row["depth"]))
    lines = [
        f"### {processor}{level}",
        "",
        f"{first['cpu']}, {first['threads']} threads, {first['kv_dtype'].upper()} keys and values, "
        f"llama.cpp {first['llama_cpp']}{build}; prefill of {prompt} tokens, decode of {decoded}.",
        "",
        table(COLUMNS, [cells(row) for row in rows]),
    ]
    return "\n".join(lines)


def cpu() -> str:
    """Return a section for each processor and setting of compare.py."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for report in reports():
        groups.setdefault(tuple(report.get(name) for name in SETTINGS), []).append(report)
    order = list(PROCESSORS)
    ordered = sorted(groups.values(), key=lambda group: order.index(group[0]["cpu"]))
    return "\n\n".join(section(group) for group in ordered)


def gpu_comparison(device: str = "h100") -> dict[str, Any]:
    """Return the report of compare_gpu.py on a device."""
    found: dict[str, Any] = json.loads((RESULTS / GPU_COMPARISON.format(device)).read_text())
    return found


def cuda(device: str) -> str:
    """Return the table of zinc and llama.cpp on a GPU."""
    rows = []
    for shape in gpu_comparison(device)["shapes"]:
        zinc = shape["zinc"]["steps"]
        decode = zinc["shapes"][0]["decode"]
        decodes = [row["name"] for row in shape["rows"] if row["name"].startswith("decode")]
        reads = {name: step["gb_per_s"] for name, step in zip(decodes, decode, strict=True)}
        for row in shape["rows"]:
            share = reads.get(row["name"], 0) / zinc["read_gb_per_s"]
            rates = (f"{row[name]:,.0f}" for name in ("zinc", "llama.cpp"))
            title = f"{GPU_MODELS[shape['shape']]}, {row['name']}"
            rows.append([title, *rates, f"**{row['ratio']:.2f}**", f"{share:.0%}" if share else ""])
    return table(("tokens/s", "zinc", "llama.cpp", "ratio", "of reads"), rows)


def rows(device: str) -> str:
    """Return the table of steps of several rows, in multiples of a step of one row."""
    found, counts = [], list[int]()
    for backend, name in ROWS.items():
        for shape in json.loads((RESULTS / name.format(device)).read_text())["shapes"]:
            first, *steps = shape["row_steps"]
            counts = [step["rows"] for step in steps]
            shares = [f"{step['one_row_steps']:.2f}" for step in steps]
            title = f"{GPU_MODELS[shape['shape']]}, {backend}"
            found.append([title, f"{first['step_us'] / 1e3:.2f} ms", *shares])
    return table(["rows of a step", "1", *map(str, counts)], found)


def vulkan() -> str:
    """Return the table of prefill and decode on the H200, at both depths."""
    columns = (
        *("tokens/s", "prefill", "at depth 16,384", "decode", "at depth 16,384"),
        *("deep / shallow decode", "barriers a layer"),
    )
    rows = []
    for title, name in VULKAN.items():
        shape = json.loads((RESULTS / name).read_text())["shapes"][0]
        prefill, decode = ([r["tokens_per_s"] for r in shape[k]] for k in ("prefill", "decode"))
        barriers = shape["decode"][0]["barriers"] / SHAPES[shape["shape"]].layers
        rates = [f"{rate:,.0f}" for rate in (*prefill, *decode)]
        rows.append([title, *rates, f"{decode[1] / decode[0]:.1%}", f"{barriers:.1f}"])
    return table(columns, rows)


def engine() -> str:
    """Return the table of answers through the engine on the H200."""
    titles = {"8B": "Qwen3 8B Q4_K_M", "35B-A3B": "Qwen3.6 35B-A3B Q4_K_M"}
    columns: list[str] = []
    rates: dict[str, list[str]] = {sampled_by: [] for sampled_by in SAMPLED_BY}
    for size, title in titles.items():
        answers = json.loads((RESULTS / VULKAN[title]).read_text())["shapes"][0]["answers"]
        columns += [f"{size}, {chain}" for chain in dict.fromkeys(x["chain"] for x in answers)]
        for answer in answers:
            rates[answer["drawn_by"]].append(f"{answer['tokens_per_s']:.0f}")
    rows = [[SAMPLED_BY[sampled_by], *found] for sampled_by, found in rates.items()]
    return table(["tokens/s", *columns], rows)


SECTIONS: dict[str, Callable[[], str]] = {
    "cpu": cpu,
    **{f"cuda-{device}": partial(cuda, device) for device in ("h100", "h200")},
    **{f"rows-{device}": partial(rows, device) for device in ("h100", "h200")},
    "vulkan": vulkan,
    "engine": engine,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, only compare")
    args = parser.parse_args()
    text = wanted = PAGE.read_text()
    for name, section_of in SECTIONS.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        content = f"{begin}\n{section_of()}\n{end}"
        found = re.findall(f"{begin}.*?{end}", wanted, flags=re.DOTALL)
        assert len(found) == 1, f"{PAGE} has no markers of {name}"
        wanted = wanted.replace(found[0], content)
    if args.check:
        return int(wanted != text)
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
