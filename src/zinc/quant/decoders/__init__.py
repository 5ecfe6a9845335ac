"""One function a type: a structured array of n blocks to float32 [n, block_size].

Each keeps the order of float operations of ggml's reference, so results are equal bit for bit.
"""
