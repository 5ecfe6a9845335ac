"""Every block format on the device: embed decodes random blocks as the numpy decoder does."""

from __future__ import annotations

import numpy as np
import pytest
from present import absent

from zinc.backends import api
from zinc.backends.api import CacheLayout, TensorData
from zinc.backends.vulkan import VulkanKernels
from zinc.core.errors import UnsupportedError
from zinc.gpu.packing import FLOATS, LAYOUTS, offsets, pack
from zinc.gpu.rows import row_bytes
from zinc.ops.cases import Case
from zinc.ops.values import RowFormat, Weight
from zinc.plan.planner import make_plan
from zinc.quant.blocks import BLOCKS, GGMLType
from zinc.quant.decode import decode

TYPES = [*FLOATS, *LAYOUTS]
ROWS, COLS = 37, 512
# Bytes by which 256 elements grow when they are packed, because bit fields become whole bytes.
GROWS = {
    GGMLType.Q3_K: 2, GGMLType.TQ1_0: 12, GGMLType.IQ2_XXS: 16, GGMLType.IQ2_XS: 8,
    GGMLType.IQ3_XXS: 16, GGMLType.IQ3_S: 4, GGMLType.IQ1_S: 8, GGMLType.IQ1_M: 2,
}  # fmt: skip

needs_device = pytest.mark.skipif("vulkan" in absent(), reason=absent().get("vulkan", ""))


def random_blocks(type: GGMLType) -> np.ndarray:
    """Return the bytes of a tensor [ROWS, COLS] with random bits, but finite scales."""
    layout, rng = BLOCKS[type], np.random.default_rng(int(type))
    n = ROWS * COLS // layout.block_size
    raw = rng.integers(0, 256, (n, layout.block_bytes), dtype=np.uint8)
    blocks = raw.reshape(-1).view(layout.dtype)
    halves = {f.name for f in layout.fields if f.dtype == np.float16}
    for name in halves & {"d", "dmin", "m"}:
        blocks[name] = rng.standard_normal(n).astype(np.float16)
    if type is GGMLType.MXFP4:
        blocks["e"] = rng.integers(100, 150, n)
    if type is GGMLType.IQ1_M:  # its scale is spread over four nibbles
        blocks["scales"][:, 3] = blocks["scales"][:, 3] & 0x0FFF | 0x3000
    if type in FLOATS:
        numbers = rng.standard_normal(n).astype(np.float32)
        narrow = (numbers.view(np.uint32) >> 16).astype(np.uint16)
        blocks["value"] = narrow if type is GGMLType.BF16 else numbers
    return raw.reshape(-1)


@needs_device
@pytest.mark.parametrize("type", TYPES, ids=lambda type: type.name)
def test_the_device_decodes_as_the_numpy_decoder_does(type: GGMLType) -> None:
    case = Case(type.name, n_tokens=ROWS)
    source = (*range(ROWS - 1, 0, -1), 0)  # rows in another order than in the file
    table = Weight("table", type, (ROWS, COLS), rows_from=source)
    case.returns(case.graph.embed(table))
    backend = api.create("vulkan")
    plan = make_plan(case.graph, backend, max_tokens=ROWS, max_outputs=ROWS)
    raw = random_blocks(type)
    backend.upload(table, TensorData(type, (ROWS, COLS), raw))
    program = backend.prepare(plan, backend.allocate((), CacheLayout(64, (1,))))
    want = decode(raw, type, (ROWS, COLS))[list(source)]
    np.testing.assert_allclose(program.step(case.step(64)), want, rtol=2e-6, atol=1e-12)


@pytest.mark.parametrize("type", TYPES, ids=lambda type: type.name)
def test_packing_adds_little_to_the_size(type: GGMLType) -> None:
    raw = random_blocks(type)
    packed = pack(type, raw, 1, ROWS, COLS)
    assert len(packed) == offsets(type, ROWS, COLS).n_bytes
    grows = GROWS.get(type, 0) * ROWS * COLS // 256
    assert len(raw) + grows <= len(packed) - offsets(type, ROWS, COLS).codebook
    assert len(packed) <= len(raw) + grows + 2 * 256 + 4096


def test_packing_takes_rows_in_the_given_order() -> None:
    rng = np.random.default_rng(1)
    values = rng.standard_normal((6, 10)).astype(np.float32)  # padded to 12 columns
    order = np.array([5, 0, 3, 3])
    packed = pack(GGMLType.F32, values.view(np.uint8).reshape(-1), 2, 2, 10, order)
    rows = packed.view(np.float32).reshape(4, 12)
    np.testing.assert_array_equal(rows[:, :10], values[order])
    assert not rows[:, 10:].any()


def test_rows_of_activations_are_aligned() -> None:
    assert row_bytes(RowFormat.F32, 48) == 192
    assert [row_bytes(RowFormat.Q8_32, cols) for cols in (32, 64, 4096)] == [48, 80, 5120]
    with pytest.raises(NotImplementedError):
        row_bytes(RowFormat.BF16, 64)


def test_a_format_without_a_kernel_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="Q8_K"):
        VulkanKernels().row_format(GGMLType.Q8_K)
