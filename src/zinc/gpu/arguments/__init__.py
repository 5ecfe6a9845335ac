"""Structs that GPU kernels read: one table that makes the Python packers and every declaration.

`structs` and `constants` are the tables, `layout` places and packs fields, and `generate` writes
the declarations for kernels. After a change to the table run `python -m zinc.gpu.arguments`.
"""
