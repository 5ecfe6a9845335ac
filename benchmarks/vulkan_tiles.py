"""Measure GEMV and GEMM on Vulkan with every tile that tiles.py could choose.

    python benchmarks/vulkan_tiles.py results.json [--quick] [--rows 8 16 32 64]

Launches depend on each other, as in a step, and read weights that rotate through more memory than
any cache holds. The first line of each product is the tile that tiles.py chooses. A sample of each
result is compared with numpy.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from zinc.backends.plans import Ref
from zinc.backends.vulkan import create
from zinc.backends.vulkan.commands import Recorder
from zinc.core.errors import ZincError
from zinc.gpu import packing, tiles
from zinc.gpu.addresses import DeviceWeight
from zinc.gpu.arguments.constants import ProductKind
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch
from zinc.gpu.features import Features
from zinc.gpu.lower.linear import Product
from zinc.gpu.lower.weights import distance
from zinc.gpu.memory import Buffer, CounterAllocator, ScratchAllocator
from zinc.gpu.rows import align, row_bytes
from zinc.gpu.step_data import StepData
from zinc.gpu.tiles import GemmTile, GemvTile
from zinc.ops.step import Step
from zinc.ops.values import Dim, RowFormat
from zinc.quant.blocks import BLOCKS, GGMLType
from zinc.quant.decode import decode

MAX_TOKENS = 512
ROTATE_BYTES = 300 << 20
SAMPLE = 48  # output columns that are checked
REPEATS = 5
WARM_UP_S = 0.3
DISTINCT_ROWS = 256

T = GGMLType


@dataclass(frozen=True)
class Shape:
    """A product: `rows` x `cols` weights (twice with `glu`), `n_x` rows of x."""

    type: GGMLType
    rows: int
    cols: int
    n_x: int
    glu: bool = False

    def __str__(self) -> str:
        kind = "glu" if self.glu else "linear"
        return f"{kind} {self.type.name} {self.rows}x{self.cols} by {self.n_x}"

    @property
    def n_bytes(self) -> int:
        layout = BLOCKS[self.type]
        blocks = self.rows * self.cols // layout.block_size
        return blocks * layout.block_bytes * (2 if self.glu else 1)

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.cols * self.n_x * (2 if self.glu else 1)


def shapes(quick: bool) -> list[Shape]:
    one = [
        Shape(T.Q4_K, 4096, 4096, 1),
        Shape(T.Q4_K, 12288, 4096, 1, glu=True),
        Shape(T.Q4_K, 4096, 12288, 1),
        Shape(T.Q6_K, 4096, 12288, 1),
        Shape(T.Q6_K, 1024, 4096, 1),
        Shape(T.Q6_K, 151936, 4096, 1),
        Shape(T.Q4_K, 8192, 2048, 1),
        Shape(T.F32, 256, 2048, 1),
    ]
    few = [Shape(T.Q4_K, 4096, 4096, n) for n in (2, 4, 8, 16)]
    many = [
        Shape(T.Q4_K, 4096, 4096, 512),
        Shape(T.Q4_K, 12288, 4096, 512),
        Shape(T.Q6_K, 4096, 12288, 512),
        Shape(T.Q4_K, 4096, 4096, 64),
    ]
    return [one[1], many[0]] if quick else [*one, *few, *many]


def shapes_of_rows(n_x: int) -> list[Shape]:
    """Return the products of a step of `n_x` tokens of qwen3-8b in Q4_K_M."""
    return [
        Shape(T.Q4_K, 4096, 4096, n_x),
        Shape(T.Q6_K, 1024, 4096, n_x),
        Shape(T.Q4_K, 12288, 4096, n_x, glu=True),
        Shape(T.Q4_K, 4096, 12288, n_x),
        Shape(T.Q6_K, 4096, 12288, n_x),
        Shape(T.Q6_K, 151936, 4096, n_x),
    ]


def few_rows(shape: Shape, features: Features) -> Iterator[GemmTile]:
    """Yield the tiles with matrices to try for few rows of x."""
    batch = next(n for n in (8, 16, 32, 64) if n >= shape.n_x)
    weights = 1 + shape.glu
    for rows, (down, across), split in product(
        (32, 64, 128), ((1, 1), (2, 1), (4, 1), (2, 2), (4, 2)), (1, 2, 4, 8)
    ):
        tile = GemmTile(rows, batch, down=down, across=across, split=split)
        sums = rows // down // 16 * (batch // across // 8)
        if rows < 32 * weights or rows < 16 * down or batch < 8 * across or not 1 <= sums <= 16:
            continue
        if tile.shared_bytes > features.shared_bytes or not 2 <= tile.subgroups <= 8:
            continue
        for splits in (1, 2, 4, 8):
            subgroups = weights * shape.rows // rows * tile.subgroups * splits
            in_use = subgroups / features.compute_units
            is_even = shape.cols >= 64 * split * splits and (splits == 1 or in_use <= 40)
            if is_even and (in_use >= 6 or splits == 8):
                yield replace(tile, splits=splits)


def candidates(shape: Shape, features: Features) -> Iterator[GemvTile | GemmTile]:
    """Yield the tiles to try for a product."""
    matrices = features.cooperative_matrix
    if tiles.takes_few_rows(features, shape.type is not T.F32, shape.n_x) and shape.n_x > 1:
        if shape.n_x <= tiles.MAX_BATCH:
            units = shape.cols // packing.UNIT
            yield tiles.gemv(features, shape.rows, units, shape.n_x, 1 + shape.glu)
        yield from few_rows(shape, features)
        return
    if not tiles.uses_gemv(features, shape.type is not T.F32, shape.n_x):
        for rows, batch, down, across in (
            (128, 128, 2, 4), (128, 128, 4, 2), (128, 64, 4, 2), (64, 128, 2, 4), (64, 64, 2, 2),
            (128, 32, 4, 2), (128, 256, 2, 4), (256, 64, 8, 1), (64, 128, 1, 4), (128, 128, 2, 2),
        ):  # fmt: skip
            if matrices and 144 * (rows + batch) <= 48 << 10:
                yield GemmTile(rows, batch, down=down, across=across)
        yield GemmTile(64, 64, sums=8)
        yield GemmTile(64, 64, sums=4)
        return
    batch = next((n for n in (1, 2, 4) if n >= shape.n_x), 8)
    for waves in (4, 8, 16):
        for split in (1, 2, 4, 8):
            for rows in (1, 2, 4, 8):
                fits = split <= waves and rows * batch * (1 + shape.glu) <= 32
                if not fits or shape.cols < 32 * 16 * split:
                    continue
                yield GemvTile(waves, split, rows, batch)
                steps = shape.cols // (32 * 32 * split)
                for deep in (2, 4):
                    if deep <= steps and deep * rows * (1 + shape.glu) <= 16:
                        yield GemvTile(waves, split, rows, batch, deep)


class Bench:
    """Weights, activations and results in device memory (a dispatch.Addresses)."""

    def __init__(self) -> None:
        self.backend = create()
        self.features = self.backend.device.features
        self._data = StepData(self.backend.host, MAX_TOKENS, MAX_TOKENS)
        self.step = self._data.address
        self._arena = self.backend.host.buffer(128 << 20)
        self._buffers: dict[str, Buffer] = {}
        self._memory: list[Buffer] = []
        self.scratch = ScratchAllocator(self._cleared)
        self.counters = CounterAllocator(self._cleared)
        self._warm_at = 0.0

    def _cleared(self, n_bytes: int) -> int:
        """Return the address of `n_bytes` of zeros."""
        self._memory.append(self.backend.host.buffer(n_bytes))
        self.backend.host.clear(self._memory[-1])
        return self._memory[-1].address

    def warm_up(self) -> None:
        """Run for WARM_UP_S before the next measurement, until clocks have risen."""
        self._warm_at = time.perf_counter() + WARM_UP_S

    def ref(self, ref: Ref) -> int:
        return self._arena.address + ref.offset

    def rows(self, n: int, cols: int, format: RowFormat) -> tuple[Ref, np.ndarray]:
        """Write `n` random rows of `cols` values in `format`; return them and their values."""
        x = np.random.default_rng(3).standard_normal((n, cols)).astype(np.float32)
        stride = row_bytes(format, cols)
        staging = self.backend.host
        if format is RowFormat.F32:
            staging.write(self._arena, 0, x.view(np.uint8).reshape(-1))
        else:
            blocks = x.reshape(n, -1, 32)
            d = np.abs(blocks).max(axis=2, keepdims=True) / 127
            q = np.rint(blocks / d).astype(np.int8)
            rows = np.zeros((n, stride), np.uint8)
            rows[:, :cols] = q.reshape(n, cols).view(np.uint8)
            scales = np.concatenate([d, d * q.sum(axis=2, keepdims=True)], axis=2)
            scales = np.ascontiguousarray(scales.reshape(n, -1), np.float32).view(np.uint8)
            rows[:, cols : cols + scales.shape[1]] = scales
            staging.write(self._arena, 0, rows.reshape(-1))
            x = (q * d).reshape(n, cols).astype(np.float32)
        every = np.arange(n, dtype=np.int32)
        one = np.zeros(1, np.int32)
        self._data.write(Step(every, every, every * 0, every, np.array([0, n], np.int32), one))
        return Ref(0, Dim.TOKENS, cols, format, 0, stride), x

    def weights(self, shape: Shape) -> tuple[list[DeviceWeight], np.ndarray]:
        """Upload copies of a random weight; return them and their first SAMPLE rows."""
        layout, rng = BLOCKS[shape.type], np.random.default_rng(5)
        n = DISTINCT_ROWS * shape.cols // layout.block_size
        raw = rng.integers(0, 256, (n, layout.block_bytes), dtype=np.uint8)
        blocks = raw.reshape(-1).view(layout.dtype)
        for name in {"d", "dmin"} & set(layout.dtype.names or ()):
            blocks[name] = (0.01 * rng.standard_normal(n)).astype(np.float16)
        if shape.type is T.F32:
            blocks["value"] = rng.standard_normal(n).astype(np.float32)
        source = np.arange(shape.rows) % DISTINCT_ROWS
        packed = packing.pack(shape.type, raw.reshape(-1), 1, shape.rows, shape.cols, source)
        size = align(len(packed), 4096)
        copies = max(2, -(-ROTATE_BYTES // size))
        buffer = self._buffers.setdefault(
            f"weights {copies * size}", self.backend.host.buffer(copies * size)
        )
        for i in range(copies):
            self.backend.host.write(buffer, i * size, packed)
        sample = decode(raw.reshape(-1), shape.type, (DISTINCT_ROWS, shape.cols))[:SAMPLE]
        made = [
            DeviceWeight(buffer.address + i * size, shape.type, 1, shape.rows, shape.cols)
            for i in range(copies)
        ]
        return made, sample

    def seconds(self, dispatches: list[Dispatch], dependent: bool) -> float:
        """Return the seconds of one dispatch, the best of REPEATS rounds."""
        recorder = Recorder(self.backend.device, self.backend.host.pipelines, 2)
        recorder.timestamp()
        for dispatch in dispatches:
            recorder.dispatch(dispatch)
            if dependent:
                recorder.barrier()
        recorder.timestamp()
        commands = recorder.finish()
        while time.perf_counter() < self._warm_at:
            commands.run()
        best = float("inf")
        for _ in range(REPEATS):
            commands.run()
            best = min(best, commands.seconds()[0] / len(dispatches))
        return best

    def result(self, y: Ref, n: int) -> np.ndarray:
        data = self.backend.host.read(self._arena, y.offset, n * y.stride)
        return data.view(np.float32).reshape(n, y.cols)


def measure(bench: Bench, shape: Shape) -> list[dict[str, Any]]:
    """Return a result for the chosen tile, then for all candidates, the fastest first."""
    format = bench.backend.row_format(shape.type)
    weights, sample = bench.weights(shape)
    x, values = bench.rows(shape.n_x, shape.cols, format)
    y = Ref(1, Dim.TOKENS, shape.rows, RowFormat.F32, 32 << 20, 4 * shape.rows)
    bucket = Bucket(shape.n_x, shape.n_x, 1, 256)
    want = values @ sample.T
    if shape.glu:
        want = want * want * (0.5 + 0.5 * np.tanh(0.5 * want))
    chosen = []
    for w, other in zip(weights, weights[1:] + weights[:1], strict=True):
        one = Product(x, w, (bench.ref(y), y.stride))
        if shape.glu:
            one = replace(one, kind=ProductKind.GLU, up=distance(w, other))
        chosen.append(one)

    def lowered() -> list[Dispatch]:
        bench.scratch.taken.clear()
        return [each.dispatch(bench, bucket) for each in chosen]

    now = lowered()
    defaults = tiles.gemv, tiles.gemm, tiles.uses_gemv
    plans: list[tuple[Any, list[Dispatch]]] = []
    for tile in [*candidates(shape, bench.features)]:
        tiles.gemv = tiles.gemm = lambda *_, tile=tile: tile
        tiles.uses_gemv = lambda *_, tile=tile: isinstance(tile, GemvTile)
        plans.append((tile, lowered()))
    tiles.gemv, tiles.gemm, tiles.uses_gemv = defaults
    results = []
    # A kernel that the driver refuses is reported in its own line below.
    with contextlib.suppress(ZincError):
        bench.backend.host.pipelines.prepare([now[0].kernel, *(d[0].kernel for _, d in plans)])
    bench.warm_up()
    for tile, dispatches in [("chosen", now), *plans]:
        try:
            bench.backend.host.pipelines.prepare([dispatches[0].kernel])
            seconds = bench.seconds(dispatches, dependent=True)
            free = bench.seconds(dispatches, dependent=False)
        except ZincError as error:
            results.append({"shape": str(shape), "tile": str(tile), "error": str(error)})
            continue
        got = bench.result(y, shape.n_x)[:, :SAMPLE]
        results.append(
            {
                "shape": str(shape),
                "tile": str(tile) if tile != "chosen" else f"chosen: {dispatches[0].kernel}",
                "us": 1e6 * seconds,
                "free_us": 1e6 * free,
                "gb_s": shape.n_bytes / seconds / 1e9,
                "tflop_s": shape.flops / seconds / 1e12,
                "relative_error": float(np.linalg.norm(got - want) / np.linalg.norm(want)),
            }
        )
    return [results[0], *sorted(results[1:], key=lambda r: r.get("us", 1e9))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--quick", action="store_true", help="two shapes only")
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[], metavar="N",
        help="only the products of a step of N tokens of qwen3-8b",
    )  # fmt: skip
    args = parser.parse_args()
    bench = Bench()
    print(bench.backend.describe(), bench.features)
    everything = []
    wanted = [shape for n in args.rows for shape in shapes_of_rows(n)]
    for shape in wanted or shapes(args.quick):
        results = measure(bench, shape)
        everything += results
        print(shape)
        for r in results[:6]:
            if "error" in r:
                print(f"    {r['tile']}: {r['error']}")
                continue
            print(
                f"  {r['us']:8.2f} us  free {r['free_us']:8.2f}  {r['gb_s']:6.0f} GB/s"
                f"  {r['tflop_s']:6.1f} TFLOP/s  error {r['relative_error']:.1e}  {r['tile']}"
            )
        args.output.write_text(json.dumps(everything, indent=1) + "\n")


if __name__ == "__main__":
    main()
