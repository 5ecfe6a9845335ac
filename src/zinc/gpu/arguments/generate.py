"""Declarations of structs and constants: Slang files, and headers for C++ and CUDA C++."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import IntEnum
from pathlib import Path

from zinc.gpu.arguments import structs
from zinc.gpu.arguments.constants import DimCode, ElementwiseOp, ProductKind
from zinc.gpu.arguments.layout import Field, FieldType, Struct
from zinc.ops.values import ActivationFn
from zinc.quant.blocks import GGMLType

FOLDER = "arguments"  # folder of the declarations, inside the folder of kernels
_NOTE = "// Written by `python -m zinc.gpu.arguments`.\n"


def all_structs() -> list[type[Struct]]:
    """Return every struct of the table that kernels read, in its order."""
    named = [x for name, x in vars(structs).items() if not name.startswith("_")]
    found = [x for x in named if isinstance(x, type) and issubclass(x, Struct)]
    return [cls for cls in found if cls is not Struct]


def all_constants() -> list[type[IntEnum]]:
    """Return every enum of constants."""
    return [DimCode, ProductKind, ElementwiseOp, ActivationFn, GGMLType]


def file_name(cls: type[Struct | IntEnum], extension: str = "slang") -> str:
    """Return the name of the file that declares `cls`: `norm.slang` for `NormArguments`."""
    words = re.findall("[A-Z]+(?![a-z])|[A-Z][a-z0-9]*", cls.__name__.removesuffix("Arguments"))
    return f"{'_'.join(words).lower()}.{extension}"


def slang(cls: type[Struct]) -> str:
    """Return the Slang file that declares `cls` and includes the structs that it names."""
    text = _declaration(cls, lambda type: type.slang)
    named = [x for x in all_structs() if re.search(rf"^    {x.__name__}\b", text, re.MULTILINE)]
    includes = "".join(f'#include "{FOLDER}/{file_name(x)}"\n' for x in named)
    return f"{_NOTE}\n#pragma once\n\n{includes}{includes and chr(10)}{text}"


def macros(cls: type[IntEnum]) -> str:
    """Return the file, for any of the languages, that defines the members of `cls` as macros."""
    lines = [f"#define {x.name} {x.value}{_comment(getattr(x, 'comment', ''))}\n" for x in cls]
    return f"{_NOTE}\n#pragma once\n\n{''.join(lines)}"


def slang_files() -> dict[str, str]:
    """Return the text of every Slang file by name."""
    files = {file_name(cls): slang(cls) for cls in all_structs()}
    return files | {file_name(cls): macros(cls) for cls in all_constants()}


def write_slang(folder: Path) -> None:
    """Write all Slang files to `folder`, and remove other ones."""
    wanted = slang_files()
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.slang"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text)


def cpp_header(chosen: Iterable[type[Struct]] | None = None) -> str:
    """Return a C++ or CUDA C++ header that declares `chosen`, by default all structs."""
    chosen = list(all_structs() if chosen is None else chosen)
    names = "".join(f"struct {cls.__name__};\n" for cls in chosen)
    texts = [_declaration(cls, lambda type: type.cpp) for cls in chosen]
    return f"{_NOTE}\n#pragma once\n#include <stdint.h>\n\n{names}\n" + "\n".join(texts)


def cpp_headers() -> dict[str, str]:
    """Return the text of every header that CUDA C++ kernels include, by its path there."""
    constants = {f"{FOLDER}/{file_name(cls, 'h')}": macros(cls) for cls in all_constants()}
    return {"arguments.h": cpp_header(), **constants}


def _comment(text: str) -> str:
    return f" // {text}" if text else ""


def _declaration(cls: type[Struct], type_name: Callable[[FieldType], str]) -> str:
    lines = [
        f"    {_member(field, type_name)};{_comment(field.comment)}\n"
        for field in cls.layout().fields
    ]
    return f"struct {cls.__name__}\n{{\n{''.join(lines)}}};\n"


def _member(field: Field, type_name: Callable[[FieldType], str]) -> str:
    if not isinstance(field.type, FieldType):
        return f"{field.type.__name__} {field.name}"
    width = f" : {field.type.bits}" if field.type.bits else ""
    count = f"[{field.type.count}]" if field.type.count > 1 else ""
    return f"{type_name(field.type)} {field.name}{count}{width}"
