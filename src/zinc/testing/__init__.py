"""Comparison of backends and test inputs, shared by the tests and `zinc verify`."""
