"""Time of one token's attention on Vulkan, by how its keys are cut.

    python benchmarks/vulkan_attention.py results.json [--keys 16384] [--shape 32 8 128]

Layers enough to outgrow the caches of the device run one after another, with an empty cache: time
does not depend on its numbers. GB/s counts the keys and values that are read.
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from zinc.backends.api import CacheLayout, TensorData
from zinc.backends.vulkan import VulkanBackend, create
from zinc.backends.vulkan.lower import attention
from zinc.ops.cases import Case
from zinc.ops.graph import KVState
from zinc.ops.step import Step
from zinc.plan.planner import make_plan
from zinc.quant.blocks import GGMLType

LAYERS = 6
RUNS = 12
BLOCK_TOKENS = 64
WAVES, AT_ONCE, GROUPS = (4, 2), (4, 2), (3, 4, 6, 8, 12)


def timed(backend: VulkanBackend, shape: tuple[int, int, int], keys: int, dtype: str) -> float:
    """Seconds of one layer, the median of RUNS steps."""
    n_heads, n_kv, head_dim = shape
    case = Case("attention", 1)
    g, outs = case.graph, []
    table = g.rope_table(case.rope_frequencies(head_dim))
    for i in range(LAYERS):
        q, k, v = (case.rows(n * head_dim) for n in (n_heads, n_kv, n_kv))
        state = KVState(f"kv{i}", n_kv, head_dim, head_dim)
        q, k = (g.rope(x, table, head_dim=head_dim, neox=True) for x in (q, k))
        g.kv_store(k, v, state)
        outs.append(g.attention(q, state, scale=head_dim**-0.5))
    total = outs[0]
    for out in outs[1:]:
        total = g.add(total, out)
    case.returns(total)
    plan = make_plan(g, backend, max_tokens=1, max_outputs=1)
    for w in plan.weights:
        values = np.ascontiguousarray(case.tensors[w.name]).reshape(-1).view(np.uint8)
        backend.upload(w, TensorData(GGMLType.F32, w.shape, values))
    n_blocks = keys // BLOCK_TOKENS
    layout = CacheLayout(BLOCK_TOKENS, (n_blocks,), kv_dtype=dtype)
    program = backend.prepare(plan, backend.allocate(plan.states, layout))
    zero = np.zeros(1, np.int32)
    blocks = np.arange(n_blocks, dtype=np.int32)[None]
    position = np.array([keys - 1], np.int32)
    step = Step(zero, position, zero, zero, np.array([0, 1], np.int32), zero, (blocks,))
    at = [i for i, launch in enumerate(plan.launches) if launch.kernel == "attention"]
    seconds = [np.array(program.profile(step))[at] for _ in range(RUNS)]
    return float(np.median(np.array(seconds)[2:].mean(axis=1)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--keys", type=int, default=16384)
    parser.add_argument("--shape", type=int, nargs=3, default=(32, 8, 128))
    parser.add_argument("--kv-dtype", default="f16", choices=("f16", "q8_0"))
    args = parser.parse_args()
    backend = create()
    shape = tuple(args.shape)
    n_bytes = 4 * args.keys * shape[1] * shape[2]
    results: list[dict[str, Any]] = []
    chosen = {"waves": attention.WAVES, "at_once": attention.AT_ONCE}
    print(backend.describe(), "chosen:", chosen, attention.GROUPS_A_UNIT)
    for waves, at_once, groups in product(WAVES, AT_ONCE, GROUPS):
        attention.WAVES, attention.AT_ONCE, attention.GROUPS_A_UNIT = waves, at_once, groups
        attention.MAX_SPLITS = 256
        seconds = timed(backend, shape, args.keys, args.kv_dtype)
        results.append({"waves": waves, "at_once": at_once, "groups": groups, "seconds": seconds})
        print(
            f"waves {waves} at once {at_once} groups a unit {groups:2}:"
            f" {seconds * 1e6:7.1f} us {n_bytes / seconds * 1e-9:7.0f} GB/s",
            flush=True,
        )
    args.path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
