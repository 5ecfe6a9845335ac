"""Checks of a backend on its device: the parts of dev/check-cuda."""
