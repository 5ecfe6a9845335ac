"""Tiles of matrix products, one module for each kernel.

The module of one of CUDA's own kernels has the class of its tiles (tiles on tensor cores share
mma_tile.py), and three functions. `choose_tile` returns the tile of a product on a device: that of
`zinc tune` (gpu/tuned.py), or else that of a formula. `refusal` returns why the kernel cannot run a
tile, and `seeds` the tiles from which a search starts (gpu/tiling.py). experts.py has the tiles of
the shared kernels experts and moe_down.
"""
