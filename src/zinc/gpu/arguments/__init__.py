"""Structs that GPU kernels read: one table generates the Python packers and all declarations.

`structs` and `constants` are the tables, `layout` places and packs fields, and `generate` writes
the declarations for kernels. After a change to the table run `python -m zinc.gpu.arguments`.
"""
