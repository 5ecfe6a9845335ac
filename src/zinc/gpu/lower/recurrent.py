"""Lowerings of the ops with a recurrent state: convolution, delta rule, scan and RWKV-7."""

from __future__ import annotations

from typing import Any

from zinc.backends.plans import Launch, Ref
from zinc.core.dataclass import dataclass
from zinc.core.rounding import ceil_div
from zinc.gpu.addresses import Addresses
from zinc.gpu.arguments.structs import (
    CausalConvArguments,
    DeltaChunkArguments,
    DeltaRuleArguments,
    SelectiveScanArguments,
    TokenShiftArguments,
    Wkv7Arguments,
)
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.features import Features
from zinc.gpu.kernel_set import lowers
from zinc.gpu.lower.operands import (
    in_vectors,
    operand,
    ref_or_null,
    rows,
    rows_or_none,
    vector_or_null,
)
from zinc.ops.recurrent_state import CHUNK
from zinc.ops.values import RecurrentState, Weight

CONV_THREADS = 128
SCAN_THREADS = 128
SCAN_SHARE = 4  # lanes that share the state of a channel, if its numbers divide evenly
MAX_SCAN_SIZE = 32  # numbers of a channel's state, in registers
# Strides have 16 bits. Operands may be columns of rows that are wider than this.
MAX_WKV_COLS = 16384
SHIFT_THREADS = 256
SHIFT_COLS = 32  # equals COLS in kernels/token_shift.slang
WKV_THREADS = 128
WKV_SHARE = 8  # lanes that share a column of a head's state
WKV_COLS = WKV_THREADS // WKV_SHARE  # columns of a workgroup, and tokens that it stages together
CONV_COLS = 32  # equals COLS in kernels/causal_conv.slang
DELTA_COLS = 16
# Tokens whose keys and queries are staged in shared memory together: a chunk, so that the state is
# known at the end of each.
DELTA_ROWS = CHUNK
DELTA_CHUNK = 16  # equals CHUNK in kernels/delta_chunk.slang
MIN_CHUNKED_TOKENS = 32  # smaller steps run token by token


@lowers("causal_conv")
def causal_conv(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    arguments = CausalConvArguments(**conv_fields(launch, at))
    kernel = KernelVariant("causal_conv", (*conv_defines(launch), ("THREADS", CONV_THREADS)))
    grid = (ceil_div(rows(launch, "x").cols, CONV_COLS), bucket.sequences, 1)
    return [Dispatch(kernel, arguments, grid)]


def conv_fields(launch: Launch, at: Addresses) -> dict[str, int]:
    """Return the arguments that all kernels of a convolution have."""
    x, state, (y,) = rows(launch, "x"), operand(launch, "state", RecurrentState), launch.outputs
    return {
        "step": at.step,
        "x": at.ref(x),
        "weight": at.vector(operand(launch, "weight", Weight)),
        "bias": vector_or_null(at, launch.input("bias")),
        "state": at.recurrent(state),
        "y": at.ref(y),
        "x_stride": x.stride,
        "y_stride": y.stride,
        "cols": x.cols,
        "slot_floats": state.floats,
    }


def conv_defines(launch: Launch) -> tuple[tuple[str, int], ...]:
    """Return the macros that all kernels of a convolution have."""
    attrs = launch.attributes
    return (
        ("BIAS", int(launch.input("bias") is not None)),
        ("ROLLBACK", int(attrs.get("rollback", 0))),
        ("TAPS", int(attrs["taps"])),
        ("WITH_SILU", int(attrs["silu"])),
    )


@dataclass(frozen=True, slots=True)
class RuleOperands:
    """Operands of a delta rule, or of a scan, which has factors `skip` and no `beta`.

    qkv: rows of q, k and v. alpha: the input of the decay.
    """

    qkv: Ref
    alpha: Ref
    decay: Weight
    decay_bias: Weight
    beta: Ref | None = None
    skip: Weight | None = None

    @classmethod
    def of(cls, launch: Launch) -> RuleOperands:
        """Return the operands of a launch of `delta_rule` or `ssm_scan`."""
        if launch.kernel == "ssm_scan":
            qkv, alpha = rows(launch, "xbc"), rows(launch, "dt")
            decay, bias, skip = (operand(launch, n, Weight) for n in ("decay", "dt_bias", "skip"))
            return cls(qkv, alpha, decay, bias, skip=skip)
        qkv, alpha, beta = (rows(launch, name) for name in ("qkv", "alpha", "beta"))
        decay, bias = (operand(launch, name, Weight) for name in ("decay", "decay_bias"))
        return cls(qkv, alpha, decay, bias, beta=beta)

    def fields(self, launch: Launch, at: Addresses) -> dict[str, Any]:
        """Return the arguments that the kernels of the delta rule and of scans share."""
        attrs, (y,) = launch.attributes, launch.outputs
        state = operand(launch, "state", RecurrentState)
        beta, beta_stride = ref_or_null(at, self.beta)
        return {
            "step": at.step,
            "qkv": at.ref(self.qkv),
            "alpha": at.ref(self.alpha),
            "beta": beta,
            "decay": at.vector(self.decay),
            "decay_bias": at.vector(self.decay_bias),
            "skip": vector_or_null(at, self.skip),
            "state": at.recurrent(state),
            "y": at.ref(y),
            "qkv_stride": self.qkv.stride,
            "alpha_stride": self.alpha.stride,
            "beta_stride": beta_stride,
            "y_stride": y.stride,
            "n_k_heads": int(attrs["n_k_heads"]),
            "n_v_heads": int(attrs["n_v_heads"]),
            "slot_floats": state.floats,
            "floor": float(attrs.get("floor", 0.0)),
        }


@lowers("delta_rule")
def delta_rule(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    """Lower the op `delta_rule`, with decays of channels in chunks (kernels/delta_chunk.slang).

    Sums of a chunk round differently, and chunks begin where a step does. So batch-invariant mode
    and states that can be rolled back are processed token by token.
    """
    attrs, features = dict(launch.attrs), at.features
    k_dim, v_dim, n_v = (int(attrs[name]) for name in ("k_dim", "v_dim", "n_v_heads"))
    # Matrices of a chunk (PART_FLOATS in delta_chunk.slang).
    part_bytes = 4 * (3 * DELTA_CHUNK * k_dim + 2 * DELTA_CHUNK**2 + k_dim)
    if (
        "per_channel" not in attrs
        or "rollback" in attrs
        or features.batch_invariant
        or features.has_few_registers
        or bucket.tokens < max(MIN_CHUNKED_TOKENS, 2 * bucket.sequences)
        or k_dim % 16
        or part_bytes + 8 * DELTA_CHUNK * DELTA_COLS > features.shared_bytes
    ):
        return by_token(launch, at, bucket)
    x, slots = RuleOperands.of(launch), bucket.tokens // DELTA_CHUNK + bucket.sequences
    chunks = at.scratch.take(slots * n_v * part_bytes)
    arguments = DeltaChunkArguments(**x.fields(launch, at), chunks=chunks)
    sizes = (("K_DIM", k_dim), ("VECTORS", in_vectors(at, x.qkv, x.alpha)), ("V_DIM", v_dim))
    options = (("FLOOR", int("floor" in attrs)), ("GROUPED", int(attrs["grouped"])))
    share = (("COLS", DELTA_COLS), ("SHARE", lanes_of_column(features, k_dim)))
    grid = (n_v, ceil_div(v_dim, DELTA_COLS), bucket.sequences)
    return [
        Dispatch(KernelVariant("delta_channels", (*options, *sizes)), arguments, (slots, n_v, 1)),
        Dispatch(KernelVariant("delta_scan", (*share, *sizes)), arguments, grid, waits=True),
    ]


@lowers("selective_scan")
def selective_scan(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    x, dt, b, c = (rows(launch, name) for name in ("x", "dt", "b", "c"))
    decay, dt_bias, skip = (operand(launch, n, Weight) for n in ("decay", "dt_bias", "skip"))
    state, (y,) = operand(launch, "state", RecurrentState), launch.outputs
    if b.cols > MAX_SCAN_SIZE:
        raise NotImplementedError(
            f"channels have states of at most {MAX_SCAN_SIZE} numbers, not {b.cols}"
        )
    arguments = SelectiveScanArguments(
        step=at.step,
        x=at.ref(x),
        dt=at.ref(dt),
        b=at.ref(b),
        c=at.ref(c),
        decay=at.vector(decay),
        dt_bias=at.vector(dt_bias),
        skip=at.vector(skip),
        state=at.recurrent(state),
        y=at.ref(y),
        x_stride=x.stride,
        dt_stride=dt.stride,
        b_stride=b.stride,
        c_stride=c.stride,
        y_stride=y.stride,
        cols=x.cols,
        slot_floats=state.floats,
    )
    rollback = int(launch.attributes.get("rollback", 0))
    share = SCAN_SHARE if b.cols % SCAN_SHARE == 0 else 1
    defines = (
        ("ROLLBACK", rollback),
        ("SHARE", share),
        ("SIZE", b.cols),
        ("THREADS", SCAN_THREADS),
    )
    groups = (ceil_div(x.cols, SCAN_THREADS // share), bucket.sequences, 1)
    return [Dispatch(KernelVariant("selective_scan", defines), arguments, groups)]


@lowers("token_shift")
def token_shift(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    x, weight = rows(launch, "x"), operand(launch, "weight", Weight)
    state, (y,) = operand(launch, "state", RecurrentState), launch.outputs
    arguments = TokenShiftArguments(
        step=at.step,
        x=at.ref(x),
        weight=at.vector(weight),
        state=at.recurrent(state),
        y=at.ref(y),
        x_stride=x.stride,
        y_stride=y.stride,
        cols=x.cols,
        slot_floats=state.floats,
    )
    defines = (
        ("ROLLBACK", int(launch.attributes.get("rollback", 0))),
        ("RUNS", y.cols // x.cols),
        ("THREADS", SHIFT_THREADS),
    )
    grid = (ceil_div(x.cols, SHIFT_COLS), bucket.sequences, 1)
    return [Dispatch(KernelVariant("token_shift", defines), arguments, grid)]


@lowers("wkv7")
def wkv7(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    r, w, k, v, a = (rows(launch, name) for name in "rwkva")
    first, mix = (rows_or_none(launch, name) for name in ("first", "mix"))
    removal, scaling, bonus = (operand(launch, n, Weight) for n in ("removal", "scaling", "bonus"))
    state, (y,) = operand(launch, "state", RecurrentState), launch.outputs
    dim = int(launch.attributes["head_dim"])
    if dim % WKV_COLS or r.cols > MAX_WKV_COLS:
        raise NotImplementedError(f"heads of {dim} in rows of {r.cols} columns are not supported")
    shared = 4 * WKV_COLS * (5 * dim + WKV_COLS)
    if shared > at.features.shared_bytes:
        raise NotImplementedError(
            f"heads of {dim} columns take {shared} bytes of shared memory, and there are "
            f"{at.features.shared_bytes} in a workgroup of this device"
        )
    arguments = Wkv7Arguments(
        step=at.step,
        r=at.ref(r),
        w=at.ref(w),
        k=at.ref(k),
        v=at.ref(v),
        a=at.ref(a),
        first=ref_or_null(at, first)[0],
        mix=ref_or_null(at, mix)[0],
        removal=at.vector(removal),
        scaling=at.vector(scaling),
        bonus=at.vector(bonus),
        state=at.recurrent(state),
        y=at.ref(y),
        r_stride=r.stride // 4,
        w_stride=w.stride // 4,
        k_stride=k.stride // 4,
        v_stride=v.stride // 4,
        a_stride=a.stride // 4,
        first_stride=first.stride // 4 if first else 0,
        mix_stride=mix.stride // 4 if mix else 0,
        y_stride=y.stride // 4,
        cols=r.cols,
        slot_floats=state.floats,
    )
    defines = (
        ("DIM", dim),
        ("MIX", int(mix is not None)),
        ("ROLLBACK", int(launch.attributes.get("rollback", 0))),
        ("SHARE", WKV_SHARE),
        ("THREADS", WKV_THREADS),
    )
    grid = (r.cols // WKV_COLS, bucket.sequences, 1)
    return [Dispatch(KernelVariant("wkv7", defines), arguments, grid)]


@lowers("ssm_scan")
def by_token(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    """Lower the op `ssm_scan` or `delta_rule` to one kernel, which processes token by token."""
    x, attrs = RuleOperands.of(launch), {name: int(value) for name, value in launch.attrs}
    k_dim, v_dim = attrs["k_dim"], attrs["v_dim"]
    if k_dim % 16:
        raise NotImplementedError(f"the width {k_dim} of keys is not a multiple of 16")
    rollback = int("rollback" in attrs)
    is_one_row = bucket.tokens == 1 and not (at.features.batch_invariant or rollback)
    n_rows = 1 if is_one_row else DELTA_ROWS
    channels = "per_channel" in attrs
    if channels and v_dim % 4:
        raise NotImplementedError(
            f"the width {v_dim} of values is not a multiple of 4, which decays of channels need"
        )
    # Keys and queries, and their decays if each has one; values; gates.
    shared = n_rows * ((12 if channels else 8) * k_dim + 4 * DELTA_COLS + 8)
    if shared > at.features.shared_bytes:
        raise NotImplementedError(
            f"keys of {k_dim} columns take {shared} bytes of shared memory, and there are "
            f"{at.features.shared_bytes} in a workgroup of this device"
        )
    kernel = KernelVariant(
        "delta_rule",
        (
            ("COLS", DELTA_COLS),
            ("GROUPED", attrs.get("grouped", 1)),
            ("K_DIM", k_dim),
            ("ROLLBACK", rollback),
            ("ROWS", n_rows),
            ("SHARE", lanes_of_column(at.features, k_dim)),
            ("SSM", int(x.skip is not None)),
            ("VECTORS", in_vectors(at, x.qkv, x.alpha if channels else None)),
            ("V_DIM", v_dim),
            *((("CHANNELS", 1),) if channels else ()),
            *((("FLOOR", 1),) if launch.attributes.get("floor") else ()),
        ),
    )
    arguments = DeltaRuleArguments(
        **x.fields(launch, at),
        arrived=at.counters.take(attrs["n_k_heads"] * bucket.sequences) if rollback else 0,
        is_one_token=int(bucket.tokens == 1),
    )
    grid = (attrs["n_v_heads"], ceil_div(v_dim, DELTA_COLS), bucket.sequences)
    return [Dispatch(kernel, arguments, grid)]


def lanes_of_column(features: Features, k_dim: int) -> int:
    """Return the lanes that share a column of the state."""
    if features.has_few_registers and features.subgroup >= 16 and k_dim % 64 == 0:
        return 16
    return 8 if k_dim % 32 == 0 else 4
