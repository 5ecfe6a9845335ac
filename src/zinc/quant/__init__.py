"""Quantisation: block layouts, numpy decoders (the golden reference of kernels) and encoders."""
