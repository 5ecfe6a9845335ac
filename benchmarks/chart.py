"""Draw README's charts of speed, zinc beside llama.cpp, as SVG for light and dark pages.

    python benchmarks/chart.py            # rewrite docs/images/speed-*.svg
    python benchmarks/chart.py --check    # change nothing; exit with 1 if they are out of date

The bars are tokens/s from benchmarks/results: compare-*.json for MODELS on one CPU, and the rows of
table.GPU_COMPARISON.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import table

IMAGES = table.ROOT / "docs" / "images"
CPU = "AMD EPYC (family 25, model 17)"
MODELS = {
    "qwen3-0.6b-q4_k_m.gguf": "Qwen3 0.6B",
    "qwen35-0.8b-q4_k_m.gguf": "Qwen3.5 0.8B",
    "gemma3-1b-q4_k_m.gguf": "Gemma 3 1B",
    "qwen3moe-64x-q4_k_m.gguf": "Qwen3 MoE, 64 experts",
}
PANELS = {"prefill": "Prefill, 512 tokens", "decode": "Decode, one stream"}
GPU_PANELS = {"prompt of 512": PANELS["prefill"], "decode": PANELS["decode"]}

WIDTH, ROW, BAR = 880, 50, 15  # pixels
NAMES = 190  # pixels on the left for the names of the models
TOP, BOTTOM = 82, 34  # pixels above and below the rows
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of a chart."""

    text: str
    faint: str
    zinc: str
    llama: str


THEMES = {
    "light": Theme(text="#1f2328", faint="#59636e", zinc="#0f766e", llama="#b6bec7"),
    "dark": Theme(text="#e6edf3", faint="#9198a1", zinc="#2dd4bf", llama="#545d68"),
}


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of both engines in tokens/s, and the median of their ratios."""

    zinc: float
    llama: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: panels by title, each with the rates of the same models by name.

    llama: what the legend says of llama.cpp. settings: the line below.
    """

    llama: str
    settings: str
    panels: dict[str, dict[str, Rates]]


SETTINGS = "Q4_K_M, F16 keys and values · medians of interleaved runs, ratio in brackets"


def cpu_chart() -> Chart:
    """Return the chart of CPU: one stream, an empty cache, the best SIMD level."""
    rows = {
        row["model"]: row
        for report in table.reports()
        if report["cpu"] == CPU and not report.get("level")
        for row in report["rows"]
        if row["streams"] == 1 and row["depth"] == 0
    }
    panels = {
        title: {name: _cpu_rates(rows[model], kind) for model, name in MODELS.items()}
        for kind, title in PANELS.items()
    }
    settings = f"{table.PROCESSORS[CPU]}, 2 threads · {SETTINGS}"
    return Chart("llama.cpp, the faster of two settings", settings, panels)


def _cpu_rates(row: dict[str, Any], kind: str) -> Rates:
    ours, theirs = row[f"zinc_{kind}_tokens_per_s"], table.llama_rate(row, kind)
    return Rates(ours, theirs, row[f"{kind}_ratio"])


def gpu_chart() -> Chart:
    """Return the chart of an NVIDIA GPU, both engines with CUDA."""
    panels: dict[str, dict[str, Rates]] = {title: {} for title in GPU_PANELS.values()}
    for shape in table.gpu_comparison()["shapes"]:
        for row in shape["rows"]:
            if row["name"] in GPU_PANELS:
                rates = Rates(row["zinc"], row["llama.cpp"], row["ratio"])
                panels[GPU_PANELS[row["name"]]][table.GPU_MODELS[shape["shape"]]] = rates
    return Chart("llama.cpp with CUDA", f"{table.GPU_NAME} · {SETTINGS}", panels)


CHARTS = {"speed": cpu_chart, "speed-gpu": gpu_chart}


def text(x: float, y: float, words: str, fill: str, *, size: int = 13, more: str = "") -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="{fill}"{more}>'
        f"{escape(words)}</text>"
    )


def bar(x: float, y: float, width: float, fill: str) -> str:
    return (
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.1f}" height="{BAR}" rx="2" fill="{fill}"/>'
    )


def panel(title: str, x: float, width: float, found: dict[str, Rates], theme: Theme) -> list[str]:
    """Draw the bars of a panel, `width` pixels from `x` on."""
    bold = ' font-weight="600"'
    longest = max(rates.zinc for rates in found.values())
    scale = (width - 130) / longest  # room for the numbers at the end of a bar
    lines = [text(x, TOP - 14, title, theme.text, more=bold)]
    for i, rates in enumerate(found.values()):
        y, ratio = TOP + i * ROW, f"{rates.zinc:,.0f}  ({rates.ratio:.2f}×)"
        lines += [
            bar(x, y, rates.zinc * scale, theme.zinc),
            text(x + rates.zinc * scale + 6, y + BAR - 3, ratio, theme.text, more=bold),
            bar(x, y + BAR + 2, rates.llama * scale, theme.llama),
            text(x + rates.llama * scale + 6, y + 2 * BAR - 1, f"{rates.llama:,.0f}", theme.faint),
        ]
    return lines


def drawn(chart: Chart, theme: Theme) -> str:
    """Return a chart as SVG."""
    names = list(next(iter(chart.panels.values())))
    height = TOP + len(names) * ROW + BOTTOM
    half = (WIDTH - NAMES) / 2
    title = "Tokens per second, zinc and llama.cpp"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="{escape(FONT)}" role="img" aria-label="{title}">',
        text(0, 22, "Tokens per second", theme.text, size=17, more=' font-weight="600"'),
        bar(NAMES, 10, BAR, theme.zinc),
        text(NAMES + BAR + 7, 22, "zinc", theme.text),
        bar(NAMES + 70, 10, BAR, theme.llama),
        text(NAMES + 77 + BAR, 22, chart.llama, theme.text),
    ]
    for i, name in enumerate(names):
        lines.append(text(0, TOP + i * ROW + BAR + 5, name, theme.text))
    for i, (title, found) in enumerate(chart.panels.items()):
        lines += panel(title, NAMES + i * half, half, found, theme)
    lines += [text(0, height - 10, chart.settings, theme.faint, size=12), "</svg>", ""]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, only compare")
    args = parser.parse_args()
    stale = 0
    for (stem, make), (name, theme) in product(CHARTS.items(), THEMES.items()):
        path, wanted = Path(IMAGES / f"{stem}-{name}.svg"), drawn(make(), theme)
        if args.check:
            stale += not path.exists() or path.read_text() != wanted
        else:
            path.write_text(wanted)
    return int(stale > 0)


if __name__ == "__main__":
    sys.exit(main())
