"""Encoders, one function a type: float32 [n, block_size] to a structured array of n blocks."""
