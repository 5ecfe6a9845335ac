"""The struct table against the declarations that it generates, in Slang and in C++."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

import pytest

from zinc.backends.vulkan.shaders import KERNELS
from zinc.gpu.arguments.generate import FOLDER, all_structs, cpp_header, slang_files
from zinc.gpu.arguments.layout import F32, U8, U16, U32, U64, FieldType, Flag, Struct
from zinc.gpu.arguments.structs import PenaltyParams, SampleParams, StepHeader
from zinc.ops.penalties import PENALTY_PARAMS
from zinc.ops.step import SAMPLE_PARAMS


class Mixed(Struct):
    """Gaps before wide fields, a word of bit fields that is full, and one that is not."""

    first: U32
    wide: U64
    low: U16
    high: U8
    full: U8
    next: U8
    flag: Flag
    scale: F32


def test_slang_declarations_are_up_to_date() -> None:
    found = {path.name: path.read_text() for path in (KERNELS / FOLDER).iterdir()}
    assert found == slang_files(), "run python -m zinc.gpu.arguments"


def test_fields_lie_at_their_natural_alignment() -> None:
    layout = Mixed.layout()
    offsets = [field.offset for field in layout.fields]
    assert offsets == [0, 8, 16, 16, 16, 20, 20, 24]
    assert (layout.end, layout.size, layout.offset("scale")) == (28, 32, 24)
    data = Mixed(
        first=1, wide=2, low=0x1234, high=0x56, full=0x78, next=0x9A, flag=True, scale=1.0
    ).pack()
    assert data == bytes.fromhex("01000000 00000000 0200000000000000 34125678 9a010000 0000803f")


def test_a_number_that_exceeds_its_bits_is_refused() -> None:
    with pytest.raises(ValueError, match="high = 256 exceeds 8 bits"):
        Mixed(first=0, wide=0, low=0, high=256, full=0, next=0, flag=False, scale=0.0).pack()


@pytest.mark.parametrize(
    ("struct", "dtype"), [(SampleParams, SAMPLE_PARAMS), (PenaltyParams, PENALTY_PARAMS)]
)
def test_rows_are_laid_out_as_numpy_lays_them_out(struct, dtype) -> None:
    assert {f.name: f.offset for f in struct.layout().fields} == {
        k: v[1] for k, v in dtype.fields.items()
    }
    assert struct.layout().size == dtype.itemsize


def test_positions_follow_the_step_header_on_four_bytes() -> None:
    assert StepHeader.layout().end == StepHeader.layout().size


def filled(cls: type[Struct], seed: int) -> Struct:
    """Return a struct whose fields all differ."""
    values: dict[str, object] = {}
    for i, field in enumerate(cls.layout().fields):
        number = seed + 3 * i + 1
        if not isinstance(field.type, FieldType):
            values[field.name] = filled(field.type, 100 + number)
        elif field.type.count > 1:
            values[field.name] = tuple(number + 7 * k for k in range(field.type.count))
        else:
            values[field.name] = number & 1 if field.type.bits == 1 else number
    return cls(**values)


def assignments(struct: Struct, name: str) -> Iterator[str]:
    """Yield C++ statements that give the variable `name` the field values of `struct`."""
    for field in struct.layout().fields:
        value, type_ = getattr(struct, field.name), field.type
        target = f"{name}.{field.name}"
        if isinstance(value, Struct):
            yield from assignments(value, target)
        elif isinstance(value, tuple):
            for i, x in enumerate(value):
                yield f"{target}[{i}] = ({type_.cpp}){x};"
        else:
            yield f"{target} = ({type_.cpp}){value};"


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_the_cpp_header_has_the_python_layout(tmp_path) -> None:
    chosen = [*all_structs(), Mixed]
    blocks, wanted = [], []
    for cls in chosen:
        struct, layout = filled(cls, 0), cls.layout()
        blocks.append(
            f"{{ {cls.__name__} x; memset(&x, 0, sizeof x); {' '.join(assignments(struct, 'x'))} "
            f"show(&x, sizeof x, {layout.end}); }}"
        )
        offsets = [
            f"static_assert(offsetof({cls.__name__}, {field.name}) == {field.offset});"
            for field in layout.fields
            if not (isinstance(field.type, FieldType) and field.type.bits)
        ]
        blocks.append(" ".join(offsets))
        wanted.append(f"{layout.size} {struct.pack().hex()}")
    (tmp_path / "arguments.h").write_text(cpp_header(chosen))
    (tmp_path / "main.cpp").write_text(
        "#include <stddef.h>\n#include <stdio.h>\n#include <string.h>\n"
        '#include "arguments.h"\n'
        "static void show(const void* x, size_t size, size_t end)\n{\n"
        '    printf("%zu ", size);\n'
        '    for (size_t i = 0; i < end; i++) printf("%02x", ((const unsigned char*)x)[i]);\n'
        '    puts("");\n}\n'
        "int main()\n{\n" + "\n".join(blocks) + "\n}\n"
    )
    program = tmp_path / "main"
    command = ["g++", "-std=c++17", "-Wall", "-Werror", "main.cpp", "-o", str(program)]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=300)
    shown = subprocess.run([program], capture_output=True, text=True, check=True, timeout=300)
    assert shown.stdout.splitlines() == wanted
