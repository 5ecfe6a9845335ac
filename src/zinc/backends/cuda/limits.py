"""Measurement of a GPU's read bandwidth and of its int8 operations per second.

Speeds are reported as a share of these limits.
"""

from __future__ import annotations

from statistics import median

from zinc.backends.capabilities import Roofline
from zinc.backends.cuda.host import CudaHost
from zinc.gpu.arguments.structs import LimitsArguments
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.graph import DispatchGraph, Node

READ, DOT = 0, 1
THREADS = 256  # per block
BLOCKS_PER_UNIT = 16
CHAINS, DOT_OPS = 8, 8  # independent dot products of a thread; operations of a dot product
BUFFER_BYTES = 1 << 31  # far larger than any cache
DOT_ROUNDS = 4096
WARM_UPS, REPETITIONS = 20, 5


def measure(host: CudaHost) -> Roofline:
    """Return the measured limits of the device of `host`. Raises DeviceError."""
    n_bytes = min(BUFFER_BYTES, host.available_bytes() // 4) // 16 * 16
    threads = host.features.compute_units * BLOCKS_PER_UNIT * THREADS
    n_ops = threads * DOT_ROUNDS * CHAINS * DOT_OPS
    return Roofline(
        n_bytes / _seconds(host, READ, n_bytes, n_bytes // 16),
        n_ops / _seconds(host, DOT, 16, DOT_ROUNDS),
    )


def _seconds(host: CudaHost, kind: int, n_bytes: int, n: int) -> float:
    """Return the median seconds of the kernel `kind` after a warm-up."""
    kernel = KernelVariant("limits", (("KIND", kind),))
    host.compile([kernel])
    buffer = host.buffer(n_bytes)
    blocks = host.features.compute_units * BLOCKS_PER_UNIT
    arguments = LimitsArguments(
        step=0, data=buffer.address, out=buffer.address, n=n, threads=THREADS * blocks
    )
    dispatch = Dispatch(kernel, arguments, (blocks, 1, 1))
    count = WARM_UPS + REPETITIONS
    nodes = (Node(0, dispatch, (i - 1,) if i else ()) for i in range(count))
    return median(host.level_seconds(DispatchGraph(tuple(nodes)))[WARM_UPS:])
