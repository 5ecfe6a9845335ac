"""Decoders, compared with gguf-py or scalar definitions on random bytes."""

from __future__ import annotations

import math
import struct

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from zinc.core.errors import ModelError
from zinc.quant.blocks import BLOCKS, GGMLType
from zinc.quant.decode import decode

N_BLOCKS = 1500

SCALAR_ONLY = {
    GGMLType.Q8_1,
    GGMLType.Q8_K,
    GGMLType.Q1_0,
    GGMLType.Q2_0,
    GGMLType.I8,
    GGMLType.I16,
    GGMLType.I32,
    GGMLType.I64,
    GGMLType.F64,
}


def half(raw: bytes) -> float:
    return struct.unpack("<e", raw)[0]


def scalar_q8_1(block: bytes) -> list[float]:
    return [half(block[:2]) * q for q in struct.unpack("<32b", block[4:36])]


def scalar_q8_k(block: bytes) -> list[float]:
    return [struct.unpack("<f", block[:4])[0] * q for q in struct.unpack("<256b", block[4:260])]


def scalar_q1_0(block: bytes) -> list[float]:
    d = half(block[:2])
    return [d if block[2 + i // 8] >> i % 8 & 1 else -d for i in range(128)]


def scalar_q2_0(block: bytes) -> list[float]:
    d = half(block[:2])
    return [((block[2 + i // 4] >> 2 * (i % 4) & 3) - 1) * d for i in range(64)]


def scalar_number(code: str):
    return lambda block: [float(struct.unpack("<" + code, block)[0])]


SCALAR = {
    GGMLType.Q8_1: scalar_q8_1,
    GGMLType.Q8_K: scalar_q8_k,
    GGMLType.Q1_0: scalar_q1_0,
    GGMLType.Q2_0: scalar_q2_0,
    GGMLType.I8: scalar_number("b"),
    GGMLType.I16: scalar_number("h"),
    GGMLType.I32: scalar_number("i"),
    GGMLType.I64: scalar_number("q"),
    GGMLType.F64: scalar_number("d"),
}


def random_blocks(type: GGMLType) -> np.ndarray:
    rng = np.random.default_rng(type.value)
    return rng.integers(0, 256, (3, N_BLOCKS * BLOCKS[type].block_bytes), np.uint8)


def assert_same_bits(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Assert equal bits, including the sign of zero; all NaNs are equal."""
    assert ours.dtype == theirs.dtype == np.float32
    nan = np.isnan(theirs)
    assert np.array_equal(np.isnan(ours), nan)
    assert nan.mean() < 0.2
    assert np.array_equal(ours.view(np.uint32)[~nan], theirs.view(np.uint32)[~nan])


@pytest.mark.parametrize("type", sorted(set(GGMLType) - SCALAR_ONLY), ids=lambda t: t.name)
def test_equals_gguf_py(type):
    data = random_blocks(type)
    with np.errstate(all="ignore"):
        expected = dequantize(data, gguf.GGMLQuantizationType(type.value))
    assert_same_bits(decode(data, type, expected.shape), expected)


@pytest.mark.parametrize("type", sorted(SCALAR_ONLY), ids=lambda t: t.name)
def test_equals_the_definition(type):
    layout = BLOCKS[type]
    data = random_blocks(type)[:1, : 60 * layout.block_bytes]
    raw = data.tobytes()
    values = []
    for start in range(0, len(raw), layout.block_bytes):
        values += SCALAR[type](raw[start : start + layout.block_bytes])
    with np.errstate(all="ignore"):
        # Products of a float and a small integer: exact in double, rounded once to float32.
        expected = np.array([values], np.float64).astype(np.float32)
    assert_same_bits(decode(data, type, (1, len(values))), expected)


def test_shapes():
    layout = BLOCKS[GGMLType.Q4_K]
    data = random_blocks(GGMLType.Q4_K)[0, : 12 * layout.block_bytes]
    flat = decode(data, GGMLType.Q4_K, (12 * 256,))
    cube = decode(data, GGMLType.Q4_K, (2, 3, 512))
    assert cube.shape == (2, 3, 512)
    assert np.array_equal(flat, cube.reshape(-1), equal_nan=True)
    assert decode(data[:0], GGMLType.Q4_K, (0, 256)).shape == (0, 256)
    scalar = decode(np.frombuffer(struct.pack("<f", 1.5), np.uint8), GGMLType.F32, ())
    assert scalar.shape == ()
    assert scalar == 1.5


def test_result_is_a_fresh_array():
    data = np.arange(8, dtype=np.float32)
    data.flags.writeable = False
    out = decode(data.view(np.uint8), GGMLType.F32, (8,))
    out[0] = 7
    assert data[0] == 0


def test_unaligned_data():
    layout = BLOCKS[GGMLType.Q8_0]
    data = random_blocks(GGMLType.Q8_0)[0]
    shifted = np.empty(1 + len(data), np.uint8)[1:]
    shifted[:] = data
    shape = (len(data) // layout.block_bytes * 32,)
    assert np.array_equal(
        decode(shifted, GGMLType.Q8_0, shape), decode(data, GGMLType.Q8_0, shape), equal_nan=True
    )


@pytest.mark.parametrize("shape", [(255,), (2, 128)])
def test_rows_must_be_whole_blocks(shape):
    data = np.zeros(144, np.uint8)
    with pytest.raises(ModelError, match="Q4_K"):
        decode(data, GGMLType.Q4_K, shape)


def test_bytes_must_match_the_shape():
    with pytest.raises(ModelError, match="288 bytes and the data has 144"):
        decode(np.zeros(144, np.uint8), GGMLType.Q4_K, (2, 256))
    with pytest.raises(ModelError):
        decode(np.zeros(144, np.uint8), GGMLType.Q4_K, (1 << 40, 256))


def test_known_values():
    """A Q8_0 block worked out by hand."""
    block = struct.pack("<e32b", 0.5, *range(-16, 16))
    values = decode(np.frombuffer(block, np.uint8), GGMLType.Q8_0, (32,))
    assert values.tolist() == [q / 2 for q in range(-16, 16)]
    assert math.isclose(values.sum(), -8)
