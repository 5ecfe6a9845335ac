"""Lowerings of ops for which CUDA has kernels that other GPU backends lack."""
