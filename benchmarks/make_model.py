"""Writes a GGUF file of a published model's shape with random weights, for speed measurements.

    python benchmarks/make_model.py qwen3-0.6b /tmp/qwen3-0.6b-q4_k_m.gguf [--type q4_k_m]

Speed does not depend on the values, so no download is needed; the text such a model writes is
noise. Every block is drawn from a pool of really quantised Gaussian blocks, so scales and quants
have realistic ranges. The vocabulary is synthetic: byte tokens and numbered fillers.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from zinc.formats.gguf_writer import GGUFWriter
from zinc.formats.metadata import ValueType
from zinc.quant.blocks import BLOCKS, GGMLType, row_bytes
from zinc.quant.encode import encode

POOL_BLOCKS = 2048


@dataclass(frozen=True)
class Shape:
    """Sizes of a dense decoder."""

    arch: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    rope_base: float
    tied: bool = True
    qk_norm: bool = True


SHAPES = {
    "qwen3-0.6b": Shape("qwen3", 28, 1024, 3072, 16, 8, 128, 151936, 40960, 1e6),
    "qwen3-1.7b": Shape("qwen3", 28, 2048, 6144, 16, 8, 128, 151936, 40960, 1e6),
    "qwen3-8b": Shape("qwen3", 36, 4096, 12288, 32, 8, 128, 151936, 40960, 1e6, tied=False),
    "llama3-1b": Shape("llama", 16, 2048, 8192, 32, 8, 64, 128256, 131072, 5e5, qk_norm=False),
}


def more_bits(layer: int, layers: int) -> bool:
    """Whether Q4_K_M spends more bits on attn_v and ffn_down of this layer."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def tensor_type(name: str, layer: int, shape: Shape, mix: str) -> GGMLType:
    """The block type of a matrix in a file of this mix (q4_k_m or a plain type)."""
    if mix != "q4_k_m":
        return GGMLType[mix.upper()]
    if name in ("token_embd", "output"):
        return GGMLType.Q6_K if name == "output" or shape.tied else GGMLType.Q4_K
    if name in ("attn_v", "ffn_down") and more_bits(layer, shape.layers):
        return GGMLType.Q6_K
    return GGMLType.Q4_K


class RandomWeights:
    """Matrices of quantised Gaussian blocks with standard deviation 1 / sqrt(cols)."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._pools: dict[tuple[GGMLType, int], np.ndarray] = {}

    def matrix(self, type: GGMLType, rows: int, cols: int) -> np.ndarray:
        layout = BLOCKS[type]
        n_blocks = rows * cols // layout.block_size
        size = layout.block_size * (1 if layout.block_size > 1 else 256)
        key = (type, cols)
        if key not in self._pools:
            data = self._rng.standard_normal((POOL_BLOCKS, size)) / math.sqrt(cols)
            blocks = encode(data.astype(np.float32), type)
            self._pools[key] = blocks.reshape(POOL_BLOCKS, -1)
        pool = self._pools[key]
        n_units = n_blocks if layout.block_size > 1 else -(-n_blocks // 256)
        picks = self._rng.integers(0, POOL_BLOCKS, n_units)
        return pool[picks].reshape(-1)[: rows * row_bytes(type, cols)]


def tensors(shape: Shape, mix: str) -> Iterator[tuple[str, tuple[int, ...], GGMLType]]:
    """Names, shapes and types in file order."""
    f32 = GGMLType.F32

    def matrix(prefix: str, name: str, layer: int, rows: int, cols: int) -> tuple:
        return f"{prefix}{name}.weight", (rows, cols), tensor_type(name, layer, shape, mix)

    yield matrix("", "token_embd", 0, shape.vocab, shape.hidden)
    yield "output_norm.weight", (shape.hidden,), f32
    if not shape.tied:
        yield matrix("", "output", 0, shape.vocab, shape.hidden)
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for i in range(shape.layers):
        p = f"blk.{i}."
        yield f"{p}attn_norm.weight", (shape.hidden,), f32
        yield matrix(p, "attn_q", i, q, shape.hidden)
        yield matrix(p, "attn_k", i, kv, shape.hidden)
        yield matrix(p, "attn_v", i, kv, shape.hidden)
        yield matrix(p, "attn_output", i, shape.hidden, q)
        if shape.qk_norm:
            yield f"{p}attn_q_norm.weight", (shape.head_dim,), f32
            yield f"{p}attn_k_norm.weight", (shape.head_dim,), f32
        yield f"{p}ffn_norm.weight", (shape.hidden,), f32
        yield matrix(p, "ffn_gate", i, shape.ffn, shape.hidden)
        yield matrix(p, "ffn_up", i, shape.ffn, shape.hidden)
        yield matrix(p, "ffn_down", i, shape.hidden, shape.ffn)


def byte_characters() -> list[str]:
    """The 256 printable characters byte-level BPE writes bytes with."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def write(path: str, shape: Shape, mix: str, seed: int = 0) -> None:
    """Writes the file; a seed always gives the same bytes."""
    weights = RandomWeights(seed)
    rng = np.random.default_rng(seed + 1)
    arch = shape.arch
    letters = byte_characters()
    tokens = letters + [f"<filler_{i}>" for i in range(shape.vocab - len(letters) - 1)] + ["<end>"]
    with GGUFWriter(path) as w:
        w.add("general.architecture", arch)
        w.add("general.name", f"random {arch} {mix}")
        w.add(f"{arch}.block_count", shape.layers)
        w.add(f"{arch}.context_length", shape.context)
        w.add(f"{arch}.embedding_length", shape.hidden)
        w.add(f"{arch}.feed_forward_length", shape.ffn)
        w.add(f"{arch}.attention.head_count", shape.heads)
        w.add(f"{arch}.attention.head_count_kv", shape.kv_heads)
        w.add(f"{arch}.attention.key_length", shape.head_dim)
        w.add(f"{arch}.attention.value_length", shape.head_dim)
        w.add(f"{arch}.attention.layer_norm_rms_epsilon", 1e-6)
        w.add(f"{arch}.rope.freq_base", shape.rope_base)
        w.add("tokenizer.ggml.model", "gpt2")
        w.add("tokenizer.ggml.pre", "qwen2")
        w.add("tokenizer.ggml.tokens", tokens)
        w.add("tokenizer.ggml.token_type", [1] * (len(tokens) - 1) + [3], ValueType.INT32)
        w.add("tokenizer.ggml.merges", [f"{letters[0]} {letters[1]}"])
        w.add("tokenizer.ggml.eos_token_id", len(tokens) - 1)
        w.add("tokenizer.ggml.add_bos_token", False)
        for name, dims, type in tensors(shape, mix):
            if len(dims) == 1:
                data = (1 + 0.1 * rng.standard_normal(dims)).astype(np.float32).view(np.uint8)
            else:
                data = weights.matrix(type, dims[0], dims[1])
            w.add_tensor(name, data, type, dims)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("path")
    parser.add_argument("--type", default="q4_k_m", help="q4_k_m or a block type such as q8_0")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    write(args.path, SHAPES[args.shape], args.type, args.seed)


if __name__ == "__main__":
    main()
