"""List registers, spills and occupancy of the Vulkan kernels on AMD GPUs, without such a GPU.

    python benchmarks/amd.py                  # compile every kernel and print the whole listing
    python benchmarks/amd.py --json FILE      # write the same as data
    python benchmarks/amd.py --from FILE      # print the listing of data, compile nothing
    python benchmarks/amd.py --page           # rewrite the table of docs/amd.md from PAGE_DATA

Compiling needs Mesa's RADV: RADV_FORCE_FAMILY makes its compiler, ACO, target a GPU that is not
there. The kernels are those that a plan of each model shape runs for one token, a batch and a
prompt. Model files of four layers are written on the spot, because kernels depend on the sizes of a
layer and not on the number of layers.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import make_model

from zinc.backends.plans import Plan
from zinc.backends.vulkan import SLANG_KERNELS, VulkanKernels
from zinc.backends.vulkan.explain import Explanation, explain, open_explaining
from zinc.backends.vulkan.physical import candidates, library
from zinc.backends.vulkan.shaders import Pipelines
from zinc.core.errors import DeviceError
from zinc.formats.gguf import GGUFFile
from zinc.gpu.addresses import NominalAddresses
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import KernelVariant
from zinc.gpu.features import Features
from zinc.models import load
from zinc.plan.planner import make_plan

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "amd.md"
PAGE_DATA = ROOT / "benchmarks" / "results" / "amd-mesa-25.2.json"
BEGIN, END = "<!-- table:begin -->", "<!-- table:end -->"

SHAPES = ("qwen3-8b", "qwen35moe-64x", "gemma3-1b", "gptoss-6l", "deepseek2-lite")
STEPS = {
    "decode": Bucket(tokens=1, outputs=1, sequences=1, keys=16384, is_decode=True, samples=True),
    "batch": Bucket(tokens=8, outputs=8, sequences=8, keys=4096, is_decode=True),
    "prefill": Bucket(tokens=512, outputs=1, sequences=1, keys=4096),
}
BLOCK_TOKENS = 64
# A GPU of each generation by the name that Mesa 23 and later know, and by the name before.
FAMILIES = {
    "rdna2": ("navi21", "gfx1030"),
    "rdna3": ("navi31", "gfx1100"),
    "rdna4": ("gfx1201",),
}
WIDE_LOAD = re.compile(r"load_b128|load_dwordx4|ds_read_b128")
COMPUTE_UNITS = 64  # RADV does not report a number for a GPU that is not there


@dataclass(frozen=True, slots=True)
class Numbers:
    """Statistics of one compiled kernel.

    registers: VGPRs a lane. spills: registers in memory. waves: subgroups that fit on a SIMD.
    dots, matrices, wide_loads: integer dot, matrix (WMMA) and 16-byte load instructions.
    """

    registers: int
    spills: int
    shared_bytes: int
    waves: int
    instructions: int
    dots: int
    matrices: int
    wide_loads: int

    @classmethod
    def of(cls, found: Explanation) -> Numbers:
        """Return the numbers in the driver's statistics and assembly."""
        s, text = found.statistics, found.text
        return cls(
            registers=int(s["VGPRs"]),
            spills=int(s["Spilled VGPRs"] + s["Spilled SGPRs"]),
            shared_bytes=int(s["LDS size"]),
            waves=int(s.get("Subgroups per SIMD", s.get("Occupancy", 0))),
            instructions=int(s["Instructions"]),
            dots=text.count("v_dot4"),
            matrices=text.count("v_wmma"),
            wide_loads=len(WIDE_LOAD.findall(text)),
        )


# One kernel of one family: the model and step that run it first, its macros, and its Numbers.
Row = dict[str, Any]
COLUMNS = ("VGPRs", "spills", "LDS", "waves", "instructions", "dot4", "wmma", "b128")


@dataclass(frozen=True, slots=True)
class Selection:
    """Models, steps and kernel names to compile for; no kernel names means all kernels."""

    models: Sequence[str]
    steps: Sequence[str]
    kernels: Sequence[str] = ()


@cache
def plan_of(name: str) -> Plan:
    """Return the plan of a model shape, cut to four layers and a vocabulary of 4,096."""
    shape = make_model.SHAPES[name]
    delta = replace(shape.delta, interval=2) if shape.delta else None
    shape = replace(shape, layers=4, vocab=4096, delta=delta)
    mix = "mxfp4" if name.startswith("gptoss") else "q4_k_m"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        make_model.write(str(path), shape, mix, repeat=True)
        with GGUFFile.open(path) as file:
            _, graph = load(file)
            return make_plan(graph, VulkanKernels(), max_tokens=512, max_outputs=8, samples=True)


def variants(selection: Selection, features: Features) -> dict[KernelVariant, tuple[str, str]]:
    """Return every selected kernel, with the first model and step that runs it."""
    at = NominalAddresses(features, "f16", BLOCK_TOKENS)
    found: dict[KernelVariant, tuple[str, str]] = {}
    for model in selection.models:
        plan = plan_of(model)
        for step in selection.steps:
            for dispatch in SLANG_KERNELS.lower_all(plan.launches, at, STEPS[step]):
                if not selection.kernels or dispatch.kernel.name in selection.kernels:
                    found.setdefault(dispatch.kernel, (model, step))
    return found


def compile_for(family: str, name: str, selection: Selection) -> tuple[str, list[Row]]:
    """Compile the selected kernels for the GPU `name`. Return Mesa's version and the rows.

    Raises DeviceError if RADV does not compile for it.
    """
    os.environ["RADV_FORCE_FAMILY"] = name
    candidate = next((c for c in candidates() if "RADV" in c.name), None)
    if candidate is None:
        raise DeviceError(f"RADV does not compile for {name}")
    device = open_explaining(library(), candidate)
    pipelines = Pipelines(device)
    firsts = variants(selection, replace(device.features, compute_units=COMPUTE_UNITS))
    pipelines.prepare(firsts)
    rows: list[Row] = []
    for kernel, (model, step) in firsts.items():
        numbers = Numbers.of(explain(library(), device, pipelines.get(kernel)))
        macros = ", ".join(f"{key} {value}" for key, value in sorted(kernel.defines))
        place = {"family": family, "model": model, "step": step}
        rows.append({**place, "kernel": kernel.name, "macros": macros, **asdict(numbers)})
    return candidate.driver.removeprefix("radv Mesa ").partition("-")[0], rows


def compile_family(family: str, selection: Selection) -> tuple[str, list[Row]] | None:
    """Compile for the first name of `family` that this RADV knows; None if it knows none.

    Each attempt has its own process: RADV reads the name once and may exit if it is unknown.
    """
    for name in FAMILIES[family]:
        with ProcessPoolExecutor(1, get_context("fork")) as process:
            try:
                return process.submit(compile_for, family, name, selection).result()
            except (DeviceError, BrokenProcessPool):
                continue
    return None


def compile_all(families: Sequence[str], selection: Selection) -> dict[str, Any]:
    """Compile the selected kernels for `families`. Return Mesa's version and all rows."""
    for model in selection.models:
        plan_of(model)  # fill the cache that forked processes share
    version, rows = "", list[Row]()
    for family in families:
        if (found := compile_family(family, selection)) is None:
            print(f"skipped: this RADV does not compile for {family}", file=sys.stderr)
        else:
            version = found[0]
            rows += found[1]
    return {"mesa": version, "compute_units": COMPUTE_UNITS, "kernels": rows}


def families_of(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["family"] for row in rows))


def cell(values: Sequence[object]) -> str:
    """Return one value if all are equal, else all of them; None is a family without the kernel."""
    if len(different := {*values} - {None}) == 1:
        return str(different.pop())
    return " / ".join("–" if value is None else str(value) for value in values)


def listing(data: dict[str, Any]) -> str:
    """Return every kernel as Markdown tables, one for each model and step."""
    families = families_of(data["kernels"])
    lines = [f"Mesa {data['mesa']}; cells: {' / '.join(families)}, or one number for all."]
    tables: dict[tuple[str, str], dict[tuple[str, str], dict[str, Row]]] = {}
    for row in data["kernels"]:
        table = tables.setdefault((row["model"], row["step"]), {})
        table.setdefault((row["kernel"], row["macros"]), {})[row["family"]] = row
    for (model, step), table in tables.items():
        lines += ["", f"## {model}, {step}", ""]
        lines += [f"| kernel | {' | '.join(COLUMNS)} | macros |", "|---" * 10 + "|"]
        for (kernel, macros), by_family in table.items():
            cells = [
                cell([by_family[f][name] if f in by_family else None for f in families])
                for name in Numbers.__slots__
            ]
            lines.append(f"| {kernel} | {' | '.join(cells)} | {macros} |")
    return "\n".join(lines)


def summary(data: dict[str, Any]) -> str:
    """Return a Markdown table with a row for each model and step."""
    families = families_of(data["kernels"])
    columns: dict[str, Callable[[list[Row]], object]] = {
        "kernels": len,
        "that spill": lambda rows: sum(row["spills"] > 0 for row in rows),
        "most VGPRs": lambda rows: max(row["registers"] for row in rows),
        "fewest waves": lambda rows: min(row["waves"] for row in rows),
        "with dot4": lambda rows: sum(row["dots"] > 0 for row in rows),
        "with WMMA": lambda rows: sum(row["matrices"] > 0 for row in rows),
    }
    lines = [f"| model, step | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for model, step in dict.fromkeys((row["model"], row["step"]) for row in data["kernels"]):
        here = [row for row in data["kernels"] if (row["model"], row["step"]) == (model, step)]
        of_families = [[row for row in here if row["family"] == f] for f in families]
        cells = [cell([of(rows) for rows in of_families]) for of in columns.values()]
        lines.append(f"| {model}, {step} | {' | '.join(cells)} |")
    return "\n".join(lines)


def page() -> str:
    """Return docs/amd.md with the table of PAGE_DATA."""
    head, rest = PAGE.read_text().split(BEGIN)
    return f"{head}{BEGIN}\n{summary(json.loads(PAGE_DATA.read_text()))}\n{END}{rest.split(END)[1]}"


def as_json(data: dict[str, Any]) -> str:
    """Return `data` as JSON with one line for each kernel."""
    kernels = ",\n".join(f"  {json.dumps(row)}" for row in data["kernels"])
    head = json.dumps({**data, "kernels": []}).removesuffix("[]}")
    return f"{head}[\n{kernels}\n]}}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write data to FILE instead")
    parser.add_argument("--from", type=Path, metavar="FILE", dest="source", help="read data")
    parser.add_argument("--page", action="store_true", help="rewrite the table of docs/amd.md")
    parser.add_argument("--families", nargs="+", default=tuple(FAMILIES), choices=FAMILIES)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, choices=SHAPES)
    parser.add_argument("--steps", nargs="+", default=tuple(STEPS), choices=STEPS)
    parser.add_argument("--kernels", nargs="+", default=(), help="names (default: all)")
    args = parser.parse_args()
    if args.page:
        PAGE.write_text(page())
        return
    if args.source:
        data = json.loads(args.source.read_text())
    else:
        data = compile_all(args.families, Selection(args.shapes, args.steps, args.kernels))
    if args.json:
        args.json.write_text(as_json(data))
    else:
        print(listing(data))


if __name__ == "__main__":
    main()
