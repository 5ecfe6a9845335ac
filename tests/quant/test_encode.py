"""Encoders: 32-element types equal gguf-py's; the error of K types is at most ggml's."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from zinc.core.errors import ModelError, UnsupportedError
from zinc.quant.blocks import BLOCKS, GGMLType, row_bytes
from zinc.quant.decode import decode
from zinc.quant.encode import ENCODERS, encode

EXACT = [t for t in ENCODERS if not t.name.endswith("_K")]
SEARCHED = [t for t in ENCODERS if t.name.endswith("_K")]

# RMSE of ggml_quantize_chunk (without an importance matrix) on `gaussian()`.
GGML_RMSE = {
    GGMLType.Q2_K: 0.29577,
    GGMLType.Q3_K: 0.15074,
    GGMLType.Q4_K: 0.071293,
    GGMLType.Q5_K: 0.036121,
    GGMLType.Q6_K: 0.017724,
}


def gaussian() -> np.ndarray:
    return np.random.default_rng(7).standard_normal((64, 1024)).astype(np.float32)


def difficult() -> np.ndarray:
    """Return blocks of zeros, of one value, of one sign, with outliers, tiny and large values."""
    rng = np.random.default_rng(11)
    rows = [
        np.zeros(512),
        np.full(512, 0.25),
        np.full(512, -3.0),
        np.abs(rng.standard_normal(512)),
        -np.abs(rng.standard_normal(512)),
        np.where(rng.random(512) < 0.02, 40, rng.standard_normal(512)),
        rng.standard_normal(512) * 1e-3,
        rng.standard_normal(512) * 5000,
        rng.standard_normal(512) * 1e-42,
        np.arange(512) - 256.0,
        np.where(np.arange(512) % 2, 0.5, -0.5),
    ]
    return np.array(rows, np.float32)


@pytest.mark.parametrize("values", [gaussian(), difficult()[:8]], ids=["gaussian", "difficult"])
@pytest.mark.parametrize("type", EXACT, ids=lambda t: t.name)
def test_equals_gguf_py(type, values):
    expected = quantize(values, gguf.GGMLQuantizationType(type.value)).view(np.uint8)
    ours = encode(values, type)
    assert ours.shape == (len(values), row_bytes(type, values.shape[1]))
    assert np.array_equal(ours, expected.reshape(ours.shape))


@pytest.mark.parametrize("type", SEARCHED, ids=lambda t: t.name)
def test_error_is_not_above_ggml(type):
    values = gaussian()
    # Decoded by gguf-py: the bytes must mean the same to others.
    decoded = dequantize(encode(values, type), gguf.GGMLQuantizationType(type.value))
    rmse = float(np.sqrt(np.mean((decoded - values) ** 2)))
    assert rmse < 1.02 * GGML_RMSE[type]
    assert rmse > 0.7 * GGML_RMSE[type]


@pytest.mark.parametrize("type", SEARCHED, ids=lambda t: t.name)
def test_difficult_blocks(type):
    values = difficult()
    decoded = decode(encode(values, type), type, values.shape)
    assert np.isfinite(decoded).all()
    levels = {GGMLType.Q2_K: 4, GGMLType.Q3_K: 8, GGMLType.Q4_K: 16, GGMLType.Q5_K: 32}
    # The largest error is one quantisation step of the widest sub-block, doubled because the scales
    # are rounded too.
    span = values.max(axis=1) - np.minimum(values.min(axis=1), 0)
    span = np.maximum(span, -2 * np.minimum(values.min(axis=1), 0))
    bound = 2 * span / (levels.get(type, 64) - 1) + 1e-6
    assert (np.abs(decoded - values).max(axis=1) <= bound).all()
    assert not decoded[0].any()
    assert np.allclose(decoded[1], 0.25, rtol=0.02)
    assert np.allclose(decoded[2], -3.0, rtol=0.02)


@pytest.mark.parametrize("type", SEARCHED, ids=lambda t: t.name)
def test_scales_below_float16_lose_precision_only(type):
    """For values near 1e-6 the scale of a super-block is a subnormal float16 or zero."""
    values = gaussian()[:8] * np.float32(1e-6)
    decoded = decode(encode(values, type), type, values.shape)
    assert np.abs(decoded - values).max() <= 2 * np.abs(values).max()


@pytest.mark.parametrize("type", [GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0])
def test_decoded_values_encode_to_the_same_bytes(type):
    values = gaussian()[:4]
    once = encode(values, type)
    assert np.array_equal(encode(decode(once, type, values.shape), type), once)


@pytest.mark.parametrize("type", ENCODERS, ids=lambda t: t.name)
def test_shapes_and_float64_input(type):
    values = np.random.default_rng(5).standard_normal((2, 3, 256))
    encoded = encode(values, type)
    assert encoded.shape == (2, 3, row_bytes(type, 256))
    assert np.array_equal(encoded[1, 2], encode(values[1, 2].astype(np.float32), type))


def test_bf16_keeps_nan_and_infinity():
    values = np.array([np.inf, -np.inf, np.nan, -0.0], np.float32)
    decoded = decode(encode(values, GGMLType.BF16), GGMLType.BF16, (4,))
    assert np.array_equal(decoded, values, equal_nan=True)
    assert np.signbit(decoded[3])


@pytest.mark.parametrize("type", [t for t in ENCODERS if BLOCKS[t].is_quantised])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_quantised_types_refuse_nan_and_infinity(type, bad):
    values = np.zeros((1, 256), np.float32)
    values[0, 7] = bad
    with pytest.raises(ModelError, match="NaN or an infinity"):
        encode(values, type)


@pytest.mark.parametrize("type", [GGMLType.F16, GGMLType.Q8_0, GGMLType.Q4_K, GGMLType.Q6_K])
def test_refuses_scales_out_of_range(type):
    with pytest.raises(ModelError, match="float16"):
        encode(np.linspace(-1, 1, 256, dtype=np.float32) * np.float32(1e9), type)


def test_refuses_types_without_an_encoder():
    with pytest.raises(UnsupportedError, match="IQ2_XS"):
        encode(np.zeros(256, np.float32), GGMLType.IQ2_XS)


def test_refuses_partial_blocks():
    with pytest.raises(ModelError, match="blocks hold 32"):
        encode(np.zeros(40, np.float32), GGMLType.Q8_0)
