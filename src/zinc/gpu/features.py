"""Facts about a device by which kernels and their tiles are chosen."""

from __future__ import annotations

from dataclasses import dataclass, field

from zinc.gpu.tuned import NO_TILES, TunedTiles

# Limits that every device must reach, because kernels use them without asking.
MAX_THREADS, MAX_SHARED_BYTES = 1024, 32768  # of a workgroup
MATRIX_SIDE, NARROW_SIDE = 16, 8  # of the matrices that subgroups multiply


@dataclass(frozen=True, slots=True)
class Features:
    """Facts about a device by which kernels are chosen.

    subgroup: threads of a subgroup (warp, wave). integer_dot: the device has dot products of 8-bit
    integers. cooperative_matrix: subgroups multiply 16 x 16 float16 tiles and sum in float32;
    narrow_matrix: also 16 x 16 by 16 x 8. warp_groups: groups of four warps multiply (wgmma).
    shared_bytes: static shared memory of a workgroup. most_shared_bytes: static and dynamic shared
    memory of a workgroup. compute_units: processors that run workgroups in parallel.
    batch_invariant: an op must process each row with the same kernel and the same split, whatever
    the step's sizes. max_groups: most workgroups of a dispatch in one dimension. tuned: tiles that
    were measured on the device.
    """

    subgroup: int
    integer_dot: bool = True
    cooperative_matrix: bool = False
    narrow_matrix: bool = False
    warp_groups: bool = False
    shared_bytes: int = 32768
    most_shared_bytes: int = 101376
    compute_units: int = 1
    batch_invariant: bool = False
    max_groups: int = 65535
    tuned: TunedTiles = field(default=NO_TILES, repr=False)
