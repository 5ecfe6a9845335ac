"""The two ops with a state of fixed size: convolution along the sequence and the delta rule."""

from __future__ import annotations

import struct

from zinc.backends.api import Launch
from zinc.core.errors import UnsupportedError
from zinc.gpu.dispatch import Addresses, Bucket, Dispatch, Shader, lowers
from zinc.gpu.lower.operands import ceil_div, in_vectors, operand, rows
from zinc.ops.graph import RecurrentState, Weight

CONV_THREADS = 128
CONV_COLS = 32  # the macro of kernels/conv_silu.slang
DELTA_COLS = 16
DELTA_ROWS = 16  # tokens whose keys and queries are in shared memory at once


@lowers("conv_silu")
def conv_silu(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    x, weight = rows(launch, "x"), operand(launch, "weight", Weight)
    state, (y,) = operand(launch, "state", RecurrentState), launch.outputs
    push = struct.pack(
        "<5Q4I",
        at.step,
        at.ref(x),
        at.vector(weight),
        at.recurrent(state),
        at.ref(y),
        x.stride,
        y.stride,
        x.cols,
        state.floats,
    )
    taps = int(launch.attributes["taps"])
    shader = Shader("conv_silu", (("TAPS", taps), ("THREADS", CONV_THREADS)))
    return [Dispatch(shader, push, (ceil_div(x.cols, CONV_COLS), bucket.sequences, 1))]


@lowers("delta_rule")
def delta_rule(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    qkv, alpha, beta = (rows(launch, name) for name in ("qkv", "alpha", "beta"))
    decay, decay_bias = (operand(launch, name, Weight) for name in ("decay", "decay_bias"))
    state, (y,) = operand(launch, "state", RecurrentState), launch.outputs
    attrs = {name: int(value) for name, value in launch.attrs}
    k_dim, v_dim = attrs["k_dim"], attrs["v_dim"]
    if k_dim % 16:
        raise UnsupportedError(
            f"the Vulkan backend has no delta rule for keys of {k_dim}",
            "they must be a multiple of 16 wide",
            "choose another backend with {backend}",
        )
    n_rows = 1 if bucket.tokens == 1 and not at.features.batch_invariant else DELTA_ROWS
    shared = n_rows * (8 * k_dim + 4 * DELTA_COLS + 8)  # keys and queries, values, gates
    if shared > at.features.shared_bytes:
        raise UnsupportedError(
            f"this device has no room for the delta rule with keys of {k_dim}",
            f"it takes {shared} bytes of shared memory, and there are {at.features.shared_bytes}",
            "choose another backend with {backend}",
        )
    shader = Shader(
        "delta_rule",
        (
            ("COLS", DELTA_COLS),
            ("GROUPED", attrs["grouped"]),
            ("K_DIM", k_dim),
            ("ROWS", n_rows),
            ("SHARE", 8 if k_dim % 32 == 0 else 4),
            ("VECTORS", in_vectors(at, qkv)),
            ("V_DIM", v_dim),
        ),
    )
    push = struct.pack(
        "<8Q8I",
        at.step,
        at.ref(qkv),
        at.ref(alpha),
        at.ref(beta),
        at.vector(decay),
        at.vector(decay_bias),
        at.recurrent(state),
        at.ref(y),
        qkv.stride,
        alpha.stride,
        beta.stride,
        y.stride,
        attrs["n_k_heads"],
        attrs["n_v_heads"],
        state.floats,
        bucket.tokens == 1,
    )
    grid = (attrs["n_v_heads"], ceil_div(v_dim, DELTA_COLS), bucket.sequences)
    return [Dispatch(shader, push, grid)]
