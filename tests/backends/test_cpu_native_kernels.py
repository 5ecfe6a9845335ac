"""CPU kernels other than matrix products, at every SIMD level that this machine runs.

Each is compared with float64 numpy. Outputs and caches are filled with NaN first, which shows
values that a kernel does not write or must not read. Batch invariance is tested bit by bit: the
result of a token depends on its own sequence only, not on the division of a prompt into steps, on
other sequences or on the number of threads.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any, TypeAlias

import effort
import numpy as np
import pytest
from backends.levels import OF_KERNELS
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

_cpu = pytest.importorskip("zinc.backends.cpu._cpu")

Floats: TypeAlias = Any  # NDArray of float32 or float64: the references mix them
EPS = float(np.finfo(np.float32).eps)

pytestmark = pytest.mark.parametrize("level", OF_KERNELS)


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def normal(seed: int, *shape: int) -> Floats:
    return rng(seed).standard_normal(shape).astype(np.float32)


# ---- programs of one launch


def ints(values: Sequence[int]) -> NDArray[np.int32]:
    return np.asarray(values, np.int32)


@dataclass
class Arena:
    """An arena whose operands follow each other. It is NaN until written."""

    size: int = 0

    def rows(self, format: str, n_rows: int, cols: int) -> tuple[str, int, int, int]:
        stride = _cpu.row_bytes(format, cols) + 64
        offset, self.size = self.size, self.size + n_rows * stride
        return format, cols, offset, stride


def run(
    level: str,
    kernel: str,
    ins: Sequence[Any],
    cols: int,
    attrs: dict[str, float],
    *,
    format: str = "f32",
    alias: int | None = None,
    n_rows: int | None = None,
    positions: Sequence[int] | None = None,
    output_rows: Sequence[int] | None = None,
    threads: int = 2,
) -> Any:
    """Run one launch over one sequence. Float arrays become rows; other operands are passed on.

    Returns float32 [rows, cols], or the bytes of each row if the output is quantised.
    """
    n_tokens = n_rows or max(len(x) for x in ins if isinstance(x, np.ndarray))
    arena = Arena()
    specs = [arena.rows("f32", len(x), x.shape[1]) if isinstance(x, np.ndarray) else x for x in ins]
    n_out = n_tokens if output_rows is None else len(output_rows)
    out = specs[alias] if alias is not None else arena.rows(format, n_out, cols)
    program = _cpu.Program(_cpu.Pool(threads), level, arena.size)
    program.bytes_view(0, arena.size)[:] = 0xFF  # NaN
    for x, spec in zip(ins, specs, strict=True):
        if isinstance(x, np.ndarray):
            program.view(spec[2], len(x), x.shape[1], spec[3])[:] = x
    dim = "tokens" if output_rows is None else "outputs"
    program.add(kernel, dim, 0, specs, [out], attrs)
    program.step(
        ints([0] * n_tokens),
        ints(range(n_tokens) if positions is None else positions),
        ints([0] * n_tokens),
        ints([] if output_rows is None else output_rows),
        ints([0, n_tokens]),
        ints([0]),
        [],
    )
    if out[0] == "f32":
        return program.view(out[2], n_out, cols, out[3]).copy()
    size = _cpu.row_bytes(out[0], cols)
    return [program.bytes_view(out[2] + i * out[3], size).copy() for i in range(n_out)]


def vector(x: Floats) -> Any:
    return _cpu.pack_vector(np.ascontiguousarray(x, np.float32))


def ulps(got: Floats, want: Floats) -> float:
    """Return the largest error in ulps of float32; below the smallest normal, in its ulps."""
    spacing = np.spacing(np.maximum(np.abs(want), np.finfo(np.float32).tiny).astype(np.float32))
    return float((np.abs(got.astype(np.float64) - want) / spacing).max())


# ---- rms_norm


def rms_norm(x: Floats, weight: Floats | None, eps: float, group: int) -> Floats:
    x = x.astype(np.float64).reshape(len(x), -1, group)
    y = (x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)).reshape(len(x), -1)
    return y if weight is None else y * np.resize(weight, y.shape[1])


@pytest.mark.parametrize("cols", [1, 7, 16, 33, 64, 96, 127, 300, 1024, 5120])
@pytest.mark.parametrize("n_rows", [1, 3, 70])
def test_rms_norm(level: str, cols: int, n_rows: int) -> None:
    x, weight, residual = normal(0, n_rows, cols) * 3, normal(1, cols), normal(2, n_rows, cols)
    want = rms_norm(x, weight, 1e-6, cols)
    got = run(level, "rms_norm", [x, vector(weight), None], cols, {"eps": 1e-6})
    np.testing.assert_allclose(got, want, rtol=8 * EPS, atol=1e-9)
    got = run(level, "rms_norm", [x, None, None], cols, {"eps": 1e-6}, alias=0)
    np.testing.assert_allclose(got, rms_norm(x, None, 1e-6, cols), rtol=8 * EPS, atol=1e-9)
    got = run(level, "rms_norm", [x, vector(weight), residual], cols, {"eps": 1e-6}, alias=2)
    np.testing.assert_allclose(
        got, want + residual, rtol=8 * EPS, atol=4 * EPS * np.abs(want).max()
    )


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("group", [8, 32, 80])
def test_rms_norm_by_group(level: str, group: int, shared: bool) -> None:
    x, weight = normal(0, 5, 4 * group), normal(1, group if shared else 4 * group)
    attrs = {"eps": 1e-5, "group": group}
    got = run(level, "rms_norm", [x, vector(weight), None], 4 * group, attrs)
    np.testing.assert_allclose(got, rms_norm(x, weight, 1e-5, group), rtol=8 * EPS, atol=1e-9)


# ---- layer_norm


def layer_norm(x: Floats, weight: Floats, bias: Floats, eps: float, group: int) -> Floats:
    runs = x.astype(np.float64).reshape(len(x), -1, group)
    runs = runs - runs.mean(-1, keepdims=True)
    y = runs / np.sqrt((runs**2).mean(-1, keepdims=True) + eps)
    return y.reshape(x.shape) * weight + bias


@pytest.mark.parametrize("cols", [1, 7, 16, 33, 64, 127, 300, 5120])
@pytest.mark.parametrize("mean", [0.0, -40.0])
def test_layer_norm(level: str, cols: int, mean: float) -> None:
    x, weight, bias = normal(0, 5, cols) * 3 + np.float32(mean), normal(1, cols), normal(2, cols)
    # A mean of 40 leaves the differences that many ulps less.
    close = {"rtol": 8 * EPS, "atol": (4 + abs(mean)) * EPS}
    got = run(level, "layer_norm", [x, vector(weight), vector(bias)], cols, {"eps": 1e-5})
    np.testing.assert_allclose(got, layer_norm(x, weight, bias, 1e-5, cols), **close)
    got = run(level, "layer_norm", [x, None, None], cols, {"eps": 1e-5}, alias=0)
    np.testing.assert_allclose(got, layer_norm(x, 1.0, 0.0, 1e-5, cols), **close)


def test_layer_norm_by_group(level: str) -> None:
    x, weight, bias = normal(0, 5, 96), normal(1, 96), normal(2, 96)
    attrs = {"eps": 1e-5, "group": 24}
    got = run(level, "layer_norm", [x, vector(weight), vector(bias)], 96, attrs)
    want = layer_norm(x, weight, bias, 1e-5, 24)
    np.testing.assert_allclose(got, want, rtol=8 * EPS, atol=4 * EPS)


@pytest.mark.parametrize("format", ["q8_32", "q8_256", "q15_32", "bf16"])
@pytest.mark.parametrize("kernel", ["rms_norm", "layer_norm", "glu"])
def test_a_kernel_that_quantises_its_output_agrees_with_quantize(
    level: str, kernel: str, format: str
) -> None:
    cols, x, y = 544, normal(0, 9, 544), normal(1, 9, 544)
    if kernel != "glu":
        ins: list[Any] = [x, vector(y[0]), None]
        attrs: dict[str, float] = {"eps": 1e-6}
    else:
        ins, attrs = [x, y], {"activation": 0}
    floats = run(level, kernel, ins, cols, attrs)
    want = run(level, "quantize", [floats], cols, {}, format=format)
    got = run(level, kernel, ins, cols, attrs, format=format)
    assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))


def quantised(row: Floats) -> tuple[Floats, ...]:
    """Return q, the scales d, d times the sum of each block, and the sums of sixteen of a row."""
    blocks = row.reshape(-1, 32)
    largest = np.abs(blocks).max(1, initial=0)
    used = np.isfinite(largest) & (largest > 1e-30)
    inverse = np.float32(127) / np.where(used, largest, np.float32(1))
    q = np.where(used[:, None], np.rint(blocks * inverse[:, None]), 0).astype(np.int8)
    d = np.where(np.isfinite(largest), np.where(used, largest / np.float32(127), 0), np.nan)
    sums = q.reshape(-1, 16).sum(1, dtype=np.int16)
    d = d.astype(np.float32)
    return q.reshape(-1), d, d * q.sum(1, dtype=np.float32), sums


@pytest.mark.parametrize("cols", [32, 96, 128, 288, 384, 416, 512, 544, 1056])
def test_quantize(level: str, cols: int) -> None:
    x = normal(0, 6, cols) * 5
    x[1] *= 1e-31
    x[2, :32] *= 1e-31
    x[3, cols // 2] = np.inf
    x[4, cols - 1] = np.nan
    x[5, ::7] = -1e30
    padded = -cols % 64
    for row, got in zip(x, run(level, "quantize", [x], cols, {}, format="q8_32"), strict=True):
        at = 0
        for part in quantised(row):
            values = got[at : at + part.nbytes].view(part.dtype)
            np.testing.assert_array_equal(values, part)
            at += part.nbytes + -part.nbytes % 64
        assert (got[cols : cols + padded] == 0xFF).all()


# ---- elementwise and activations


@pytest.mark.parametrize("cols", [1, 15, 16, 100, 9000])
def test_elementwise(level: str, cols: int) -> None:
    a, b = normal(0, 5, cols), normal(1, 5, cols)
    np.testing.assert_array_equal(run(level, "add", [a, b], cols, {}, alias=0), a + b)
    got = run(level, "scale", [a], cols, {"factor": 0.3})
    np.testing.assert_array_equal(got, a * np.float32(0.3))
    rows = [4, 0, 0, 2]
    np.testing.assert_array_equal(
        run(level, "select_rows", [a], cols, {}, output_rows=rows, n_rows=5), a[rows]
    )
    want = 30.0 * np.tanh(a.astype(np.float64) * 20 / 30.0)
    got = run(level, "softcap", [a * 20], cols, {"cap": 30.0})
    np.testing.assert_allclose(got, want, rtol=8 * EPS, atol=1e-6)


def everywhere() -> Floats:
    """Return floats of every relevant magnitude and both signs, and the limits of float32."""
    small = np.float32(2.0) ** np.arange(-140, 8, dtype=np.float32)
    dense = np.linspace(-110, 110, 20011, dtype=np.float32)
    near = np.linspace(-1, 1, 4001, dtype=np.float32)
    ends = np.array([0, 1e4, 3e38, np.inf], np.float32)
    return np.concatenate([dense, near, small, -small, ends, -ends])[None].astype(np.float32)


def test_tanh_is_accurate_everywhere(level: str) -> None:
    x = everywhere()
    got = run(level, "softcap", [x], x.shape[1], {"cap": 1.0})
    assert ulps(got, np.tanh(x.astype(np.float64))) <= 3


def test_exp_is_accurate_everywhere(level: str) -> None:
    # Every activation but relu^2 is a rational function of exp; silu covers its whole range.
    x = everywhere()[:, :-8]
    got = run(level, "glu", [x, np.ones_like(x)], x.shape[1], {"activation": 0})
    wide = x.astype(np.float64)
    want = wide / (1 + np.exp(-wide))
    normal_range = np.abs(want) > 1e-36
    assert ulps(got[normal_range], want[normal_range]) <= 4
    assert np.abs(got[~normal_range]).max() <= 1.1e-36
    ends = np.array([[0, 1e4, np.inf, -1e4, -3e38]], np.float32)
    got = run(level, "glu", [ends, np.ones_like(ends)], 5, {"activation": 0})
    np.testing.assert_array_equal(got, [[0, 1e4, np.inf, 0, 0]])


def test_exact_gelu_is_accurate_everywhere(level: str) -> None:
    x = everywhere()
    wide = x.astype(np.float64)
    got = run(level, "glu", [x, None], x.shape[1], {"activation": 4})
    finite = np.isfinite(x)
    want = 0.5 * wide[finite] * np.vectorize(math.erfc)(-wide[finite] * 0.5**0.5)
    np.testing.assert_allclose(got[finite], want, rtol=2 * EPS, atol=EPS)
    np.testing.assert_array_equal(got[~finite], np.maximum(x[~finite], 0))


def test_nan_stays_nan(level: str) -> None:
    x = np.full((1, 20), np.nan, np.float32)
    for function in range(5):
        assert np.isnan(
            run(level, "glu", [x, np.ones_like(x)], 20, {"activation": function})
        ).all(), function
    assert np.isnan(run(level, "softcap", [x], 20, {"cap": 5.0})).all()
    for norm in ("rms_norm", "layer_norm"):
        assert np.isnan(run(level, norm, [x, None, None], 20, {"eps": 1e-6})).all()


def gated(function: int, gate: Floats, up: Floats) -> Floats:
    gate, up = gate.astype(np.float64), up.astype(np.float64)
    if function == 0:
        return gate / (1 + np.exp(-gate)) * up
    if function == 1:
        u = np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)
        return 0.5 * gate * (1 + np.tanh(u)) * up
    if function == 2:
        return np.maximum(gate, 0) ** 2 * up
    if function == 4:
        return gate * np.vectorize(NormalDist().cdf)(gate) * up
    gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
    return gate / (1 + np.exp(-1.702 * gate)) * (up + 1)


@pytest.mark.parametrize("cols", [5, 48, 100, 8200])
@pytest.mark.parametrize("function", [0, 1, 2, 3, 4])
def test_glu(level: str, function: int, cols: int) -> None:
    gate, up = normal(0, 3, cols) * 6, normal(1, 3, cols) * 6
    got = run(
        level,
        "glu",
        [gate, up],
        cols,
        {"activation": function, "alpha": 1.702, "limit": 7.0},
        alias=1,
    )
    np.testing.assert_allclose(got, gated(function, gate, up), rtol=2e-5, atol=1e-6)


# ---- rope


def angles(positions: Sequence[int], inv_freq: Floats, scale: float = 1.0) -> tuple[Floats, Floats]:
    angle = np.asarray(positions, np.float64)[:, None] * inv_freq.astype(np.float64)
    return np.cos(angle) * scale, np.sin(angle) * scale


def frequencies(rope_dims: int) -> Floats:
    return (10000.0 ** -(np.arange(rope_dims // 2) * 2 / rope_dims)).astype(np.float32)


@pytest.mark.parametrize("rope_dims", [2, 16, 64, 96])
def test_rope_table(level: str, rope_dims: int) -> None:
    inv_freq, positions = frequencies(rope_dims), list(range(100_000, 100_040))
    got = run(
        level,
        "rope_table",
        [vector(inv_freq)],
        rope_dims,
        {"scale": 1.2},
        n_rows=40,
        positions=positions,
    )
    want = np.concatenate(angles(positions, inv_freq, 1.2), axis=1)
    np.testing.assert_allclose(got, want, rtol=0, atol=1.2 * EPS)


def rotated(x: Floats, cos: Floats, sin: Floats, neox: bool) -> Floats:
    """Return x [tokens, heads, dim] rotated by cos and sin [tokens, rope_dims/2].

    Dimensions from rope_dims on are unchanged.
    """
    y, half = x.astype(np.float64).copy(), cos.shape[1]
    first = slice(0, half) if neox else slice(0, 2 * half, 2)
    second = slice(half, 2 * half) if neox else slice(1, 2 * half, 2)
    a, b = y[..., first].copy(), y[..., second].copy()
    y[..., first] = a * cos[:, None] - b * sin[:, None]
    y[..., second] = a * sin[:, None] + b * cos[:, None]
    return y


# ---- caches


@dataclass(frozen=True)
class Sizes:
    heads: int
    kv_heads: int
    dim: int
    dim_v: int
    kv: str = "f16"
    block_tokens: int = 32
    window: int = 0
    softcap: float = 0.0
    scale: float = 0.125
    sinks: bool = False
    format: str = "f32"
    latent: bool = False  # the values are the last dim_v dimensions of the keys

    @property
    def sink_logits(self) -> Floats | None:
        return normal(99, self.heads) * 3 if self.sinks else None


def stored(x: Floats, dtype: str) -> Floats:
    """Return keys or values [..., dim] as the cache stores them. Float32 rounds ties alike."""
    if dtype == "f16":
        return np.clip(x, -65504, 65504).astype(np.float16).astype(np.float64)
    groups = x.astype(np.float32).reshape(*x.shape[:-1], -1, 32)
    least, most = (-127, 127) if dtype == "q8_0" else (-8, 7)
    peaks = np.abs(groups).max(-1, keepdims=True)
    if dtype == "q4_0":  # maps the value of largest magnitude to -8
        peaks = np.take_along_axis(groups, np.abs(groups).argmax(-1, keepdims=True), -1)
    d = peaks * np.float32(1 / (127 if dtype == "q8_0" else -8))
    d = d.astype(np.float16).astype(np.float32)
    quants = np.clip(np.rint(groups * (np.float32(1) / d)), least, most)
    return (quants.astype(np.float64) * d).reshape(x.shape)


def poison(cache: Any, sizes: Sizes, n_blocks: int, level: str) -> None:
    """Fill every block with NaN, by copies of block 0."""
    bad = np.full((sizes.block_tokens, sizes.kv_heads * sizes.dim), np.nan, np.float32)
    bad_v = np.full((sizes.block_tokens, sizes.kv_heads * sizes.dim_v), np.nan, np.float32)
    step = Step(level, sizes, cache, sizes.block_tokens)
    q = np.zeros((sizes.block_tokens, sizes.heads * sizes.dim), np.float32)
    step([(0, q, bad, bad_v)], np.zeros((1, 1), np.int32))
    for block in range(1, n_blocks):
        cache.copy_block(0, block)


class Step:
    """A program of rope_store (without rotation) and attention over one cache."""

    def __init__(self, level: str, sizes: Sizes, cache: Any, room: int, threads: int = 2) -> None:
        arena = Arena()
        self.sizes = sizes
        self.q = arena.rows("f32", room, sizes.heads * sizes.dim)
        self.k = arena.rows("f32", room, sizes.kv_heads * sizes.dim)
        self.v = arena.rows("f32", room, sizes.kv_heads * sizes.dim_v)
        self.o = arena.rows(sizes.format, room, sizes.heads * sizes.dim_v)
        self.size = arena.size
        self.program = _cpu.Program(_cpu.Pool(threads), level, arena.size)
        store = {
            "n_heads": sizes.heads,
            "n_kv_heads": sizes.kv_heads,
            "head_dim": sizes.dim,
            "rope_dims": 0,
            "neox": 1,
            "eps": 0,
        }
        v = None if sizes.latent else self.v
        ins = [self.q, self.k, v, None, None, None, cache]
        self.program.add("rope_store", "tokens", 0, ins, [self.q], store)
        attend = {
            "n_heads": sizes.heads,
            "scale": sizes.scale,
            "window": sizes.window,
            "softcap": sizes.softcap,
        }
        sinks = sizes.sink_logits
        ins = [self.q, cache, None if sinks is None else vector(sinks), None, None]
        self.program.add("attention", "tokens", 0, ins, [self.o], attend)

    def __call__(
        self, parts: Sequence[tuple[int, Floats, Floats, Floats]], tables: NDArray[np.int32]
    ) -> list[Floats]:
        """Run a step. `parts` has the first position and rows of q, k and v of each sequence."""
        lengths = [len(q) for _, q, _, _ in parts]
        n = sum(lengths)
        self.program.bytes_view(0, self.size)[:] = 0xFF
        for spec, i in ((self.q, 1), (self.k, 2), (self.v, 3)):
            view = self.program.view(spec[2], n, spec[1], spec[3])
            view[:] = np.concatenate([part[i] for part in parts])
        positions = [
            start + t for (start, *_), m in zip(parts, lengths, strict=True) for t in range(m)
        ]
        sequence = [s for s, m in enumerate(lengths) for _ in range(m)]
        starts = [int(n) for n in np.cumsum([0, *lengths])]
        args = (ints(sequence), ints(positions), ints(sequence), ints([]), ints(starts))
        self.program.step(*args, ints([0] * len(parts)), [np.ascontiguousarray(tables, np.int32)])
        if self.o[0] != "f32":
            size = _cpu.row_bytes(self.o[0], self.o[1])
            rows = [
                self.program.bytes_view(self.o[2] + t * self.o[3], size).copy() for t in range(n)
            ]
            return list(np.split(np.stack(rows), starts[1:-1]))
        return list(
            np.split(self.program.view(self.o[2], n, self.o[1], self.o[3]).copy(), starts[1:-1])
        )


class Sequences:
    """Random sequences, and their attention when they are run by a schedule of chunks."""

    def __init__(self, sizes: Sizes, lengths: Sequence[int], seed: int = 0) -> None:
        self.sizes, self.lengths = sizes, list(lengths)
        self._references: dict[tuple[int, int], Floats] = {}
        s = sizes
        self.q = [normal(seed + 10 * i, n, s.heads * s.dim) for i, n in enumerate(lengths)]
        self.k = [normal(seed + 10 * i + 1, n, s.kv_heads * s.dim) for i, n in enumerate(lengths)]
        self.v = [normal(seed + 10 * i + 2, n, s.kv_heads * s.dim_v) for i, n in enumerate(lengths)]
        if s.latent:
            heads = [k.reshape(len(k), s.kv_heads, s.dim) for k in self.k]
            self.v = [k[:, :, -s.dim_v :].reshape(len(k), -1) for k in heads]

    def run(
        self,
        level: str,
        schedule: Sequence[Sequence[tuple[int, int, int]]],
        threads: int = 2,
        seed: int = 0,
    ) -> list[Floats]:
        """Return the outputs [n, ...] of each sequence, run in steps of (sequence, first, last).

        Blocks are shuffled, and NaN until they are written and after a window has left them.
        """
        s = self.sizes
        per = [-(-n // s.block_tokens) for n in self.lengths]
        n_blocks = sum(per) + 1
        heads = (s.kv_heads, s.dim, s.dim_v)
        cache = _cpu.KVLayer(0, n_blocks, s.block_tokens, *heads, s.kv, s.latent)
        poison(cache, s, n_blocks, level)
        order = rng(seed + 7).permutation(np.arange(1, n_blocks))  # block 0 stays NaN
        blocks = np.split(order, np.cumsum(per)[:-1])
        tables = np.full((len(per), max(per)), -1, np.int32)
        room = max(sum(last - first for _, first, last in step) for step in schedule)
        step_program = Step(level, s, cache, room, threads)
        out: list[list[Floats]] = [[] for _ in self.lengths]
        for step in schedule:
            for i, first, last in step:
                tables[i, : -(-last // s.block_tokens)] = blocks[i][: -(-last // s.block_tokens)]
                if s.window:  # positions that no token of this step sees
                    freed = max(0, first - s.window + 1) // s.block_tokens
                    for block in blocks[i][:freed]:
                        cache.copy_block(0, int(block))
                    tables[i, :freed] = -1
            parts = [(a, self.q[i][a:b], self.k[i][a:b], self.v[i][a:b]) for i, a, b in step]
            results = step_program(parts, tables[[i for i, _, _ in step]])
            for (i, _, _), rows in zip(step, results, strict=True):
                out[i].append(rows)
        return [np.concatenate(rows) if rows else np.empty(0) for rows in out]

    def reference(self, i: int, first: int = 0) -> Floats:
        """Return attention of rows from `first` on over stored keys and values, in float64."""
        if (i, first) not in self._references:
            self._references[i, first] = self._make_reference(i, first)
        return self._references[i, first]

    def _make_reference(self, i: int, first: int) -> Floats:
        s, n = self.sizes, self.lengths[i]
        q = self.q[i].reshape(n, s.heads, s.dim)[first:]
        if s.kv != "f16":  # queries are rounded like 8-bit keys: x = d q in groups of 32
            groups = q.reshape(len(q), s.heads, -1, 32)
            top = np.abs(groups).max(-1, keepdims=True)
            quants = np.rint(groups * (np.float32(127) / top)).astype(np.float64)
            q = (quants * (top.astype(np.float64) / 127)).reshape(q.shape)
        k = stored(self.k[i].reshape(n, s.kv_heads, s.dim), s.kv)
        v = stored(self.v[i].reshape(n, s.kv_heads, s.dim_v), s.kv)
        if s.latent:
            v = k[..., -s.dim_v :]
        k, v = (np.repeat(x, s.heads // s.kv_heads, axis=1) for x in (k, v))
        logits = q.astype(np.float64).transpose(1, 0, 2) @ k.transpose(1, 2, 0) * s.scale
        if s.softcap:
            logits = np.tanh(logits / s.softcap) * s.softcap
        behind = np.arange(first, n)[:, None] - np.arange(n)[None]
        visible = (behind >= 0) & ((behind < s.window) if s.window else True)
        logits = np.where(visible, logits, -np.inf)
        sinks = s.sink_logits
        if sinks is not None:
            column = np.broadcast_to(sinks.astype(np.float64)[:, None, None], (s.heads, len(q), 1))
            logits = np.concatenate([logits, column], axis=2)
        p = np.exp(logits - logits.max(-1, keepdims=True))
        p = (p / p.sum(-1, keepdims=True))[..., :n]
        return (p @ v.transpose(1, 0, 2)).transpose(1, 0, 2).reshape(len(q), -1)


def whole(lengths: Sequence[int]) -> list[list[tuple[int, int, int]]]:
    return [[(i, 0, n) for i, n in enumerate(lengths)]]


def alone(i: int, n: int, cuts: Sequence[int]) -> list[list[tuple[int, int, int]]]:
    edges = [0, *sorted(cuts), n]
    return [[(i, a, b)] for a, b in itertools.pairwise(edges) if a < b]


# Probabilities and values are summed over up to 700 keys in float32; |v| stays below 5.
ATTENTION_ERROR = 1e-5

SHAPES = [
    Sizes(1, 1, 16, 16, block_tokens=16),
    Sizes(4, 4, 32, 32),
    Sizes(4, 2, 64, 64, block_tokens=64),
    Sizes(6, 2, 80, 80),
    Sizes(8, 2, 96, 96, block_tokens=16),
    Sizes(5, 1, 128, 128, scale=0.0884),
    Sizes(14, 2, 64, 64),
    Sizes(8, 1, 256, 256, scale=0.0625),
    Sizes(9, 1, 576, 512, scale=0.04),
    Sizes(100, 1, 32, 16),
    Sizes(4, 2, 32, 32, window=1),
    Sizes(4, 2, 32, 32, window=7, block_tokens=16),
    Sizes(4, 2, 32, 32, window=100, block_tokens=16),
    Sizes(4, 2, 32, 32, window=10_000),
    Sizes(4, 2, 32, 32, softcap=2.0, scale=0.5),
    Sizes(8, 1, 64, 64, sinks=True, window=128),
    Sizes(4, 2, 64, 64, kv="q8_0"),
    Sizes(8, 2, 96, 128, kv="q8_0", block_tokens=16),
    Sizes(24, 1, 128, 128, kv="q8_0", window=90, sinks=True, scale=0.0884),
    Sizes(3, 3, 256, 256, kv="q8_0", softcap=5.0, scale=0.0625),
    Sizes(4, 2, 64, 64, kv="q4_0"),
    Sizes(8, 2, 96, 128, kv="q4_0", block_tokens=16),
    Sizes(24, 1, 128, 128, kv="q4_0", window=90, sinks=True, scale=0.0884),
    Sizes(3, 3, 32, 160, kv="q4_0", softcap=5.0, scale=0.0625),
    Sizes(1, 1, 48, 32, latent=True, block_tokens=16),
    Sizes(16, 1, 96, 64, latent=True),
    Sizes(130, 1, 32, 16, latent=True),
    Sizes(9, 1, 576, 512, latent=True, scale=0.04),
    Sizes(16, 2, 96, 64, latent=True, kv="q8_0"),
    Sizes(5, 1, 128, 64, latent=True, kv="q8_0", window=50),
    Sizes(16, 2, 96, 64, latent=True, kv="q4_0"),
]


def slow(level: str, sizes: Sizes) -> bool:
    return level == "scalar" or sizes.heads * sizes.dim > 3000


@lru_cache(maxsize=4)
def same_for_all_levels(sizes: Sizes, seed: int, *lengths: int) -> Sequences:
    return Sequences(sizes, lengths, seed)


@pytest.mark.alike(24)
@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_attention_of_a_ragged_batch(level: str, sizes: Sizes) -> None:
    lengths = [70, 1, 33, 16, 7] if slow(level, sizes) else [70, 1, 330, 64, 7, 2]
    sequences = same_for_all_levels(sizes, 0, *lengths)
    for i, got in enumerate(sequences.run(level, whole(lengths))):
        np.testing.assert_allclose(got, sequences.reference(i), rtol=0, atol=ATTENTION_ERROR)


@pytest.mark.alike(24)
@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_decode_of_several_sequences(level: str, sizes: Sizes) -> None:
    lengths = [45, 20, 64, 130] if slow(level, sizes) else [300, 20, 64, 521]
    sequences = same_for_all_levels(sizes, 3, *lengths)
    last = 3
    schedule = [[(i, 0, n - last) for i, n in enumerate(lengths)]]
    schedule += [
        [(i, n - last + t, n - last + t + 1) for i, n in enumerate(lengths)] for t in range(last)
    ]
    for i, got in enumerate(sequences.run(level, schedule)):
        first = 0 if effort.EVERY else lengths[i] - last - 10
        want = sequences.reference(i, first)
        np.testing.assert_allclose(got[first:], want, rtol=0, atol=ATTENTION_ERROR)


INVARIANT = [
    Sizes(4, 2, 32, 32, block_tokens=16),
    Sizes(16, 2, 64, 64),
    Sizes(8, 1, 64, 64, sinks=True, window=150, block_tokens=16, softcap=3.0),
    Sizes(4, 2, 64, 64, kv="q8_0"),
    Sizes(12, 1, 32, 32, kv="q8_0", window=70),
    Sizes(4, 2, 64, 64, kv="q4_0"),
    Sizes(12, 1, 32, 32, kv="q4_0", window=70),
    Sizes(4, 2, 32, 64, format="q8_256"),
    Sizes(8, 2, 32, 32, format="q8_32"),
    Sizes(20, 1, 96, 64, latent=True),
    Sizes(4, 1, 96, 64, latent=True, kv="q8_0"),
]


@pytest.mark.alike(10)
@pytest.mark.parametrize("sizes", INVARIANT, ids=str)
def test_attention_does_not_depend_on_chunks_other_sequences_or_threads(
    level: str, sizes: Sizes
) -> None:
    n = 90 if level == "scalar" else 700
    lengths = [n, 40, 5]
    sequences = Sequences(sizes, lengths)
    want = sequences.run(level, alone(0, n, []), threads=1)[0]
    random = rng(5)
    for threads, count in ((2, 3), (3, 12), (1, 40), (4, 0)):
        cuts = sorted(int(c) for c in random.integers(1, n, count))
        got = sequences.run(level, alone(0, n, cuts), threads, seed=threads)[0]
        assert np.array_equal(got, want), (threads, cuts)
    # With other sequences, then token by token to the end.
    schedule = [[(1, 0, 40), (0, 0, n - 40), (2, 0, 5)]]
    schedule += [[(0, t, t + 1)] for t in range(n - 40, n)]
    assert np.array_equal(sequences.run(level, schedule, 3)[0], want)


SHORT = [
    Sizes(6, 6, 32, 32),
    Sizes(12, 12, 32, 32, format="q8_32"),
    Sizes(8, 4, 64, 64, kv="q8_0", window=3),
    Sizes(16, 4, 96, 64, latent=True),
]


@pytest.mark.parametrize("sizes", SHORT, ids=str)
def test_heads_of_short_sequences_share_chunks(level: str, sizes: Sizes) -> None:
    lengths = [1 + i % 19 for i in range(40)]
    sequences = Sequences(sizes, lengths)
    want = [sequences.run(level, alone(i, lengths[i], []), 4)[i] for i in range(19)]
    if sizes.format == "f32":
        for i, rows in enumerate(want):
            np.testing.assert_allclose(rows, sequences.reference(i), rtol=0, atol=ATTENTION_ERROR)
    for threads in (1, 2, 3):
        got = sequences.run(level, whole(lengths), threads)
        assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=False)), threads


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_any_schedule_gives_the_same_bits(level: str, data: st.DataObject) -> None:
    sizes = data.draw(st.sampled_from(INVARIANT))
    lengths = data.draw(
        st.lists(st.integers(1, 40 if level == "scalar" else 300), min_size=1, max_size=3)
    )
    sequences = Sequences(sizes, lengths)
    want = [sequences.run(level, alone(i, n, []), 1)[i] for i, n in enumerate(lengths)]
    done, schedule = [0] * len(lengths), []
    while any(d < n for d, n in zip(done, lengths, strict=True)):
        step: list[tuple[int, int, int]] = []
        for i, n in enumerate(lengths):
            size = data.draw(st.integers(0, n - done[i]) | st.integers(0, min(2, n - done[i])))
            if not step and all(
                d == m for d, m in zip(done[i + 1 :], lengths[i + 1 :], strict=True)
            ):
                size = max(size, min(1, n - done[i]))
            if size:
                step.append((i, done[i], done[i] + size))
                done[i] += size
        schedule.append(step)
    got = sequences.run(level, schedule, data.draw(st.integers(1, 4)))
    assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))


def test_attention_can_quantise_its_output(level: str) -> None:
    lengths = [70, 9, 1]
    floats = Sequences(Sizes(6, 2, 32, 32), lengths).run(level, whole(lengths))
    for format in ("q8_32", "q8_256", "q15_32", "bf16"):
        bytes_ = Sequences(Sizes(6, 2, 32, 32, format=format), lengths).run(level, whole(lengths))
        for rows, got in zip(floats, bytes_, strict=True):
            want = run(level, "quantize", [rows], rows.shape[1], {}, format=format)
            assert np.array_equal(got, np.stack(want))


def test_far_logits_and_late_maxima(level: str) -> None:
    """With logits of hundreds that rise and fall, exp neither overflows nor loses the sum."""
    sizes = Sizes(2, 1, 32, 32, scale=1.0)
    n = 90 if level == "scalar" else 600
    for sign in (1, -1):
        sequences = Sequences(sizes, [n])
        sequences.k[0][:, 0] += sign * np.linspace(0, 300, n, dtype=np.float32)
        sequences.q[0][:, 0] = 1.0
        sequences.q[0][:, 32] = 1.0
        got = sequences.run(level, whole([n]))[0]
        np.testing.assert_allclose(got, sequences.reference(0), rtol=0, atol=2e-3)
        assert np.isfinite(got).all()


# ---- rope_store

STORES = [
    (dim, rope_dims, neox, norms, kv)
    for dim, rope_dims in ((16, 16), (32, 0), (64, 64), (80, 32), (96, 40), (128, 128), (256, 64))
    for neox in (True, False)
    for norms in (True, False)
    for kv in ("f16", "q8_0", "q4_0")
    if kv == "f16" or dim % 32 == 0
]


@pytest.mark.alike(100)
@pytest.mark.parametrize(("dim", "rope_dims", "neox", "norms", "kv"), STORES)
@pytest.mark.parametrize("n", [1, 5, 70])
def test_rope_store(
    level: str, dim: int, rope_dims: int, neox: bool, norms: bool, kv: str, n: int
) -> None:
    heads, kv_heads, start = 6, 2, 37
    q, k, v = (
        normal(0, n, heads * dim) * 4,
        normal(1, n, kv_heads * dim),
        normal(2, n, kv_heads * dim),
    )
    weights = (normal(3, dim), normal(4, dim)) if norms else (None, None)
    table_blocks = ints([3, 0, 5, 1, 6, 2, 4])
    cache = _cpu.KVLayer(0, 8, 16, kv_heads, dim, dim, kv)
    arena = Arena()
    spec_q, spec_k, spec_v = (arena.rows("f32", n, x.shape[1]) for x in (q, k, v))
    spec_out = arena.rows("f32", n, q.shape[1])
    tab = arena.rows("f32", n, rope_dims) if rope_dims else None
    program = _cpu.Program(_cpu.Pool(2), level, arena.size)
    program.bytes_view(0, arena.size)[:] = 0xFF
    for x, spec in ((q, spec_q), (k, spec_k), (v, spec_v)):
        program.view(spec[2], n, spec[1], spec[3])[:] = x
    inv_freq = frequencies(rope_dims) if rope_dims else np.zeros(0, np.float32)
    if tab:
        program.add("rope_table", "tokens", 0, [vector(inv_freq)], [tab], {})
    attrs = {
        "n_heads": heads,
        "n_kv_heads": kv_heads,
        "head_dim": dim,
        "rope_dims": rope_dims,
        "neox": neox,
        "eps": 1e-6,
        "v_norm": norms,
    }
    norm_vectors = [None if w is None else vector(w) for w in weights]
    ins = [spec_q, spec_k, spec_v, tab, *norm_vectors, cache]
    out = spec_out if n != 5 else spec_q
    program.add("rope_store", "tokens", 0, ins, [out], attrs)
    positions = range(start, start + n)
    zeros = ints([0] * n)
    program.step(
        zeros, ints(positions), zeros, ints([]), ints([0, n]), ints([0]), [table_blocks[None]]
    )

    cos, sin = angles(positions, inv_freq)

    def head_norm(x: Floats, weight: Floats | None) -> Floats:
        x = x.reshape(n, -1, dim).astype(np.float64)
        y = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
        return y if weight is None else y * weight

    want_q, want_k, want_v = (x.reshape(n, -1, dim).astype(np.float64) for x in (q, k, v))
    if norms:
        want_q, want_k, want_v = (
            head_norm(q, weights[0]),
            head_norm(k, weights[1]),
            head_norm(v, None),
        )
    if rope_dims:
        want_q, want_k = rotated(want_q, cos, sin, neox), rotated(want_k, cos, sin, neox)
    got_q = program.view(out[2], n, out[1], out[3]).reshape(n, heads, dim)
    np.testing.assert_allclose(got_q, want_q, rtol=0, atol=8 * EPS * np.abs(want_q).max())
    got_k, got_v = (x[start:] for x in cache.read(table_blocks, start + n))
    for got, want in ((got_k, want_k), (got_v, want_v)):
        if kv != "f16":  # half a quant (q4_0: a whole one beyond 7) and the rounding of the scale
            top = np.abs(want.reshape(n, kv_heads, -1, 32)).max(-1).repeat(32, axis=-1)
            step = 0.5 / 127 if kv == "q8_0" else 1 / 8
            assert (np.abs(got - want) <= top * (step + 2**-10)).all()
            near = 1e-5 if kv == "q8_0" else 1e-3  # a value between two quants may round either way
            assert np.abs(got - stored(want, kv)).mean() <= near * np.abs(want).max()
        else:
            np.testing.assert_allclose(got, want, rtol=2**-11 * 1.01, atol=1e-6)


def test_rope_store_saturates_and_can_leave_the_cache_alone(level: str) -> None:
    q = normal(0, 4, 64)
    attrs: dict[str, float] = {
        "n_heads": 2,
        "n_kv_heads": 2,
        "head_dim": 32,
        "rope_dims": 0,
        "neox": 1,
        "eps": 0,
    }
    got = run(level, "rope_store", [q, *[None] * 6], 64, attrs)
    np.testing.assert_array_equal(got, q)
    sizes = Sizes(2, 2, 32, 32)
    sequences = Sequences(sizes, [20])
    sequences.v[0][3, 5] = 1e6
    got = sequences.run(level, whole([20]))[0]
    np.testing.assert_allclose(got, sequences.reference(0), rtol=1e-5, atol=1e-5)


# ---- errors


def test_bad_operands_are_refused(level: str) -> None:
    x, pair = normal(0, 2, 64), normal(0, 2, 48)
    cases: list[tuple[str, list[Any], dict[str, float], str]] = [
        ("rms_norm", [x, vector(x[0, :7]), None], {"eps": 1e-6}, "weight"),
        ("rms_norm", [x, None, None], {}, "eps"),
        ("rms_norm", [x, None, None], {"eps": 1e-6, "group": 7}, "group"),
        ("rms_norm", [x, None], {"eps": 1e-6}, "inputs"),
        ("layer_norm", [x, vector(x[0]), vector(x[0, :7])], {"eps": 1e-6}, "bias"),
        ("add", [x, pair], {}, "columns"),
        ("glu", [x, x], {"activation": 9}, "activation"),
        ("softcap", [x], {"cap": 0.0}, "cap"),
        ("attention", [x, None, None, None, None], {"n_heads": 2, "scale": 1.0}, "kv"),
    ]
    for kernel, ins, attrs, text in cases:
        with pytest.raises(ValueError, match=text):
            run(level, kernel, ins, 64, attrs)


def test_caches_of_impossible_shape_are_refused(level: str) -> None:
    for args in (
        (0, 4, 32, 2, 40, 32, "f16"),
        (0, 4, 32, 2, 592, 32, "f16"),
        (0, 4, 24, 2, 32, 32, "f16"),
    ):
        with pytest.raises(ValueError, match="multiple of 16"):
            _cpu.KVLayer(*args)
    with pytest.raises(ValueError, match="multiples of 32"):
        _cpu.KVLayer(0, 4, 32, 2, 80, 80, "q4_0")
    with pytest.raises(ValueError, match="no KV type 'q9'"):
        _cpu.KVLayer(0, 4, 32, 2, 64, 64, "q9")


def test_a_position_without_a_block_is_an_error(level: str) -> None:
    sizes = Sizes(2, 1, 32, 32)
    cache = _cpu.KVLayer(0, 2, 32, 1, 32, 32, "f16")
    step = Step(level, sizes, cache, 4)
    rows = (normal(0, 4, 64), normal(1, 4, 32), normal(2, 4, 32))
    for table in ([-1], [2], [0]):
        start = 30 if table == [0] else 0
        with pytest.raises((IndexError, RuntimeError, ValueError), match="block"):
            step([(start, *rows)], ints(table)[None])
