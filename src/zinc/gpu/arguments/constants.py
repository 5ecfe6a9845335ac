"""Numbers that kernels and lowerings share, from which declarations are generated."""

from __future__ import annotations

from enum import IntEnum
from typing import Self


class KernelConstant(IntEnum):
    """Base of enums whose members have a comment, which declarations repeat."""

    comment: str

    def __new__(cls, value: int, comment: str = "") -> Self:
        member = int.__new__(cls, value)
        member._value_, member.comment = value, comment
        return member


class DimCode(KernelConstant):
    """Kinds of rows: one for each token, output or sequence. The argument `dim` of kernels."""

    TOKENS = 0
    OUTPUTS = 1
    SEQUENCES = 2
    CONSTANT = 3, "one row in every step"


class ProductKind(KernelConstant):
    """How a product becomes its output: the macro PRODUCT."""

    LINEAR = 0, "y = x w + bias + residual"
    GLU = 1, "y = act(x w) * (x up), with two weights of the same format"
    GATED = 2, "y = act(gate) * (x w), with a gate that another dispatch made"
    ACTIVATED = 3, "y = act(x w + bias), for experts"


class ElementwiseOp(KernelConstant):
    """The op of the elementwise kernel: the macro OP."""

    ADD = 0
    SCALE = 1
    SOFTCAP = 2
    GLU = 3
    GATE = 4, "by the same column of b"
    GATE_ROW = 5, "by one number for the whole row"
    SELECT = 6
    COPY = 7
    ACTIVATE = 8, "GLU without b"
    GATE_RUNS = 9, "by one number for each run of columns"
