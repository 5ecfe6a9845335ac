"""Weights in the layout that GPU kernels read, made of the bytes of a file at load.

The fields of all blocks lie in up to three streams one after another, each aligned to 256 bytes,
so that every load is 16 bytes (or a part of 8 neighbouring lanes' 16) whatever the format: `q` the
low bits of units of 32 elements, `h` their high bits, `s` the scales. Bits are put where one mask
takes four elements to the four bytes of a word (kernels/formats.slang reads them). Nothing is
rounded, and nothing grows but Q3_K (110 to 112 bytes a block), TQ1_0 (54 to 66) and what grids.py
lays out. Rows of the float types are padded with zeros to 16 bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zinc.gpu import grids
from zinc.gpu.grids import Blocks, Streams, codebook
from zinc.gpu.rows import align
from zinc.ops.values import RowFormat
from zinc.quant.bits import scales_6bit, scales_mins_6bit
from zinc.quant.blocks import BLOCKS, GGMLType
from zinc.quant.decode import DECODERS

Bytes: TypeAlias = grids.Bytes

UNIT = 32
ALIGNMENT = 256
_CHUNK = 1 << 12  # blocks packed at a time: their temporaries stay in the cache

_T = GGMLType
_LOW = np.uint64(0x0F0F0F0F0F0F0F0F)
_HIGH = np.uint64(0xF0F0F0F0F0F0F0F0)
_CRUMB_SHIFTS = np.arange(0, 8, 2, dtype=np.uint32)
_BIT_SHIFTS = np.arange(8, dtype=np.uint32)
FLOATS = {_T.F32: 4, _T.F16: 8, _T.BF16: 8}  # elements in 16 bytes


@dataclass(frozen=True, slots=True)
class Layout:
    """Bytes of each stream for a block of the format, and how to make them."""

    q: int
    h: int
    s: int
    split: Callable[[Blocks], Streams]
    has_codebook: bool = False  # at the start of `s`


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """Where the streams of a packed weight start, how many bytes of `s` are a codebook, and the
    size in all."""

    h: int
    s: int
    codebook: int
    n_bytes: int


def offsets(type: GGMLType, n_rows: int, cols: int) -> StreamOffsets:
    """Streams of `n_rows` rows, those of all planes together."""
    if type in FLOATS:
        n_bytes = n_rows * align(cols, FLOATS[type]) * BLOCKS[type].block_bytes
        return StreamOffsets(0, 0, 0, n_bytes)
    layout = LAYOUTS[type]
    n_blocks = n_rows * (cols // BLOCKS[type].block_size)
    h = align(n_blocks * layout.q, ALIGNMENT)
    s = h + align(n_blocks * layout.h, ALIGNMENT)
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
    """The device's bytes of a matrix [planes, rows, cols].

    `data` are the bytes of the file; with `rows_from` row i of all planes * rows is its row
    rows_from[i].
    """
    n_rows, layout = planes * rows, BLOCKS[type]
    per_row = cols // layout.block_size
    source = data.reshape(-1, per_row * layout.block_bytes)
    if rows_from is not None:
        source = source[rows_from]
    assert len(source) == n_rows
    if type in FLOATS:
        row = align(cols, FLOATS[type]) * layout.block_bytes
        if row == source.shape[1]:
            return np.ascontiguousarray(source).reshape(-1)
        padded = np.zeros((n_rows, row), np.uint8)
        padded[:, : source.shape[1]] = source
        return padded.reshape(-1)

    packing = LAYOUTS[type]
    at = offsets(type, n_rows, cols)
    result = np.zeros(at.n_bytes, np.uint8)
    scales = at.s + at.codebook
    if packing.has_codebook:
        result[at.s : scales] = codebook(type)
    blocks = np.ascontiguousarray(source).reshape(-1).view(layout.dtype)
    streams = tuple(
        result[first : first + len(blocks) * n_bytes].reshape(len(blocks), n_bytes)
        for first, n_bytes in ((0, packing.q), (at.h, packing.h), (scales, packing.s))
        if n_bytes
    )

    def fill(first: int) -> None:
        made = packing.split(blocks[first : first + _CHUNK])
        for stream, part in zip(streams, made, strict=True):
            stream[first : first + _CHUNK] = part

    chunks = range(0, len(blocks), _CHUNK)
    if len(chunks) < 4:
        for first in chunks:
            fill(first)
    else:  # numpy lets go of the interpreter while it works
        with ThreadPoolExecutor() as pool:
            list(pool.map(fill, chunks))
    return result


# Bits of a unit. Element e = 4 i + j is byte j of word i.


def _bytes(array: npt.NDArray[Any], n_blocks: int) -> Bytes:
    return np.ascontiguousarray(array).view(np.uint8).reshape(n_blocks, -1)


def _nibble_units(qs: Bytes) -> npt.NDArray[np.uint64]:
    """Groups of 32 bytes, whose low nibbles are one unit and whose high ones another, to units
    [n, groups, 2] of 16 bytes: elements 0-15 in the low nibbles, 16-31 in the high."""
    return _nibble_units_of(qs.reshape(len(qs), -1, 2, 16))


def _nibble_units_of(pairs: Bytes) -> npt.NDArray[np.uint64]:
    """The same of pairs [n, groups, 2, bytes] that are put into one unit each, or a half."""
    words = np.ascontiguousarray(pairs).view(np.uint64)
    first, second = words[:, :, 0], words[:, :, 1]
    low = (first & _LOW) | (second & _LOW) << np.uint64(4)
    high = (first & _HIGH) >> np.uint64(4) | (second & _HIGH)
    return np.stack([low, high], axis=2)


def _crumb_units(planes: Bytes) -> npt.NDArray[np.uint32]:
    """Halves of 32 bytes, whose crumb c belongs to unit c of the half, to units of 8 bytes: crumb c
    of byte j of word k is element 16 k + 4 c + j."""
    words = np.ascontiguousarray(planes).view(np.uint32).reshape(len(planes), -1, 2, 4)
    units = np.empty((len(planes), words.shape[1], 4, 2), np.uint32)
    for unit in range(4):
        crumbs = words >> np.uint32(2 * unit) & np.uint32(0x03030303)
        crumbs <<= _CRUMB_SHIFTS
        units[:, :, unit] = _merge(crumbs)
    return units


def _bit_units(plane: Bytes) -> npt.NDArray[np.uint32]:
    """32 bytes, whose bit u belongs to unit u, to units of a word: bit i of byte j is element
    4 i + j."""
    words = np.ascontiguousarray(plane).view(np.uint32).reshape(len(plane), 8)
    units = np.empty((len(plane), 8), np.uint32)
    for unit in range(8):
        bits = words >> np.uint32(unit) & np.uint32(0x01010101)
        bits <<= _BIT_SHIFTS
        units[:, unit] = _merge(bits)
    return units


def _merge(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """All of the last axis, a power of two, or-ed together."""
    while words.shape[-1] > 1:
        words = words[..., 0::2] | words[..., 1::2]
    return words[..., 0]


def _bit_table() -> npt.NDArray[np.uint32]:
    """For eight bits in order of element their places in a unit's word, as if they were 0-7."""
    bits = np.arange(256)[:, None] >> np.arange(8) & 1
    at = 8 * (np.arange(8) % 4) + np.arange(8) // 4
    table: npt.NDArray[np.uint32] = (bits << at).sum(axis=1).astype(np.uint32)
    return table


_BITS = _bit_table()


def _bits_in_order(qh: Bytes) -> npt.NDArray[np.uint32]:
    """Four bytes of bits in order of element [n, 4] to a unit's word [n]."""
    return _merge(_BITS[qh] << _CRUMB_SHIFTS)


def _nibble_words(values: Bytes) -> npt.NDArray[np.uint32]:
    """Eight numbers below 16, from the low end of a word: [n, 8] to [n, 1]."""
    return (values[:, 0::2] | values[:, 1::2] << np.uint8(4)).view(np.uint32)


# Blocks to streams.


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
    """A unit is two groups, whose eight bytes have elements 0-7 low and 8-15 high."""
    return _bytes(_nibble_units_of(b["qs"].reshape(len(b), 2, 2, 8)), len(b)), b["d"]


def _q1_0(b: Blocks) -> Streams:
    return _bytes(_bits_in_order(b["qs"].reshape(-1, 4)), len(b)), _bytes(b["d"], len(b))


def _crumbs(b: Blocks, type: GGMLType) -> Streams:
    """Of formats of two bits or less in other orders, through their decoder: q - 1 times d."""
    plain = b.copy()
    plain["d"] = 1
    units = (DECODERS[type](plain) + 1).astype(np.uint8).reshape(len(b), -1, 2, 4, 4)
    crumbs = units << np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    return _bytes(np.bitwise_or.reduce(crumbs, axis=3), len(b)), _bytes(b["d"], len(b))


def _iq4_xs(b: Blocks) -> Streams:
    head = [_bytes(b[name], len(b)) for name in ("d", "scales_h", "scales_l")]
    return b["qs"], np.concatenate(head, axis=1)


def _q2_k(b: Blocks) -> Streams:
    scales = [_bytes(b[name], len(b)) for name in ("scales", "d", "dmin")]
    return _bytes(_crumb_units(b["qs"]), len(b)), np.concatenate(scales, axis=1)


def _six_bits(first: Bytes, second: Bytes) -> list[npt.NDArray[np.uint32]]:
    """Two rows of eight 6-bit numbers as words: low nibbles of each, then a nibble with the two
    high bits of the first and above them of the second."""
    high = first >> np.uint8(4) | (second >> np.uint8(4)) << np.uint8(2)
    return [_nibble_words(x) for x in (first & np.uint8(15), second & np.uint8(15), high)]


def _q3_k(b: Blocks) -> Streams:
    """Scales: d, then words of six bits of those of all first halves and of all second ones."""
    scales = (scales_6bit(b["scales"]) + np.int8(32)).view(np.uint8)
    d = b["d"].view(np.uint16).astype(np.uint32)[:, None]
    head = np.concatenate([d, *_six_bits(scales[:, 0::2], scales[:, 1::2])], axis=1)
    q, h = _crumb_units(b["qs"]), _bit_units(b["qh"])
    return _bytes(q, len(b)), _bytes(h, len(b)), _bytes(head, len(b))


def _k_head(b: Blocks) -> Bytes:
    """d and dmin, then words of six bits of the scales and of the minimums."""
    d = b["d"].view(np.uint16) | b["dmin"].view(np.uint16).astype(np.uint32) << np.uint32(16)
    words = _six_bits(*scales_mins_6bit(b["scales"]))
    return _bytes(np.concatenate([d[:, None], *words], axis=1), len(b))


def _q4_k(b: Blocks) -> Streams:
    return _bytes(_nibble_units(b["qs"]), len(b)), _k_head(b)


def _q5_k(b: Blocks) -> Streams:
    low, head = _q4_k(b)
    return low, _bytes(_bit_units(b["qh"]), len(b)), head


def _q6_k(b: Blocks) -> Streams:
    # A half of the block has two groups of bytes: low nibbles are its units 0 and 1, high 2 and 3.
    groups = _nibble_units(b["ql"]).reshape(len(b), 2, 2, 2, 2)
    scales = [_bytes(b[name], len(b)) for name in ("scales", "d")]
    return (
        _bytes(groups.transpose(0, 1, 3, 2, 4), len(b)),
        _bytes(_crumb_units(b["qh"]), len(b)),
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
    _T.Q2_0: Layout(16, 0, 2, partial(_crumbs, type=_T.Q2_0)),
    _T.TQ1_0: Layout(64, 0, 2, partial(_crumbs, type=_T.TQ1_0)),
    _T.TQ2_0: Layout(64, 0, 2, partial(_crumbs, type=_T.TQ2_0)),
    _T.IQ2_XXS: Layout(32, 32, 18, grids.iq2_xxs, has_codebook=True),
    _T.IQ2_XS: Layout(32, 32, 18, grids.iq2_xs, has_codebook=True),
    _T.IQ2_S: Layout(32, 32, 18, grids.iq2_s, has_codebook=True),
    _T.IQ3_XXS: Layout(64, 32, 18, grids.iq3_xxs, has_codebook=True),
    _T.IQ3_S: Layout(64, 32, 18, grids.iq3_s, has_codebook=True),
    _T.IQ1_S: Layout(32, 0, 26, grids.iq1_s, has_codebook=True),
    _T.IQ1_M: Layout(32, 0, 26, grids.iq1_m, has_codebook=True),
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
