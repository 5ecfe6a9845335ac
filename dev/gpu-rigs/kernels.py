"""Compile the kernels of the benchmark shapes for GPUs of the rig, and collect their numbers.

Each model shape is planned, and every kernel of its steps in STEPS is compiled, for each type of KV
cache. Model files of four layers are written on the spot, because kernels depend on the sizes of
a layer and not on the number of layers.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import make_model
from drivers import DRIVERS

from zinc.backends.plans import Plan
from zinc.backends.vulkan import SLANG_KERNELS, VulkanKernels
from zinc.backends.vulkan.explain import explain, open_explaining
from zinc.backends.vulkan.physical import candidates, library
from zinc.backends.vulkan.shaders import Pipelines
from zinc.formats.gguf import GGUFFile
from zinc.gpu.addresses import NominalAddresses
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import KernelVariant
from zinc.gpu.features import Features
from zinc.gpu.kv_layout import DTYPES
from zinc.models import load
from zinc.plan.planner import make_plan

HERE = Path(__file__).parent
SHAPES = ("qwen3-8b", "qwen35moe-64x", "gemma3-1b", "gptoss-6l", "deepseek2-lite")
STEPS = {
    "decode": Bucket(tokens=1, outputs=1, sequences=1, keys=16384, is_decode=True, samples=True),
    "batch": Bucket(tokens=8, outputs=8, sequences=8, keys=4096, is_decode=True),
    "draft": Bucket(tokens=4, outputs=4, sequences=1, keys=4096),
    "prefill": Bucket(tokens=512, outputs=1, sequences=1, keys=4096),
}
BLOCK_TOKENS = 64

# One kernel on one GPU: the model and step that run it first, its macros, and the driver's numbers.
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Job:
    """Kernels to compile with a driver: those of `plans`, by model, that run in `steps`.

    kernels: names to compile, all if there are none.
    """

    driver: str
    plans: Mapping[str, Plan]
    steps: Sequence[str] = tuple(STEPS)
    kernels: Sequence[str] = ()


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


def variants(job: Job, features: Features) -> dict[KernelVariant, tuple[str, str]]:
    """Return the kernels of a job, each with the first model and step that runs it."""
    found: dict[KernelVariant, tuple[str, str]] = {}
    for (model, plan), step, kv_dtype in product(job.plans.items(), job.steps, DTYPES):
        at = NominalAddresses(features, kv_dtype, BLOCK_TOKENS)
        for dispatch in SLANG_KERNELS.lower_all(plan.launches, at, STEPS[step]):
            if not job.kernels or dispatch.kernel.name in job.kernels:
                found.setdefault(dispatch.kernel, (model, step))
    return found


def compile_here(job: Job, gpu: str) -> dict[str, Any]:
    """Compile the kernels of a job for the only GPU of this process, and return the numbers."""
    (candidate,) = candidates()
    device = open_explaining(library(), candidate)
    pipelines = Pipelines(device)
    firsts = variants(job, device.features)
    pipelines.prepare(firsts)
    rows: list[Row] = []
    for kernel, (model, step) in firsts.items():
        numbers = DRIVERS[job.driver].numbers(explain(library(), device, pipelines.get(kernel)))
        macros = ", ".join(f"{key} {value}" for key, value in sorted(kernel.defines))
        place = {"gpu": gpu, "model": model, "step": step}
        rows.append({**place, "kernel": kernel.name, "macros": macros, **numbers})
    mesa = candidate.driver.rpartition("Mesa ")[2].partition(" ")[0]
    return {"mesa": mesa, "device": candidate.name, "kernels": rows}


def compile_all(job: Job, gpus: Sequence[str]) -> dict[str, Any]:
    """Compile the kernels of a job for `gpus`, each in a process of the rig.

    Raises CalledProcessError.
    """
    data: dict[str, Any] = {"mesa": "", "devices": [], "kernels": []}
    environment = {
        **os.environ,
        "PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(sys.path[1:]),
    }
    with tempfile.TemporaryDirectory() as folder:
        job_file, result = Path(folder) / "job", Path(folder) / "result"
        job_file.write_bytes(pickle.dumps(job))
        for gpu in gpus:
            command = [HERE / "run", gpu, __file__, gpu, job_file, result]
            subprocess.run(command, env=environment, check=True)
            found = json.loads(result.read_text())
            data["mesa"] = found["mesa"]
            data["devices"].append(found["device"])
            data["kernels"] += found["kernels"]
    return data


def main() -> None:
    """Compile for a GPU in the rig; `compile_all` gives the arguments."""
    gpu, job_file, result = sys.argv[1:]
    job = pickle.loads(Path(job_file).read_bytes())
    Path(result).write_text(json.dumps(compile_here(job, gpu)))


if __name__ == "__main__":
    main()
