"""Decoders: each type has a function of its name, from n blocks to float32 [n, block_size].

Float operations have the same order as in ggml's reference, so results are equal bit for bit.
"""
