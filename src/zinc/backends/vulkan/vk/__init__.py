"""A binding of the part of Vulkan 1.3 that compute needs, over ctypes and nothing else.

`types` has the structs and constants, `library` the functions. Handles are plain integers; every
call that can fail is checked. ctypes releases the GIL while a call runs.
"""
