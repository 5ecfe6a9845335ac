"""The drivers that the rig compiles with, and the numbers that each reports of a kernel."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import packets

from zinc.backends.vulkan.explain import Explanation

ROOT = Path(__file__).parents[2]
WIDE_LOAD = re.compile(r"load_b128|load_dwordx4|ds_read_b128")

Numbers = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Driver:
    """A Vulkan driver of the rig.

    gpus: GPUs to compile for, by the names of the shim. numbers: returns a kernel's numbers by
    name. columns: title of each number in listings. summary: title and value of each column of the
    page's table, from the rows of a GPU and a step. page, data: the page, and the results that its
    tables show. steps: returns facts about what the driver submits for a step on a GPU.
    """

    gpus: tuple[str, ...]
    numbers: Callable[[Explanation], Numbers]
    columns: Mapping[str, str]
    summary: Mapping[str, Callable[[Sequence[Numbers]], object]]
    page: Path
    data: Path
    steps: Callable[[str], dict[str, Any]] | None = None


def amd_numbers(found: Explanation) -> Numbers:
    """Return a kernel's numbers from RADV's statistics and assembly.

    registers: VGPRs a lane. spills: registers in memory. waves: subgroups that fit on a SIMD. dots,
    matrices, wide_loads: integer dot, matrix (WMMA) and 16-byte load instructions.
    """
    s, text = found.statistics, found.text
    return {
        "registers": int(s["VGPRs"]),
        "spills": int(s["Spilled VGPRs"] + s["Spilled SGPRs"]),
        "shared_bytes": int(s["LDS size"]),
        "waves": int(s["Subgroups per SIMD"]),
        "instructions": int(s["Instructions"]),
        "dots": text.count("v_dot4"),
        "matrices": text.count("v_wmma"),
        "wide_loads": len(WIDE_LOAD.findall(text)),
    }


AMD = Driver(
    gpus=("navi21", "navi31", "navi33", "strix1", "gfx1201"),
    numbers=amd_numbers,
    columns={
        "registers": "VGPRs",
        "spills": "spills",
        "shared_bytes": "LDS",
        "waves": "waves",
        "instructions": "instructions",
        "dots": "dot4",
        "matrices": "wmma",
        "wide_loads": "b128",
    },
    summary={
        "kernels": len,
        "that spill": lambda rows: sum(row["spills"] > 0 for row in rows),
        "most VGPRs": lambda rows: max(row["registers"] for row in rows),
        "fewest waves": lambda rows: min(row["waves"] for row in rows),
        "with dot4": lambda rows: sum(row["dots"] > 0 for row in rows),
        "with WMMA": lambda rows: sum(row["matrices"] > 0 for row in rows),
    },
    page=ROOT / "docs" / "amd.md",
    data=ROOT / "benchmarks" / "results" / "amd-mesa-26.1.json",
    steps=packets.decode_steps,
)


def intel_numbers(found: Explanation) -> Numbers:
    """Return a kernel's numbers from ANV's statistics and assembly.

    lanes: of a subgroup (SIMD width). registers: most that are live at once, of a subgroup. spills:
    registers in memory. sends: messages, such as loads and stores. dots, matrices: integer dot
    (DP4A) and matrix (DPAS) instructions.
    """
    s, text = found.statistics, found.text
    return {
        "lanes": int(s["Max dispatch width"]),
        "registers": int(s["Max live registers"]),
        "spills": int(s["Spills"]),
        "shared_bytes": int(s["Workgroup Memory Size"]),
        "instructions": int(s["Instructions"]),
        "sends": int(s["SENDs"]),
        "dots": len(re.findall(r"\bdp4a", text)),
        "matrices": len(re.findall(r"\bdpas", text)),
    }


INTEL_DRIVER = Driver(
    gpus=("dg2", "mtl", "lnl", "bmg"),
    numbers=intel_numbers,
    columns={
        "lanes": "SIMD",
        "registers": "live",
        "spills": "spills",
        "shared_bytes": "shared",
        "instructions": "instructions",
        "sends": "sends",
        "dots": "dp4a",
        "matrices": "dpas",
    },
    summary={
        "kernels": len,
        "that spill": lambda rows: sum(row["spills"] > 0 for row in rows),
        "spills": lambda rows: sum(row["spills"] for row in rows),
        "most instructions": lambda rows: max(row["instructions"] for row in rows),
        "with DP4A": lambda rows: sum(row["dots"] > 0 for row in rows),
        "with DPAS": lambda rows: sum(row["matrices"] > 0 for row in rows),
    },
    page=ROOT / "docs" / "intel.md",
    data=ROOT / "benchmarks" / "results" / "intel-mesa-26.1.json",
)
DRIVERS = {"amd": AMD, "intel": INTEL_DRIVER}
