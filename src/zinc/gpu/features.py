"""Features of a device, by which kernels and their tiles are chosen."""

from __future__ import annotations

from dataclasses import field
from typing import NamedTuple

from zinc.core.dataclass import dataclass
from zinc.gpu.tuned import NO_TILES, TunedTiles

FULL_REGISTERS = 256  # 32-bit registers of a lane on most GPUs
# Limits that every device must support, because kernels rely on them without a check.
MAX_THREADS, MAX_SHARED_BYTES = 1024, 32768  # per workgroup


class MatrixShape(NamedTuple):
    """The shape of the matrices that a subgroup multiplies: m x k by k x n."""

    m: int
    n: int
    k: int


SQUARE = MatrixShape(16, 16, 16)
NARROW = MatrixShape(16, 8, 16)  # used beside SQUARE, for few rows of x
# Shapes that kernels are written for, best first: those of NVIDIA and AMD, of Intel's Xe2 (Arc B,
# Lunar Lake), and of Intel's Xe-HPG (Arc A).
MATRIX_SHAPES = (SQUARE, MatrixShape(8, 16, 16), MatrixShape(8, 8, 16))


@dataclass(frozen=True, slots=True)
class Features:
    """Features of a device, by which kernels are chosen.

    subgroup: threads of a subgroup (warp, wave). integer_dot: the device has dot products of 8-bit
    integers. cooperative_matrix: subgroups multiply float16 matrices of shape `matrix` and sum in
    float32; narrow_matrix: also those of shape NARROW. mma_fragments: lanes have the same elements
    of these matrices as in NVIDIA's mma.m16n8k16. registers: 32-bit registers of a lane.
    warp_groups: warps can multiply in groups of four (wgmma). clusters: neighbouring workgroups can
    read each other's shared memory. shared_bytes: static shared memory of a workgroup.
    most_shared_bytes: static and dynamic shared memory of a workgroup. compute_units: processors
    that run workgroups in parallel. batch_invariant: an op must process each row with the same
    kernel and the same split, whatever the step's sizes. max_groups: most workgroups of a dispatch
    in one dimension. tuned: tiles that were measured on the device.
    """

    subgroup: int
    integer_dot: bool = True
    cooperative_matrix: bool = False
    narrow_matrix: bool = False
    mma_fragments: bool = False
    matrix: MatrixShape = SQUARE
    registers: int = FULL_REGISTERS
    warp_groups: bool = False
    clusters: bool = False
    shared_bytes: int = 32768
    most_shared_bytes: int = 101376
    compute_units: int = 1
    batch_invariant: bool = False
    max_groups: int = 65535
    tuned: TunedTiles = field(default=NO_TILES, repr=False)

    @property
    def has_few_registers(self) -> bool:
        """Whether a lane has fewer registers than the kernels were written for."""
        return self.registers < FULL_REGISTERS

    @property
    def has_fewest_registers(self) -> bool:
        """Whether a lane has a quarter of the registers that the kernels were written for."""
        return self.registers <= FULL_REGISTERS // 4
