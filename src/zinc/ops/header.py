"""C++ constants for the operands of every op, generated from their entries.

    python -m zinc.ops.header > src/zinc/backends/cpu/native/operands.h

The header is checked in, so that building the extension needs no Python import of zinc; a test
compares it with the registry.
"""

from __future__ import annotations

from zinc.ops import OPS, Op

HEAD = """\
// The index of each operand among the inputs of its op.
//
// Generated from the op registry (zinc/ops): do not edit. After a change to an op's operands, run
//   python -m zinc.ops.header > src/zinc/backends/cpu/native/operands.h
#pragma once

#include <cstddef>

namespace zinc::operands {
"""
TAIL = "}  // namespace zinc::operands\n"


def header() -> str:
    """Return the C++ header with one struct of constants for each op.

    The CPU backend has no kernels for alternatives.
    """
    return "\n".join([HEAD, *(_struct(op) for op in OPS.values() if not op.alternative), TAIL])


def _struct(op: Op) -> str:
    signature = op.signature
    single = signature.operands[: signature.n_single]
    names = [x.name for x in single]
    lines = [f"struct {op.name} {{"]
    if signature.n_repeated == 0:
        lines.append(f"    enum : size_t {{ {', '.join([*names, 'n_inputs'])} }};")
    else:
        lines.append(f"    enum : size_t {{ {', '.join(names)} }};")
        for x in signature.operands[signature.n_single :]:
            first, step = signature.index(x.name), signature.n_repeated
            body = f"return {first} + {step} * part;"
            lines.append(f"    static constexpr size_t {x.name}(size_t part) {{ {body} }}")
        count = f"return {signature.n_single} + {signature.n_repeated} * n_parts;"
        lines.append(f"    static constexpr size_t n_inputs(size_t n_parts) {{ {count} }}")
    return "\n".join([*lines, "};", ""])


if __name__ == "__main__":
    print(header(), end="")
