"""Memory layout of the structs that kernels read, from the annotations of Python classes.

A subclass of `Struct` is a table: each annotation names a field and its type in every language.
Fields lie in order at their natural alignment, as in C; neighbouring bit fields share a 32-bit
word, the first one in its lowest bits. `pack` writes the bytes, `zinc.gpu.arguments.generate`
writes the declarations in Slang and in C++.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import fields
from functools import cached_property
from typing import (
    Annotated,
    Any,
    ClassVar,
    Self,
    TypeAlias,
    dataclass_transform,
    get_type_hints,
)

from zinc.core.dataclass import dataclass
from zinc.core.rounding import round_up


@dataclass(frozen=True, slots=True)
class FieldType:
    """Type of a field: its names in Slang and C++, its `struct` code and its size in bytes.

    `bits` is the width of a bit field, 0 for any other field. `count` is the length of an array.
    """

    slang: str
    cpp: str
    code: str
    size: int
    bits: int = 0
    count: int = 1


def pointer(slang: str, cpp: str | None = None) -> FieldType:
    """Return the type of a 64-bit device address of elements with these type names."""
    return FieldType(f"{slang}*", f"{cpp or slang}*", "Q", 8)


def bits(width: int) -> FieldType:
    """Return the type of an unsigned bit field."""
    return FieldType("uint", "uint32_t", "I", 4, bits=width)


def array(type: FieldType, count: int) -> FieldType:
    """Return the type of `count` neighbouring elements of `type`."""
    return FieldType(type.slang, type.cpp, type.code, type.size, count=count)


UINT32 = FieldType("uint", "uint32_t", "I", 4)
U32: TypeAlias = Annotated[int, UINT32]
I32: TypeAlias = Annotated[int, FieldType("int", "int32_t", "i", 4)]
U64: TypeAlias = Annotated[int, FieldType("uint64_t", "uint64_t", "Q", 8)]
F32: TypeAlias = Annotated[float, FieldType("float", "float", "f", 4)]
U24: TypeAlias = Annotated[int, bits(24)]
U16: TypeAlias = Annotated[int, bits(16)]
U14: TypeAlias = Annotated[int, bits(14)]
U8: TypeAlias = Annotated[int, bits(8)]
Flag: TypeAlias = Annotated[bool, bits(1)]
Bytes: TypeAlias = Annotated[int, pointer("uint8_t")]
Ints: TypeAlias = Annotated[int, pointer("int", "int32_t")]
Uints: TypeAlias = Annotated[int, pointer("uint", "uint32_t")]
Floats: TypeAlias = Annotated[int, pointer("float")]
Float4s: TypeAlias = Annotated[int, pointer("float4", "float")]
Uint4s: TypeAlias = Annotated[int, pointer("uint4", "uint32_t")]


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a struct with its byte offset, its first bit there and its comment."""

    name: str
    type: FieldType | type[Struct]
    offset: int
    first_bit: int = 0
    comment: str = ""


@dataclass(frozen=True)
class Layout:
    """Fields of a struct, where its last field ends, its alignment in bytes and `struct` codes."""

    fields: tuple[Field, ...]
    end: int
    alignment: int
    codes: str

    @cached_property
    def packer(self) -> struct.Struct:
        return struct.Struct(f"<{self.codes}")

    @property
    def size(self) -> int:
        """`sizeof` in C: `end`, rounded up to the alignment."""
        return round_up(self.end, self.alignment)

    def offset(self, name: str) -> int:
        """Return the byte offset of the field `name`."""
        return next(field.offset for field in self.fields if field.name == name)


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Struct:
    """Base of structs that kernels read. Its subclasses become frozen dataclasses."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]
    _layout: ClassVar[Layout]

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

    @classmethod
    def extending(cls, base: Struct, **further: Any) -> Self:
        """Return this struct with the fields of `base`, whose class it extends, and `further`."""
        return cls(**{field.name: getattr(base, field.name) for field in fields(base)}, **further)

    @classmethod
    def layout(cls) -> Layout:
        """Return where each field lies."""
        if "_layout" not in cls.__dict__:
            cls._layout = _placed(cls)
        return cls._layout

    def pack(self) -> bytes:
        """Return the bytes up to the end of the last field, without padding after it.

        Raises ValueError if a number does not fit a bit field.
        """
        return self.layout().packer.pack(*self._values())

    def _values(self) -> Iterator[int | float]:
        """Yield the packer's numbers: fields, elements of arrays, words of bit fields."""
        word: int | None = None
        for field in self.layout().fields:
            value, type = getattr(self, field.name), field.type
            if isinstance(type, FieldType) and type.bits:
                if not 0 <= value < 1 << type.bits:
                    raise ValueError(f"{field.name} = {value} exceeds {type.bits} bits")
                if word is not None and field.first_bit == 0:
                    yield word
                    word = 0
                word = (word or 0) | int(value) << field.first_bit
                continue
            if word is not None:
                yield word
                word = None
            if isinstance(value, Struct):
                yield from value._values()
            elif isinstance(value, tuple):
                yield from value
            else:
                yield value
        if word is not None:
            yield word


def _placed(cls: type[Struct]) -> Layout:
    hints = get_type_hints(cls, include_extras=True)
    placed: list[Field] = []
    end, used_bits, alignment, codes = 0, 32, 1, ""
    for field in fields(cls):
        type, comment = _type_of(hints[field.name])
        bits = type.bits if isinstance(type, FieldType) else 0
        if bits and used_bits + bits <= 32:  # the next bits of the last word
            placed.append(Field(field.name, type, end - 4, used_bits, comment))
            used_bits += bits
            continue
        size, own, code = _place_of(type)
        offset = round_up(end, own)
        placed.append(Field(field.name, type, offset, comment=comment))
        codes += "x" * (offset - end) + code
        end, used_bits, alignment = offset + size, bits or 32, max(alignment, own)
    return Layout(tuple(placed), end, alignment, codes)


def _type_of(hint: Any) -> tuple[FieldType | type[Struct], str]:
    """Return the type and the comment that an annotation gives."""
    metadata: tuple[Any, ...] = getattr(hint, "__metadata__", ())
    base = getattr(hint, "__origin__", hint)
    comment = next((x for x in metadata if isinstance(x, str)), "")
    if isinstance(base, type) and issubclass(base, Struct):
        return base, comment
    return next(x for x in metadata if isinstance(x, FieldType)), comment


def _place_of(type: FieldType | type[Struct]) -> tuple[int, int, str]:
    """Return size, alignment and `struct` code."""
    if isinstance(type, FieldType):
        return type.count * type.size, type.size, f"{type.count}{type.code}"
    layout = type.layout()
    return layout.size, layout.alignment, layout.codes + "x" * (layout.size - layout.end)
