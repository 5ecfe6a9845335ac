"""A ctypes binding of the part of Vulkan 1.3 that compute needs.

`types` has the structs and constants, `library` the functions. Handles are integers. Every call
that can fail is checked. ctypes releases the GIL during a call.
"""
