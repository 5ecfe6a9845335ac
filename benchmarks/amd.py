"""What RADV's compiler makes of every Vulkan kernel of a model: registers, spills, occupancy.

    python benchmarks/amd.py docs/amd.md [--families rdna4 ...] [--shapes qwen3-8b ...]

It needs Mesa's RADV and no AMD GPU: RADV_FORCE_FAMILY makes RADV compile for one that is not there.
Kernels are those that a plan of each shape runs for one token, a few and a prompt. Files of four
layers are made on the spot: kernels depend on the sizes of a layer, not on how many there are.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import make_model

from zinc.backends.api import Plan
from zinc.backends.vulkan import VulkanKernels
from zinc.backends.vulkan.device import candidates, library
from zinc.backends.vulkan.explain import Explanation, explain, open_explaining
from zinc.backends.vulkan.prebuild import Nowhere
from zinc.backends.vulkan.shaders import Pipelines
from zinc.core.errors import DeviceError
from zinc.formats.gguf import GGUFFile
from zinc.gpu.dispatch import Bucket, Features, KernelVariant
from zinc.gpu.schedule import all_lowered
from zinc.models import load
from zinc.plan.planner import make_plan

SHAPES = ("qwen3-8b", "qwen35moe-64x", "gemma3-1b", "gptoss-6l", "deepseek2-lite")
BUCKETS = {
    "decode": Bucket(tokens=1, outputs=1, sequences=1, keys=16384, draws=True),
    "few": Bucket(tokens=8, outputs=8, sequences=8, keys=4096),
    "prompt": Bucket(tokens=512, outputs=1, sequences=1, keys=4096),
}
BLOCK_TOKENS = 64
# A GPU of each generation, as Mesa calls it, and as Mesa before 23 did.
FAMILIES = {
    "rdna2": ("navi21", "gfx1030"),
    "rdna3": ("navi31", "gfx1100"),
    "rdna4": ("gfx1201",),
}
WIDE_LOAD = re.compile(r"load_b128|load_dwordx4|ds_read_b128")
COMPUTE_UNITS = 64  # the driver has no number of them for a GPU that is not there


@cache
def plan_of(name: str) -> Plan:
    """The plan of four layers of a shape with a small vocabulary. The last has few rows in all."""
    shape = make_model.SHAPES[name]
    delta = replace(shape.delta, interval=2) if shape.delta else None
    shape = replace(shape, layers=4, vocab=4096, delta=delta)
    mix = "mxfp4" if name.startswith("gptoss") else "q4_k_m"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        make_model.write(str(path), shape, mix, repeat=True)
        with GGUFFile.open(path) as file:
            _, graph = load(file)
            return make_plan(graph, VulkanKernels(), max_tokens=512, max_outputs=8, draws=True)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to compile: of these models and steps, kernels of these names or, with none, all."""

    models: Sequence[str]
    steps: Sequence[str]
    kernels: Sequence[str] = ()


def shaders(wanted: Wanted, features: Features) -> dict[KernelVariant, tuple[str, str]]:
    """The first (model, step) that runs each shader."""
    at = Nowhere(features, "f16", BLOCK_TOKENS)
    found: dict[KernelVariant, tuple[str, str]] = {}
    for model in wanted.models:
        plan = plan_of(model)
        for step in wanted.steps:
            for dispatches in all_lowered(plan.launches, at, BUCKETS[step]):
                for dispatch in dispatches:
                    if dispatch.kernel.name in wanted.kernels or not wanted.kernels:
                        found.setdefault(dispatch.kernel, (model, step))
    return found


@dataclass(frozen=True, slots=True)
class Numbers:
    """One kernel, in the terms of ACO."""

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


Kernels = dict[
    KernelVariant, tuple[tuple[str, str], Numbers]
]  # with the first (model, step) of each
COLUMNS = ("VGPRs", "spills", "LDS", "waves", "instructions", "dot4", "wmma", "b128")


def compiled(name: str, wanted: Wanted) -> tuple[str, Kernels]:
    """The driver, and every wanted kernel as RADV compiles it for a GPU of that name."""
    os.environ["RADV_FORCE_FAMILY"] = name
    candidate = next((c for c in candidates() if "RADV" in c.name), None)
    if candidate is None:
        raise DeviceError(f"RADV does not pretend to be a {name}")
    device = open_explaining(library(), candidate)
    pipelines = Pipelines(device)
    firsts = shaders(wanted, replace(device.features, compute_units=COMPUTE_UNITS))
    pipelines.prepare(firsts)
    found = {
        shader: (first, Numbers.of(explain(library(), device, pipelines.get(shader))))
        for shader, first in firsts.items()
    }
    return candidate.driver.removeprefix("radv Mesa ").partition("-")[0], found


def of_family(family: str, wanted: Wanted) -> tuple[str, Kernels] | None:
    """`compiled` by the first of the family's names that this RADV knows, or None.

    In a process of its own each: the name is read once, and one that is not known may end it.
    """
    for name in FAMILIES[family]:
        with ProcessPoolExecutor(1, get_context("fork")) as process:
            try:
                return process.submit(compiled, name, wanted).result()
            except (DeviceError, BrokenProcessPool):
                continue
    return None


def summary(found: dict[str, Kernels]) -> list[str]:
    lines = ["| family | kernels | that spill | that use dot4 | that use wmma |"]
    lines += ["|---|---|---|---|---|"]
    for family, kernels in found.items():
        numbers = [n for _, n in kernels.values()]
        spill = [shader.name for shader, (_, n) in kernels.items() if n.spills]
        names = f" ({', '.join(sorted({*spill}))})" if spill else ""
        dots, matrices = sum(n.dots > 0 for n in numbers), sum(n.matrices > 0 for n in numbers)
        lines.append(
            f"| {family} ({FAMILIES[family][0]}) | {len(kernels)} | {len(spill)}{names} | {dots} "
            f"| {matrices} |"
        )
    return lines


def cell(values: Sequence[int | None]) -> str:
    """One number where all families that run the kernel have the same, else that of each."""
    if len(different := {*values} - {None}) == 1:
        return str(different.pop())
    return " / ".join("–" if value is None else str(value) for value in values)


def section(found: dict[str, Kernels], model: str, step: str) -> list[str]:
    """The kernels that stand under a model and step."""
    lines = ["", f"## {model}, {step}", ""]
    lines += [f"| kernel | {' | '.join(COLUMNS)} | macros |"]
    lines += ["|---" * (len(COLUMNS) + 2) + "|"]
    here = {
        shader: None
        for family in found.values()
        for shader, (first, _) in family.items()
        if first == (model, step)
    }
    for shader in here:
        of_families = [asdict(k[shader][1]) if shader in k else None for k in found.values()]
        cells = " | ".join(
            cell([numbers and numbers[name] for numbers in of_families])
            for name in Numbers.__slots__
        )
        macros = ", ".join(f"{name} {value}" for name, value in sorted(shader.defines))
        lines.append(f"| {shader.name} | {cells} | {macros} |")
    return lines


def table(found: dict[str, Kernels], driver: str) -> str:
    lines = [
        "# Vulkan kernels on AMD",
        "",
        "What ACO, the compiler of Mesa's RADV, makes of every kernel, without a GPU. By",
        f"`python benchmarks/amd.py docs/amd.md` with Mesa {driver}. Mesa 25.2, which Ubuntu 24.04",
        "has, knows all of these GPUs: before it there are no matrices of RDNA 4, and Mesa 26",
        "compiles only for a GPU that is there. Products are cut as for a GPU of",
        f"{COMPUTE_UNITS} compute units.",
        "",
        *summary(found),
        "",
        "A kernel stands under the first model and step that runs it. Spills are registers in",
        "memory, LDS is in bytes, waves are those that a SIMD can hold; dot4 counts integer dot",
        "instructions, wmma those that multiply matrices, b128 loads of 16 bytes. Where families",
        f"differ, a cell has the numbers of {' / '.join(found)}; – is a kernel that one does not",
        "run.",
    ]
    every = dict.fromkeys(first for k in found.values() for first, _ in k.values())
    for model, step in sorted(
        every, key=lambda f: (SHAPES.index(f[0]), tuple(BUCKETS).index(f[1]))
    ):
        lines += section(found, model, step)
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path, help=".md for the table, .json for data")
    parser.add_argument("--families", nargs="+", default=tuple(FAMILIES), choices=FAMILIES)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, choices=SHAPES)
    parser.add_argument("--steps", nargs="+", default=tuple(BUCKETS), choices=BUCKETS)
    parser.add_argument("--kernels", nargs="+", default=(), help="only those of these names")
    args = parser.parse_args()
    wanted = Wanted(args.shapes, args.steps, args.kernels)
    for model in args.shapes:
        plan_of(model)  # once for all families
    found: dict[str, Kernels] = {}
    driver = ""
    for family in args.families:
        if (one := of_family(family, wanted)) is None:
            print(f"left out: this RADV does not compile for {family}", file=sys.stderr)
        else:
            driver, found[family] = one
    if args.path.suffix == ".json":
        data = [
            dict(
                mesa=driver, family=family, model=model, step=step, kernel=shader.name, **asdict(n)
            )
            for family, all_kernels in found.items()
            for shader, ((model, step), n) in all_kernels.items()
        ]
        args.path.write_text(json.dumps(data, indent=1) + "\n")
    else:
        args.path.write_text(table(found, driver))


if __name__ == "__main__":
    main()
