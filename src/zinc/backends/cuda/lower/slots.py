"""Lowerings of products with few slots of each expert, whose blocks share all experts evenly.

With up to one slot per expert on average, the kernel is a GEMV (kernels/gemv_slots.cu). With more
slots, or with long rows, it is a GEMM on tensor cores (kernels/gemm_slots.cu).
"""

from __future__ import annotations

from zinc.backends.cuda.tiles import gemm_slots, gemv_slots
from zinc.backends.cuda.tiles.gemm_slots import MOST_SLOTS, FewSlotTile
from zinc.backends.cuda.tiles.gemv_slots import VectorSlotTile
from zinc.core.rounding import ceil_div
from zinc.gpu.addresses import Addresses
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.lower.experts import ExpertProduct


def takes(product: ExpertProduct, bucket: Bucket) -> bool:
    """Return whether one of the kernels takes the rows of `product`."""
    return _each(product, bucket) <= MOST_SLOTS


def dispatch(product: ExpertProduct, at: Addresses, bucket: Bucket, waits: bool) -> Dispatch:
    """Return the dispatch of `product`. waits: it waits for the dispatch before it."""
    each, w, n_slots = _each(product, bucket), product.w, _slots(product, bucket)
    tile: VectorSlotTile | FewSlotTile
    if each <= gemv_slots.MOST_VECTOR_SLOTS and w.cols <= gemv_slots.MOST_VECTOR_COLS:
        name, n_bytes = "gemv_slots", 0
        key = product.key(name, w.rows, each, w.planes)
        tile = gemv_slots.choose_tile(at.features, key, n_slots)
    else:
        name = "gemm_slots"
        key = product.key(name, w.rows, each, w.planes)
        tile = gemm_slots.choose_tile(at.features, key)
        n_bytes = tile.shared_bytes(key)
    experts, activation = ("EXPERTS", w.planes), ("ACTIVATION", product.activation.fn)
    defines = (*product.defines(at), *tile.defines, *tile.sizes(key), experts, activation)
    groups = (tile.grid(at.features, key, n_slots), 1, 1)
    kernel = KernelVariant(name, defines, n_bytes)
    return Dispatch(kernel, product.arguments(at, bucket), groups, waits)


def _each(product: ExpertProduct, bucket: Bucket) -> int:
    """Return the slots of an expert on average, rounded up."""
    return ceil_div(_slots(product, bucket), product.w.planes)


def _slots(product: ExpertProduct, bucket: Bucket) -> int:
    return bucket.rows(product.read.dim) * product.top_k
