"""Parser of one GGUF file: header, metadata and tensor table.

    magic "GGUF" | u32 version | u64 tensors | u64 keys | keys and values | tensor table | padding
    | tensor data, each tensor at a multiple of the alignment

Every count, length, offset and product is checked against the size of the file before use, so a
hostile header costs no more than reading it. Arrays are skipped rather than decoded. Tensor data
stays in the file until `Tensor.read`.
Specification: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zinc.core.dataclass import dataclass
from zinc.core.errors import FormatError, UnsupportedError
from zinc.core.rounding import round_up
from zinc.formats.cursor import Cursor
from zinc.formats.metadata import NUMBERS, GGUFArray, Header, MetadataValue, ValueType
from zinc.formats.source import REFETCH, Source
from zinc.quant.blocks import BLOCKS, GGMLType
from zinc.quant.decode import decode

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 16
MAX_DIMS = 4

# Bounds on the number of Python objects that a file can create. The largest models have a few
# thousand tensors.
_MAX_TENSORS = 1 << 18
_MAX_KEYS = 1 << 18
_MAX_NESTED_ARRAYS = 1 << 16
_MAX_NESTING = 4

_MIN_KEY_BYTES = 8 + 1 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 4 + 8

_WITHDRAWN_TYPES = {4, 5, 31, 32, 33, 36, 37, 38}


@dataclass(frozen=True, eq=False, slots=True)
class Tensor:
    """A tensor of a model file, whose data is read on demand."""

    name: str
    shape: tuple[int, ...]
    """Dimensions in numpy's order, (rows, columns) for a matrix, which reverses GGUF's order.
    A tensor without dimensions becomes a vector of one element."""
    type: GGMLType
    n_bytes: int
    offset: int
    """Offset of the data from the beginning of the file."""
    source: Source

    @property
    def path(self) -> Path:
        """File with the tensor, which is one of several if the model is split."""
        return self.source.path

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)

    def read(self) -> NDArray[np.uint8]:
        """Return all bytes of the tensor as a new array.

        Raises FormatError if the file has become shorter or cannot be read.
        """
        data = np.empty(self.n_bytes, np.uint8)
        self.read_into(data)
        return data

    def read_into(self, target: NDArray[np.uint8], start: int = 0) -> None:
        """Fill the contiguous array `target` with the tensor's bytes starting at `start`.

        Raises FormatError if the file has become shorter or cannot be read, and ValueError if the
        tensor has too few bytes.
        """
        if start < 0 or start + target.nbytes > self.n_bytes:
            raise ValueError(f"bytes {start} to {start + target.nbytes} of {self.n_bytes}")
        self.source.read_into(target, self.offset + start, f"tensor {self.name}")

    def to_float32(self) -> NDArray[np.float32]:
        """Return the decoded values as a new array of `shape`; raises FormatError like `read`."""
        return decode(self.read(), self.type, self.shape)


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """The contents of one file; `header` has its bytes up to the end of the tensor table."""

    path: Path
    version: int
    alignment: int
    n_bytes: int
    metadata: Mapping[str, MetadataValue]
    value_types: Mapping[str, ValueType]
    tensors: Mapping[str, Tensor]
    header: Header
    source: Source


def read_part(source: Source) -> Part:
    """Read and check the header of a file.

    Raises FormatError for a file that is not GGUF, truncated or inconsistent, and UnsupportedError
    for a version, byte order or tensor type that zinc cannot read.
    """
    return _Reader(source).part()


def _other_format(head: bytes) -> str:
    """Return a clause that says what a file that is not GGUF may be, from its first bytes."""
    if head.startswith(b"PK\x03\x04"):
        return "it is a zip archive, perhaps a PyTorch checkpoint"
    if head.startswith((b"version https://git-lfs", b"oid sha256")):
        return "it is a Git LFS pointer, not the file itself"
    if head.lstrip()[:1] == b"<":
        return "it is an HTML or XML page, perhaps an error of the download"
    if head[8:9] == b"{":
        return "it seems to be a safetensors file"
    if head[:4] in (b"lmgg", b"tjgg", b"fmgg", b"algg"):
        return "it is a GGML file, the predecessor of GGUF"
    if head[:1] == b"\x80" and head[1:2] <= b"\x05":
        return "it seems to be a Python pickle, perhaps a PyTorch checkpoint"
    if head.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ", b"7z\xbc\xaf", b"BZh")):
        return "it is compressed, and must be unpacked first"
    if not any(head):
        return "it begins with zeros, perhaps because its download did not end"
    if text := _first_line(head):
        return f"it is a text file that begins with {text!r}"
    return f"its first bytes are {head[:4].hex(' ')} and not {MAGIC.hex(' ')} ({MAGIC.decode()})"


def _first_line(head: bytes) -> str:
    """Return the first line of text, or nothing if the bytes are not the beginning of a text."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)  # may end within a character
    except UnicodeDecodeError:
        return ""
    is_text = all(char.isprintable() or char in "\r\n\t" for char in text)
    return text.strip().partition("\n")[0].strip() if is_text else ""


class _Reader(Cursor):
    """Parser of the header of a file, from front to back."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.n_nested = 0

    def part(self) -> Part:
        version = self._version()
        n_tensors = self.count("tensors", _MIN_TENSOR_BYTES, _MAX_TENSORS)
        n_keys = self.count("metadata keys", _MIN_KEY_BYTES, _MAX_KEYS)
        metadata: dict[str, MetadataValue] = {}
        types: dict[str, ValueType] = {}
        for _ in range(n_keys):
            key = self.name("metadata key")
            if key in metadata:
                raise self.corrupt(f"metadata key {key} occurs twice")
            types[key] = self._value_type(key)
            metadata[key] = self._value(key, types[key])
        alignment = self._alignment(metadata, types)
        tensors = self._tensors(n_tensors, alignment)
        self.header.data = self.header.data[: self.position]  # drop what was read beyond it
        return Part(
            self.path,
            version,
            alignment,
            self.size,
            metadata,
            types,
            tensors,
            self.header,
            self.source,
        )

    def _version(self) -> int:
        self.load(min(64, self.size), "the header")
        head = self.header.data[:64]
        if not head.startswith(MAGIC):
            raise FormatError(
                f"{self.path} is not a GGUF file", _other_format(head), "give a .gguf file"
            )
        self.position = len(MAGIC)
        version = self.u32("the header")
        if version & 0xFFFF == 0 and version:
            raise UnsupportedError(
                f"zinc cannot read {self.path}",
                "it is a big-endian GGUF file",
                "convert it to little endian, for instance with gguf_convert_endian.py",
            )
        if version not in VERSIONS:
            raise UnsupportedError(
                f"zinc cannot read {self.path}",
                f"it is GGUF version {version}, and versions 2 and 3 are known",
                "convert the model again with a current converter",
            )
        return version

    # Metadata

    def _value(self, key: str, kind: ValueType) -> MetadataValue:
        what = f"the value of {key}"
        if kind is ValueType.STRING:
            return self.string(what).decode("utf-8", "replace")
        if kind is ValueType.ARRAY:
            return self._array(key, 1)
        dtype = NUMBERS[kind]
        start = self.take(dtype.itemsize, what)
        data = self.header.data
        if kind is ValueType.BOOL and data[start] > 1:
            raise self.corrupt(f"{what} is a boolean with the value {data[start]}")
        value: int | float | bool = np.frombuffer(data, dtype, 1, start)[0].item()
        return value

    def _value_type(self, key: str) -> ValueType:
        number = self.u32(f"the type of {key}")
        try:
            return ValueType(number)
        except ValueError:
            raise self.corrupt(f"metadata key {key} has the unknown type {number}") from None

    def _array(self, key: str, depth: int) -> GGUFArray:
        element = self._value_type(key)
        what = f"the array {key}"
        count = self.u64(what)
        start = self.position
        if element is ValueType.STRING:
            self.skip_strings(count, what)
            return GGUFArray(self.header, element, start, count)
        if element is ValueType.ARRAY:
            return self._nested_array(key, count, depth)
        self.take(count * NUMBERS[element].itemsize, what)
        if element is ValueType.BOOL and count:
            flags = np.frombuffer(self.header.data, np.uint8, count, start)
            if flags.max() > 1:
                raise self.corrupt(f"{what} holds a boolean with the value {flags.max()}")
        return GGUFArray(self.header, element, start, count)

    def _nested_array(self, key: str, count: int, depth: int) -> GGUFArray:
        self.n_nested += count
        if depth >= _MAX_NESTING or self.n_nested > _MAX_NESTED_ARRAYS:
            raise UnsupportedError(
                f"zinc cannot read {self.path}",
                f"metadata key {key} nests more than {_MAX_NESTING} levels of arrays or more than "
                f"{_MAX_NESTED_ARRAYS} arrays",
            )
        start = self.position
        children = [self._array(key, depth + 1) for _ in range(count)]
        return GGUFArray(self.header, ValueType.ARRAY, start, count, children)

    def _alignment(
        self, metadata: Mapping[str, MetadataValue], types: Mapping[str, ValueType]
    ) -> int:
        key = "general.alignment"
        if key not in metadata:
            return DEFAULT_ALIGNMENT
        alignment = metadata[key]
        if types[key] is not ValueType.UINT32 or not isinstance(alignment, int):
            raise self.corrupt(f"{key} is {alignment!r} of type {types[key].name}, and not UINT32")
        if alignment & (alignment - 1) or not 0 < alignment <= MAX_ALIGNMENT:
            raise self.corrupt(
                f"{key} is {alignment}, and it must be a power of two of at most {MAX_ALIGNMENT}"
            )
        return alignment

    # Tensors

    def _tensors(self, count: int, alignment: int) -> dict[str, Tensor]:
        table = [self._tensor_entry() for _ in range(count)]
        data_start = round_up(self.position, alignment)
        tensors: dict[str, Tensor] = {}
        offset = end = 0
        for name, shape, kind, claimed, n_bytes in table:
            if name in tensors:
                raise self.corrupt(f"tensor {name} occurs twice")
            if claimed != offset:
                raise self.corrupt(
                    f"tensor {name} is at offset {claimed}, and the tensors before it and the "
                    f"alignment of {alignment} put it at {offset}"
                )
            tensors[name] = Tensor(name, shape, kind, n_bytes, data_start + offset, self.source)
            end = data_start + offset + n_bytes
            offset += round_up(n_bytes, alignment)
        if end > self.size:
            raise self.truncated(f"tensor {name}, the last in it,", end - self.size)
        return tensors

    def _tensor_entry(self) -> tuple[str, tuple[int, ...], GGMLType, int, int]:
        """Return name, shape, type, offset in the data section, and bytes of the next tensor."""
        name = self.name("tensor")
        what = f"the entry of tensor {name}"
        n_dims = self.u32(what)
        if n_dims > MAX_DIMS:
            raise self.corrupt(f"tensor {name} has {n_dims} dimensions, more than {MAX_DIMS}")
        shape = tuple(self.u64(what) for _ in range(n_dims))[::-1] or (1,)
        if 0 in shape:
            raise self.corrupt(f"tensor {name} has no elements: its shape is {shape}")
        kind = self._tensor_type(name, self.u32(what))
        offset = self.u64(what)
        layout = BLOCKS[kind]
        if shape[-1] % layout.block_size:
            raise self.corrupt(
                f"tensor {name} has rows of {shape[-1]} elements, and {layout.name} stores blocks "
                f"of {layout.block_size}"
            )
        return name, shape, kind, offset, math.prod(shape) // layout.block_size * layout.block_bytes

    def _tensor_type(self, name: str, number: int) -> GGMLType:
        try:
            return GGMLType(number)
        except ValueError:
            withdrawn = number in _WITHDRAWN_TYPES
            raise UnsupportedError(
                f"zinc cannot read {self.path}",
                f"tensor {name} has type {number}, which "
                + ("ggml has withdrawn" if withdrawn else "is unknown"),
                "quantise the model again from its original weights"
                if withdrawn
                else "a newer zinc may know it; otherwise " + REFETCH,
            ) from None
