"""Encoders: a function of the name of its type makes n blocks from float32 [n, block_size]."""
