"""Rows as float16 operands of tensor cores.

The kernel half_rows converts rows of 8-bit blocks. If the rows come from a norm just before, the
kernel of the norm stores the operands too (`JOINS`).
"""

from __future__ import annotations

from dataclasses import replace

from zinc.backends.cuda.tiles.common import SLAB, SLAB_ROW_BYTES
from zinc.backends.plans import Ref
from zinc.core.dataclass import dataclass
from zinc.core.rounding import ceil_div
from zinc.gpu.addresses import Addresses
from zinc.gpu.arguments.structs import HalfNormArguments, HalfRowsArguments, NormArguments
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.lower.operands import dim_code
from zinc.gpu.rows import row_bytes

GROUP = 8  # rows of a group (half_rows.cuh)
WIDE = 4  # slabs that a block of half_rows converts
NORM_KINDS = {"MEAN", "CUT", "LIKE"}  # macros of norm.cu that select other norms than RMS norm


@dataclass(frozen=True, slots=True)
class HalfRows:
    """Rows that half_rows has converted: address, inverses of their factors, rows of a slab."""

    address: int = 0
    inverses: int = 0
    n_rows: int = 0


NO_ROWS = HalfRows()


def converted(
    x: Ref,
    cols: int,
    runs: int,
    batch: int,
    at: Addresses,
    bucket: Bucket,
    by_row: bool = False,
    multiple: int = SLAB,
) -> tuple[Dispatch, HalfRows]:
    """Return the conversion of rows with `runs` runs of `cols` columns, and where the rows will be.

    A slab has room for whole tiles of `batch` rows. Zeros fill the columns up to a multiple of
    `multiple`. by_row: kernels gather the rows.
    """
    n = bucket.rows(x.dim) * runs
    n_rows = ceil_div(n, batch) * batch
    n_slabs = ceil_div(cols, multiple) * multiple // SLAB
    n_bytes = n_slabs * n_rows * SLAB_ROW_BYTES
    address = at.scratch.take(n_bytes + 4 * n_rows)
    made = HalfRows(address, address + n_bytes, n_rows)
    arguments = HalfRowsArguments(
        step=at.step,
        x=at.ref(x),
        y=made.address,
        inverses=made.inverses,
        cols=cols,
        x_stride=x.stride,
        x_run=row_bytes(x.format, cols) if runs > 1 else 0,
        y_rows=n_rows,
        slabs=n_slabs,
        runs=runs,
        dim=dim_code(x.dim, bucket),
    )
    groups = (ceil_div(n_slabs, WIDE), ceil_div(n, GROUP), 1)
    kernel = KernelVariant("half_rows", (("BY_ROW", int(by_row)),))
    return Dispatch(kernel, arguments, groups), made


def converting_norm(norm: Dispatch, conversion: Dispatch) -> Dispatch | None:
    """Return `norm` fused with the conversion of its rows, None if it cannot convert them.

    A block must have all columns of a row in registers, from which it finds the row's factor.
    """
    x, halves = norm.arguments, conversion.arguments
    if not isinstance(x, NormArguments) or not isinstance(halves, HalfRowsArguments):
        return None
    defines = dict(norm.kernel.defines)
    is_plain = defines["Q8"] and not (defines["GATED"] or x.other or NORM_KINDS & set(defines))
    fills_slabs = x.group == x.cols == halves.cols == halves.slabs * SLAB
    by_row = dict(conversion.kernel.defines)["BY_ROW"]
    if not is_plain or not fills_slabs or halves.x != x.y or halves.runs > 1 or by_row:
        return None
    arguments = HalfNormArguments.extending(
        x, halves=halves.y, inverses=halves.inverses, half_rows=halves.y_rows
    )
    kernel = replace(norm.kernel, defines=(*norm.kernel.defines, ("HALVES", 1)))
    return replace(norm, kernel=kernel, arguments=arguments)


JOINS = {"rms_norm": converting_norm}
