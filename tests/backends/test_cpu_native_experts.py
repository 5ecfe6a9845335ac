"""CPU kernels of experts and of per-head products, at every SIMD level that this machine runs.

Products are compared with float64 numpy on the weights as gguf decodes them and on the rounded rows
of x, so the tolerance covers float rounding only. Outputs are NaN before a kernel writes them. The
result of a token must not depend on other tokens in the step, bit by bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from backends.levels import OF_FORMATS
from backends.test_cpu_native_linear import (
    block_of,
    dequantize,
    numbers_of_15_bits,
    random_rows,
    weights_seen,
)
from numpy.typing import NDArray

from zinc.ops.elementwise import activate
from zinc.ops.moe import SIGMOID, SOFTMAX, SOFTMAX_CHOSEN, SPARSE_MIXER, group_experts, route

_cpu = pytest.importorskip("zinc.backends.cpu._cpu")

Floats = NDArray[Any]
Spec = tuple[str, int, int, int]
WEIGHTS = ["F32", "BF16", "Q8_0", "MXFP4", "Q4_K", "Q6_K", "IQ4_XS"]
ROUNDING = 3e-6  # error of sums in float32, relative to the sum of magnitudes

pytestmark = pytest.mark.parametrize("level", OF_FORMATS)


def ints(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


class Launches:
    """A program over `n_tokens` rows. Operands follow each other and are NaN until written."""

    def __init__(self, level: str, n_tokens: int, threads: int = 2) -> None:
        self.n, self._end = n_tokens, 0
        self.program = _cpu.Program(_cpu.Pool(threads), level, 1 << 23)

    def rows(self, format: str, cols: int, runs: int = 1, count: int | None = None) -> Spec:
        """Add `count` rows, by default one a token. Each of several runs is stored as a row."""
        stride = _cpu.row_bytes(format, cols)
        if format != "f32":
            stride = max(stride, runs * _cpu.row_bytes(format, cols // runs))
        offset, n = self._end, self.n if count is None else count
        self._end += n * stride
        self.program.bytes_view(offset, n * stride)[:] = 0xFF
        return format, cols, offset, 0 if count == 1 else stride

    def given(self, values: Floats) -> Spec:
        spec = self.rows("f32", values.shape[1])
        self.floats(spec)[:] = values
        return spec

    def floats(self, spec: Spec) -> Floats:
        _, cols, offset, stride = spec
        if stride == 0:
            return self.program.view(offset, 1, cols, 4 * cols)
        return self.program.view(offset, self.n, cols, stride)

    def run_rows(self, spec: Spec, runs: int) -> NDArray[np.uint8]:
        """Return the bytes of each run of each row of an operand: [tokens * runs, bytes]."""
        format, cols, offset, stride = spec
        size = _cpu.row_bytes(format, cols // runs)
        raw = self.program.bytes_view(offset, self.n * stride).reshape(self.n, stride)
        return raw[:, : runs * size].reshape(self.n * runs, size).copy()

    def add(self, kernel: str, ins: Sequence[Any], outs: Sequence[Spec], **attrs: float) -> None:
        self.program.add(kernel, "tokens", 0, list(ins), list(outs), attrs)

    def step(self) -> None:
        rows = np.arange(self.n, dtype=np.int32)
        self.program.step(rows, rows, 0 * rows, ints(), ints(0, self.n), ints(0), [])


def numbers(rows: NDArray[np.uint8], format: str, cols: int) -> Floats:
    """Decode rows of a row format to numbers [rows, cols], by its description."""
    if format == "f32":
        return rows.view(np.float32)[:, :cols].astype(np.float64)
    if format == "bf16":
        bits = rows[:, : 2 * cols].copy().view(np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).astype(np.float64)
    if format == "q15_32":
        return numbers_of_15_bits(rows, cols)
    block = 32 if format == "q8_32" else 256
    start, n = -(-cols // 64) * 64, -(-cols // block)
    d = rows[:, start : start + 4 * n].copy().view(np.float32).astype(np.float64)
    return rows[:, :cols].view(np.int8) * np.repeat(d, block, axis=1)[:, :cols]


@dataclass
class Experts:
    """Random experts of one format, packed and as numbers [experts, rows, cols]."""

    packed: Any
    values: Floats

    @classmethod
    def random(cls, level: str, name: str, shape: tuple[int, int, int], seed: int) -> Experts:
        count, rows, cols = shape
        data, values = random_experts(name, shape, seed)
        packed = _cpu.pack(_cpu.Pool(2), level, name, data.reshape(-1), count, rows, cols)
        return cls(packed, values)


@cache
def random_experts(name: str, shape: tuple[int, int, int], seed: int) -> tuple[Any, Floats]:
    """Return random blocks in the encoding of a file, and their numbers."""
    count, rows, cols = shape
    data = random_rows(np.random.default_rng(seed), name, count * rows, cols)
    return data, dequantize(name, data).astype(np.float64).reshape(shape)


@dataclass
class Layer:
    """A layer of experts with every optional operand."""

    level: str
    name: str
    count: int = 6
    top_k: int = 2
    hidden: int = 256
    ff: int = 512
    activation: int = 3

    def __post_init__(self) -> None:
        size = max(block_of(self.name)[0], 1)
        assert self.hidden % size == self.ff % size == 0
        rng = np.random.default_rng(11)
        wide, narrow = (self.count, self.ff, self.hidden), (self.count, self.hidden, self.ff)
        self.gate = Experts.random(self.level, self.name, wide, 1)
        self.up = Experts.random(self.level, self.name, wide, 2)
        self.down = Experts.random(self.level, self.name, narrow, 3)
        self.b_gate, self.b_up = rng.standard_normal((2, self.count, self.ff), dtype=np.float32)
        self.b_down = rng.standard_normal((self.count, self.hidden), dtype=np.float32)
        self.scale = rng.uniform(0.5, 2.0, self.count).astype(np.float32)
        self.format = _cpu.row_format(self.level, self.name)

    def tokens(self, n: int, seed: int = 0) -> tuple[Floats, Floats, Floats]:
        """Return rows, routes and residual of n tokens that never choose expert 0 and often 1."""
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((n, self.hidden), dtype=np.float32)
        scores = rng.random((n, self.count)) + np.eye(self.count)[1] * 0.5 - np.eye(self.count)[0]
        ids = np.argsort(-scores, axis=1)[:, : self.top_k]
        weights = rng.uniform(0.1, 1.0, (n, self.top_k))
        routes = np.concatenate([ids, weights], axis=1).astype(np.float32)
        return x, routes, rng.standard_normal((n, self.hidden), dtype=np.float32)

    def run(
        self, x: Floats, routes: Floats, residual: Floats, *, h_format: str, threads: int = 2
    ) -> tuple[Floats, Floats, Floats, Launches, Spec]:
        """Run the layer on rows `x`.

        Return x after rounding to its row format, h [slots, ff] and y as numbers, then the program
        and its operand for h.
        """
        n, k = len(x), self.top_k
        p = Launches(self.level, n, threads)
        source, r, z = p.given(x), p.given(routes), p.given(residual)
        rounded = source
        if self.format != "f32":
            rounded = p.rows(self.format, self.hidden)
            p.add("quantize", [source], [rounded])
        order, starts = p.rows("f32", k), p.rows("f32", self.count + 1, count=1)
        h, y = p.rows(h_format, k * self.ff, runs=k), p.rows("f32", self.hidden)
        vectors = [_cpu.pack_vector(b.reshape(-1)) for b in (self.b_gate, self.b_up, self.b_down)]
        p.add("group_experts", [r], [order, starts], n_experts=self.count)
        ins = [rounded, order, starts, self.gate.packed, self.up.packed, *vectors[:2]]
        p.add("moe_glu", ins, [h], activation=self.activation, alpha=1.702, limit=7.0)
        if h_format == self.format:
            scale = _cpu.pack_vector(self.scale)
            ins = [h, order, starts, r, self.down.packed, vectors[2], scale, z]
            p.add("moe_down", ins, [y])
        p.step()
        if h_format == "f32":
            values = p.floats(h).reshape(n * k, self.ff).astype(np.float64)
        else:
            values = numbers(p.run_rows(h, k), h_format, self.ff)
        if self.format == "f32":
            seen = x.astype(np.float64)
        else:
            seen = numbers(p.run_rows(rounded, 1), self.format, self.hidden)
        return seen, values, p.floats(y).copy(), p, h


def products(rows: Floats, values: Floats, experts: NDArray[Any]) -> Floats:
    """Return the product of each row and the matrix of its expert."""
    found = np.empty((len(rows), values.shape[1]))
    for expert in np.unique(experts):
        mine = experts == expert
        found[mine] = rows[mine] @ values[expert].T
    return found


def case(level: str, name: str) -> Layer:
    wide = block_of(name)[0] == 256
    return Layer(level, name, hidden=256 if wide else 96, ff=512 if wide else 160)


@pytest.mark.alike(30)
@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("n", [1, 2, 5, 40, 300])
def test_experts_agree_with_decoded_weights(level: str, name: str, n: int) -> None:
    if level == "scalar" and n > 40:
        pytest.skip("slow")
    layer = case(level, name)
    x, routes, residual = layer.tokens(n)
    ids, weights = routes[:, :2].astype(int), routes[:, 2:]
    seen, h, y, *_ = layer.run(x, routes, residual, h_format=layer.format)

    e, rows = ids.reshape(-1), np.repeat(seen, layer.top_k, axis=0)
    gate = products(rows, layer.gate.values, e) + layer.b_gate[e]
    up = products(rows, layer.up.values, e) + layer.b_up[e]
    want = activate(layer.activation, gate, up, {"alpha": 1.702, "limit": 7.0})
    floats = layer.run(x, routes, residual, h_format="f32")[1]
    spread = np.abs(rows) @ np.abs(layer.gate.values).max((0, 1))
    np.testing.assert_allclose(floats, want, rtol=1e-4, atol=ROUNDING * 64 * spread.max())

    out = products(h, layer.down.values, e) * layer.scale[e][:, None]
    out = (out + layer.b_down[e]) * weights.reshape(-1, 1)
    total = out.reshape(n, layer.top_k, -1).sum(axis=1) + residual
    magnitude = products(np.abs(h), np.abs(layer.down.values), e).max()
    np.testing.assert_allclose(y, total, rtol=0, atol=ROUNDING * 4 * magnitude)


@pytest.mark.alike(50)
@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("format", ["q8_32", "q8_256", "q15_32", "bf16"])
@pytest.mark.parametrize("n", [1, 3, 40])
def test_runs_of_h_are_rounded_like_rows(level: str, name: str, format: str, n: int) -> None:
    """The op `quantize` on each expert's columns gives the same bytes, however work is divided."""
    layer = case(level, name)
    x, routes, residual = layer.tokens(n, seed=n)
    floats = layer.run(x, routes, residual, h_format="f32")[1].astype(np.float32)
    *_, p, h = layer.run(x, routes, residual, h_format=format)
    q = Launches(level, len(floats))
    source, rounded = q.given(floats), q.rows(format, layer.ff)
    q.add("quantize", [source], [rounded])
    q.step()
    got, want = p.run_rows(h, layer.top_k), q.run_rows(rounded, 1)
    cols = np.arange(got.shape[1]) < used_bytes(format, layer.ff)
    np.testing.assert_array_equal(numbers(got, format, layer.ff), numbers(want, format, layer.ff))
    np.testing.assert_array_equal(got[:, cols], want[:, cols])


def used_bytes(format: str, cols: int) -> int:
    """Return the bytes of the quants, without padding and scales."""
    return 2 * cols if format in ("bf16", "q15_32") else cols


@pytest.mark.alike(6)
@pytest.mark.parametrize("name", WEIGHTS)
def test_a_token_does_not_depend_on_other_tokens(level: str, name: str) -> None:
    layer = case(level, name)
    n = 24 if level == "scalar" else 150
    x, routes, residual = layer.tokens(n, seed=4)

    def run(rows: slice, threads: int) -> Floats:
        return layer.run(
            x[rows], routes[rows], residual[rows], h_format=layer.format, threads=threads
        )[2]

    alone = np.concatenate([run(slice(i, i + 1), 1) for i in range(n)])
    assert np.isfinite(alone).all()
    for threads, size in ((1, n), (2, 3), (3, 17), (4, n)):
        parts = [run(slice(i, i + size), threads) for i in range(0, n, size)]
        np.testing.assert_array_equal(np.concatenate(parts), alone)


def test_gate_and_up_of_different_formats(level: str) -> None:
    layer = case(level, "Q4_K")
    layer.up = Experts.random(level, "Q6_K", (layer.count, layer.ff, layer.hidden), 5)
    x, routes, residual = layer.tokens(9)
    seen, h, *_ = layer.run(x, routes, residual, h_format="f32")
    e, rows = routes[:, :2].astype(int).reshape(-1), np.repeat(seen, 2, axis=0)
    gate = products(rows, layer.gate.values, e) + layer.b_gate[e]
    up = products(rows, layer.up.values, e) + layer.b_up[e]
    want = activate(layer.activation, gate, up, {"alpha": 1.702, "limit": 7.0})
    np.testing.assert_allclose(h, want, rtol=1e-4, atol=1e-3)


# ---- routing

ROUTERS: list[dict[str, float]] = [
    {"scoring": SOFTMAX, "top_k": 8, "renormalise": 1, "scale": 1.0},
    {"scoring": SOFTMAX, "top_k": 3, "renormalise": 0, "scale": 16.0},
    {"scoring": SOFTMAX_CHOSEN, "top_k": 4, "renormalise": 0, "scale": 1.0},
    {"scoring": SOFTMAX_CHOSEN, "top_k": 4, "renormalise": 1, "scale": 2.0},
    {"scoring": SIGMOID, "top_k": 6, "renormalise": 1, "scale": 2.5},
    {"scoring": SIGMOID, "top_k": 1, "renormalise": 0, "scale": 1.0},
    {"scoring": SPARSE_MIXER, "top_k": 3, "renormalise": 0, "scale": 1.0},
    {"scoring": SIGMOID, "top_k": 6, "renormalise": 1, "scale": 2.5}
    | {"n_groups": 8, "top_groups": 4, "group_top": 2},
    {"scoring": SOFTMAX, "top_k": 5, "renormalise": 0, "scale": 1.0}
    | {"n_groups": 4, "top_groups": 2},
]


def routed(level: str, logits: Floats, bias: Floats | None, attrs: dict[str, float]) -> Floats:
    p = Launches(level, len(logits))
    x, y = p.given(logits), p.rows("f32", 2 * int(attrs["top_k"]))
    p.add("route", [x, None if bias is None else _cpu.pack_vector(bias)], [y], **attrs)
    p.step()
    return p.floats(y).copy()


@pytest.mark.parametrize("attrs", ROUTERS, ids=str)
@pytest.mark.parametrize("n_experts", [8, 40, 160])
@pytest.mark.parametrize("biased", [False, True])
def test_route(level: str, attrs: dict[str, float], n_experts: int, biased: bool) -> None:
    rng = np.random.default_rng(n_experts)
    attrs = {"n_groups": 1, "top_groups": 1, "group_top": 1, **attrs}
    attrs["group_top"] = min(attrs["group_top"], n_experts // attrs["n_groups"])
    if attrs["top_k"] > n_experts // attrs["n_groups"] * attrs["top_groups"]:
        pytest.skip("too few experts")
    logits = rng.standard_normal((21, n_experts), dtype=np.float32) * 3
    bias = rng.standard_normal(n_experts, dtype=np.float32) if biased else None
    want = route(None, attrs, logits, bias)[0]
    got = routed(level, logits, bias, attrs)
    k = int(attrs["top_k"])
    np.testing.assert_array_equal(got[:, :k], want[:, :k])
    np.testing.assert_allclose(got[:, k:], want[:, k:], rtol=2e-6, atol=1e-12)


def test_of_equal_experts_the_first_is_chosen(level: str) -> None:
    attrs = {"scoring": SOFTMAX, "top_k": 3, "renormalise": 1, "scale": 1.0}
    attrs |= {"n_groups": 1, "top_groups": 1, "group_top": 1}
    logits = np.zeros((2, 20), np.float32)
    logits[1, [7, 11, 19]] = 1.0
    got = routed(level, logits, None, attrs)
    np.testing.assert_array_equal(got[:, :3], [[0, 1, 2], [7, 11, 19]])
    np.testing.assert_allclose(got[:, 3:], 1 / 3, rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("attrs", ROUTERS, ids=str)
def test_nan_logits_choose_existing_experts(
    level: str, bad: float, attrs: dict[str, float]
) -> None:
    attrs = {"n_groups": 1, "top_groups": 1, "group_top": 1, **attrs}
    k = int(attrs["top_k"])
    some = np.random.default_rng(0).standard_normal((3, 40)).astype(np.float32)
    some[0], some[1, ::3], some[2, 0] = bad, bad, bad
    ids = routed(level, some, None, attrs)[:, :k]
    assert ((ids >= 0) & (ids < 40)).all()
    assert all(len(set(row)) == k for row in ids.tolist())


@pytest.mark.parametrize(("n", "n_experts", "top_k"), [(1, 16, 4), (37, 8, 2), (500, 64, 8)])
def test_group_experts(level: str, n: int, n_experts: int, top_k: int) -> None:
    rng = np.random.default_rng(n)
    ids = np.argsort(rng.random((n, n_experts)), axis=1)[:, :top_k]
    routes = np.concatenate([ids, np.ones_like(ids)], axis=1).astype(np.float32)
    want_order, want_starts = group_experts(None, {"n_experts": n_experts}, routes)
    p = Launches(level, n)
    order, starts = p.rows("f32", top_k), p.rows("f32", n_experts + 1, count=1)
    p.add("group_experts", [p.given(routes)], [order, starts], n_experts=n_experts)
    p.step()
    np.testing.assert_array_equal(p.floats(order), want_order)
    np.testing.assert_array_equal(p.floats(starts), want_starts)


@pytest.mark.parametrize("bad", [-1.0, 8.0, np.nan])
def test_an_expert_that_does_not_exist_is_an_error(level: str, bad: float) -> None:
    p = Launches(level, 2)
    routes = np.array([[0, 1, 1, 1], [0, bad, 1, 1]], np.float32)
    order, starts = p.rows("f32", 2), p.rows("f32", 9, count=1)
    p.add("group_experts", [p.given(routes)], [order, starts], n_experts=8)
    with pytest.raises(ValueError, match="expert that does not exist"):
        p.step()


# ---- heads


@pytest.mark.alike(36)
@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K"])
@pytest.mark.parametrize(("n_heads", "rows", "flat"), [(4, 32, False), (3, 24, True), (5, 7, True)])
@pytest.mark.parametrize("n", [1, 7, 150])
def test_head_linear(level: str, name: str, n_heads: int, rows: int, flat: bool, n: int) -> None:
    rng = np.random.default_rng(n)
    cols = max(64, block_of(name)[0])
    data = random_rows(rng, name, n_heads * rows, cols)
    shape = (1, n_heads * rows) if flat else (n_heads, rows)
    weight = _cpu.pack(_cpu.Pool(2), level, name, data.reshape(-1), *shape, cols)
    values = weights_seen(level, name, data).reshape(n_heads, rows, cols)
    x = rng.standard_normal((n, n_heads * cols), dtype=np.float32)

    def run(x: Floats, threads: int = 2) -> Floats:
        p = Launches(level, len(x), threads)
        y = p.rows("f32", n_heads * rows)
        p.add("head_linear", [p.given(x), weight], [y], n_heads=n_heads)
        p.step()
        return p.floats(y).copy()

    y = run(x)
    seen = x.astype(np.float64)
    format = _cpu.row_format(level, name)
    if format != "f32":  # each head is rounded like a row
        p = Launches(level, n * n_heads)
        rounded = p.rows(format, cols)
        p.add("quantize", [p.given(x.reshape(-1, cols))], [rounded])
        p.step()
        seen = numbers(p.run_rows(rounded, 1), format, cols)
    seen = seen.reshape(n, n_heads, cols)
    want = np.einsum("thc,hrc->thr", seen, values, optimize=True).reshape(n, -1)
    scale = np.einsum("thc,hrc->thr", np.abs(seen), np.abs(values), optimize=True)
    scale = scale.reshape(n, -1) + 1e-6
    assert (np.abs(y - want) / scale).max() < ROUNDING
    np.testing.assert_array_equal(np.concatenate([run(row[None], 1) for row in x[:9]]), y[:9])
    np.testing.assert_array_equal(run(x, 5), y)


@pytest.mark.parametrize("n_heads", [1, 6])
def test_concat_heads(level: str, n_heads: int) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((33, n_heads * c), dtype=np.float32) for c in (16, 37))
    p = Launches(level, 33)
    y = p.rows("f32", n_heads * 53)
    p.add("concat_heads", [p.given(a), p.given(b)], [y], n_heads=n_heads)
    p.step()
    parts = [x.reshape(33, n_heads, -1) for x in (a, b)]
    np.testing.assert_array_equal(p.floats(y), np.concatenate(parts, axis=2).reshape(33, -1))


# ---- errors


def test_bad_launches_are_refused(level: str) -> None:
    layer = case(level, "Q8_0")
    p = Launches(level, 3)
    x = p.rows(layer.format, layer.hidden)
    order, starts = p.rows("f32", 2), p.rows("f32", layer.count + 1, count=1)
    routes = p.rows("f32", 4)
    h, y = p.rows(layer.format, 2 * layer.ff, runs=2), p.rows("f32", layer.hidden)
    gate, up, down = layer.gate.packed, layer.up.packed, layer.down.packed

    def refuses(kernel: str, ins: list[Any], outs: list[Spec], match: str, **attrs: float) -> None:
        with pytest.raises(ValueError, match=match):
            p.add(kernel, ins, outs, **attrs)

    glu = [x, order, starts, gate, up, None, None]
    refuses("moe_glu", glu[:-1], [h], "inputs", activation=0)
    refuses("moe_glu", [*glu[:3], gate, down, None, None], [h], "columns", activation=0)
    for absent in (None, x):
        refuses("moe_glu", [*glu[:3], absent, up, None, None], [h], "a packed matrix", activation=0)
        refuses(
            "moe_down", [h, order, starts, routes, absent, None, None, None], [y], "a packed matrix"
        )
    refuses("moe_glu", [*glu[:4], x, None, None], [h], "a packed matrix", activation=0)
    refuses("moe_glu", [x, order, p.rows("f32", 9, count=1), *glu[3:]], [h], "starts", activation=0)
    refuses("moe_glu", [p.rows("f32", layer.hidden), *glu[1:]], [h], "x is f32", activation=0)
    refuses("moe_glu", glu, [p.rows(layer.format, layer.ff)], "h has", activation=0)
    packed_h = (h[0], h[1], h[2], _cpu.row_bytes(*h[:2]))
    if packed_h[3] < 2 * _cpu.row_bytes(h[0], layer.ff):
        refuses("moe_glu", glu, [packed_h], "do not fit", activation=0)
    refuses(
        "moe_glu",
        [*glu[:5], _cpu.pack_vector(np.zeros(3, np.float32)), None],
        [h],
        "bias",
        activation=0,
    )
    sums = [h, order, starts, routes, down, None, None, None]
    refuses("moe_down", sums[:-1], [y], "inputs")
    refuses("moe_down", [*sums[:3], order, *sums[4:]], [y], "routes")
    refuses("moe_down", [*sums[:4], gate, *sums[5:]], [y], "h has")
    refuses("route", [routes, None], [y], "top_k", scoring=0, top_k=5, n_groups=1, top_groups=1,
            group_top=1, renormalise=0, scale=1)  # fmt: skip
    refuses("route", [routes, None], [y], "routes has", scoring=0, top_k=2, n_groups=1,
            top_groups=1, group_top=1, renormalise=0, scale=1)  # fmt: skip
    refuses("head_linear", [y, gate], [y], "heads", n_heads=4)
    refuses("concat_heads", [y, y], [y], "columns", n_heads=1)
