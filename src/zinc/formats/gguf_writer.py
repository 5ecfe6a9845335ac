"""Writer of GGUF version 3 files.

    with GGUFWriter("model.gguf") as writer:
        writer.add("general.architecture", "llama")
        writer.add_tensor("output.weight", encode(weights, GGMLType.Q8_0), GGMLType.Q8_0, shape)

Tensor data is kept by reference and streamed to the file by `write`. The file gets its name only
when it is complete, so a failed write never leaves half a model.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from zinc.core.errors import FormatError, ModelError
from zinc.formats.cursor import MAX_NAME_BYTES
from zinc.formats.gguf_part import DEFAULT_ALIGNMENT, MAGIC, MAX_ALIGNMENT, MAX_DIMS
from zinc.formats.metadata import NUMBERS, GGUFArray, ValueType
from zinc.quant.blocks import BLOCKS, GGMLType, row_bytes

VERSION = 3

_NUMPY_TYPES = {dtype: kind for kind, dtype in NUMBERS.items()}

_STRUCT_CODES: dict[ValueType, str] = {
    ValueType.UINT8: "<B",
    ValueType.INT8: "<b",
    ValueType.UINT16: "<H",
    ValueType.INT16: "<h",
    ValueType.UINT32: "<I",
    ValueType.INT32: "<i",
    ValueType.FLOAT32: "<f",
    ValueType.BOOL: "<?",
    ValueType.UINT64: "<Q",
    ValueType.INT64: "<q",
    ValueType.FLOAT64: "<d",
}


class GGUFWriter:
    """Writer of a GGUF file, which collects metadata and tensors and then writes them to `path`.

    As a context manager it writes at the end of the block, unless the block raised. `add` and
    `add_tensor` raise ModelError for values that the format cannot store.
    """

    def __init__(self, path: str | os.PathLike[str], alignment: int = DEFAULT_ALIGNMENT) -> None:
        if alignment & (alignment - 1) or not 0 < alignment <= MAX_ALIGNMENT:
            raise ModelError(
                f"an alignment of {alignment} is not possible",
                f"it must be a power of two of at most {MAX_ALIGNMENT}",
            )
        self.path = Path(path)
        self.alignment = alignment
        self._values: dict[str, bytes] = {}
        self._entries: dict[str, bytes] = {}
        self._data: list[NDArray[np.uint8]] = []
        self._n_data_bytes = 0
        if alignment != DEFAULT_ALIGNMENT:
            self._values["general.alignment"] = _typed(ValueType.UINT32, alignment)

    def add(self, key: str, value: object, type: ValueType | None = None) -> None:
        """Add a metadata value.

        value: a bool, number, string (str or bytes), numpy array, GGUFArray or sequence. type: type
        of the value or, for a sequence, of its elements. By default integers become the first of
        UINT32, INT32, UINT64 and INT64 that holds them all, and floats FLOAT32.
        """
        if key == "general.alignment" and value != self.alignment:
            raise ModelError(
                f"general.alignment cannot be {value!r}",
                f"the file is written with {self.alignment}",
                "give the alignment to GGUFWriter",
            )
        if key in self._values and key != "general.alignment":
            raise ModelError(f"metadata key {key} is already there")
        if not 0 < len(key.encode()) <= MAX_NAME_BYTES:
            raise ModelError(f"metadata key {key[:60]!r} is empty or too long")
        try:
            self._values[key] = _encode_value(value, type)
        except (struct.error, OverflowError, TypeError, ValueError) as error:
            raise ModelError(f"metadata key {key} cannot be written", str(error)) from error

    def add_tensor(
        self, name: str, data: NDArray[Any], type: GGMLType, shape: tuple[int, ...]
    ) -> None:
        """Add a tensor of `shape` (rows, columns); `data` has its bytes in the layout of `type`."""
        if name in self._entries:
            raise ModelError(f"tensor {name} is already there")
        if not 0 < len(name.encode()) <= MAX_NAME_BYTES:
            raise ModelError(f"tensor name {name[:60]!r} is empty or too long")
        if len(shape) > MAX_DIMS:
            raise ModelError(f"tensor {name} has {len(shape)} dimensions, more than {MAX_DIMS}")
        if any(n <= 0 for n in shape):
            raise ModelError(f"tensor {name} has no elements", f"its shape is {shape}")
        n_columns = shape[-1] if shape else 1
        expected = math.prod(shape) // n_columns * row_bytes(type, n_columns)
        if data.nbytes != expected:
            raise ModelError(
                f"tensor {name} of shape {shape} as {BLOCKS[type].name} takes {expected} bytes",
                f"its data has {data.nbytes}",
            )
        self._entries[name] = (
            _string(name.encode())
            + struct.pack("<I", len(shape))
            + struct.pack(f"<{len(shape)}Q", *reversed(shape))
            + struct.pack("<IQ", type, self._n_data_bytes)
        )
        self._data.append(np.ascontiguousarray(data).reshape(-1).view(np.uint8))
        self._n_data_bytes += expected + self._padding(expected)

    def write(self) -> None:
        """Write the file. Raises FormatError if that is not possible."""
        partial = self.path.with_name(self.path.name + ".partial")
        try:
            with open(partial, "wb") as file:
                self._write_to(file)
            os.replace(partial, self.path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise FormatError(f"cannot write {self.path}", error.strerror or str(error)) from error

    def __enter__(self) -> GGUFWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.write()

    def _padding(self, n_bytes: int) -> int:
        return -n_bytes % self.alignment

    def _write_to(self, file: BinaryIO) -> None:
        file.write(MAGIC + struct.pack("<IQQ", VERSION, len(self._entries), len(self._values)))
        for key, value in self._values.items():
            file.write(_string(key.encode()) + value)
        file.writelines(self._entries.values())
        file.write(bytes(self._padding(file.tell())))
        for data in self._data:
            file.write(data.data)
            file.write(bytes(self._padding(data.nbytes)))


def _string(raw: bytes) -> bytes:
    return struct.pack("<Q", len(raw)) + raw


def _typed(kind: ValueType, value: object) -> bytes:
    return struct.pack("<I", kind) + _encode(value, kind)


def _encode_value(value: object, kind: ValueType | None) -> bytes:
    if isinstance(value, np.ndarray):
        return _encode_numbers(value, kind)
    if isinstance(value, np.generic):
        return _encode_value(value.item(), _or_default(kind, _NUMPY_TYPES.get(value.dtype)))
    if isinstance(value, GGUFArray):
        return _encode_array(_raw_elements(value), _or_default(kind, value.element_type))
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return _encode_array(value, kind)
    return _typed(kind if kind is not None else _infer([value]), value)


def _or_default(kind: ValueType | None, default: ValueType | None) -> ValueType | None:
    return default if kind is None else kind  # UINT8 is 0, so `or` would lose it


def _raw_elements(array: GGUFArray) -> Sequence[Any]:
    """Return the elements, with strings as bytes: invalid UTF-8 is then written unchanged."""
    return list(array.iter_bytes()) if array.element_type is ValueType.STRING else array


def _encode_numbers(array: NDArray[Any], kind: ValueType | None) -> bytes:
    kind = _or_default(kind, _NUMPY_TYPES.get(array.dtype.newbyteorder("<")))
    if kind not in NUMBERS or array.ndim != 1:
        raise TypeError(f"a numpy array of {array.ndim} dimensions of {array.dtype} has no type")
    if array.dtype.newbyteorder("<") != NUMBERS[kind]:
        return _encode_array(array.tolist(), kind)
    head = struct.pack("<IIQ", ValueType.ARRAY, kind, len(array))
    return head + array.astype(NUMBERS[kind]).tobytes()


def _encode_array(values: Sequence[Any], kind: ValueType | None) -> bytes:
    kind = kind if kind is not None else _infer(values)
    head = struct.pack("<IIQ", ValueType.ARRAY, kind, len(values))
    if kind is ValueType.ARRAY:
        # A nested array does not repeat the value type: drop the leading ARRAY.
        return head + b"".join(_encode_value(value, None)[4:] for value in values)
    return head + b"".join(_encode(value, kind) for value in values)


def _encode(value: object, kind: ValueType) -> bytes:
    if kind is ValueType.STRING:
        if not isinstance(value, str | bytes):
            raise TypeError(f"{value!r} is not a string")
        return _string(value.encode() if isinstance(value, str) else value)
    if kind is ValueType.BOOL and not isinstance(value, bool):
        raise TypeError(f"{value!r} is not a boolean")
    return struct.pack(_STRUCT_CODES[kind], value)


def _infer(values: Sequence[Any]) -> ValueType:
    """Return a type that holds all values. Raises TypeError or ValueError if there is none."""
    kinds = {type(value) for value in values}
    if kinds <= {bool} and values:
        return ValueType.BOOL
    if kinds <= {str, bytes}:
        return ValueType.STRING
    if kinds == {int}:
        low, high = min(values), max(values)
        for kind in (ValueType.UINT32, ValueType.INT32, ValueType.UINT64, ValueType.INT64):
            limits = np.iinfo(NUMBERS[kind])
            if limits.min <= low and high <= limits.max:
                return kind
        raise ValueError(f"{low} to {high} does not fit 64 bits")
    if kinds <= {int, float}:
        return ValueType.FLOAT32
    if all(isinstance(value, Sequence | np.ndarray) for value in values):
        return ValueType.ARRAY
    raise TypeError(f"no type holds {', '.join(sorted(kind.__name__ for kind in kinds))}")
