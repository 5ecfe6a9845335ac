"""Metadata values of a GGUF file: types, lazily decoded arrays, and typed access by key.

A tokenizer's arrays have hundreds of thousands of strings, and most commands never read them. A
`GGUFArray` is therefore a view of the header that decodes elements on demand. Strings are bytes in
the file. As text, invalid UTF-8 becomes U+FFFD; `bytes_at` and `iter_bytes` give the original
bytes.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from zinc.core.errors import ModelError
from zinc.formats.strings import decode_strings, find_strings, read_u64


class Header:
    """The beginning of a file; `data` grows while the file is parsed."""

    __slots__ = ("data",)

    def __init__(self, data: bytes = b"") -> None:
        self.data = data


class ValueType(IntEnum):
    """Types of metadata values, with their ids in the file."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


NUMBERS: dict[ValueType, np.dtype[Any]] = {
    ValueType.UINT8: np.dtype("<u1"),
    ValueType.INT8: np.dtype("<i1"),
    ValueType.UINT16: np.dtype("<u2"),
    ValueType.INT16: np.dtype("<i2"),
    ValueType.UINT32: np.dtype("<u4"),
    ValueType.INT32: np.dtype("<i4"),
    ValueType.FLOAT32: np.dtype("<f4"),
    ValueType.BOOL: np.dtype("?"),
    ValueType.UINT64: np.dtype("<u8"),
    ValueType.INT64: np.dtype("<i8"),
    ValueType.FLOAT64: np.dtype("<f8"),
}
"""Value types of fixed size, as numpy types."""


class GGUFArray(Sequence[Any]):
    """An array of `count` elements of `element_type` from byte `start` of `header` on.

    The reader has checked that all elements lie within the header. children: the elements of a
    nested array, whose sizes differ.
    """

    __slots__ = ("_children", "_count", "_header", "_positions", "_start", "element_type")

    def __init__(
        self,
        header: Header,
        element_type: ValueType,
        start: int,
        count: int,
        children: Sequence[GGUFArray] = (),
    ) -> None:
        self.element_type = element_type
        self._header = header
        self._start = start
        self._count = count
        self._children = children
        self._positions: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"GGUFArray({self.element_type.name}, {self._count} elements)"

    def __iter__(self) -> Iterator[Any]:
        if self.element_type is ValueType.STRING:
            return (value.decode("utf-8", "replace") for value in self.iter_bytes())
        if self.element_type is ValueType.ARRAY:
            return iter(self._children)
        return iter(self.to_numpy().tolist())

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        if self.element_type is ValueType.STRING:
            return self.bytes_at(index).decode("utf-8", "replace")
        if self.element_type is ValueType.ARRAY:
            return self._children[index]
        return self.to_numpy()[index].item()

    def to_list(self) -> list[Any]:
        """Return all elements as Python values: strings as text, nested arrays as `GGUFArray`."""
        if self.element_type is not ValueType.STRING:
            return list(self)
        return decode_strings(self._header.data, self._start, self._count)

    def to_numpy(self) -> NDArray[Any]:
        """Return a read-only view of the numbers; raises TypeError for other elements."""
        dtype = NUMBERS.get(self.element_type)
        if dtype is None:
            raise TypeError(f"an array of {self.element_type.name} is not an array of numbers")
        return np.frombuffer(self._header.data, dtype, self._count, self._start)

    def bytes_at(self, index: int) -> bytes:
        """Return the bytes of string `index`; the first call computes where each string starts."""
        self._require_strings()
        data = self._header.data
        if self._positions is None:
            self._positions, _ = find_strings(data, self._start, self._count)
        start = int(self._positions[index])
        return data[start + 8 : start + 8 + read_u64(data, start)[0]]

    def iter_bytes(self) -> Iterator[bytes]:
        """Yield the bytes of every string in order."""
        return map(self.bytes_at, range(self._count))

    def _require_strings(self) -> None:
        if self.element_type is not ValueType.STRING:
            raise TypeError(f"an array of {self.element_type.name} is not an array of strings")


MetadataValue: TypeAlias = int | float | bool | str | GGUFArray

T = TypeVar("T")
D = TypeVar("D")


class _Missing:
    """The type of a default that makes a missing key an error."""


_MISSING = _Missing()


class MetadataAccess:
    """Typed access to `metadata`; a subclass sets it and `path`.

    Each accessor raises ModelError, which names the key and the file, if the value has another type
    or if the key is missing and no default is given.
    """

    path: Path
    metadata: Mapping[builtins.str, MetadataValue]

    @overload
    def str(self, key: builtins.str) -> builtins.str: ...
    @overload
    def str(self, key: builtins.str, default: D) -> builtins.str | D: ...
    def str(self, key: builtins.str, default: D | _Missing = _MISSING) -> builtins.str | D:
        """Return a string."""
        return self._typed(key, builtins.str, "a string", default)

    @overload
    def int(self, key: builtins.str) -> builtins.int: ...
    @overload
    def int(self, key: builtins.str, default: D) -> builtins.int | D: ...
    def int(self, key: builtins.str, default: D | _Missing = _MISSING) -> builtins.int | D:
        """Return an integer."""
        return self._typed(key, builtins.int, "an integer", default)

    @overload
    def float(self, key: builtins.str) -> builtins.float: ...
    @overload
    def float(self, key: builtins.str, default: D) -> builtins.float | D: ...
    def float(self, key: builtins.str, default: D | _Missing = _MISSING) -> builtins.float | D:
        """Return a number as a float."""
        value = self.metadata.get(key)
        if isinstance(value, builtins.int) and not isinstance(value, builtins.bool):
            return builtins.float(value)
        return self._typed(key, builtins.float, "a number", default)

    @overload
    def bool(self, key: builtins.str) -> builtins.bool: ...
    @overload
    def bool(self, key: builtins.str, default: D) -> builtins.bool | D: ...
    def bool(self, key: builtins.str, default: D | _Missing = _MISSING) -> builtins.bool | D:
        """Return a boolean."""
        return self._typed(key, builtins.bool, "a boolean", default)

    @overload
    def array(self, key: builtins.str) -> GGUFArray: ...
    @overload
    def array(self, key: builtins.str, default: D) -> GGUFArray | D: ...
    def array(self, key: builtins.str, default: D | _Missing = _MISSING) -> GGUFArray | D:
        return self._typed(key, GGUFArray, "an array", default)

    def _typed(
        self, key: builtins.str, kind: type[T], noun: builtins.str, default: D | _Missing
    ) -> T | D:
        value = self.metadata.get(key)
        if value is None:
            if isinstance(default, _Missing):
                raise ModelError(f"{self.path} has no metadata key {key}", f"{noun} is needed")
            return default
        if not isinstance(value, kind) or (
            kind is builtins.int and isinstance(value, builtins.bool)
        ):
            found = repr(value) if len(repr(value)) < 60 else type(value).__name__
            raise ModelError(f"metadata key {key} of {self.path} is not {noun}", f"it is {found}")
        return value
