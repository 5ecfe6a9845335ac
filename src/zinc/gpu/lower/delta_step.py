"""Lowering of delta_step: a workgroup computes a value head of a sequence."""

from __future__ import annotations

from zinc.backends.plans import Launch
from zinc.gpu.addresses import Addresses
from zinc.gpu.arguments.structs import DeltaStepArguments
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.features import MAX_THREADS
from zinc.gpu.kernel_set import fuses, lowers
from zinc.gpu.lower.operands import in_vectors, is_q8, operand, rows, vector_or_null
from zinc.gpu.lower.recurrent import lanes_of_column
from zinc.ops.node import Node
from zinc.ops.step import StepCondition
from zinc.ops.values import RecurrentState

MAX_STATE = 16384  # numbers of the state of a head, which stays in registers
MAX_K_DIM, MAX_V_DIM = 256, 128  # of a head in shared memory
# Strides have 16 bits. Operands may be columns of rows that are wider than this.
MAX_COLS = 16384
# A lane keeps numbers of the state in a quarter of its registers, so that a compute unit can load
# the state of one head while it stores that of another. If there is a unit for each head, more
# lanes share a head.
REGISTERS_PER_FLOAT = 4
MAX_FLOATS_OF_FEW = 32
# Columns of the state that a lane has a part of, so that a workgroup fills subgroups of 64.
COLUMNS = (4, 2, 1)


@fuses("delta_step")
def delta_step_steps(node: Node) -> StepCondition | None:
    """Return the steps with one token per sequence, if the heads of `node` suit the kernel."""
    k_dim, v_dim = int(node.attrs["k_dim"]), int(node.attrs["v_dim"])
    suits = (
        k_dim % 32 == v_dim % 32 == 0
        and k_dim <= MAX_K_DIM
        and v_dim <= MAX_V_DIM
        and k_dim * v_dim <= MAX_STATE
        and int(node.attrs["group"]) == v_dim
        and node.rows("x").cols <= MAX_COLS
    )
    return StepCondition(is_decode=True) if suits else None


@lowers("delta_step")
def delta_step(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    attrs = launch.attributes
    k_dim, v_dim = int(attrs["k_dim"]), int(attrs["v_dim"])
    n_heads, features = int(attrs["n_v_heads"]) * bucket.sequences, at.features
    floats = features.registers // REGISTERS_PER_FLOAT
    if n_heads <= features.compute_units:
        floats = min(floats, MAX_FLOATS_OF_FEW)
    share = lanes_of_column(features, k_dim)
    columns = next((n for n in COLUMNS if n * k_dim <= floats * share), 1)
    threads = min(MAX_THREADS, share * v_dim // columns)
    sizes = (("SHARE", share), ("THREADS", threads))
    kernel = KernelVariant("delta_step", (*defines(launch, at), *sizes))
    return [Dispatch(kernel, arguments(launch, at, bucket), (n_heads, 1, 1))]


def defines(launch: Launch, at: Addresses) -> tuple[tuple[str, int], ...]:
    """Return the macros that the kernels of all backends have."""
    attrs, (y,) = launch.attributes, launch.outputs
    return (
        ("GROUPED", int(attrs["grouped"])),
        ("K_DIM", int(attrs["k_dim"])),
        ("Q8", is_q8(y)),
        ("REPEATS", int(attrs["n_v_heads"]) // int(attrs["n_k_heads"])),
        ("ROLLBACK", int(attrs.get("rollback", 0))),
        ("TAPS", int(attrs["taps"])),
        ("VECTORS", in_vectors(at, y)),
        ("V_DIM", int(attrs["v_dim"])),
    )


def arguments(launch: Launch, at: Addresses, bucket: Bucket) -> DeltaStepArguments:
    """Return the arguments of the kernel in a step of `bucket`."""
    attrs, (y,) = launch.attributes, launch.outputs
    x, alpha, beta, z = (rows(launch, name) for name in ("x", "alpha", "beta", "z"))
    n_k_heads, n_v_heads = int(attrs["n_k_heads"]), int(attrs["n_v_heads"])
    conv, state = (operand(launch, name, RecurrentState) for name in ("conv_state", "state"))
    # Kernels compute both sizes.
    assert x.cols == 2 * n_k_heads * int(attrs["k_dim"]) + n_v_heads * int(attrs["v_dim"])
    assert conv.floats == x.cols * (int(attrs["taps"]) - 1 + int(attrs.get("rollback", 0)))
    vectors = {
        name: vector_or_null(at, launch.input(name))
        for name in ("conv_weight", "decay", "decay_bias", "norm")
    }
    return DeltaStepArguments(
        step=at.step,
        x=at.ref(x),
        conv_state=at.recurrent(conv),
        alpha=at.ref(alpha),
        beta=at.ref(beta),
        state=at.recurrent(state),
        z=at.ref(z),
        y=at.ref(y),
        arrived=at.counters.take(n_k_heads * bucket.sequences),
        slot_floats=state.floats,
        eps=float(attrs["eps"]),
        n_k_heads=n_k_heads,
        n_v_heads=n_v_heads,
        x_stride=x.stride // 4,
        alpha_stride=alpha.stride // 4,
        beta_stride=beta.stride // 4,
        z_stride=z.stride // 4,
        y_stride=y.stride // 4,
        is_one_token=bucket.tokens == 1,
        **vectors,
    )
