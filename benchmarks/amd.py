"""What RADV's compiler makes of every Vulkan kernel of a model: registers, spills, occupancy.

    RADV_FORCE_FAMILY=gfx1100 python benchmarks/amd.py docs/amd.md [--shapes qwen3-8b ...]

It needs Mesa's RADV and no AMD GPU: the variable makes RADV compile for that one. Kernels are those
that a plan of each shape runs for one token, a few and a prompt. Files of two layers are made on
the spot: kernels depend on the sizes of a layer, not on how many there are.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product
from pathlib import Path

import make_model

from zinc.backends.api import Plan
from zinc.backends.vulkan import VulkanKernels
from zinc.backends.vulkan.device import candidates, library
from zinc.backends.vulkan.dispatch import LOWERINGS, Bucket, Features, Shader
from zinc.backends.vulkan.explain import Explanation, explain, open_explaining
from zinc.backends.vulkan.prebuild import Nowhere
from zinc.backends.vulkan.shaders import Pipelines
from zinc.core.errors import ZincError
from zinc.formats.gguf import GGUFFile
from zinc.models import load
from zinc.plan.planner import make_plan

SHAPES = ("qwen3-8b", "qwen35moe-64x", "gemma3-1b", "gptoss-6l")
BUCKETS = {
    "decode": Bucket(tokens=1, outputs=1, sequences=1, keys=16384, draws=True),
    "few": Bucket(tokens=8, outputs=8, sequences=8, keys=4096),
    "prompt": Bucket(tokens=512, outputs=1, sequences=1, keys=4096),
}
BLOCK_TOKENS = 64


def plan_of(name: str) -> Plan:
    """The plan of two layers of a shape with a small vocabulary."""
    shape = make_model.SHAPES[name]
    delta = replace(shape.delta, interval=2) if shape.delta else None
    shape = replace(shape, layers=2, vocab=4096, delta=delta)
    mix = "mxfp4" if name.startswith("gptoss") else "q4_k_m"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        make_model.write(str(path), shape, mix)
        with GGUFFile.open(path) as file:
            _, graph = load(file)
            return make_plan(graph, VulkanKernels(), max_tokens=512, max_outputs=8, draws=True)


def shaders(
    models: Sequence[str], features: Features, steps: Sequence[str]
) -> dict[Shader, tuple[str, str]]:
    """The first (model, step) that runs each shader."""
    at = Nowhere(features, "f16", BLOCK_TOKENS)
    found: dict[Shader, tuple[str, str]] = {}
    for model in models:
        plan = plan_of(model)
        for step, launch in product(steps, plan.launches):
            if BUCKETS[step].rows(launch.dim):
                for dispatch in LOWERINGS[launch.kernel](launch, at, BUCKETS[step]):
                    found.setdefault(dispatch.shader, (model, step))
    return found


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel, in the terms of ACO."""

    model: str
    step: str
    shader: Shader
    registers: int
    spills: int
    shared_bytes: int
    waves: int
    instructions: int
    dots: int
    wide_loads: int


def row(model: str, step: str, shader: Shader, found: Explanation) -> Row:
    s, text = found.statistics, found.text
    return Row(
        model,
        step,
        shader,
        registers=int(s["VGPRs"]),
        spills=int(s["Spilled VGPRs"] + s["Spilled SGPRs"]),
        shared_bytes=int(s["LDS size"]),
        waves=int(s.get("Subgroups per SIMD", s.get("Occupancy", 0))),
        instructions=int(s["Instructions"]),
        dots=text.count("v_dot4"),
        wide_loads=text.count("load_b128") + text.count("load_dwordx4"),
    )


def rows(models: Sequence[str], steps: Sequence[str]) -> Iterator[Row]:
    """Every kernel of the models, compiled for the first device that is RADV's."""
    candidate = next((c for c in candidates() if "RADV" in c.name), None)
    if candidate is None:
        raise ZincError("RADV is not here", "", "install mesa-vulkan-drivers")
    device = open_explaining(library(), candidate)
    pipelines = Pipelines(device)
    wanted = shaders(models, device.features, steps)
    pipelines.prepare(wanted)
    for shader, (model, step) in wanted.items():
        yield row(model, step, shader, explain(library(), device, pipelines.get(shader)))


def table(found: Iterable[Row], family: str) -> str:
    lines = [
        "# Vulkan kernels on AMD",
        "",
        f"What Mesa's ACO makes of every kernel for {family}, without a GPU:",
        f"`RADV_FORCE_FAMILY={family} python benchmarks/amd.py docs/amd.md`. A kernel stands under",
        "the first model and step that runs it. Spills are registers in memory, LDS is in bytes,",
        "waves are those that a SIMD can hold; dot4 counts integer dot instructions, b128 loads of",
        "16 bytes.",
    ]
    for (model, step), rows in groupby(found, key=lambda r: (r.model, r.step)):
        lines += ["", f"## {model}, {step}", ""]
        lines += ["| kernel | VGPRs | spills | LDS | waves | instructions | dot4 | b128 | macros |"]
        lines += ["|---|---|---|---|---|---|---|---|---|"]
        for r in rows:
            numbers = (r.registers, r.spills, r.shared_bytes, r.waves, r.instructions, r.dots)
            cells = " | ".join(str(n) for n in (*numbers, r.wide_loads))
            macros = ", ".join(f"{name} {value}" for name, value in sorted(r.shader.defines))
            lines.append(f"| {r.shader.name} | {cells} | {macros} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path, help=".md for the table, .json for data")
    parser.add_argument("--shapes", nargs="+", default=SHAPES, choices=make_model.SHAPES)
    parser.add_argument("--steps", nargs="+", default=tuple(BUCKETS), choices=BUCKETS)
    args = parser.parse_args()
    family = os.environ.get("RADV_FORCE_FAMILY", "this GPU")
    found = list(rows(args.shapes, args.steps))
    if args.path.suffix == ".json":
        data = [
            {**{k: getattr(r, k) for k in r.__slots__ if k != "shader"}, "kernel": r.shader.name}
            for r in found
        ]
        args.path.write_text(json.dumps(data, indent=1) + "\n")
    else:
        args.path.write_text(table(found, family))


if __name__ == "__main__":
    main()
