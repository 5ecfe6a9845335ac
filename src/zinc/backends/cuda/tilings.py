"""Tile parameters of CUDA's own kernels, by name (gpu/tiling.py)."""

from __future__ import annotations

from zinc.backends.cuda.tiles import (
    gemm_experts,
    gemm_few,
    gemm_floats,
    gemm_mma,
    gemm_slots,
    gemm_split,
    gemv,
    gemv_slots,
)
from zinc.backends.cuda.tiles.mma_tile import MmaTile
from zinc.gpu.tiling import TILINGS, Tiling

CUDA_TILINGS = {
    **TILINGS,
    "gemv": Tiling(gemv.CudaGemvTile, gemv.refusal, gemv.seeds),
    "gemm_mma": Tiling(MmaTile, gemm_mma.refusal, gemm_mma.seeds),
    "gemm_few": Tiling(gemm_few.FewTile, gemm_few.refusal, gemm_few.seeds),
    "gemm_slots": Tiling(gemm_slots.FewSlotTile, gemm_slots.refusal, gemm_slots.seeds),
    "gemv_slots": Tiling(gemv_slots.VectorSlotTile, gemv_slots.refusal, gemv_slots.seeds),
    "gemm_split": Tiling(gemm_split.SplitTile, gemm_split.refusal, gemm_split.seeds),
    "gemm_experts": Tiling(MmaTile, gemm_experts.refusal, gemm_experts.seeds),
    "gemm_floats": Tiling(MmaTile, gemm_floats.refusal, gemm_floats.seeds),
}
