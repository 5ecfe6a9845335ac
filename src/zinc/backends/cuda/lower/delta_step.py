"""Lowering of delta_step: blocks compute the value heads of all sequences.

Condition, macros and arguments are those of Vulkan's kernel.
"""

from __future__ import annotations

from zinc.backends.cuda.lower.registry import lowers
from zinc.backends.plans import Launch
from zinc.gpu.addresses import Addresses
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.lower.delta_step import arguments, defines

SHARE = 8  # lanes of a column of the state (SHARE in kernels/delta_step.cu)
# If not all heads run at once, an SM has two resident blocks: one loads a state while the other
# stores one. With many heads, each block computes several and prefetches the state of the next one.
THREADS_OF_MANY, BLOCKS_OF_MANY = 256, 2
PERSISTENT_HEADS = 3  # least heads of a persistent block; two are slower (dev/kernels/cuda.md)


@lowers("delta_step")
def delta_step(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    attrs = launch.attributes
    n_heads, units = int(attrs["n_v_heads"]) * bucket.sequences, at.features.compute_units
    is_one_wave, blocks = n_heads <= units, BLOCKS_OF_MANY * units
    is_persistent = n_heads >= PERSISTENT_HEADS * blocks and "rollback" not in attrs
    sizes = (
        ("MIN_BLOCKS", 1 if is_one_wave else BLOCKS_OF_MANY),
        ("PERSISTENT", int(is_persistent)),
        ("THREADS", SHARE * int(attrs["v_dim"]) if is_one_wave else THREADS_OF_MANY),
    )
    kernel = KernelVariant("delta_step", (*defines(launch, at), *sizes))
    groups = (blocks if is_persistent else n_heads, 1, 1)
    return [Dispatch(kernel, arguments(launch, at, bucket), groups)]
