"""Plans and Vulkan dispatches as text that says what runs, and not how the code calls it.

Everything that the goldens know about zinc's classes is in this module: renaming a class or a
field changes it and no golden. To write the goldens anew:

    PYTHONPATH=tests python -m goldens.pins [NAME...]
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import accumulate, product
from pathlib import Path
from typing import BinaryIO
from unittest.mock import patch

import numpy as np

from zinc.backends import api
from zinc.backends.plans import Launch, Plan, Ref
from zinc.backends.vulkan import SLANG_KERNELS
from zinc.formats.gguf import GGUFFile
from zinc.formats.gguf_writer import GGUFWriter
from zinc.gpu.addresses import NominalAddresses
from zinc.gpu.bucket import Bucket
from zinc.gpu.features import Features
from zinc.gpu.graph import dispatch_graph
from zinc.gpu.hazards import dependencies
from zinc.models import load
from zinc.ops.graph import Graph
from zinc.ops.step import StepCondition
from zinc.ops.values import Constant, KVState, RecurrentState, Weight
from zinc.plan.planner import make_plan
from zinc.quant.blocks import row_bytes

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "data" / "fixtures"
FOLDER = Path(__file__).parent / "plans"
MAX_TOKENS, MAX_OUTPUTS, BLOCK_TOKENS = 512, 8, 64

# Attributes that the goldens call by another name.
ATTRIBUTES = {"activation": "act"}

# Sections that are stored as text, so that a change shows as a diff. Others are stored as digests.
IN_FULL = {"cpu", "vulkan", *(f"vulkan gpu f16 {step}" for step in ("decode", "prompt"))}

# Steps of one token, of one token of each of eight sequences, of eight drafted tokens, and of a
# prompt.
BUCKETS = {
    "decode": Bucket(tokens=1, outputs=1, sequences=1, keys=16384, is_decode=True, samples=True),
    "streams": Bucket(tokens=8, outputs=8, sequences=8, keys=4096, is_decode=True),
    "drafts": Bucket(tokens=8, outputs=8, sequences=1, keys=256),
    "prompt": Bucket(tokens=512, outputs=1, sequences=1, keys=4096),
}
# A GPU with matrix instructions, and lavapipe.
DEVICES = {
    "gpu": Features(
        32,
        cooperative_matrix=True,
        narrow_matrix=True,
        shared_bytes=49152,
        compute_units=132,
    ),
    "lavapipe": Features(8, compute_units=2),
}


def names() -> list[str]:
    """Return the fixtures and the shapes of `benchmarks/make_model.py`."""
    shapes = sorted(_make_model().SHAPES)
    return [*sorted(path.stem for path in FIXTURES.glob("*.gguf")), *(f"shape-{s}" for s in shapes)]


def pinned(name: str) -> str:
    """Return the text of a fixture or shape: its plan on each backend and its dispatches."""
    lines = []
    for backend, options in (("ref", None), ("cpu", {"level": "scalar"}), ("vulkan", None)):
        kernels = api.kernels(backend, options)
        plan = make_plan(
            _graph(name), kernels, max_tokens=MAX_TOKENS, max_outputs=MAX_OUTPUTS, samples=True
        )
        lines += _section(backend, f"arena {plan.arena_bytes} bytes", _numbered(plan))
        if backend == "vulkan":
            for kv_dtype, device, bucket in product(("f16", "q8_0"), DEVICES, BUCKETS):
                found = list(dispatches(plan, device, kv_dtype, bucket))
                title = f"vulkan {device} {kv_dtype} {bucket}"
                lines += _section(title, f"{len(found)} dispatches", found)
    return "\n".join(lines) + "\n"


def _section(title: str, summary: str, lines: Iterable[str]) -> list[str]:
    """Return a section in full if it is one of `IN_FULL`, else its digest."""
    lines = list(lines)
    head = f"== {title}: {summary}, digest {_digest(chr(10).join(lines).encode())}"
    return [head, *lines] if title in IN_FULL else [head]


def _numbered(plan: Plan) -> Iterator[str]:
    launches = zip(_numbers(plan), plan.launches, strict=True)
    return (f"{i:3} {launch_line(launch)}" for i, launch in launches)


def _numbers(plan: Plan) -> list[int]:
    """Return the number of each launch; an alternative has that of the last launch it replaces."""
    counted = accumulate(not isinstance(x.when, StepCondition) for x in plan.launches)
    return [n - 1 for n in counted]


def launch_line(launch: Launch) -> str:
    """Return one launch: op, rows, operands, attributes, and its bytes and FLOPs."""
    cost = launch.cost
    work = [
        (cost.bytes(rows, keys=4096, sequences=1), cost.flops(rows, pairs=4096 * rows))
        for rows in (1, 100)
    ]
    attributes = " ".join(
        f"{ATTRIBUTES.get(key, key)}={float(value):g}" for key, value in sorted(launch.attrs)
    )
    when = f" when {launch.when}" if launch.when else ""
    return (
        f"{launch.label or '-'} {launch.kernel} {launch.dim.value} "
        f"({' '.join(map(operand, launch.inputs))}) -> ({' '.join(map(operand, launch.outputs))}) "
        f"[{attributes}]{when} {work[0][0]}B {work[0][1]}F {work[1][0]}B {work[1][1]}F"
    )


def operand(x: object) -> str:
    """Return an operand by what it is and where it lies."""
    if x is None:
        return "none"
    if isinstance(x, Ref):
        view = f"+{x.first}" if x.first else ""
        runs = f"/{x.runs}" if x.runs > 1 else ""
        return f"@{x.offset}:{x.format.value}[{x.cols}{view}{runs}]x{x.stride}"
    if isinstance(x, Weight):
        order = ""
        if x.rows_from is not None or x.transposed_rows is not None:
            chosen = repr((tuple(x.rows_from or ()), x.transposed_rows))
            order = f"#{_digest(chosen.encode())}"
        return f"{x.name}:{x.type.name}{list(x.shape)}{order}".replace(" ", "")
    if isinstance(x, Constant):
        return f"{x.name}:{_digest(np.array(x.values, np.float32).round(6).tobytes())}"
    if isinstance(x, KVState):
        return (
            f"kv({x.name},{x.n_heads}x{x.head_dim}/{x.head_dim_v},window={x.window}"
            f"{',v_from_k' if x.v_from_k else ''})"
        )
    assert isinstance(x, RecurrentState)
    return f"state({x.name},{x.floats})"


def dispatches(plan: Plan, device: str, kv_dtype: str, bucket: str) -> Iterator[str]:
    """Yield the dispatches of a step: barrier level, launch, shader, grid and push constants."""
    at = NominalAddresses(DEVICES[device], kv_dtype, BLOCK_TOKENS)
    size = BUCKETS[bucket]
    graph = dispatch_graph(SLANG_KERNELS, plan, dependencies(plan, size), at, size)
    numbers = _numbers(plan)
    for i, level in enumerate(graph.levels()):
        for node in level:
            dispatch = node.dispatch
            grid = "x".join(map(str, dispatch.groups))
            arguments = dispatch.arguments.pack()
            push = f"{len(arguments)}B:{_digest(arguments)}"
            number = numbers[node.launch]
            yield f"level {i} launch {number} {dispatch.kernel} grid {grid} push {push}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:8]


def _graph(name: str) -> Graph:
    """Return the graph of a fixture or shape."""
    if not name.startswith("shape-"):
        with GGUFFile.open(FIXTURES / f"{name}.gguf") as file:
            return load(file)[1]
    make_model = _make_model()
    shape = make_model.SHAPES[name.removeprefix("shape-")]
    first_attending = max(shape.attends[:1], default=2)
    layers = min(shape.layers, 2 * shape.delta.interval if shape.delta else first_attending + 1)
    mix = "mxfp4" if shape.arch == "gpt-oss" else "q4_k_m"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        with (
            patch.object(make_model, "GGUFWriter", SparseWriter),
            patch.object(make_model, "RandomWeights", NoWeights),
        ):
            make_model.write(str(path), replace(shape, layers=layers, vocab=4096), mix)
        with GGUFFile.open(path) as file:
            return load(file)[1]


class NoWeights:
    """A stand-in for `make_model.RandomWeights`: matrices of zeros, which take no memory."""

    def __init__(self, seed: int, repeat: bool) -> None:
        pass

    def matrix(self, type: object, rows: int, cols: int) -> np.ndarray:
        return np.zeros(rows * row_bytes(type, cols), np.uint8)


class SparseWriter(GGUFWriter):
    """A file whose tensor data are a hole: plans need names, types and shapes only."""

    def _write_to(self, file: BinaryIO) -> None:
        data, self._data = self._data, []
        super()._write_to(file)
        self._data = data
        file.truncate(file.tell() + self._n_data_bytes)


def _make_model() -> object:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import make_model
    finally:
        sys.path.pop(0)
    return make_model


if __name__ == "__main__":
    for each in sys.argv[1:] or names():
        (FOLDER / f"{each}.txt").write_text(pinned(each))
