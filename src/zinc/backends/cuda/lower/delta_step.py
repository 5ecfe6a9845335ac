"""Lowering of delta_step: a block for each value head."""

from __future__ import annotations

from zinc.backends.cuda.lower.registry import fuses, lowers
from zinc.backends.plans import Launch
from zinc.gpu.addresses import Addresses
from zinc.gpu.arguments.structs import DeltaStepArguments
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.features import MAX_THREADS
from zinc.gpu.lower.operands import in_vectors, is_q8, operand, rows, vector_or_null
from zinc.ops.graph import Node
from zinc.ops.step import StepCondition
from zinc.ops.values import RecurrentState

SHARE = 8  # lanes of a column of the state (SHARE in kernels/delta_step.cu)


@fuses("delta_step")
def delta_step_steps(node: Node) -> StepCondition | None:
    """Return the steps of one token, if the heads of `node` suit the kernel."""
    k_dim, v_dim = int(node.attrs["k_dim"]), int(node.attrs["v_dim"])
    if k_dim % (4 * SHARE) or v_dim % 32 or v_dim > 128 or int(node.attrs["group"]) != v_dim:
        return None
    if SHARE * v_dim > MAX_THREADS or 2 * k_dim + v_dim > SHARE * v_dim:
        return None
    return StepCondition(tokens=1)


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
    kernel = KernelVariant(
        "delta_step",
        (
            ("GROUPED", int(attrs["grouped"])),
            ("K_DIM", int(attrs["k_dim"])),
            ("Q8", is_q8(y)),
            ("REPEATS", n_v_heads // n_k_heads),
            ("TAPS", int(attrs["taps"])),
            ("VECTORS", in_vectors(at, z, y)),
            ("V_DIM", int(attrs["v_dim"])),
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
        arrived=at.counters.take(n_k_heads),
        cols=x.cols,
        conv_slot_floats=conv.floats,
        slot_floats=state.floats,
        n_k_heads=n_k_heads,
        n_v_heads=n_v_heads,
        eps=float(attrs["eps"]),
        **vectors,
    )
    return [Dispatch(kernel, arguments, (n_v_heads, 1, 1))]
