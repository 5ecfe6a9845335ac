"""Weights packed into streams, the layout that the Slang kernels read.

A weight is packed when it is uploaded. Its blocks are cut into units of 32 elements, whose bits go
to up to three streams, each aligned to 256 bytes:

    q   the low bits of every unit (all bits, if they fit)
    h   the high bits of every unit, or its signs
    s   a codebook if the format has one, then the scales of every block

Streams let neighbouring lanes load neighbouring 16 bytes, whatever the size of a block. Within a
unit bits are ordered so that one mask moves four elements to the four bytes of a word
(kernels/formats/unit.slang reads them). Packing rounds nothing. Sizes stay the same except for Q3_K
(110 to 112 bytes per block), TQ1_0 (54 to 66) and the formats of iq_packing.py. Rows of float types
are padded with zeros to 16 bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from zinc.core.dataclass import dataclass
from zinc.core.rounding import round_up
from zinc.gpu import iq_packing
from zinc.gpu.iq_packing import Blocks, Streams, codebook
from zinc.gpu.memory import Bytes
from zinc.ops.values import RowFormat
from zinc.quant.bits import scales_6bit, scales_mins_6bit
from zinc.quant.blocks import BLOCKS, GGMLType
from zinc.quant.decode import DECODERS

UNIT = 32
ALIGNMENT = 256
_CHUNK = 1 << 12  # blocks packed at a time, so that temporary arrays stay in the cache

_T = GGMLType
_LOW = np.uint64(0x0F0F0F0F0F0F0F0F)
_HIGH = np.uint64(0xF0F0F0F0F0F0F0F0)
_TWO_BIT_SHIFTS = np.arange(0, 8, 2, dtype=np.uint32)
_ONE_BIT_SHIFTS = np.arange(8, dtype=np.uint32)
FLOATS = {_T.F32: 4, _T.F16: 8, _T.BF16: 8}  # elements in 16 bytes


@dataclass(frozen=True, slots=True)
class Layout:
    """Streams of a format: bytes of a block in each, and the function that makes them.

    `split` returns uint8 [blocks, bytes] for each stream that is not empty. With `has_codebook`
    stream `s` starts with the format's codebook.
    """

    q: int
    h: int
    s: int
    split: Callable[[Blocks], Streams]
    has_codebook: bool = False


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """Byte offsets of streams `h` and `s` in a packed weight (`q` starts at 0).

    `codebook` is the size of the codebook in `s`, `n_bytes` the size of the packed weight.
    """

    h: int
    s: int
    codebook: int
    n_bytes: int


def offsets(type: GGMLType, n_rows: int, cols: int) -> StreamOffsets:
    """Return where the streams of `n_rows` rows lie. The rows of all planes count together."""
    if type in FLOATS:
        n_bytes = n_rows * round_up(cols, FLOATS[type]) * BLOCKS[type].block_bytes
        return StreamOffsets(0, 0, 0, n_bytes)
    layout = LAYOUTS[type]
    n_blocks = n_rows * (cols // BLOCKS[type].block_size)
    h = round_up(n_blocks * layout.q, ALIGNMENT)
    s = h + round_up(n_blocks * layout.h, ALIGNMENT)
    table = len(codebook(type)) if layout.has_codebook else 0
    return StreamOffsets(h, s, table, s + table + n_blocks * layout.s)


def pack(
    type: GGMLType,
    data: Bytes,
    planes: int,
    rows: int,
    cols: int,
    rows_from: npt.NDArray[np.int64] | None = None,
) -> Bytes:
    """Return the packed bytes of a matrix [planes, rows, cols] from the bytes of its file.

    With `rows_from`, row i of all planes * rows is row rows_from[i] of the file.
    """
    n_rows, layout = planes * rows, BLOCKS[type]
    source = data.reshape(-1, cols // layout.block_size * layout.block_bytes)
    if rows_from is not None:
        source = source[rows_from]
    assert len(source) == n_rows
    if type in FLOATS:
        return _padded(source, round_up(cols, FLOATS[type]) * layout.block_bytes)
    blocks = np.ascontiguousarray(source).reshape(-1).view(layout.dtype)
    return _in_streams(type, blocks, offsets(type, n_rows, cols))


def _padded(rows: Bytes, row_bytes: int) -> Bytes:
    """Return `rows`, uint8 [n, bytes], each padded with zeros to `row_bytes`, as one array."""
    if row_bytes == rows.shape[1]:
        return np.ascontiguousarray(rows).reshape(-1)
    padded = np.zeros((len(rows), row_bytes), np.uint8)
    padded[:, : rows.shape[1]] = rows
    return padded.reshape(-1)


def _in_streams(type: GGMLType, blocks: Blocks, at: StreamOffsets) -> Bytes:
    """Return the streams of `blocks`, at the offsets `at` of one array."""
    packing = LAYOUTS[type]
    result = np.zeros(at.n_bytes, np.uint8)
    scales = at.s + at.codebook
    if packing.has_codebook:
        result[at.s : scales] = codebook(type)
    streams = tuple(
        result[first : first + len(blocks) * n_bytes].reshape(len(blocks), n_bytes)
        for first, n_bytes in ((0, packing.q), (at.h, packing.h), (scales, packing.s))
        if n_bytes
    )
    fill = partial(_fill, streams, packing, blocks)
    chunks = range(0, len(blocks), _CHUNK)
    if len(chunks) < 4:
        for first in chunks:
            fill(first)
    else:  # numpy releases the GIL while it works
        with ThreadPoolExecutor() as pool:
            list(pool.map(fill, chunks))
    return result


def _fill(streams: Streams, packing: Layout, blocks: Blocks, first: int) -> None:
    """Write the chunk of blocks starting at `first` into `streams`."""
    chunk = slice(first, first + _CHUNK)
    for stream, part in zip(streams, packing.split(blocks[chunk]), strict=True):
        stream[chunk] = part


# Bits of a unit. Element 4 i + j is byte j of word i when the kernel has unpacked it.


def _bytes(array: npt.NDArray[Any], n_blocks: int) -> Bytes:
    return np.ascontiguousarray(array).view(np.uint8).reshape(n_blocks, -1)


def _nibble_units(qs: Bytes) -> npt.NDArray[np.uint64]:
    """Return units [n, groups, 2] of 16 bytes, with elements 0-15 in the low nibbles.

    Each group of 32 bytes holds two units, one in its low nibbles and one in its high nibbles.
    """
    return _nibble_units_of(qs.reshape(len(qs), -1, 2, 16))


def _nibble_units_of(pairs: Bytes) -> npt.NDArray[np.uint64]:
    """Return the units of `pairs`, uint8 [n, groups, 2, bytes].

    The bytes pairs[..., 0, :] hold the first elements of both units, pairs[..., 1, :] the others.
    """
    words = np.ascontiguousarray(pairs).view(np.uint64)
    first, second = words[:, :, 0], words[:, :, 1]
    low = (first & _LOW) | (second & _LOW) << np.uint64(4)
    high = (first & _HIGH) >> np.uint64(4) | (second & _HIGH)
    return np.stack([low, high], axis=2)


def _two_bit_units(planes: Bytes) -> npt.NDArray[np.uint32]:
    """Return units of 8 bytes, which are two words of 2-bit elements.

    Element 16 k + 4 c + j is in bits 2 c and 2 c + 1 of byte j of word k. Each 32 bytes of
    `planes` hold four units: unit c has bits 2 c and 2 c + 1 of every byte.
    """
    words = np.ascontiguousarray(planes).view(np.uint32).reshape(len(planes), -1, 2, 4)
    units = np.empty((len(planes), words.shape[1], 4, 2), np.uint32)
    for unit in range(4):
        bits = words >> np.uint32(2 * unit) & np.uint32(0x03030303)
        bits <<= _TWO_BIT_SHIFTS
        units[:, :, unit] = _merge(bits)
    return units


def _one_bit_units(plane: Bytes) -> npt.NDArray[np.uint32]:
    """Return units of one word in which bit i of byte j is element 4 i + j.

    The 32 bytes of `plane` hold eight units: unit u has bit u of every byte.
    """
    words = np.ascontiguousarray(plane).view(np.uint32).reshape(len(plane), 8)
    units = np.empty((len(plane), 8), np.uint32)
    for unit in range(8):
        bits = words >> np.uint32(unit) & np.uint32(0x01010101)
        bits <<= _ONE_BIT_SHIFTS
        units[:, unit] = _merge(bits)
    return units


def _merge(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Return the bitwise or over the last axis, whose size is a power of two."""
    while words.shape[-1] > 1:
        words = words[..., 0::2] | words[..., 1::2]
    return words[..., 0]


def _bit_table() -> npt.NDArray[np.uint32]:
    """Return a table from bytes of bits in element order to the bits' order in a unit's word."""
    bits = np.arange(256)[:, None] >> np.arange(8) & 1
    at = 8 * (np.arange(8) % 4) + np.arange(8) // 4
    table: npt.NDArray[np.uint32] = (bits << at).sum(axis=1).astype(np.uint32)
    return table


_BITS = _bit_table()


def _bits_in_order(qh: Bytes) -> npt.NDArray[np.uint32]:
    """Return a unit's words [n] from bytes [n, 4] of bits in element order."""
    return _merge(_BITS[qh] << _TWO_BIT_SHIFTS)


def _nibble_words(values: Bytes) -> npt.NDArray[np.uint32]:
    """Return words [n, 1] of eight nibbles each, the first in the lowest bits, from [n, 8]."""
    return (values[:, 0::2] | values[:, 1::2] << np.uint8(4)).view(np.uint32)


# One function for each format: from blocks to streams.


def _q4_0(b: Blocks) -> Streams:
    return b["qs"], _bytes(b["d"], len(b))


def _q4_1(b: Blocks) -> Streams:
    return b["qs"], _bytes(np.stack([b["d"], b["m"]], axis=1), len(b))


def _q5_0(b: Blocks) -> Streams:
    return b["qs"], _bytes(_bits_in_order(b["qh"]), len(b)), _bytes(b["d"], len(b))


def _q5_1(b: Blocks) -> Streams:
    low, scales = _q4_1(b)
    return low, _bytes(_bits_in_order(b["qh"]), len(b)), scales


def _q8_0(b: Blocks) -> Streams:
    return b["qs"].view(np.uint8), _bytes(b["d"], len(b))


def _mxfp4(b: Blocks) -> Streams:
    return b["qs"], b["e"][:, None]


def _nvfp4(b: Blocks) -> Streams:
    """Pack units of two groups of 8 bytes, elements 0-7 in low nibbles and 8-15 in high ones."""
    return _bytes(_nibble_units_of(b["qs"].reshape(len(b), 2, 2, 8)), len(b)), b["d"]


def _q1_0(b: Blocks) -> Streams:
    return _bytes(_bits_in_order(b["qs"].reshape(-1, 4)), len(b)), _bytes(b["d"], len(b))


def _ternary(b: Blocks, type: GGMLType) -> Streams:
    """Pack formats whose elements are (q - 1) * d with q below 4, through their numpy decoder."""
    plain = b.copy()
    plain["d"] = 1
    units = (DECODERS[type](plain) + 1).astype(np.uint8).reshape(len(b), -1, 2, 4, 4)
    bits = units << np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    return _bytes(np.bitwise_or.reduce(bits, axis=3), len(b)), _bytes(b["d"], len(b))


def _iq4_xs(b: Blocks) -> Streams:
    head = [_bytes(b[name], len(b)) for name in ("d", "scales_h", "scales_l")]
    return b["qs"], np.concatenate(head, axis=1)


def _q2_k(b: Blocks) -> Streams:
    scales = [_bytes(b[name], len(b)) for name in ("scales", "d", "dmin")]
    return _bytes(_two_bit_units(b["qs"]), len(b)), np.concatenate(scales, axis=1)


def _six_bits(first: Bytes, second: Bytes) -> list[npt.NDArray[np.uint32]]:
    """Return three words for two rows of eight 6-bit numbers.

    The first two have the low nibbles of a row each. In the third a nibble has the high two bits
    of a number of the first row, and above them those of the second row.
    """
    high = first >> np.uint8(4) | (second >> np.uint8(4)) << np.uint8(2)
    return [_nibble_words(x) for x in (first & np.uint8(15), second & np.uint8(15), high)]


def _q3_k(b: Blocks) -> Streams:
    """Return the streams of Q3_K.

    Stream `s` has d, then `_six_bits` of the scales of first halves and of second halves.
    """
    scales = (scales_6bit(b["scales"]) + np.int8(32)).view(np.uint8)
    d = b["d"].view(np.uint16).astype(np.uint32)[:, None]
    head = np.concatenate([d, *_six_bits(scales[:, 0::2], scales[:, 1::2])], axis=1)
    q, h = _two_bit_units(b["qs"]), _one_bit_units(b["qh"])
    return _bytes(q, len(b)), _bytes(h, len(b)), _bytes(head, len(b))


def _k_head(b: Blocks) -> Bytes:
    """Return d and dmin, then `_six_bits` of the scales and of the minimums."""
    d = b["d"].view(np.uint16) | b["dmin"].view(np.uint16).astype(np.uint32) << np.uint32(16)
    words = _six_bits(*scales_mins_6bit(b["scales"]))
    return _bytes(np.concatenate([d[:, None], *words], axis=1), len(b))


def _q4_k(b: Blocks) -> Streams:
    return _bytes(_nibble_units(b["qs"]), len(b)), _k_head(b)


def _q5_k(b: Blocks) -> Streams:
    low, head = _q4_k(b)
    return low, _bytes(_one_bit_units(b["qh"]), len(b)), head


def _q6_k(b: Blocks) -> Streams:
    # A half of a block has two groups of bytes: units 0 and 1 in low nibbles, 2 and 3 in high ones.
    groups = _nibble_units(b["ql"]).reshape(len(b), 2, 2, 2, 2)
    scales = [_bytes(b[name], len(b)) for name in ("scales", "d")]
    return (
        _bytes(groups.transpose(0, 1, 3, 2, 4), len(b)),
        _bytes(_two_bit_units(b["qh"]), len(b)),
        np.concatenate(scales, axis=1),
    )


LAYOUTS: dict[GGMLType, Layout] = {
    _T.Q4_0: Layout(16, 0, 2, _q4_0),
    _T.Q4_1: Layout(16, 0, 4, _q4_1),
    _T.Q5_0: Layout(16, 4, 2, _q5_0),
    _T.Q5_1: Layout(16, 4, 4, _q5_1),
    _T.Q8_0: Layout(32, 0, 2, _q8_0),
    _T.IQ4_NL: Layout(16, 0, 2, _q4_0),
    _T.MXFP4: Layout(16, 0, 1, _mxfp4),
    _T.IQ4_XS: Layout(128, 0, 8, _iq4_xs),
    _T.Q2_K: Layout(64, 0, 20, _q2_k),
    _T.Q3_K: Layout(64, 32, 16, _q3_k),
    _T.Q4_K: Layout(128, 0, 16, _q4_k),
    _T.Q5_K: Layout(128, 32, 16, _q5_k),
    _T.Q6_K: Layout(128, 64, 18, _q6_k),
    _T.NVFP4: Layout(32, 0, 4, _nvfp4),
    _T.Q1_0: Layout(16, 0, 2, _q1_0),
    _T.Q2_0: Layout(16, 0, 2, partial(_ternary, type=_T.Q2_0)),
    _T.TQ1_0: Layout(64, 0, 2, partial(_ternary, type=_T.TQ1_0)),
    _T.TQ2_0: Layout(64, 0, 2, partial(_ternary, type=_T.TQ2_0)),
    _T.IQ2_XXS: Layout(32, 32, 18, iq_packing.iq2_xxs, has_codebook=True),
    _T.IQ2_XS: Layout(32, 32, 18, iq_packing.iq2_xs, has_codebook=True),
    _T.IQ2_S: Layout(32, 32, 18, iq_packing.iq2_s, has_codebook=True),
    _T.IQ3_XXS: Layout(64, 32, 18, iq_packing.iq3_xxs, has_codebook=True),
    _T.IQ3_S: Layout(64, 32, 18, iq_packing.iq3_s, has_codebook=True),
    _T.IQ1_S: Layout(32, 0, 26, iq_packing.iq1_s, has_codebook=True),
    _T.IQ1_M: Layout(32, 0, 26, iq_packing.iq1_m, has_codebook=True),
}


class StreamWeights:
    """The weight layout of the Slang kernels; implements `zinc.gpu.kernel_set.WeightLayout`."""

    def row_format(self, type: GGMLType) -> RowFormat | None:
        if type in FLOATS:
            return RowFormat.F32
        return RowFormat.Q8_32 if type in LAYOUTS else None

    def packed_bytes(self, type: GGMLType, n_rows: int, cols: int) -> int:
        return offsets(type, n_rows, cols).n_bytes

    def pack(
        self,
        type: GGMLType,
        data: Bytes,
        planes: int,
        rows: int,
        cols: int,
        rows_from: npt.NDArray[np.int64] | None = None,
    ) -> Bytes:
        return pack(type, data, planes, rows, cols, rows_from)
