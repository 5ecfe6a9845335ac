"""Measure attention of wide heads on CUDA with different tiles, and as vectors.

    python benchmarks/cuda_attention.py results.json
    python benchmarks/cuda_attention.py results.json --heads 128 --kv-dtype q8_0 --steps 1x1x16384

A step T x S x K has T tokens of S sequences, whose last one sees K keys. The layers of a step run
one after another: enough keys to exceed the cache of the device. The KV cache holds zeros, because
time does not depend on its values. GB/s counts keys and values once, TFLOP/s unmasked products.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np

from zinc.backends.api import CacheLayout, TensorData
from zinc.backends.cuda import CudaBackend, create
from zinc.backends.cuda.lower import wide_attention
from zinc.backends.cuda.lower.wide_attention import WideTile
from zinc.core.errors import ZincError
from zinc.gpu.bucket import Bucket
from zinc.gpu.graph import DispatchGraph, Node
from zinc.ops.cases import Case
from zinc.ops.step import Step
from zinc.ops.values import KVState
from zinc.plan.planner import make_plan
from zinc.quant.blocks import GGMLType

LAYERS, REPEATS, RUNS = 6, 8, 9
BLOCK_TOKENS = 64
STEPS = ("512x1x512", "512x1x4096", "512x1x32768", "1x1x4096", "1x1x32768", "4x1x4096", "8x8x4096")
# (row_tiles, dim_warps, key_warps, keys, blocks) with as many stages as fit.
SHAPES = (
    *((4, 2, 1, 32, 1), (4, 2, 1, 16, 1)),
    *((2, 2, 2, 32, 1), (2, 4, 1, 16, 1), (2, 2, 1, 16, 2)),
    *((1, 4, 1, 16, 1), (1, 4, 1, 16, 2), (1, 4, 1, 16, 3), (1, 4, 2, 32, 1)),
)
MAX_STAGES = 6
SPLITS = (0.5, 1, 2, 4)  # times as many as the tile has by default


class Layers:
    """LAYERS attention layers on a backend, with the last `tokens` of `keys` positions."""

    def __init__(self, backend: CudaBackend, args: argparse.Namespace, step: str) -> None:
        tokens, sequences, keys = (int(x) for x in step.split("x"))
        head_dim, head_dim_v = args.dims
        case = Case("attention", tokens)
        q = case.rows(args.heads * head_dim)
        states = [
            KVState(f"kv{i}", args.kv_heads, head_dim, head_dim_v, v_from_k=not args.values)
            for i in range(LAYERS)
        ]
        outs = [case.graph.attention(q, x, scale=head_dim**-0.5) for x in states]
        for x in outs[1:]:
            outs[0] = case.graph.add(outs[0], x)
        case.returns(outs[0])
        self.backend = backend
        self.plan = make_plan(case.graph, backend, max_tokens=tokens, max_outputs=tokens)
        for w in self.plan.weights:
            values = np.ascontiguousarray(case.tensors[w.name]).reshape(-1).view(np.uint8)
            backend.upload(w, TensorData(GGMLType.F32, w.shape, values))
        n_blocks = -(-keys // BLOCK_TOKENS)
        layout = CacheLayout(BLOCK_TOKENS, (sequences * n_blocks,), kv_dtype=args.kv_dtype)
        self.cache = backend.allocate(self.plan.states, layout)
        each = tokens // sequences
        self.step = Step(
            ids=np.zeros(tokens, np.int32),
            positions=np.tile(np.arange(keys - each, keys, dtype=np.int32), sequences),
            sequence=np.repeat(np.arange(sequences, dtype=np.int32), each),
            output_rows=np.arange(1, dtype=np.int32),
            seq_start=np.arange(0, tokens + 1, each, dtype=np.int32),
            state_slot=np.arange(sequences, dtype=np.int32),
            tables=(np.arange(sequences * n_blocks, dtype=np.int32).reshape(sequences, -1),),
        )
        stored = head_dim + (head_dim_v if args.values else 0)
        width = 2 if args.kv_dtype == "f16" else 34 / 32
        self.n_bytes = sequences * keys * args.kv_heads * stored * width
        pairs = tokens * (keys - (each - 1) / 2)
        self.flop = 2 * args.heads * (head_dim + head_dim_v) * pairs

    def seconds(self) -> float:
        """Return the seconds of one layer, with its merge, as the lowering is now."""
        program = self.backend.prepare(self.plan, self.cache)
        program.step(self.step)
        graph = program._graph(program._prepared(self.step))
        layers = [i for i, x in enumerate(self.plan.launches) if x.kernel == "attention"]
        found = [node.dispatch for node in graph.nodes if node.launch in layers] * REPEATS
        chain = (Node(0, x, (i - 1,) if i else ()) for i, x in enumerate(found))
        host, times = self.backend.host, []
        recording = host.record(DispatchGraph(tuple(chain)))
        for _ in range(RUNS):
            start = time.perf_counter()
            host.wait(recording.submit())
            times.append(time.perf_counter() - start)
        return median(times[2:]) / (REPEATS * LAYERS)


def tiles(layers: Layers, args: argparse.Namespace) -> list[WideTile]:
    """Return the tiles that the device can run, each with the most stages that fit."""
    features = layers.backend.host.features
    state = next(x for x in layers.plan.states if isinstance(x, KVState))
    found: list[WideTile] = []
    for row_tiles, dim_warps, key_warps, keys, blocks in SHAPES:
        for stages in range(MAX_STAGES, 0 if args.kv_dtype == "q8_0" else 2, -1):
            tile = WideTile(row_tiles, dim_warps, key_warps, keys, stages, blocks)
            room = (features.most_shared_bytes + 1024) // blocks - 1024
            if not tile.suits(state, False) or tile.shared_bytes(state, args.kv_dtype) > room:
                continue
            found.append(tile)
            break
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kv-heads", type=int, default=1)
    parser.add_argument("--dims", type=int, nargs=2, default=(576, 512), help="of keys, values")
    parser.add_argument("--values", action="store_true", help="values are not part of keys")
    parser.add_argument("--kv-dtype", default="f16", choices=("f16", "q8_0"))
    parser.add_argument("--steps", nargs="+", default=STEPS, metavar="TxSxK")
    parser.add_argument("--no-vectors", action="store_true", help="leave out vector kernels")
    args = parser.parse_args()
    backend = create()
    lowering = import_module("zinc.backends.cuda.lower.attention")
    print(backend.describe())
    results: list[dict[str, Any]] = []

    def measure(layers: Layers, step: str, tile: WideTile | None) -> None:
        try:
            with patch.object(lowering, "wide_tile", lambda *_, **__: tile):
                seconds = layers.seconds()
        except ZincError as error:
            print(step, tile, error)
            return
        rate = layers.n_bytes / seconds * 1e-9
        name = "vectors"
        if tile is not None:
            name = ", ".join(f"{key} {value}" for key, value in asdict(tile).items())
        results.append({"step": step, "tile": tile and asdict(tile), "seconds": seconds})
        tflops = layers.flop / seconds * 1e-12
        print(f"{step:12} {name:92} {seconds * 1e6:9.1f} us {rate:6.0f} GB/s {tflops:6.1f} TFLOP/s")

    for step in args.steps:
        layers = Layers(backend, args, step)
        state = next(x for x in layers.plan.states if isinstance(x, KVState))
        bucket = Bucket.of_step(layers.plan, layers.step)
        at = backend.prepare(layers.plan, layers.cache)._addresses
        if not args.no_vectors:
            measure(layers, step, None)
        for tile in tiles(layers, args):
            repeats = args.heads // args.kv_heads
            default = wide_attention._splits(tile, state, repeats, at, bucket)
            most = max(1, min(wide_attention.MAX_SPLITS, bucket.keys // tile.keys))
            tried = {max(1, min(most, round(default * by))) for by in SPLITS}
            if default == 1:
                tried = {1, min(2, most)}
            for splits in sorted(tried):
                measure(layers, step, replace(tile, splits=splits))
    report = {**{k: v for k, v in vars(args).items() if k != "path"}, "tried": results}
    args.path.write_text(json.dumps({"device": backend.describe(), **report}, indent=1) + "\n")


if __name__ == "__main__":
    main()
