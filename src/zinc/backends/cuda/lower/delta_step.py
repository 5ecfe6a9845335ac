"""Lowering of delta_step: blocks compute the value heads of all sequences."""

from __future__ import annotations

from zinc.backends.cuda.lower.registry import fuses, lowers
from zinc.backends.plans import Launch
from zinc.gpu.addresses import Addresses
from zinc.gpu.arguments.structs import DeltaStepArguments
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.lower.operands import in_vectors, is_q8, operand, rows, vector_or_null
from zinc.ops.node import Node
from zinc.ops.step import StepCondition
from zinc.ops.values import RecurrentState

SHARE = 8  # lanes of a column of the state (SHARE in kernels/delta_step.cu)
# If not all heads run at once, an SM has two resident blocks: one loads a state while the other
# stores one. With many heads, each block computes several and prefetches the state of the next one.
THREADS_OF_MANY, BLOCKS_OF_MANY = 256, 2
PERSISTENT_HEADS = 3  # least heads of a persistent block; two are slower (dev/kernels/cuda.md)
MAX_FLOATS = 64  # numbers of the state in the registers of a thread


@fuses("delta_step")
def delta_step_steps(node: Node) -> StepCondition | None:
    """Return the steps with one token per sequence, if the heads of `node` suit the kernel."""
    k_dim, v_dim = int(node.attrs["k_dim"]), int(node.attrs["v_dim"])
    if k_dim % (4 * SHARE) or v_dim % 32 or v_dim > 128 or int(node.attrs["group"]) != v_dim:
        return None
    if k_dim * v_dim > MAX_FLOATS * THREADS_OF_MANY:
        return None
    return StepCondition(is_decode=True)


@lowers("delta_step")
def delta_step(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    x, alpha, beta, z = (rows(launch, name) for name in ("x", "alpha", "beta", "z"))
    conv = operand(launch, "conv_state", RecurrentState)
    state, (y,) = operand(launch, "state", RecurrentState), launch.outputs
    vectors = {
        name: vector_or_null(at, launch.input(name))
        for name in ("conv_weight", "decay", "decay_bias", "norm")
    }
    attrs = launch.attributes
    n_k_heads, n_v_heads = int(attrs["n_k_heads"]), int(attrs["n_v_heads"])
    v_dim = int(attrs["v_dim"])
    n_heads, units = n_v_heads * bucket.sequences, at.features.compute_units
    is_one_wave, rollback = n_heads <= units, int(attrs.get("rollback", 0))
    blocks = BLOCKS_OF_MANY * units
    is_persistent = n_heads >= PERSISTENT_HEADS * blocks and not rollback
    threads = SHARE * v_dim if is_one_wave else THREADS_OF_MANY
    kernel = KernelVariant(
        "delta_step",
        (
            ("GROUPED", int(attrs["grouped"])),
            ("K_DIM", int(attrs["k_dim"])),
            ("MIN_BLOCKS", 1 if is_one_wave else BLOCKS_OF_MANY),
            ("PERSISTENT", int(is_persistent)),
            ("Q8", is_q8(y)),
            ("REPEATS", n_v_heads // n_k_heads),
            ("ROLLBACK", rollback),
            ("TAPS", int(attrs["taps"])),
            ("THREADS", threads),
            ("VECTORS", in_vectors(at, y)),
            ("V_DIM", v_dim),
        ),
    )
    arguments = DeltaStepArguments(
        step=at.step,
        x=at.ref(x),
        conv_state=at.recurrent(conv),
        alpha=at.ref(alpha),
        beta=at.ref(beta),
        state=at.recurrent(state),
        z=at.ref(z),
        y=at.ref(y),
        arrived=at.counters.take(n_k_heads * bucket.sequences),
        x_stride=x.stride,
        alpha_stride=alpha.stride,
        beta_stride=beta.stride,
        z_stride=z.stride,
        y_stride=y.stride,
        cols=x.cols,
        conv_slot_floats=conv.floats,
        slot_floats=state.floats,
        n_k_heads=n_k_heads,
        n_v_heads=n_v_heads,
        eps=float(attrs["eps"]),
        **vectors,
    )
    return [Dispatch(kernel, arguments, (blocks if is_persistent else n_heads, 1, 1))]
