"""GGUF model files: metadata and tensors of a single file or of a split model.

    with GGUFFile.open("model.gguf") as file:
        file.str("general.architecture"), file.tensors["output.weight"].to_float32()

A split model (`name-00001-of-00003.gguf`, ...) can be opened from any of its parts. Metadata comes
from the first part and tensors from all of them.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Container, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from zinc.core.errors import FormatError
from zinc.formats.gguf_part import Part, Tensor, read_part
from zinc.formats.metadata import GGUFArray, MetadataAccess, MetadataValue, ValueType
from zinc.formats.source import REFETCH, Source

__all__ = ["GGUFArray", "GGUFFile", "MetadataValue", "Tensor", "ValueType"]

_PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


class GGUFFile(MetadataAccess):
    """An open model file: `metadata` by key and `tensors` by name, in the order of the file."""

    def __init__(self, parts: list[Part]) -> None:
        first = parts[0]
        self.parts = tuple(parts)
        self.path = first.path
        self.paths = tuple(part.path for part in parts)
        self.version = first.version
        self.alignment = first.alignment
        self.n_bytes = sum(part.n_bytes for part in parts)
        self.metadata: Mapping[str, MetadataValue] = MappingProxyType(dict(first.metadata))
        self.value_types: Mapping[str, ValueType] = MappingProxyType(dict(first.value_types))
        self.tensors: Mapping[str, Tensor] = MappingProxyType(_merge(parts))

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GGUFFile:
        """Open a model file; for a part of a split model, open the other parts too.

        Raises FormatError for a file that is missing, truncated, corrupt or not GGUF, and
        UnsupportedError for a version, byte order or tensor type that zinc cannot read.
        """
        part = read_part(Source(Path(path)))
        if _split_value(part, "split.count", 1) <= 1:
            return cls([part])
        return cls(_read_all_parts(part))

    def with_metadata(self, changes: Mapping[str, MetadataValue]) -> GGUFFile:
        """Return a view of the file with changed metadata; both share the open file."""
        view = copy.copy(self)
        view.metadata = MappingProxyType({**self.metadata, **changes})
        return view

    def joined(
        self, other: GGUFFile, names: Container[str], changes: Mapping[str, MetadataValue]
    ) -> GGUFFile:
        """Return a view with the tensors `names` of `other` too, and with changed metadata.

        It shares both open files. Raises FormatError if both have a tensor of the same name.
        """
        view = self.with_metadata(changes)
        chosen = [
            replace(part, tensors={n: t for n, t in part.tensors.items() if n in names})
            for part in other.parts
        ]
        view.parts = (*self.parts, *chosen)
        view.paths = tuple(part.path for part in view.parts)
        view.n_bytes = self.n_bytes + other.n_bytes
        view.tensors = MappingProxyType(_merge([*view.parts]))
        return view

    def close(self) -> None:
        """Drop metadata and tensors; the file closes when its last tensor is garbage-collected."""
        self.metadata = MappingProxyType({})
        self.tensors = MappingProxyType({})
        self.parts = ()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"GGUFFile({str(self.path)!r}, {len(self.tensors)} tensors)"


def _split_value(part: Part, key: str, default: int | None = None) -> int:
    value = part.metadata.get(key, default)
    if not isinstance(value, int) or value < 0:
        raise FormatError(f"{part.path} is corrupt", f"its {key} is {value!r}", REFETCH)
    return value


def _read_all_parts(opened: Part) -> list[Part]:
    count = _split_value(opened, "split.count")
    match = _PART_NAME.fullmatch(opened.path.name)
    if match is None or int(match["count"]) != count:
        raise FormatError(
            f"{opened.path} is one of {count} parts, and its name does not say which",
            hint=f"name the parts NAME-00001-of-{count:05}.gguf and so on",
        )
    parts = []
    for number in range(1, count + 1):
        path = opened.path.with_name(f"{match['stem']}-{number:05}-of-{count:05}.gguf")
        if number == int(match["number"]):
            part = opened
        elif path.exists():
            part = read_part(Source(path))
        else:
            raise FormatError(
                f"part {number} of {count} of the model is missing",
                f"there is no {path}",
                "put all parts into one folder",
            )
        claimed = _split_value(part, "split.no"), _split_value(part, "split.count")
        if claimed != (number - 1, count):
            raise FormatError(
                f"{path} is not part {number} of {count}",
                f"its metadata says split.no {claimed[0]} and split.count {claimed[1]}",
                "do not rename the parts",
            )
        parts.append(part)
    n_tensors = sum(len(part.tensors) for part in parts)
    expected = _split_value(parts[0], "split.tensors.count", n_tensors)
    if n_tensors != expected:
        raise FormatError(
            f"the parts of {parts[0].path} do not belong together",
            f"they have {n_tensors} tensors and should have {expected}",
            "download all parts again from one repository",
        )
    return parts


def _merge(parts: list[Part]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for part in parts:
        for name, tensor in part.tensors.items():
            if name in tensors:
                raise FormatError(
                    f"tensor {name} occurs twice",
                    f"in {tensors[name].path} and {part.path}",
                    REFETCH,
                )
            tensors[name] = tensor
    return tensors
