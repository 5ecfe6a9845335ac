"""Code that every GPU backend shares, from launches of a plan to recorded dispatches.

Nothing here imports a graphics or compute API: a backend supplies kernels, memory and a queue.
"""
