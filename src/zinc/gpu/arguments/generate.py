"""Declarations of the structs in Slang, one file each, and in C++ or CUDA C++, one header."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from zinc.gpu.arguments import structs
from zinc.gpu.arguments.layout import Field, FieldType, Struct

FOLDER = "arguments"  # folder of the Slang files, inside the folder of kernels
_NOTE = "// Written by `python -m zinc.gpu.arguments` from zinc/gpu/arguments/structs.py.\n"


def all_structs() -> list[type[Struct]]:
    """Return every struct of the table, in its order."""
    found = [x for x in vars(structs).values() if isinstance(x, type) and issubclass(x, Struct)]
    return [cls for cls in found if cls is not Struct]


def file_name(cls: type[Struct]) -> str:
    """Return the name of a struct's Slang file: `norm.slang` for `NormArguments`."""
    words = re.findall("[A-Z][a-z0-9]*", cls.__name__.removesuffix("Arguments"))
    return "_".join(words).lower() + ".slang"


def slang(cls: type[Struct]) -> str:
    """Return the Slang file that declares `cls` and includes the structs that it names."""
    text = _declaration(cls, lambda type: type.slang)
    named = [x for x in all_structs() if re.search(rf"^    {x.__name__}\b", text, re.MULTILINE)]
    includes = "".join(f'#include "{FOLDER}/{file_name(x)}"\n' for x in named)
    return f"{_NOTE}\n#pragma once\n\n{includes}{includes and chr(10)}{text}"


def write_slang(folder: Path) -> None:
    """Write the Slang file of every struct to `folder`, and remove files of other structs."""
    wanted = {file_name(cls): slang(cls) for cls in all_structs()}
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


def _declaration(cls: type[Struct], type_name: Callable[[FieldType], str]) -> str:
    lines = []
    for field in cls.layout().fields:
        comment = f" // {field.comment}" if field.comment else ""
        lines.append(f"    {_member(field, type_name)};{comment}\n")
    return f"struct {cls.__name__}\n{{\n{''.join(lines)}}};\n"


def _member(field: Field, type_name: Callable[[FieldType], str]) -> str:
    if not isinstance(field.type, FieldType):
        return f"{field.type.__name__} {field.name}"
    width = f" : {field.type.bits}" if field.type.bits else ""
    count = f"[{field.type.count}]" if field.type.count > 1 else ""
    return f"{type_name(field.type)} {field.name}{count}{width}"
