"""The block table, compared with sizes in gguf-py; packing and unpacking of bits."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from zinc.core.errors import ModelError
from zinc.quant import bits
from zinc.quant.blocks import BLOCKS, GGMLType, row_bytes


def test_every_type_has_a_layout():
    assert set(BLOCKS) == set(GGMLType)
    assert {t.value for t in gguf.GGMLQuantizationType} <= {t.value for t in GGMLType}


@pytest.mark.parametrize("type", GGMLType, ids=lambda t: t.name)
def test_sizes_and_fields(type):
    layout = BLOCKS[type]
    assert layout.type is type
    assert layout.dtype.itemsize == layout.block_bytes
    names = layout.dtype.names
    assert names is not None
    for field in layout.fields:
        assert layout.dtype.fields[field.name][1] == field.offset
        assert layout[field.name] is field
    if type is GGMLType.Q8_1:
        # gguf-py still has the float32 fields of old; ggml's block is two float16 and 32 bytes.
        assert (layout.block_size, layout.block_bytes) == (32, 36)
    elif type is GGMLType.Q2_0:  # newer than gguf-py 0.19
        assert (layout.block_size, layout.block_bytes) == (64, 18)
    else:
        known = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(type.value)]
        assert (layout.block_size, layout.block_bytes) == known


def test_unknown_field():
    with pytest.raises(KeyError, match="Q4_K has no field nothing"):
        BLOCKS[GGMLType.Q4_K]["nothing"]


def test_row_bytes():
    assert row_bytes(GGMLType.F32, 3) == 12
    assert row_bytes(GGMLType.Q4_K, 512) == 288
    assert row_bytes(GGMLType.Q8_0, 0) == 0
    with pytest.raises(ModelError, match="Q4_K"):
        row_bytes(GGMLType.Q4_K, 100)
    with pytest.raises(ModelError):
        row_bytes(GGMLType.Q4_K, -256)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_packing_is_the_inverse_of_unpacking(width):
    packed = np.random.default_rng(width).integers(0, 256, (5, 24), np.uint8)
    assert np.array_equal(bits.pack_planes(bits.planes(packed, width), width), packed)
    assert np.array_equal(bits.pack_interleaved(bits.interleaved(packed, width), width), packed)


def test_packed_scales_are_the_inverse_of_unpacking():
    packed = np.random.default_rng(3).integers(0, 256, (50, 12), np.uint8)
    assert np.array_equal(bits.pack_scales_6bit(bits.scales_6bit(packed)), packed)
    assert np.array_equal(bits.pack_scales_mins_6bit(*bits.scales_mins_6bit(packed)), packed)
