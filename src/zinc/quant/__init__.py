"""Quantisation: block layouts, numpy decoders (the reference for all kernels) and encoders."""
