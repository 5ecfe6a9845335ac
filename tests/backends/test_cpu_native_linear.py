"""Packed weights and the CPU kernels that read them, against gguf's decoder and float64 numpy.

Tiles are tested by decoding them with the snippet that products use. Products are compared with
dequantised weights times dequantised rows of x, so the tolerance covers float rounding only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gguf
import numpy as np
import pytest
from backends.levels import OF_FORMATS, OF_KERNELS, SHARING
from numpy.typing import NDArray

from zinc.backends.cpu import _cpu
from zinc.quant.blocks import BLOCKS, GGMLType
from zinc.quant.codebooks import flat_digits
from zinc.quant.decode import decode

BLOCK_TYPES = [
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "IQ4_NL", "IQ4_XS", "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_S", "IQ1_M",
    "MXFP4", "NVFP4", "TQ1_0", "TQ2_0", "Q1_0", "Q2_0",
]  # fmt: skip
FLOAT_TYPES = ["F32", "F16", "BF16"]
TYPES = FLOAT_TYPES + BLOCK_TYPES


# Limits of tile size relative to the file, for formats whose values are widened for speed.
SPREAD = {
    "TQ1_0": 1.23, "NVFP4": 1.01, "Q1_0": 1.34, "Q2_0": 1.12, "IQ3_S": 1.26, "IQ3_XXS": 1.41,
    "IQ2_S": 1.40, "IQ2_XS": 1.55, "IQ2_XXS": 1.61, "IQ1_S": 1.48, "IQ1_M": 2.04,
}  # fmt: skip


def block_of(name: str) -> tuple[int, int]:
    """Return the elements and the bytes of a block."""
    layout = BLOCKS[GGMLType[name]]
    return layout.block_size, layout.block_bytes


# Byte offsets of the f16 scales of a block; random bits there would give inf and NaN.
SCALES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "IQ4_NL": [0], "IQ4_XS": [0], "IQ3_S": [0], "IQ3_XXS": [0], "IQ2_S": [0], "IQ2_XS": [0],
    "IQ2_XXS": [0], "IQ1_S": [0], "IQ1_M": [], "MXFP4": [], "NVFP4": [], "TQ1_0": [52],
    "TQ2_0": [64], "Q1_0": [0], "Q2_0": [0],
}  # fmt: skip


def random_rows(rng: np.random.Generator, name: str, rows: int, cols: int) -> NDArray[np.uint8]:
    """Return rows of random blocks that use every bit of the quants: [rows, bytes of a row]."""
    if name == "F32":
        return rng.standard_normal((rows, cols)).astype(np.float32).view(np.uint8)
    if name == "F16":
        return rng.standard_normal((rows, cols)).astype(np.float16).view(np.uint8)
    if name == "BF16":
        bits = rng.standard_normal((rows, cols)).astype(np.float32).view(np.uint32) >> 16
        return bits.astype(np.uint16).view(np.uint8)
    size, n_bytes = block_of(name)
    data = rng.integers(0, 256, (rows, cols // size, n_bytes), dtype=np.uint8)
    for at in SCALES[name]:
        scales = rng.uniform(-0.1, 0.1, data.shape[:2]).astype(np.float16)
        data[..., at : at + 2] = scales[..., None].view(np.uint8)
    if name == "MXFP4":  # its scale is a power of two with a bias of 127
        data[..., 0] = rng.integers(118, 126, data.shape[:2])
    if name == "NVFP4":  # four bits of exponent, three of mantissa, and a sign without meaning
        data[..., :4] = rng.integers(32, 56, data[..., :4].shape) | data[..., :4] & 0x80
    if name == "IQ1_M":  # its f16 is spread over the top nibbles of four words
        scales = rng.uniform(-0.1, 0.1, data.shape[:2]).astype(np.float16).view(np.uint16)
        for i in range(4):
            nibble = (scales >> (4 * i) & 15).astype(np.uint8)
            data[..., 49 + 2 * i] = data[..., 49 + 2 * i] & 15 | nibble << 4
    return data.reshape(rows, -1)


def dequantize(name: str, data: NDArray[np.uint8]) -> NDArray[np.float32]:
    if name in (
        "Q1_0",
        "Q2_0",
    ):  # unknown to gguf; tests/quant compares these with their definition
        n_values, n_bytes = block_of(name)
        return decode(data, GGMLType[name], (len(data), data.shape[1] // n_bytes * n_values))
    return gguf.quants.dequantize(data, gguf.GGMLQuantizationType[name]).astype(np.float32)


def pack(
    pool: _cpu.Pool, level: str, name: str, data: NDArray[np.uint8], cols: int, planes: int = 1
) -> _cpu.PackedTensor:
    rows = data.shape[0] // planes
    codebook = flat_digits(GGMLType[name])
    flat = data.reshape(-1)
    return _cpu.pack(pool, level, name, flat, planes, rows, cols, None, codebook)


def ints(*values: int) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


def step(program: _cpu.Program, n_tokens: int, ids: Sequence[int] | None = None) -> None:
    rows = np.arange(n_tokens, dtype=np.int32)
    token_ids = rows if ids is None else ints(*ids)
    program.step(
        token_ids, rows, np.zeros_like(rows), ints(), ints(0, n_tokens), ints(0), []
    )  # fmt: skip


def numbers_of_15_bits(raw: NDArray[np.uint8], cols: int) -> NDArray[np.float64]:
    """Decode rows of q15_32 to numbers [rows, cols], by the description of the format."""
    n = -(-cols // 32)
    q = raw[:, : n * 64].copy().view(np.int16).astype(np.float64)
    d = raw[:, n * 64 : n * 68].copy().view(np.float32).astype(np.float64)
    with np.errstate(invalid="ignore"):  # an infinite scale times zero
        return (q * np.repeat(d, 32, axis=1))[:, :cols]


def weights_seen(level: str, name: str, data: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the weights that a product reads: F16 is rounded to 15 bits if rows are."""
    w = dequantize(name, data).astype(np.float64)
    if _cpu.row_format(level, name) != "q15_32":
        return w
    padded = np.pad(w, ((0, 0), (0, -w.shape[1] % 32)))
    blocks = padded.reshape(len(w), -1, 32)
    top = np.abs(blocks).max(axis=2, keepdims=True)
    unit = 2.0 ** (np.floor(np.log2(np.where(top == 0, 1, top))) - 13)
    rounded: NDArray[np.float64] = np.round(blocks / unit) * unit
    return rounded.reshape(padded.shape)[:, : w.shape[1]]


class Arena:
    """A program with its arena, in which each new operand follows the last one."""

    def __init__(self, pool: _cpu.Pool, level: str, n_bytes: int = 1 << 24) -> None:
        self.program = _cpu.Program(pool, level, n_bytes)
        self.end = 0

    def rows(self, format: str, rows: int, cols: int, pad: int = 0) -> tuple[str, int, int, int]:
        stride = _cpu.row_bytes(format, cols) + pad
        operand = (format, cols, self.end, stride)
        self.end += rows * stride
        return operand

    def floats(self, operand: tuple[str, int, int, int], rows: int) -> NDArray[np.float32]:
        _, cols, offset, stride = operand
        return self.program.view(offset, rows, cols, stride)

    def dequantized(self, operand: tuple[str, int, int, int], rows: int) -> NDArray[np.float64]:
        """Decode an operand to numbers [rows, cols], by the description of its format."""
        format, cols, offset, stride = operand
        if format == "f32":
            return self.floats(operand, rows).astype(np.float64)
        raw = self.program.bytes_view(offset, rows * stride).reshape(rows, stride)
        if format == "bf16":
            bits = raw[:, : cols * 2].copy().view(np.uint16).astype(np.uint32) << 16
            return bits.view(np.float32).astype(np.float64)
        if format == "q15_32":
            return numbers_of_15_bits(raw, cols)
        block = 32 if format == "q8_32" else 256
        n = -(-cols // block)
        start = -(-cols // 64) * 64
        d = raw[:, start : start + n * 4].copy().view(np.float32).astype(np.float64)
        q = raw[:, :cols].view(np.int8).astype(np.float64)
        with np.errstate(invalid="ignore"):  # an infinite scale times zero
            return q * np.repeat(d, block, axis=1)[:, :cols]


def run_linear(
    pool: _cpu.Pool,
    level: str,
    name: str,
    weights: _cpu.PackedTensor,
    x: NDArray[np.float32],
    pad: int = 0,
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Return the product, and the dequantised rows of x that it read."""
    n, cols = x.shape
    arena = Arena(pool, level)
    format = _cpu.row_format(level, name)
    source, y = arena.rows("f32", n, cols), arena.rows("f32", n, weights.rows, pad)
    operand = source
    if format != "f32":
        operand = arena.rows(format, n, cols, pad)
        arena.program.add("quantize", "tokens", 0, [source], [operand], {})
    arena.program.add("linear", "tokens", 0, [operand, weights, None, None], [y], {"n_parts": 1})
    arena.floats(source, n)[:] = x
    arena.floats(y, n)[:] = np.nan
    step(arena.program, n)
    return arena.floats(y, n).copy(), arena.dequantized(operand, n)


@pytest.fixture(scope="module")
def pool() -> _cpu.Pool:
    return _cpu.Pool(2)


@pytest.fixture(params=OF_FORMATS)
def level(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.alike(28)
@pytest.mark.parametrize("name", TYPES)
def test_packed_tensor_decodes_to_the_values_of_the_file(
    pool: _cpu.Pool, level: str, name: str
) -> None:
    rng = np.random.default_rng(1)
    block, _ = block_of(name)
    for cols in {block, 3 * block, max(block, 64), max(block, 1024)}:
        for rows in (1, 15, 16, 17, 40):
            data = random_rows(rng, name, rows, cols)
            packed = pack(pool, level, name, data, cols)
            assert (packed.planes, packed.rows, packed.cols) == (1, rows, cols)
            assert packed.format == name
            np.testing.assert_array_equal(packed.to_float32()[0], dequantize(name, data))


def test_every_scale_of_nvfp4(pool: _cpu.Pool, level: str) -> None:
    data = random_rows(np.random.default_rng(4), "NVFP4", 4, 1024).reshape(4, 16, 36)
    data[..., :4] = np.arange(256).reshape(4, 16, 4)
    data = data.reshape(4, -1)
    packed = pack(pool, level, "NVFP4", data, 1024)
    np.testing.assert_array_equal(packed.to_float32()[0], dequantize("NVFP4", data))


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_packed_tensor_is_hardly_larger_than_the_file(
    pool: _cpu.Pool, level: str, name: str
) -> None:
    data = random_rows(np.random.default_rng(2), name, 64, 4096)
    assert pack(pool, level, name, data, 4096).n_bytes <= data.size * SPREAD.get(name, 1.04)


def test_row_index_gathers_rows_and_planes_are_kept_apart(pool: _cpu.Pool, level: str) -> None:
    rng = np.random.default_rng(3)
    data = random_rows(rng, "Q4_K", 3 * 20, 256)
    expected = dequantize("Q4_K", data)
    packed = pack(pool, level, "Q4_K", data, 256, planes=3)
    np.testing.assert_array_equal(packed.to_float32(), expected.reshape(3, 20, 256))
    index = rng.permutation(60)[:34].astype(np.int64)
    gathered = _cpu.pack(pool, level, "Q4_K", data.reshape(-1), 2, 17, 256, index)
    np.testing.assert_array_equal(gathered.to_float32(), expected[index].reshape(2, 17, 256))


@pytest.mark.parametrize(
    ("planes", "rows", "ends"),
    [(1, 40, (16, 40)), (3, 20, (16, 20, 40, 56, 60)), (2, 33, (33, 66)), (4, 5, (5, 15, 20))],
)
def test_a_tensor_is_packed_in_pieces(
    pool: _cpu.Pool, level: str, planes: int, rows: int, ends: tuple[int, ...]
) -> None:
    name = "IQ2_XXS"
    data = random_rows(np.random.default_rng(5), name, planes * rows, 512)
    tensor = _cpu.allocate(level, name, planes, rows, 512)
    tile = first = 0
    for end in ends:
        part = data[first:end].reshape(-1).copy()
        tile = _cpu.pack_tiles(pool, tensor, tile, part, flat_digits(GGMLType[name]))
        first = end
    assert tile == planes * -(-rows // 16)
    whole = pack(pool, level, name, data, 512, planes)
    np.testing.assert_array_equal(tensor.to_float32(), whole.to_float32())


def test_bad_pieces_of_a_tensor_are_refused(pool: _cpu.Pool, level: str) -> None:
    q8_0 = "Q8_0"
    tensor = _cpu.allocate(level, q8_0, 2, 20, 32)
    row = np.zeros(34, np.uint8)
    with pytest.raises(ValueError, match="there is no tile 4"):
        _cpu.pack_tiles(pool, tensor, 4, row)
    with pytest.raises(ValueError, match="there is no tile -1"):
        _cpu.pack_tiles(pool, tensor, -1, row)
    with pytest.raises(ValueError, match="there are 41 rows, not 40"):
        _cpu.pack_tiles(pool, tensor, 2, np.tile(row, 21))
    with pytest.raises(ValueError, match="there are 0 rows"):
        _cpu.pack_tiles(pool, tensor, 0, row[:0])
    with pytest.raises(ValueError, match="end within a tile"):
        _cpu.pack_tiles(pool, tensor, 0, np.tile(row, 19))
    with pytest.raises(ValueError, match="not consist of whole rows of 34 bytes"):
        _cpu.pack_tiles(pool, tensor, 0, row[:-1])
    with pytest.raises(ValueError, match="a vector has no tiles"):
        _cpu.pack_tiles(pool, _cpu.pack_vector(np.ones(4, np.float32)), 0, row)
    iq3 = _cpu.allocate(level, "IQ3_S", 1, 1, 256)
    with pytest.raises(ValueError, match="needs a codebook"):
        _cpu.pack_tiles(pool, iq3, 0, np.zeros(110, np.uint8))
    with pytest.raises(ValueError, match="is not possible"):
        _cpu.allocate(level, q8_0, 1 << 20, 1 << 40, 32)


@pytest.mark.alike(80)
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("n_tokens", [1, 2, 7, 33])
def test_linear_agrees_with_decoded_weights(
    pool: _cpu.Pool, level: str, name: str, n_tokens: int
) -> None:
    rng = np.random.default_rng(n_tokens)
    block, _ = block_of(name)
    two_panels = 544 if 544 % block == 0 else 2 * block  # of different length
    shapes = ((40, 3 * block), (1, max(block, 1024)), (17, max(block, 32)), (96, block))
    for rows, cols in (*shapes, (48, two_panels)):
        data = random_rows(rng, name, rows, cols)
        x = rng.standard_normal((n_tokens, cols), dtype=np.float32) + np.float32(0.3)
        y, x_seen = run_linear(pool, level, name, pack(pool, level, name, data, cols), x, pad=64)
        w = weights_seen(level, name, data)
        expected = x_seen @ w.T
        # Rounding errors grow with the sum of magnitudes, including minimums.
        scale = np.abs(x_seen) @ np.abs(w).T + 1e-6
        assert np.isfinite(y).all()
        assert (np.abs(y - expected) / scale).max() < 2e-6
        # And what was rounded is close to what was given.
        exact = x @ dequantize(name, data).astype(np.float64).T
        allowed = 0.004 if name in BLOCK_TYPES or name == "BF16" else 1e-4
        assert np.linalg.norm(y - exact) / np.linalg.norm(scale) < allowed


@pytest.mark.alike(20)
@pytest.mark.parametrize("name", TYPES)
def test_a_row_does_not_depend_on_other_rows(pool: _cpu.Pool, level: str, name: str) -> None:
    rng = np.random.default_rng(5)
    block, _ = block_of(name)
    cols = 544 if 544 % block == 0 else 512
    data = random_rows(rng, name, 50, cols)
    weights = pack(pool, level, name, data, cols)
    x = rng.standard_normal((40, cols), dtype=np.float32)
    alone = np.concatenate([run_linear(pool, level, name, weights, row[None])[0] for row in x])
    for threads in (1, 3):
        crew = _cpu.Pool(threads)
        for n in range(2, 41) if level != "scalar" else (2, 5, 40):
            together, _ = run_linear(crew, level, name, weights, x[:n])
            np.testing.assert_array_equal(together, alone[:n])


@pytest.mark.parametrize("bits", [0xFF, 0x7F, 0x80])
@pytest.mark.parametrize("name", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_the_largest_sums_are_exact(pool: _cpu.Pool, level: str, name: str, bits: int) -> None:
    rng = np.random.default_rng(8)
    data = random_rows(rng, name, 16, 512)
    blocks = data.reshape(16, -1, block_of(name)[1])
    kept = blocks.copy()
    blocks[:] = bits
    for at in SCALES[name]:
        blocks[..., at : at + 2] = kept[..., at : at + 2]
    weights = pack(pool, level, name, data, 512)
    x = rng.uniform(0.8, 1, (33, 512)).astype(np.float32)
    x[16:] *= rng.choice(np.float32([-1, 1]), (17, 512))
    together, x_seen = run_linear(pool, level, name, weights, x)
    for n in (1, 5, 8):
        few, _ = run_linear(pool, level, name, weights, x[:n])
        np.testing.assert_array_equal(few, together[:n])
    w = dequantize(name, data).astype(np.float64)
    assert (np.abs(together - x_seen @ w.T) / (np.abs(x_seen) @ np.abs(w).T)).max() < 2e-6


@pytest.mark.parametrize("cols", [32, 40, 544])
def test_the_largest_sums_of_halves_are_exact(pool: _cpu.Pool, level: str, cols: int) -> None:
    halves = np.full((16, cols), 65504, np.float16)
    halves[1::2] = -halves[1::2]
    halves[2] *= np.float16(2.0**-20)  # hardly more than the smallest f16
    data = halves.view(np.uint8)
    weights = pack(pool, level, "F16", data, cols)
    x = np.full((33, cols), 16383, np.float32)
    x[1] = -x[1]
    together, x_seen = run_linear(pool, level, "F16", weights, x)
    np.testing.assert_array_equal(x_seen, x)
    np.testing.assert_allclose(together, x_seen @ halves.astype(np.float64).T, rtol=1e-6)
    few, _ = run_linear(pool, level, "F16", weights, x[:3])
    np.testing.assert_array_equal(few, together[:3])


@pytest.mark.parametrize("n_tokens", [2, 40])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_weights_that_are_not_finite_reach_the_output(
    pool: _cpu.Pool, level: str, n_tokens: int, bad: float
) -> None:
    halves = np.ones((20, 96), np.float16)
    halves[3, 40] = bad
    weights = pack(pool, level, "F16", halves.view(np.uint8), 96)
    y, _ = run_linear(pool, level, "F16", weights, np.ones((n_tokens, 96), np.float32))
    finite = np.isfinite(y)
    assert not finite[:, 3].any()
    assert np.delete(finite, 3, axis=1).all()


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_levels_agree(pool: _cpu.Pool, name: str) -> None:
    rng = np.random.default_rng(6)
    data = random_rows(rng, name, 33, 512)
    x = rng.standard_normal((3, 512), dtype=np.float32)
    results = [
        run_linear(pool, level, name, pack(pool, level, name, data, 512), x)[0]
        for level in OF_FORMATS
    ]
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], rtol=1e-5, atol=1e-5)


def test_linear_with_parts_biases_and_residuals(pool: _cpu.Pool, level: str) -> None:
    rng = np.random.default_rng(7)
    n, cols, all_rows = 5, 256, (48, 16, 7)
    names = ("Q4_K", "Q6_K", "Q4_K")
    arena = Arena(pool, level)
    x = arena.rows("f32", n, cols)
    xq = arena.rows("q8_256", n, cols)
    ys = [arena.rows("f32", n, rows) for rows in all_rows]
    data = [random_rows(rng, name, rows, cols) for name, rows in zip(names, all_rows, strict=True)]
    biases = [rng.standard_normal(rows, dtype=np.float32) for rows in all_rows]
    residual = arena.rows("f32", n, all_rows[1])
    ins: list[_cpu.Operand] = [xq]
    for i, name in enumerate(names):
        bias = _cpu.pack_vector(biases[i]) if i != 1 else None
        # The third part adds to its output in place: residual and output are the same memory.
        added = (None, residual, ys[2])[i]
        ins += [pack(pool, level, name, data[i], cols), bias, added]
    arena.program.add("quantize", "tokens", 0, [x], [xq], {})
    arena.program.add("linear", "tokens", 0, ins, ys, {"n_parts": 3})
    arena.floats(x, n)[:] = rng.standard_normal((n, cols))
    residuals = [rng.standard_normal((n, rows), dtype=np.float32) for rows in all_rows]
    for y in ys[:2]:
        arena.floats(y, n)[:] = np.nan
    arena.floats(residual, n)[:] = residuals[1]
    arena.floats(ys[2], n)[:] = residuals[2]
    step(arena.program, n)
    seen = arena.dequantized(xq, n)
    for i, name in enumerate(names):
        expected = seen @ dequantize(name, data[i]).astype(np.float64).T
        expected = expected + (biases[i] if i != 1 else 0) + (residuals[i] if i else 0)
        np.testing.assert_allclose(arena.floats(ys[i], n), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("names", [("Q4_K", "Q4_K"), ("Q4_K", "Q6_K"), ("F16", "F16")])
@pytest.mark.parametrize("n", [1, 9])
def test_linear_glu(pool: _cpu.Pool, level: str, names: tuple[str, str], n: int) -> None:
    rng = np.random.default_rng(8)
    rows, cols = 37, 256
    format = _cpu.row_format(level, names[0])
    arena = Arena(pool, level)
    x, h = arena.rows("f32", n, cols), arena.rows("f32", n, rows)
    operand = x if format == "f32" else arena.rows(format, n, cols)
    data = [random_rows(rng, name, rows, cols) for name in names]
    bias = rng.standard_normal(rows, dtype=np.float32)
    gate, up = (pack(pool, level, m, d, cols) for m, d in zip(names, data, strict=True))
    if format != "f32":
        arena.program.add("quantize", "tokens", 0, [x], [operand], {})
    ins: list[_cpu.Operand] = [operand, gate, up, _cpu.pack_vector(bias), None]
    arena.program.add("linear_glu", "tokens", 0, ins, [h], {"activation": 0})
    arena.floats(x, n)[:] = rng.standard_normal((n, cols)) * 0.1
    arena.floats(h, n)[:] = np.nan
    step(arena.program, n)
    seen = arena.dequantized(operand, n)
    g = seen @ weights_seen(level, names[0], data[0]).T + bias
    u = seen @ weights_seen(level, names[1], data[1]).T
    expected = g / (1 + np.exp(-np.clip(g, -80, 80))) * u
    np.testing.assert_allclose(arena.floats(h, n), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["F32", "BF16", "Q8_0", "Q6_K"])
def test_embed_decodes_rows_of_the_table(pool: _cpu.Pool, level: str, name: str) -> None:
    rng = np.random.default_rng(9)
    data = random_rows(rng, name, 50, 256)
    ids = [3, 49, 0, 3, 17, 16]
    arena = Arena(pool, level)
    x = arena.rows("f32", len(ids), 256)
    table = pack(pool, level, name, data, 256)
    arena.program.add("embed", "tokens", 0, [table], [x], {"scale": 1.5})
    arena.floats(x, len(ids))[:] = np.nan
    step(arena.program, len(ids), ids)
    expected = dequantize(name, data)[ids] * np.float32(1.5)
    np.testing.assert_array_equal(arena.floats(x, len(ids)), expected)
    with pytest.raises(ValueError, match="token id 50 is outside the vocabulary of 50"):
        step(arena.program, 2, [1, 50])
    step(arena.program, len(ids), ids)  # and the pool can be used afterwards


@pytest.mark.parametrize(
    ("format", "block", "cols", "most"),
    [  # the last block of q8_256 may be short, that of q15_32 may have any length
        ("q8_32", 32, 288, 127), ("q8_256", 256, 288, 127), ("q15_32", 32, 281, 16383),
    ],
)  # fmt: skip
def test_quantize_rounds_to_the_nearest(
    pool: _cpu.Pool, level: str, format: str, block: int, cols: int, most: int
) -> None:
    rng = np.random.default_rng(10)
    n = 3
    arena = Arena(pool, level)
    x, y = arena.rows("f32", n, cols), arena.rows(format, n, cols)
    arena.program.add("quantize", "tokens", 0, [x], [y], {})
    values = rng.standard_normal((n, cols), dtype=np.float32) * rng.uniform(1e-3, 1e3, (n, 1))
    values[1, 32:64] = 0
    arena.floats(x, n)[:] = values
    step(arena.program, n)
    read = arena.program.read(format, y[2], n, cols, y[3])
    np.testing.assert_allclose(read, arena.dequantized(y, n), rtol=1e-6)
    values = arena.floats(x, n).astype(np.float64)
    got = arena.dequantized(y, n)
    for start in range(0, cols, block):
        part = values[:, start : start + block]
        half_step = np.abs(part).max(axis=1, keepdims=True) / (2 * most)
        assert (np.abs(got[:, start : start + block] - part) <= half_step * 1.001).all()
    arena.floats(x, n)[2, 40] = np.nan
    arena.floats(x, n)[0, 5] = np.inf
    step(arena.program, n)
    seen = arena.dequantized(y, n)
    assert np.isnan(seen[2, 40])
    assert not np.isfinite(seen[0, 5])


def test_non_finite_activations_reach_the_output(pool: _cpu.Pool, level: str) -> None:
    data = random_rows(np.random.default_rng(11), "Q4_K", 16, 256)
    weights = pack(pool, level, "Q4_K", data, 256)
    x = np.ones((2, 256), dtype=np.float32)
    x[1, 100] = np.nan
    y, _ = run_linear(pool, level, "Q4_K", weights, x)
    assert np.isfinite(y[0]).all()
    assert np.isnan(y[1]).all()


def test_bad_weights_are_refused(pool: _cpu.Pool, level: str) -> None:
    q4_k = "Q4_K"
    data = np.zeros(144 * 4, dtype=np.uint8)
    with pytest.raises(ValueError, match="100 columns are not whole blocks of 256"):
        _cpu.pack(pool, level, q4_k, data, 1, 4, 100)
    with pytest.raises(ValueError, match="there are 4 rows, not 5"):
        _cpu.pack(pool, level, q4_k, data, 1, 5, 256)
    with pytest.raises(ValueError, match="not consist of whole rows"):
        _cpu.pack(pool, level, q4_k, data[:-1], 1, 4, 256)
    with pytest.raises(ValueError, match="is not possible"):
        _cpu.pack(pool, level, q4_k, data, 1 << 20, 1 << 40, 256)
    with pytest.raises(ValueError, match="row_index names a row"):
        _cpu.pack(pool, level, q4_k, data, 1, 2, 256, np.array([0, 4], dtype=np.int64))
    with pytest.raises(KeyError, match="no kernel for weights of type Q99"):
        _cpu.pack(pool, level, "Q99", data, 1, 4, 256)
    with pytest.raises(KeyError, match="no kernel for weights of type Q99"):
        _cpu.row_format(level, "Q99")
    with pytest.raises(ValueError, match="IQ3_S needs a codebook of 2048 bytes, not 0"):
        _cpu.pack(pool, level, "IQ3_S", data[:110], 1, 1, 256)
    assert not _cpu.packable(level, "Q99")
    assert _cpu.packable(level, q4_k)


def test_bad_launches_are_refused(pool: _cpu.Pool, level: str) -> None:
    data = random_rows(np.random.default_rng(12), "Q4_K", 20, 256)
    w = pack(pool, level, "Q4_K", data, 256)
    program = _cpu.Program(pool, level, 1 << 16)
    x = ("q8_256", 256, 0, _cpu.row_bytes("q8_256", 256))
    y = ("f32", 20, 1 << 15, 128)

    def refused(match: str, *args: object) -> None:
        with pytest.raises(ValueError, match=match):
            program.add(*args)  # type: ignore[arg-type]

    one = {"n_parts": 1}
    refused("no kernel 'warp'", "warp", "tokens", 0, [], [], {})
    refused("no row dimension", "linear", "heads", 0, [x, w, None, None], [y], one)
    refused("n_parts", "linear", "tokens", 0, [x, w, None, None], [y], {})
    refused("takes 7 inputs", "linear", "tokens", 0, [x, w, None, None], [y], {"n_parts": 2})
    refused("must be a packed matrix", "linear", "tokens", 0, [x, None, None, None], [y], one)
    refused("x is f32, not q8_256", "linear", "tokens", 0,
            [("f32", 256, 0, 1024), w, None, None], [y], one)  # fmt: skip
    refused("x has 512 columns, not 256", "linear", "tokens", 0,
            [("q8_256", 512, 0, 2048), w, None, None], [y], one)  # fmt: skip
    refused("y has 21 columns, not 20", "linear", "tokens", 0,
            [x, w, None, None], [("f32", 21, 1 << 15, 128)], one)  # fmt: skip
    refused("outside the arena", "linear", "tokens", 0,
            [x, w, None, None], [("f32", 20, 1 << 16, 128)], one)  # fmt: skip
    refused("does not fit rows", "linear", "tokens", 0,
            [x, w, None, None], [("f32", 20, 1 << 15, 64)], one)  # fmt: skip
    bias = _cpu.pack_vector(np.zeros(21, dtype=np.float32))
    refused("bias has 21 values", "linear", "tokens", 0, [x, w, bias, None], [y], one)
    assert len(program) == 0
    kernels = "avx512" if level in SHARING else level
    others = [other for other in OF_KERNELS if other != kernels]
    if others:
        other = pack(pool, others[0], "Q4_K", data, 256)
        refused("another SIMD level", "linear", "tokens", 0, [x, other, None, None], [y], one)


def test_bad_steps_are_refused(pool: _cpu.Pool, level: str) -> None:
    arena = Arena(pool, level, 4 * _cpu.row_bytes("f32", 256))
    x, y = arena.rows("f32", 2, 256), arena.rows("f32", 2, 256)
    arena.program.add("add", "tokens", 0, [x, x], [y], {})
    with pytest.raises(ValueError, match="3 tokens does not fit the arena"):
        step(arena.program, 3)
    rows = ints(0, 1)
    with pytest.raises(ValueError, match="seq_start does not span"):
        arena.program.step(rows, rows, ints(0, 0), ints(), ints(0, 1), ints(0), [])
    with pytest.raises(ValueError, match="outside its sequence"):
        arena.program.step(rows, rows, ints(0, 1), ints(), ints(0, 2), ints(0), [])
    with pytest.raises(ValueError, match="not consecutive"):
        arena.program.step(rows, ints(0, 2), ints(0, 0), ints(), ints(0, 2), ints(0), [])
    with pytest.raises(ValueError, match="differ in length"):
        arena.program.step(rows, ints(0), ints(0, 0), ints(), ints(0, 2), ints(0), [])
    with pytest.raises(ValueError, match="output row"):
        arena.program.step(rows, rows, ints(0, 0), ints(2), ints(0, 2), ints(0), [])
    with pytest.raises(ValueError, match="not consecutive"):  # INT32_MAX has no next position
        arena.program.step(rows, ints(2**31 - 1, 0), ints(0, 0), ints(), ints(0, 2), ints(0), [])


def test_a_sequence_that_ends_after_the_tokens_is_refused(pool: _cpu.Pool) -> None:
    arena = Arena(pool, OF_KERNELS[0], 4 * _cpu.row_bytes("f32", 256))
    x = arena.rows("f32", 2, 256)
    arena.program.add("add", "tokens", 0, [x, x], [x], {})
    beyond = ints(0, 1, 9)  # its last value lies after the two tokens and must not be read
    with pytest.raises(ValueError, match="seq_start does not rise"):
        arena.program.step(
            beyond[:2], beyond[:2], ints(0, 0, 9)[:2], ints(), ints(0, 3, 2), ints(0, 1), []
        )


def test_views_and_reads_stay_in_the_arena(pool: _cpu.Pool) -> None:
    program = _cpu.Program(pool, OF_KERNELS[0], 4096)
    program.view(0, 4, 256, 1024)[:] = np.arange(1024).reshape(4, 256)
    np.testing.assert_array_equal(
        program.read("f32", 1024, 2, 3, 1024), [[256, 257, 258], [512, 513, 514]]
    )
    assert program.view(0, 0, 256, 1024).shape == (0, 256)
    assert program.read("q8_32", 0, 0, 256, 1024).shape == (0, 256)
    for rows, cols, stride in ((5, 256, 1024), (4, 257, 1024), (1 << 30, 1, 0), (2, 8, -1024)):
        with pytest.raises(ValueError, match=r"arena"):
            program.read("f32", 0, rows, cols, stride)
        with pytest.raises(ValueError, match=r"arena"):
            program.view(0, rows, cols, stride)
    with pytest.raises(ValueError, match="outside the arena"):
        program.bytes_view(4000, 97)
    with pytest.raises(ValueError, match="whole blocks"):  # its scale would follow the arena
        program.read("q8_32", 4096 - 64, 1, 1, 64)
    for offset, stride in ((2, 1024), (0, 1022)):
        with pytest.raises(ValueError, match="multiple of 4 bytes"):
            program.read("q15_32", offset, 2, 32, stride)


def test_profile_and_partial_runs(pool: _cpu.Pool, level: str) -> None:
    arena = Arena(pool, level)
    x, y = arena.rows("f32", 2, 256), arena.rows("f32", 2, 256)
    assert arena.program.add("scale", "tokens", 0, [x], [y], {"factor": 2}) == 0
    assert arena.program.add("scale", "tokens", 0, [y], [y], {"factor": 3}) == 1
    arena.floats(x, 2)[:] = 1
    rows = ints(0, 1)
    batch: tuple[Any, ...] = (rows, rows, ints(0, 0), ints(), ints(0, 2), ints(0), [])
    arena.program.run(0, 1, *batch)
    np.testing.assert_array_equal(arena.floats(y, 2), 2)
    arena.program.set_profile(True)
    arena.program.run(1, 2, *batch)
    np.testing.assert_array_equal(arena.floats(y, 2), 6)
    times = arena.program.times_ns()
    assert times[0] == 0 < times[1]


def test_many_threads_many_steps() -> None:
    """With more threads than cores, threads are late, asleep and preempted; no chunk is lost."""
    crew = _cpu.Pool(7)
    arena = Arena(crew, OF_KERNELS[0])
    x = arena.rows("f32", 64, 256)
    for _ in range(40):
        arena.program.add("scale", "tokens", 0, [x], [x], {"factor": -1})
    arena.floats(x, 64)[:] = np.arange(256)
    for n in (1, 64, 3, 40) * 25:
        step(arena.program, n)
    np.testing.assert_array_equal(arena.floats(x, 64), np.tile(np.arange(256.0), (64, 1)))


def test_impossible_sizes_and_levels_are_errors(pool: _cpu.Pool) -> None:
    with pytest.raises(MemoryError):
        _cpu.Program(pool, OF_KERNELS[0], 1 << 60)
    with pytest.raises(MemoryError):
        _cpu.KVLayer(0, 1 << 30, 256, 64, 128, 128, "f16")
    most = 2**31 - 1
    with pytest.raises(ValueError, match="possible size"):
        _cpu.StateLayer(1 << 40, 1 << 40)
    with pytest.raises(ValueError, match="possible size"):
        _cpu.KVLayer(0, most, most - 15, most, 128, 128, "f16")
    with pytest.raises(ValueError, match="is not possible"):
        _cpu.allocate(OF_KERNELS[0], "F32", most, 1, most)
    with pytest.raises(ValueError, match="more tokens than the blocks hold"):
        _cpu.KVLayer(0, 1, 16, 1, 16, 16, "f16").read(ints(0), most)
    with pytest.raises(ValueError, match="no SIMD level"):
        _cpu.Program(pool, "avx9000", 1 << 10)
