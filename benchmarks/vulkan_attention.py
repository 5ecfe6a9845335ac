"""Measure attention on Vulkan with different tilings, and with and without matrix instructions.

    python benchmarks/vulkan_attention.py results.json [--keys 16384] [--shape 32 8 128]
    python benchmarks/vulkan_attention.py results.json --quick --shape 16 2 256
    python benchmarks/vulkan_attention.py results.json --tokens 512

LAYERS dependent layers run one after another: enough keys and values to exceed the caches of the
device, and launches that cannot overlap. The KV cache holds zeros, because time does not depend on
its values. GB/s counts keys and values read; TFLOP/s counts unmasked products.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from zinc.backends.api import CacheLayout, TensorData
from zinc.backends.vulkan import VulkanBackend, create
from zinc.gpu.lower import attention, attention_tiles
from zinc.ops.cases import Case
from zinc.ops.step import Step
from zinc.ops.values import KVState
from zinc.plan.planner import make_plan
from zinc.quant.blocks import GGMLType

LAYERS = 6
RUNS = 12
BLOCK_TOKENS = 64
WARM_UP_S = 0.3  # until clocks have risen
# Values to try for constants of gpu/lower/attention.py, without matrix instructions.
TRIED = {"WAVES": (4, 8), "AT_ONCE": (2, 4), "GROUPS_A_UNIT": (4, 2, 3, 6, 8)}


def set_constants(**constants: int) -> None:
    """Set constants of the lowerings of attention, in each module that has them."""
    for name, value in constants.items():
        for module in (attention, attention_tiles):
            if hasattr(module, name):
                setattr(module, name, value)


class Layers:
    """LAYERS attention layers on a backend, with a step of the last `tokens` of `keys` tokens."""

    def __init__(
        self,
        backend: VulkanBackend,
        shape: tuple[int, int, int],
        tokens: int,
        keys: int,
        dtype: str,
    ) -> None:
        n_heads, n_kv, head_dim = shape
        case = Case("attention", tokens)
        g = case.graph
        table = g.rope_table(case.rope_frequencies(head_dim))
        x = case.rows(n_heads * head_dim)
        for i in range(LAYERS):
            k, v = (case.rows(n_kv * head_dim) for _ in range(2))
            state = KVState(f"kv{i}", n_kv, head_dim, head_dim)
            q, k = (g.rope(rows, table, head_dim=head_dim, neox=True) for rows in (x, k))
            g.kv_store(k, v, state)
            x = g.attention(q, state, scale=head_dim**-0.5)
        case.returns(x)
        self.backend = backend
        self.plan = make_plan(g, backend, max_tokens=tokens, max_outputs=tokens)
        for w in self.plan.weights:
            values = np.ascontiguousarray(case.tensors[w.name]).reshape(-1).view(np.uint8)
            backend.upload(w, TensorData(GGMLType.F32, w.shape, values))
        n_blocks = keys // BLOCK_TOKENS
        layout = CacheLayout(BLOCK_TOKENS, (n_blocks,), kv_dtype=dtype)
        self.cache = backend.allocate(self.plan.states, layout)
        one, zeros = np.zeros(1, np.int32), np.zeros(tokens, np.int32)
        blocks = np.arange(n_blocks, dtype=np.int32)[None]
        positions = np.arange(keys - tokens, keys, dtype=np.int32)
        starts = np.array([0, tokens], np.int32)
        self.step = Step(zeros, positions, zeros, one, starts, one, (blocks,))

    def seconds(self) -> float:
        """Return the seconds of one layer, the median of RUNS steps, with the current constants."""
        program = self.backend.prepare(self.plan, self.cache)
        program.step(self.step)
        end = time.perf_counter() + WARM_UP_S
        while time.perf_counter() < end:
            program.step(self.step)
        at = [i for i, launch in enumerate(self.plan.launches) if launch.kernel == "attention"]
        steps = np.array([program.profile(self.step) for _ in range(RUNS)])
        return float(np.median(steps[2:, at].mean(axis=1)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--tokens", type=int, default=1)
    parser.add_argument("--keys", type=int, default=16384)
    parser.add_argument("--shape", type=int, nargs=3, default=(32, 8, 128))
    parser.add_argument(
        "--quick", action="store_true", help="current constants only, with and without matrices"
    )
    parser.add_argument("--kv-dtype", default="f16", choices=("f16", "q8_0"))
    args = parser.parse_args()
    backend = create()
    n_heads, n_kv, head_dim = args.shape
    n_bytes = 4 * args.keys * n_kv * head_dim
    pairs = args.tokens * (args.keys - (args.tokens - 1) / 2)
    tflop = 4e-12 * n_heads * head_dim * pairs
    chosen: dict[str, Any] = {name: getattr(attention, name) for name in TRIED}
    if args.quick or args.tokens > attention.FEW_TOKENS:
        tried = [{"MAX_MATRIX_DIM": n} for n in (attention.MAX_MATRIX_DIM, 0)]
    else:
        set_constants(MAX_MATRIX_DIM=0)
        tried = [chosen]
        values = product(*TRIED.values())
        tried += [dict(zip(TRIED, chosen, strict=True)) for chosen in values]
    print(backend.describe())
    attention.MAX_SPLITS = 256
    layers = Layers(backend, (n_heads, n_kv, head_dim), args.tokens, args.keys, args.kv_dtype)
    results: list[dict[str, Any]] = []
    for constants in tried:
        set_constants(**constants)
        seconds = layers.seconds()
        results.append({**constants, "seconds": seconds})
        print(
            *(f"{name} {value}," for name, value in constants.items()),
            f"{seconds * 1e6:7.1f} us {n_bytes / seconds * 1e-9:7.0f} GB/s",
            f"{tflop / seconds:6.1f} TFLOP/s",
            flush=True,
        )
    report = {
        "device": backend.describe(),
        "tokens": args.tokens,
        "keys": args.keys,
        "shape": args.shape,
        "kv_dtype": args.kv_dtype,
        "tried": results,
    }
    args.path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
