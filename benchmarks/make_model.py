"""Write a GGUF file with the shape of a published model and random weights.

    python benchmarks/make_model.py qwen3-0.6b /tmp/qwen3-0.6b-q4_k_m.gguf [--type q4_k_m]

Speed does not depend on the values of weights, so benchmarks need no download. The text of such a
model is noise. Blocks come from a pool of quantised Gaussian blocks, so scales and quants have
realistic ranges. The vocabulary is synthetic: byte tokens and numbered fillers.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from zinc.formats.gguf import GGUFFile
from zinc.formats.gguf_writer import GGUFWriter
from zinc.formats.metadata import GGUFArray, ValueType
from zinc.quant.blocks import BLOCKS, GGMLType, row_bytes
from zinc.quant.encode import encode

POOL_BLOCKS = 2048
KDA_TAPS = 4


@dataclass(frozen=True)
class DeltaNet:
    """Sizes of Gated DeltaNet layers: all layers but every `interval`-th, which is attention."""

    k_heads: int
    v_heads: int
    head_dim: int
    taps: int = 4
    interval: int = 4

    @property
    def v_cols(self) -> int:
        return self.v_heads * self.head_dim

    @property
    def qkv_cols(self) -> int:
        return 2 * self.k_heads * self.head_dim + self.v_cols


@dataclass(frozen=True)
class Mamba2:
    """Sizes of Mamba-2 layers."""

    heads: int
    head_dim: int
    state: int
    groups: int = 1
    taps: int = 4

    @property
    def cols(self) -> int:
        return self.heads * self.head_dim

    @property
    def conv_cols(self) -> int:
        return self.cols + 2 * self.groups * self.state


@dataclass(frozen=True)
class Rwkv7:
    """Widths of RWKV-7: of a head, and of the small matrices of decays, rates, values and gates."""

    head_dim: int
    decay: int
    rate: int
    value: int
    gate: int


@dataclass(frozen=True)
class Experts:
    """Sizes of a mixture of experts.

    A token runs `top_k` of `count` experts of width `ffn`, and a shared one of width `shared_ffn`.
    """

    count: int
    top_k: int
    ffn: int
    shared_ffn: int = 0


@dataclass(frozen=True)
class Latent:
    """Widths of latent attention.

    rank: the latent. rope, nope: the parts of a query head with and without RoPE. value: a value
    head.
    """

    rank: int
    rope: int
    nope: int
    value: int


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder: dense, with experts, or a hybrid with recurrent layers.

    delta: recurrent layers; attention then has an output gate. biases: biases on all projections
    and attention sinks, as in gpt-oss. post_norms: a norm after attention and one after the MLP.
    window: sliding window in tokens. dense_layers: layers before the first one with experts.
    short_conv: taps of recurrent layers that are short convolutions. mamba: recurrent layers that
    are Mamba-2. kda: width of a head of recurrent layers that are Kimi Delta Attention, with as
    many heads as attention. attends: layers that attend, if others are one of these three. rwkv:
    all layers are those of RWKV-7. Layers have no MLP if `ffn` is 0.
    """

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
    delta: DeltaNet | None = None
    rope_dims: int | None = None
    experts: Experts | None = None
    biases: bool = False
    post_norms: bool = False
    window: int = 0
    latent: Latent | None = None
    dense_layers: int = 0
    short_conv: int = 0
    mamba: Mamba2 | None = None
    kda: int = 0
    attends: tuple[int, ...] = ()
    rwkv: Rwkv7 | None = None

    def is_recurrent(self, layer: int) -> bool:
        if self.delta is not None:
            return (layer + 1) % self.delta.interval != 0
        mixes = (
            self.mamba is not None or self.short_conv > 0 or self.kda > 0 or self.rwkv is not None
        )
        return mixes and layer not in self.attends


SHAPES = {
    "tiny": Shape("qwen3", 2, 256, 512, 4, 2, 64, 1000, 4096, 1e6),
    "qwen3-0.6b": Shape("qwen3", 28, 1024, 3072, 16, 8, 128, 151936, 40960, 1e6),
    "qwen3-1.7b": Shape("qwen3", 28, 2048, 6144, 16, 8, 128, 151936, 40960, 1e6),
    "qwen3-8b": Shape("qwen3", 36, 4096, 12288, 32, 8, 128, 151936, 40960, 1e6, tied=False),
    "llama3-1b": Shape("llama", 16, 2048, 8192, 32, 8, 64, 128256, 131072, 5e5, qk_norm=False),
    "llama3-70b": Shape(
        *("llama", 80, 8192, 28672, 64, 8, 128, 128256, 131072, 5e5), qk_norm=False, tied=False
    ),
    "qwen35-0.8b": Shape(
        *("qwen35", 24, 1024, 3584, 8, 2, 256, 248320, 262144, 1e7),
        delta=DeltaNet(16, 16, 128),
        rope_dims=64,
    ),
    "qwen3moe-64x": Shape(
        *("qwen3moe", 16, 1024, 768, 16, 4, 128, 151936, 40960, 1e6),
        tied=False,
        experts=Experts(64, 8, 768),
    ),
    # The smaller vocabulary of Qwen 3, so that the output layer does not dominate the measurement.
    "qwen35moe-64x": Shape(
        *("qwen35moe", 8, 1024, 256, 8, 2, 256, 151936, 262144, 1e7),
        delta=DeltaNet(16, 32, 128),
        rope_dims=64,
        experts=Experts(64, 8, 256, shared_ffn=256),
    ),
    "qwen36-35b-a3b": Shape(
        *("qwen35moe", 40, 2048, 512, 16, 2, 256, 248320, 262144, 1e7),
        tied=False,
        delta=DeltaNet(16, 32, 128),
        rope_dims=64,
        experts=Experts(256, 8, 512, shared_ffn=512),
    ),
    "lfm2-1.2b": Shape(
        *("lfm2", 16, 2048, 8192, 32, 8, 64, 65536, 128000, 1e6),
        short_conv=3,
        attends=(2, 5, 8, 10, 12, 14),
    ),
    "granite4-h-1b": Shape(
        *("granitehybrid", 40, 1536, 4096, 12, 4, 128, 100352, 131072, 1e4),
        qk_norm=False,
        mamba=Mamba2(48, 64, 128),
        attends=(5, 15, 25, 35),
    ),
    "mamba2-1.3b": Shape(
        *("mamba2", 48, 2048, 0, 0, 0, 0, 50288, 1048576, 1e4),
        qk_norm=False,
        mamba=Mamba2(64, 64, 128),
    ),
    "rwkv7-1.5b": Shape(
        *("rwkv7", 24, 2048, 8192, 0, 0, 0, 65536, 1048576, 1e4),
        tied=False,
        qk_norm=False,
        rwkv=Rwkv7(64, 96, 96, 64, 256),
    ),
    # Heads, latent attention and vocabulary of Kimi Linear 48B-A3B, without its experts.
    "kimi-linear-1b": Shape(
        *("kimi-linear", 20, 1536, 6144, 12, 1, 576, 163840, 1048576, 1e4),
        qk_norm=False,
        rope_dims=64,
        experts=Experts(64, 8, 1024),
        latent=Latent(512, 64, 128, 128),
        dense_layers=20,
        kda=128,
        attends=(3, 7, 11, 15, 19),
    ),
    "gemma3-1b": Shape(
        *("gemma3", 26, 1152, 6912, 4, 1, 256, 262144, 32768, 1e6),
        post_norms=True,
        window=512,
    ),
    "gptoss-6l": Shape(
        *("gpt-oss", 6, 2880, 2880, 64, 8, 64, 201088, 131072, 150000.0),
        tied=False,
        qk_norm=False,
        experts=Experts(32, 4, 2880),
        biases=True,
        window=128,
    ),
    "deepseek2-lite": Shape(
        *("deepseek2", 27, 2048, 10944, 16, 1, 576, 102400, 163840, 1e4),
        tied=False,
        qk_norm=False,
        rope_dims=64,
        experts=Experts(64, 6, 1408, shared_ffn=2816),
        latent=Latent(512, 64, 128, 128),
        dense_layers=1,
    ),
}


def more_bits(layer: int, layers: int) -> bool:
    """Return whether Q4_K_M uses Q6_K for attn_v and ffn_down of this layer."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


# Formats that llama-quantize uses if a row is not a whole number of super-blocks.
SMALLER_BLOCKS = {GGMLType.Q4_K: GGMLType.Q5_0, GGMLType.Q5_K: GGMLType.Q5_1}


def tensor_type(name: str, layer: int, cols: int, shape: Shape, mix: str) -> GGMLType:
    """Return the block type of a matrix with `cols` columns; `mix` is as in --type."""
    if name.startswith("ssm_conv1d") or name in ("shortconv.conv", "ffn_gate_inp"):
        return GGMLType.F32
    type = wanted_type(name, layer, shape, mix)
    return type if cols % BLOCKS[type].block_size == 0 else SMALLER_BLOCKS.get(type, GGMLType.Q8_0)


def wanted_type(name: str, layer: int, shape: Shape, mix: str) -> GGMLType:
    """Return the block type that `mix` gives a matrix, whatever its number of columns."""
    if mix == "mxfp4":  # MXFP4 is used for experts only
        return GGMLType.MXFP4 if name.endswith("_exps") else GGMLType.Q8_0
    if mix != "q4_k_m":
        return GGMLType[mix.upper()]
    if name == "attn_qkv":
        return GGMLType.Q5_K
    if name in ("token_embd", "output"):
        return GGMLType.Q6_K if name == "output" or shape.tied else GGMLType.Q4_K
    if (name == "attn_v" or name.startswith("ffn_down")) and more_bits(layer, shape.layers):
        return GGMLType.Q6_K
    return GGMLType.Q4_K


class RandomWeights:
    """Matrices of quantised Gaussian blocks with standard deviation 1 / sqrt(cols).

    With `repeat`, matrices of equal type and shape are equal, which makes large files quickly.
    """

    def __init__(self, seed: int, repeat: bool = False) -> None:
        self._rng = np.random.default_rng(seed)
        self._pools: dict[tuple[GGMLType, int], np.ndarray] = {}
        self._made: dict[tuple[GGMLType, int, int], np.ndarray] | None = {} if repeat else None

    def matrix(self, type: GGMLType, rows: int, cols: int) -> np.ndarray:
        if self._made is None:
            return self._matrix(type, rows, cols)
        if (type, rows, cols) not in self._made:
            self._made[type, rows, cols] = self._matrix(type, rows, cols)
        return self._made[type, rows, cols]

    def _matrix(self, type: GGMLType, rows: int, cols: int) -> np.ndarray:
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


Tensor: TypeAlias = tuple[str, tuple[int, ...], GGMLType]  # name, shape, type


def tensors(shape: Shape, mix: str) -> Iterator[Tensor]:
    """Yield the name, shape and type of every tensor, in file order."""
    f32 = GGMLType.F32

    def matrix(prefix: str, name: str, layer: int, *dims: int) -> Tensor:
        return f"{prefix}{name}.weight", dims, tensor_type(name, layer, dims[-1], shape, mix)

    def experts(prefix: str, layer: int, e: Experts) -> Iterator[Tensor]:
        yield matrix(prefix, "ffn_gate_inp", layer, e.count, shape.hidden)
        yield matrix(prefix, "ffn_gate_exps", layer, e.count, e.ffn, shape.hidden)
        yield matrix(prefix, "ffn_up_exps", layer, e.count, e.ffn, shape.hidden)
        yield matrix(prefix, "ffn_down_exps", layer, e.count, shape.hidden, e.ffn)
        if e.shared_ffn:
            if shape.latent is None:
                yield f"{prefix}ffn_gate_inp_shexp.weight", (shape.hidden,), f32
            yield matrix(prefix, "ffn_gate_shexp", layer, e.shared_ffn, shape.hidden)
            yield matrix(prefix, "ffn_up_shexp", layer, e.shared_ffn, shape.hidden)
            yield matrix(prefix, "ffn_down_shexp", layer, shape.hidden, e.shared_ffn)
        if shape.biases:
            yield f"{prefix}ffn_gate_inp.bias", (e.count,), f32
            yield f"{prefix}ffn_gate_exps.bias", (e.count, e.ffn), f32
            yield f"{prefix}ffn_up_exps.bias", (e.count, e.ffn), f32
            yield f"{prefix}ffn_down_exps.bias", (e.count, shape.hidden), f32

    def kimi_delta(prefix: str, layer: int) -> Iterator[Tensor]:
        heads, width, cols = shape.heads, shape.kda, shape.heads * shape.kda
        for part in "qkv":
            yield matrix(prefix, f"attn_{part}", layer, cols, shape.hidden)
            yield matrix(prefix, f"ssm_conv1d_{part}", layer, 1, cols, 1, KDA_TAPS)
        for part in "fg":
            yield matrix(prefix, f"ssm_{part}_a", layer, width, shape.hidden)
            yield matrix(prefix, f"ssm_{part}_b", layer, cols, width)
        yield matrix(prefix, "ssm_beta", layer, heads, shape.hidden)
        yield f"{prefix}ssm_a", (1, 1, heads, 1), f32
        yield f"{prefix}ssm_dt.bias", (cols,), f32
        yield f"{prefix}ssm_norm.weight", (width,), f32
        yield matrix(prefix, "attn_output", layer, shape.hidden, cols)

    def latent_attention(prefix: str, layer: int, a: Latent) -> Iterator[Tensor]:
        heads = shape.heads
        yield matrix(prefix, "attn_q", layer, heads * (a.nope + a.rope), shape.hidden)
        yield matrix(prefix, "attn_kv_a_mqa", layer, a.rank + a.rope, shape.hidden)
        yield f"{prefix}attn_kv_a_norm.weight", (a.rank,), f32
        yield matrix(prefix, "attn_k_b", layer, heads, a.rank, a.nope)
        yield matrix(prefix, "attn_v_b", layer, heads, a.value, a.rank)
        yield matrix(prefix, "attn_output", layer, shape.hidden, heads * a.value)

    def with_bias(name: str) -> Iterator[Tensor]:
        yield f"{name}.weight", (shape.hidden,), f32
        yield f"{name}.bias", (shape.hidden,), f32

    def rwkv7(prefix: str, layer: int, r: Rwkv7) -> Iterator[Tensor]:
        yield from with_bias(f"{prefix}attn_norm_2")
        yield f"{prefix}time_mix_lerp_fused.weight", (6, 1, 1, shape.hidden), f32
        for part, rank in (("w", r.decay), ("a", r.rate), ("v", r.value), ("g", r.gate)):
            if part != "g":
                yield f"{prefix}time_mix_{part}0.weight", (shape.hidden,), f32
            # They are not quantised in published files.
            yield f"{prefix}time_mix_{part}1.weight", (rank, shape.hidden), GGMLType.F16
            yield f"{prefix}time_mix_{part}2.weight", (shape.hidden, rank), GGMLType.F16
        for part in ("k_k", "k_a", "r_k"):
            yield f"{prefix}time_mix_{part}.weight", (shape.hidden,), f32
        yield from with_bias(f"{prefix}time_mix_ln")
        for part in ("receptance", "key", "value", "output"):
            yield matrix(prefix, f"time_mix_{part}", layer, shape.hidden, shape.hidden)
        yield f"{prefix}channel_mix_lerp_k.weight", (shape.hidden,), f32
        yield matrix(prefix, "channel_mix_key", layer, shape.ffn, shape.hidden)
        yield matrix(prefix, "channel_mix_value", layer, shape.hidden, shape.ffn)

    yield matrix("", "token_embd", 0, shape.vocab, shape.hidden)
    norm = "token_embd_norm" if shape.short_conv else "output_norm"
    yield f"{norm}.weight", (shape.hidden,), f32
    if shape.rwkv is not None:
        yield f"{norm}.bias", (shape.hidden,), f32
        yield from with_bias("token_embd_norm")
    if not shape.tied:
        yield matrix("", "output", 0, shape.vocab, shape.hidden)
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for i in range(shape.layers):
        p, delta = f"blk.{i}.", shape.delta
        yield f"{p}attn_norm.weight", (shape.hidden,), f32
        if shape.rwkv is not None:
            yield f"{p}attn_norm.bias", (shape.hidden,), f32
            yield from rwkv7(p, i, shape.rwkv)
            continue
        if delta is not None and shape.is_recurrent(i):
            yield matrix(p, "attn_qkv", i, delta.qkv_cols, shape.hidden)
            yield matrix(p, "attn_gate", i, delta.v_cols, shape.hidden)
            yield matrix(p, "ssm_alpha", i, delta.v_heads, shape.hidden)
            yield matrix(p, "ssm_beta", i, delta.v_heads, shape.hidden)
            yield matrix(p, "ssm_conv1d", i, delta.qkv_cols, delta.taps)
            yield f"{p}ssm_a", (delta.v_heads,), f32
            yield f"{p}ssm_dt.bias", (delta.v_heads,), f32
            yield f"{p}ssm_norm.weight", (delta.head_dim,), f32
            yield matrix(p, "ssm_out", i, shape.hidden, delta.v_cols)
        elif shape.mamba is not None and shape.is_recurrent(i):
            m = shape.mamba
            yield matrix(p, "ssm_in", i, m.cols + m.conv_cols + m.heads, shape.hidden)
            yield matrix(p, "ssm_conv1d", i, m.conv_cols, m.taps)
            yield f"{p}ssm_conv1d.bias", (m.conv_cols,), f32
            yield f"{p}ssm_a", (m.heads, 1), f32
            yield f"{p}ssm_d", (m.heads, 1), f32
            yield f"{p}ssm_dt.bias", (m.heads,), f32
            yield f"{p}ssm_norm.weight", (m.groups, m.cols // m.groups), f32
            yield matrix(p, "ssm_out", i, shape.hidden, m.cols)
        elif shape.kda and shape.is_recurrent(i):
            yield from kimi_delta(p, i)
        elif shape.is_recurrent(i):
            yield matrix(p, "shortconv.in_proj", i, 3 * shape.hidden, shape.hidden)
            yield matrix(p, "shortconv.conv", i, shape.hidden, shape.short_conv)
            yield matrix(p, "shortconv.out_proj", i, shape.hidden, shape.hidden)
        elif shape.latent is not None:
            yield from latent_attention(p, i, shape.latent)
        else:
            yield matrix(p, "attn_q", i, q * (2 if delta else 1), shape.hidden)
            yield matrix(p, "attn_k", i, kv, shape.hidden)
            yield matrix(p, "attn_v", i, kv, shape.hidden)
            yield matrix(p, "attn_output", i, shape.hidden, q)
            if shape.qk_norm:
                yield f"{p}attn_q_norm.weight", (shape.head_dim,), f32
                yield f"{p}attn_k_norm.weight", (shape.head_dim,), f32
            if shape.biases:
                yield f"{p}attn_sinks.weight", (shape.heads,), f32
                for name, rows in (("q", q), ("k", kv), ("v", kv), ("output", shape.hidden)):
                    yield f"{p}attn_{name}.bias", (rows,), f32
        if shape.ffn == 0:
            continue
        norm = "post_attention_norm" if delta or shape.biases else "ffn_norm"
        yield f"{p}{norm}.weight", (shape.hidden,), f32
        if shape.post_norms:
            yield f"{p}post_attention_norm.weight", (shape.hidden,), f32
            yield f"{p}post_ffw_norm.weight", (shape.hidden,), f32
        if shape.experts is not None and i >= shape.dense_layers:
            yield from experts(p, i, shape.experts)
            continue
        yield matrix(p, "ffn_gate", i, shape.ffn, shape.hidden)
        yield matrix(p, "ffn_up", i, shape.ffn, shape.hidden)
        yield matrix(p, "ffn_down", i, shape.hidden, shape.ffn)


def byte_characters() -> list[str]:
    """Return the 256 printable characters that byte-level BPE represents bytes with."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def add_tokenizer(w: GGUFWriter, n_tokens: int, vocabulary: str | None) -> None:
    """Add the tokenizer of the GGUF file `vocabulary`, or one of bytes and unused tokens."""
    if vocabulary is not None:
        with GGUFFile.open(vocabulary) as file:
            given = file.metadata["tokenizer.ggml.tokens"]
            assert isinstance(given, GGUFArray)
            if len(given) != n_tokens:
                sys.exit(f"{vocabulary} has {len(given)} tokens, and the shape has {n_tokens}")
            for key, value in file.metadata.items():
                if key.startswith("tokenizer."):
                    w.add(key, value)
        return
    letters = byte_characters()
    tokens = letters + [f"<filler_{i}>" for i in range(n_tokens - len(letters) - 1)] + ["<end>"]
    w.add("tokenizer.ggml.model", "gpt2")
    w.add("tokenizer.ggml.pre", "qwen2")
    w.add("tokenizer.ggml.tokens", tokens)
    w.add("tokenizer.ggml.token_type", [1] * (n_tokens - 1) + [3], ValueType.INT32)
    w.add("tokenizer.ggml.merges", [f"{letters[0]} {letters[1]}"])
    w.add("tokenizer.ggml.eos_token_id", n_tokens - 1)
    w.add("tokenizer.ggml.add_bos_token", False)


def write(
    path: str,
    shape: Shape,
    mix: str,
    seed: int = 0,
    repeat: bool = False,
    vocabulary: str | None = None,
) -> None:
    """Write the file to `path`. Equal seeds give equal bytes; `repeat` is as in RandomWeights.

    vocabulary: as for `add_tokenizer`.
    """
    weights = RandomWeights(seed, repeat)
    rng = np.random.default_rng(seed + 1)
    arch = shape.arch
    with GGUFWriter(path) as w:
        w.add("general.architecture", arch)
        w.add("general.name", f"random {arch} {mix}")
        w.add(f"{arch}.block_count", shape.layers)
        w.add(f"{arch}.context_length", shape.context)
        w.add(f"{arch}.embedding_length", shape.hidden)
        w.add(f"{arch}.feed_forward_length", shape.ffn)
        w.add(f"{arch}.attention.head_count", shape.heads)
        kv_heads = [shape.kv_heads * (not shape.is_recurrent(i)) for i in range(shape.layers)]
        key = f"{arch}.attention.head_count_kv"
        w.add(key, kv_heads if shape.attends else shape.kv_heads)
        if shape.mamba is not None:
            w.add(f"{arch}.ssm.conv_kernel", shape.mamba.taps)
            w.add(f"{arch}.ssm.state_size", shape.mamba.state)
            w.add(f"{arch}.ssm.group_count", shape.mamba.groups)
            w.add(f"{arch}.ssm.time_step_rank", shape.mamba.heads)
            w.add(f"{arch}.ssm.inner_size", shape.mamba.cols)
        if shape.kda:
            w.add(f"{arch}.ssm.conv_kernel", KDA_TAPS)
            w.add(f"{arch}.kda.head_dim", shape.kda)
        if shape.short_conv:
            w.add(f"{arch}.shortconv.l_cache", shape.short_conv)
        w.add(f"{arch}.attention.key_length", shape.head_dim)
        w.add(
            f"{arch}.attention.value_length", shape.latent.rank if shape.latent else shape.head_dim
        )
        if shape.rwkv is not None:
            w.add(f"{arch}.wkv.head_size", shape.rwkv.head_dim)
            w.add(f"{arch}.attention.decay_lora_rank", shape.rwkv.decay)
            w.add(f"{arch}.attention.iclr_lora_rank", shape.rwkv.rate)
            w.add(f"{arch}.attention.value_residual_mix_lora_rank", shape.rwkv.value)
            w.add(f"{arch}.attention.gate_lora_rank", shape.rwkv.gate)
            w.add(f"{arch}.attention.layer_norm_epsilon", 1e-5)
        w.add(f"{arch}.attention.layer_norm_rms_epsilon", 1e-6)
        w.add(f"{arch}.rope.freq_base", shape.rope_base)
        if shape.rope_dims is not None:
            w.add(f"{arch}.rope.dimension_count", shape.rope_dims)
        if shape.latent is not None:
            a = shape.latent
            w.add(f"{arch}.attention.kv_lora_rank", a.rank)
            w.add(f"{arch}.attention.key_length_mla", a.nope + a.rope)
            w.add(f"{arch}.attention.value_length_mla", a.value)
            w.add(f"{arch}.leading_dense_block_count", shape.dense_layers)
            w.add(f"{arch}.expert_weights_scale", 1.0)
        if shape.delta is not None:
            w.add(f"{arch}.rope.dimension_sections", [11, 11, 10, 0], ValueType.INT32)
            w.add(f"{arch}.full_attention_interval", shape.delta.interval)
            w.add(f"{arch}.ssm.conv_kernel", shape.delta.taps)
            w.add(f"{arch}.ssm.state_size", shape.delta.head_dim)
            w.add(f"{arch}.ssm.group_count", shape.delta.k_heads)
            w.add(f"{arch}.ssm.time_step_rank", shape.delta.v_heads)
            w.add(f"{arch}.ssm.inner_size", shape.delta.v_cols)
        if shape.experts is not None:
            w.add(f"{arch}.expert_count", shape.experts.count)
            w.add(f"{arch}.expert_used_count", shape.experts.top_k)
            w.add(f"{arch}.expert_feed_forward_length", shape.experts.ffn)
            if shape.experts.shared_ffn:
                key = f"{arch}.expert_shared_feed_forward_length"
                w.add(key, shape.experts.shared_ffn)
        if shape.window:
            w.add(f"{arch}.attention.sliding_window", shape.window)
        if shape.biases:
            w.add(f"{arch}.rope.scaling.type", "yarn")
            w.add(f"{arch}.rope.scaling.factor", 32.0)
            w.add(f"{arch}.rope.scaling.original_context_length", 4096)
        add_tokenizer(w, shape.vocab, vocabulary)
        for name, dims, type in tensors(shape, mix):
            if len(dims) == 1 or dims[-1] == 1 or name.endswith("ssm_norm.weight"):
                values = 1 + 0.1 * rng.standard_normal(dims)
                values *= -1 if name.endswith("ssm_a") else 1
                data = values.astype(np.float32).view(np.uint8)
            else:
                data = weights.matrix(type, math.prod(dims[:-1]), dims[-1])
            w.add_tensor(name, data, type, dims)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("path")
    parser.add_argument(
        "--type", default="q4_k_m", help="q4_k_m, mxfp4 (experts only) or a block type such as q8_0"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeat", action="store_true", help="the same matrices in every layer")
    parser.add_argument("--vocabulary", metavar="FILE", help="GGUF file with the tokenizer")
    args = parser.parse_args()
    write(args.path, SHAPES[args.shape], args.type, args.seed, args.repeat, args.vocabulary)


if __name__ == "__main__":
    main()
