"""The table of structs that GPU kernels read: arguments of each kernel, and the data of a step.

This is the only place that lists their fields. `python -m zinc.gpu.arguments` writes the Slang
declarations; `zinc.gpu.arguments.generate.cpp_header` returns the C++ ones.

Names shared by many kernels: `step` is the address of the `StepHeader`; `x`, `y` and other `Bytes`
are rows whose `_stride` is the bytes from row to row; `dim` is a `DimCode`; `activation` is an
`ActivationFn`; a null address stands for an absent operand.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import numpy as np

from zinc.gpu.arguments.layout import (
    F32,
    I32,
    U8,
    U14,
    U16,
    U24,
    U32,
    U64,
    UINT32,
    Bytes,
    Flag,
    Float4s,
    Floats,
    Struct,
    Uint4s,
    Uints,
    array,
    pointer,
)
from zinc.ops.penalties import PENALTY_PARAMS
from zinc.ops.step import SAMPLE_PARAMS

MAX_TABLES = 8
MAX_PEERS = 8  # GPUs that exchange rows
EXCHANGE_BLOCKS = 64  # most blocks of an exchange, each with a flag
_DTYPES = {
    np.dtype("<i4"): I32,
    np.dtype("<u4"): U32,
    np.dtype("<u8"): U64,
    np.dtype("<f4"): F32,
}


def _annotation(dtype: np.dtype[Any]) -> Any:
    """Return the annotation of a field: a number, or several of type uint32."""
    if dtype.subdtype is None:
        return _DTYPES[dtype]
    assert dtype.base == np.uint32
    return Annotated[tuple[int, ...], array(UINT32, *dtype.shape)]


def _struct(name: str, dtype: np.dtype[Any], doc: str) -> type[Struct]:
    """Return the struct of the elements of an array of `dtype`."""
    assert dtype.fields is not None
    annotations = {field: _annotation(found[0]) for field, found in dtype.fields.items()}
    return type(name, (Struct,), {"__doc__": doc, "__annotations__": annotations})


SampleParams = _struct(
    "SampleParams",
    SAMPLE_PARAMS,
    "How the token of an output row is sampled: `zinc.ops.step.SAMPLE_PARAMS`.",
)
PenaltyParams = _struct(
    "PenaltyParams",
    PENALTY_PARAMS,
    "How logits of an output row are penalised: `zinc.ops.penalties.PENALTY_PARAMS`.",
)

_INTS = pointer("int", "int32_t")
IntArray: TypeAlias = Annotated[int, _INTS]


class StepHeader(Struct):
    """Sizes of a step and where its arrays lie. The int32 positions of its tokens follow it."""

    tokens: U32
    outputs: U32
    sequences: U32
    n_tables: U32
    ids_are_sampled_rows: Annotated[U32, "1: `ids` are indices into `sampled`"]
    ids: IntArray
    sequence: IntArray
    output_rows: IntArray
    seq_start: IntArray
    state_slot: IntArray
    tables: Annotated[tuple[int, ...], array(_INTS, MAX_TABLES), "block tables [sequences, stride]"]
    table_stride: Annotated[
        tuple[int, ...], array(UINT32, MAX_TABLES), "blocks of a sequence in each table"
    ]
    sample_params: Annotated[int, pointer("SampleParams"), "one for each output row"]
    penalties: Annotated[
        int,
        pointer("PenaltyParams"),
        "one for each output row, then the pairs of all rows: a token and its count",
    ]
    sampled: Annotated[
        int, pointer("float2", "float"), "token and largest logit of each row sampled last"
    ]


StepAddress: TypeAlias = Annotated[int, pointer("StepHeader")]


class Matrix(Struct):
    """Streams of a packed weight (`zinc.gpu.packing`)."""

    q: Annotated[int, pointer("uint4", "uint32_t"), "low bits of units of 32 elements"]
    h: Annotated[int, pointer("uint", "uint32_t"), "their high bits or signs"]
    s: Annotated[int, pointer("uint16_t"), "codebook if there is one, then scales"]


class EmbedArguments(Struct):
    step: StepAddress
    table: Matrix
    y: Bytes
    cols: U32
    y_stride: U32
    scale: F32


class LoraArguments(Struct):
    step: StepAddress
    scales: Annotated[Floats, "of adapters (`zinc.gpu.step_data`)"]
    x: Bytes
    a: Annotated[Uints, "float16 [RANK, cols], null if absent"]
    b: Annotated[Uints, "float16 [rows, RANK]"]
    y: Bytes
    result: Bytes
    x_stride: U32
    y_stride: U32
    result_stride: U32
    cols: U32
    rows: U32
    slice_rows: Annotated[U32, "rows of b of a workgroup"]
    adapter: U32
    dim: U32


class QuantizeArguments(Struct):
    step: StepAddress
    x: Bytes
    y: Bytes
    cols: U32
    run_cols: Annotated[U32, "columns that become one row of blocks"]
    run_bytes: Annotated[U32, "bytes of such a row"]
    x_stride: U32
    y_stride: U32
    dim: U32


class HalfRowsArguments(Struct):
    """Arguments of the conversion of rows of 8-bit blocks to operands of CUDA's tensor cores."""

    step: StepAddress
    x: Bytes
    y: Annotated[Bytes, "slabs of columns (half_rows.cuh)"]
    inverses: Annotated[Floats, "of each row's factor"]
    cols: Annotated[U32, "of a run"]
    x_stride: Annotated[U32, "bytes from row to row"]
    x_run: Annotated[U32, "bytes from run to run of a row"]
    y_rows: Annotated[U32, "rows of a slab"]
    slabs: Annotated[U16, "of a run; those past the last column are zeros"]
    runs: Annotated[U16, "runs of a row, which become rows of y"]
    dim: U8


class ElementwiseArguments(Struct):
    step: StepAddress
    a: Bytes
    b: Bytes
    y: Bytes
    a_stride: U32
    b_stride: U32
    y_stride: U32
    cols: U32
    dim: U32
    activation: Annotated[U32, "ActivationFn of a GLU"]
    first: Annotated[F32, "factor of SCALE, cap of SOFTCAP, alpha of GLU"]
    second: Annotated[F32, "limit of GLU"]


class LinearArguments(Struct):
    """Arguments of linear, linear_glu and head_linear: y = x W."""

    step: StepAddress
    w: Matrix
    up: Annotated[U64, "GLU: bytes from w to the other weight; GATED: address of rows of the gate"]
    x: Bytes
    y: Bytes
    bias: Floats
    up_bias: Floats
    residual: Annotated[Bytes, "GATES: rows of one number"]
    partial: Annotated[Floats, "sums of each split of a tile, if workgroups split its columns"]
    arrived: Annotated[Uints, "counts for each tile the splits that have ended"]
    rows: Annotated[U32, "of a plane of w, as cols"]
    cols: U32
    x_stride: U32
    y_stride: U32
    residual_stride: Annotated[U32, "GATED: stride of the gate"]
    dim: U8
    activation: Annotated[U8, "ActivationFn of GLU and GATED"]
    alpha: F32
    limit: F32


class UnscaledLinearArguments(Struct):
    """Arguments of a linear whose output is also stored for products of its norm."""

    step: StepAddress
    w: Matrix
    x: Bytes
    y: Bytes
    bias: Floats
    residual: Bytes
    norm: Annotated[Floats, "weights of the norm of y"]
    unscaled: Annotated[Bytes, "rows of y for these products (unscaled_rows.slang)"]
    rows: U32
    cols: U32
    x_stride: U32
    y_stride: U32
    residual_stride: U32
    unscaled_stride: U32
    dim: U32
    eps: Annotated[F32, "of the norm"]


class GemvPart(Struct):
    """A weight matrix of `GemvArguments`, and its output, bias and residual."""

    w: Matrix
    up: Annotated[U64, "GLU: bytes from w to the other weight"]
    y: Bytes
    bias: Floats
    up_bias: Floats
    residual: Bytes
    factor: Annotated[Bytes, "GLU: rows of a number by whose sigmoid the product is multiplied"]
    y_stride: U32
    residual_stride: U32
    factor_stride: U32
    rows: U32
    first_tile: Annotated[U32, "first tile of the part"]


class GemvArguments(Struct):
    """Arguments of the product of rows x with up to four matrices, as linear and linear_glu."""

    step: StepAddress
    x: Bytes
    first: GemvPart
    second: GemvPart
    third: GemvPart
    fourth: GemvPart
    norm: Annotated[Bytes, "weights of the norm of x, or of y for `unscaled`"]
    unscaled: Annotated[Bytes, "rows of y for a product of its norm (unscaled_rows.cuh)"]
    x_stride: U32
    unscaled_stride: U32
    dim: U32
    tiles: Annotated[U32, "tiles of all parts"]
    eps: F32
    alpha: F32
    limit: F32


class ExpertArguments(Struct):
    """Arguments of products of slots with their selected experts."""

    step: StepAddress
    w: Annotated[Matrix, "[experts, rows, cols]"]
    up: Annotated[U64, "GLU: bytes from w to the other weight; GATED: the gate [slots, rows]"]
    x: Annotated[Bytes, "a row for each token, or a run for each slot"]
    y: Annotated[Bytes, "a run for each slot"]
    order: Annotated[Floats, "slots sorted by expert"]
    starts: Annotated[Floats, "first position in order of each expert"]
    bias: Annotated[Floats, "[experts, rows]"]
    up_bias: Floats
    rows: U32
    cols: U32
    x_stride: Annotated[U32, "bytes from token to token"]
    x_run: Annotated[U32, "bytes from rank to rank; 0 if all slots of a token share its row"]
    y_stride: U32
    y_run: U32
    n_experts: U16
    top_k: U16
    dim: U8
    activation: U8
    alpha: F32
    limit: F32


class LinearTileArguments(Struct):
    """Arguments of linear and linear_glu on CUDA's tensor cores."""

    product: LinearArguments
    x: Annotated[Bytes, "converted rows of x, if the kernel reads those"]
    inverses: Annotated[Floats, "of their factors"]
    x_rows: Annotated[U32, "rows of a slab of x"]


class SplitArguments(Struct):
    """Arguments of a split-K GEMM on CUDA's warp groups (gemm_split.cu)."""

    product: GemvArguments
    x: Annotated[Bytes, "converted rows of x (half_rows.cuh)"]
    inverses: Annotated[Floats, "of their factors"]


class ExpertTileArguments(Struct):
    """Arguments of products with experts on CUDA's tensor cores."""

    product: ExpertArguments
    x: Annotated[Bytes, "converted rows of x, if the kernel reads those"]
    inverses: Annotated[Floats, "of their factors"]
    x_rows: Annotated[U32, "rows of a slab of x"]


class MoeDownArguments(Struct):
    step: StepAddress
    w: Annotated[Matrix, "[experts, rows, cols]"]
    h: Annotated[Bytes, "a run for each slot"]
    y: Bytes
    routes: Annotated[Floats, "rows of top_k expert ids, then top_k weights"]
    bias: Annotated[Floats, "[experts, rows]"]
    scale: Annotated[Floats, "[experts]"]
    residual: Bytes
    rows: U32
    cols: U32
    h_stride: U32
    h_run: Annotated[U32, "bytes from slot to slot"]
    routes_stride: U32
    y_stride: U32
    residual_stride: U32
    dim: U8
    top_k: U8


class MoeDownLinearArguments(Struct):
    """Arguments of the moe_down of one token that adds the product of a shared expert."""

    w: Annotated[Matrix, "[experts, rows, cols]"]
    shared: Annotated[Matrix, "[rows, shared_cols]"]
    h: Annotated[Bytes, "a run for each slot"]
    x: Annotated[Bytes, "the row that `shared` multiplies"]
    y: Bytes
    routes: Annotated[Floats, "top_k expert ids, then top_k weights"]
    bias: Annotated[Floats, "[experts, rows]"]
    scale: Annotated[Floats, "[experts]"]
    residual: Bytes
    rows: U32
    cols: U32
    shared_cols: U32
    h_run: Annotated[U32, "bytes from slot to slot"]
    top_k: U32


class MoeSumArguments(Struct):
    step: StepAddress
    products: Annotated[Floats, "[slots, rows]"]
    y: Bytes
    routes: Annotated[Floats, "rows of top_k expert ids, then top_k weights"]
    bias: Annotated[Floats, "[experts, rows]"]
    scale: Annotated[Floats, "[experts]"]
    residual: Bytes
    rows: U32
    routes_stride: U32
    y_stride: U32
    residual_stride: U32
    dim: U8
    top_k: U16


class ConcatArguments(Struct):
    step: StepAddress
    a: Bytes
    b: Bytes
    y: Bytes
    a_stride: U32
    b_stride: U32
    y_stride: U32
    cols: U32
    a_head: Annotated[U32, "columns of a head of a"]
    b_head: U32
    dim: U32


class MixArguments(Struct):
    step: StepAddress
    x: Bytes
    coefficients: Annotated[Bytes, "a row is [outputs, inputs]; null if all are 1"]
    weight: Annotated[Bytes, "of each column of a run, or null"]
    residual: Bytes
    y: Bytes
    x_stride: U32
    coefficients_stride: U32
    residual_stride: U32
    y_stride: U32
    cols: Annotated[U32, "of y"]
    width: Annotated[U32, "columns of a run"]
    n_inputs: Annotated[U32, "runs of x"]
    dim: U32


class NormArguments(Struct):
    step: StepAddress
    x: Bytes
    weight: Bytes
    other: Annotated[
        Bytes, "the residual, the gate of a gated norm, the bias of a layer norm, the row to match"
    ]
    y: Bytes
    x_stride: U32
    other_stride: U32
    y_stride: U32
    cols: U32
    group: Annotated[U32, "columns that are normalised together"]
    dim: U32
    eps: F32


class HalfNormArguments(NormArguments):
    """Arguments of a norm on CUDA that also stores its rows as operands of tensor cores."""

    halves: Annotated[Bytes, "the rows in slabs of columns (half_rows.cuh)"]
    inverses: Annotated[Floats, "of each row's factor"]
    half_rows: Annotated[U32, "rows of a slab"]


class CausalConvArguments(Struct):
    step: StepAddress
    x: Bytes
    weight: Annotated[Floats, "[cols, taps]"]
    bias: Floats
    state: Floats
    y: Bytes
    x_stride: U32
    y_stride: U32
    cols: U32
    slot_floats: Annotated[U32, "floats from state slot to state slot"]


class ConvBlockArguments(CausalConvArguments):
    """Arguments of both kernels of a convolution over blocks of rows."""

    edges: Annotated[Floats, "[blocks, taps - 1, cols], the rows of x before each block"]


class SelectiveScanArguments(Struct):
    step: StepAddress
    x: Bytes
    dt: Bytes
    b: Bytes
    c: Bytes
    decay: Annotated[Floats, "[cols, size]"]
    dt_bias: Floats
    skip: Floats
    state: Floats
    y: Bytes
    x_stride: U32
    dt_stride: U32
    b_stride: U32
    c_stride: U32
    y_stride: U32
    cols: U32
    slot_floats: Annotated[U32, "floats from state slot to state slot"]


class TokenShiftArguments(Struct):
    step: StepAddress
    x: Bytes
    weight: Annotated[Floats, "[runs, cols]"]
    state: Floats
    y: Bytes
    x_stride: U32
    y_stride: U32
    cols: Annotated[U32, "of x"]
    slot_floats: Annotated[U32, "floats from state slot to state slot"]


class Wkv7Arguments(Struct):
    """Arguments of the recurrence of RWKV-7. Its strides are floats from row to row."""

    step: StepAddress
    r: Bytes
    w: Bytes
    k: Bytes
    v: Bytes
    a: Bytes
    first: Bytes
    mix: Bytes
    removal: Floats
    scaling: Floats
    bonus: Floats
    state: Floats
    y: Bytes
    r_stride: U16
    w_stride: U16
    k_stride: U16
    v_stride: U16
    a_stride: U16
    first_stride: U16
    mix_stride: U16
    y_stride: U16
    cols: Annotated[U32, "of all heads"]
    slot_floats: Annotated[U32, "floats from state slot to state slot"]


class _DeltaArguments(Struct):
    """Arguments of the delta rule, and of scans that update a state of the same shape."""

    step: StepAddress
    qkv: Bytes
    alpha: Annotated[Bytes, "a number for each value head, or with CHANNELS for each of its keys"]
    beta: Bytes
    decay: Floats
    decay_bias: Annotated[Floats, "as many numbers as alpha has"]
    skip: Annotated[Floats, "factors of v that a scan adds"]
    state: Floats
    y: Bytes
    qkv_stride: U32
    alpha_stride: U32
    beta_stride: U32
    y_stride: U32
    n_k_heads: U32
    n_v_heads: U32
    slot_floats: Annotated[U32, "floats from state slot to state slot"]
    floor: Annotated[F32, "the lowest log g, with FLOOR"]


class DeltaRuleArguments(_DeltaArguments):
    """Arguments of the delta rule for one token after another."""

    arrived: Annotated[
        Uints, "[sequences, key heads]: workgroups that have read its rows; 0 between steps"
    ]
    is_one_token: Annotated[U32, "the step has one token, so its header need not be read"]


class DeltaChunkArguments(_DeltaArguments):
    """Arguments of both kernels of the delta rule in chunks."""

    chunks: Annotated[Bytes, "matrices of each chunk"]


class DeltaStepArguments(Struct):
    """Arguments of convolution, delta rule and gated norm of one token per sequence.

    Strides are floats from row to row.
    """

    step: StepAddress
    x: Bytes
    conv_weight: Annotated[Floats, "[cols, taps]"]
    conv_state: Floats
    alpha: Bytes
    beta: Bytes
    decay: Floats
    decay_bias: Floats
    state: Floats
    z: Bytes
    norm: Bytes
    y: Bytes
    arrived: Annotated[
        Uints, "[sequences, key heads]: value heads that have read its columns; 0 between steps"
    ]
    slot_floats: Annotated[U32, "floats from state slot to state slot"]
    eps: F32
    n_k_heads: U16
    n_v_heads: U16
    x_stride: U16
    alpha_stride: U16
    beta_stride: U16
    z_stride: U16
    y_stride: U16
    is_one_token: Annotated[Flag, "the step has one token, so its header need not be read"]


class RopeTableArguments(Struct):
    step: StepAddress
    frequencies: Floats
    y: Bytes
    y_stride: U32
    n: Annotated[U32, "frequencies"]
    scale: F32
    log_scale: Annotated[F32, "the scale grows by log(1 + position / period) times this"]
    period: Annotated[U32, "the quotient is rounded down"]


class RopeStoreArguments(Struct):
    step: StepAddress
    q: Bytes
    k: Bytes
    v: Bytes
    table: Annotated[Bytes, "cosines, then sines of each token's angles"]
    q_norm: Bytes
    k_norm: Bytes
    out: Bytes
    keys: Bytes
    values: Bytes
    q_stride: U32
    k_stride: U32
    v_stride: U32
    table_stride: U32
    out_stride: U32
    key_block: Annotated[U32, "bytes of a block of keys"]
    value_block: U32
    n_heads: U16
    n_kv_heads: U16
    block_tokens: U16
    block_table: Annotated[U8, "index of the layer's block table"]
    normalises_v: Flag
    is_one_token: Annotated[Flag, "the step has one token, so its header need not be read"]
    eps: F32


class AttentionArguments(Struct):
    """Arguments of attention of few queries."""

    step: StepAddress
    q: Bytes
    keys: Bytes
    values: Annotated[Bytes, "the keys if values are their last dimensions"]
    sinks: Floats
    slopes: Annotated[Floats, "of ALiBi, if the kernel has it"]
    out: Bytes
    partial: Annotated[Float4s, "sums of each split, if there are several"]
    q_stride: U32
    out_stride: U32
    key_block: Annotated[U32, "bytes of a block of keys"]
    value_block: U32
    n_heads: U16
    n_kv_heads: U16
    block_shift: Annotated[U8, "log2 of the tokens of a block"]
    block_table: Annotated[U8, "index of the layer's block table"]
    is_one_token: Annotated[Flag, "the step has one token, so its header need not be read"]
    bidirectional: Annotated[Flag, "a token also sees the tokens after it"]
    window: U32
    splits: Annotated[U32, "workgroups that share the keys of a token"]
    scale: F32
    softcap: F32


class SelectedAttentionArguments(AttentionArguments):
    """Arguments of attention of few queries to selected positions."""

    selected: Annotated[Bytes, "ascending positions of each token, then -1"]
    selected_stride: U32
    n_selected: Annotated[U32, "columns of these rows"]


class RopeAttentionArguments(Struct):
    """Arguments of attention of few tokens that first normalises, rotates and stores its heads."""

    step: StepAddress
    q: Bytes
    k: Bytes
    v: Annotated[Bytes, "null if values are the last dimensions of keys"]
    table: Annotated[Bytes, "cosines, then sines of each token's angles"]
    q_norm: Bytes
    k_norm: Bytes
    keys: Bytes
    values: Annotated[Bytes, "the keys if values are their last dimensions"]
    partial: Annotated[Float4s, "sums of each split; if there is one split, rows of the output"]
    q_stride: U32
    k_stride: U32
    v_stride: U32
    key_block: Annotated[U32, "bytes of a block of keys"]
    value_block: U32
    n_heads: U16
    n_kv_heads: U16
    splits: Annotated[U8, "workgroups that share the keys"]
    out_stride: U24
    block_shift: Annotated[U8, "log2 of the tokens of a block"]
    block_table: Annotated[U8, "index of the layer's block table"]
    table_stride: Annotated[U14, "float32 numbers from row to row"]
    is_one_token: Annotated[Flag, "the step has one token, so its header need not be read"]
    normalises_v: Flag
    window: U32
    scale: F32
    softcap: F32
    eps: F32


class DecodeAttentionArguments(RopeAttentionArguments):
    """Arguments of attention of few tokens whose workgroups merge the splits."""

    sinks: Floats
    out: Bytes
    arrived: Annotated[
        Uints, "splits that have finished, for each token and group of heads; 0 between steps"
    ]


class AttentionTileArguments(Struct):
    """Arguments of attention of many queries."""

    step: StepAddress
    q: Bytes
    keys: Bytes
    values: Annotated[Bytes, "the keys if values are their last dimensions"]
    sinks: Floats
    slopes: Annotated[Floats, "of ALiBi, if the kernel has it"]
    out: Bytes
    q_stride: U32
    out_stride: U32
    key_block: Annotated[U32, "bytes of a block of keys"]
    value_block: U32
    n_heads: U16
    n_kv_heads: U16
    block_shift: Annotated[U8, "log2 of the tokens of a block"]
    block_table: Annotated[U8, "index of the layer's block table"]
    is_one_token: Flag
    bidirectional: Annotated[Flag, "a token also sees the tokens after it"]
    window: U32
    scale: F32
    softcap: F32


class AttentionMmaArguments(Struct):
    """Arguments of tiled attention on tensor cores, whose keys may be split."""

    step: StepAddress
    q: Bytes
    keys: Bytes
    values: Annotated[Bytes, "the keys if values are their last dimensions"]
    sinks: Floats
    slopes: Annotated[Floats, "of ALiBi, if the kernel has it"]
    out: Bytes
    partial: Annotated[Float4s, "sums of each split, if there are several"]
    q_stride: U32
    out_stride: U32
    key_block: Annotated[U32, "bytes of a block of keys"]
    value_block: U32
    n_heads: U16
    n_kv_heads: U16
    block_shift: Annotated[U8, "log2 of the tokens of a block"]
    block_table: Annotated[U8, "index of the layer's block table"]
    bidirectional: Annotated[Flag, "a token also sees the tokens after it"]
    window: U32
    splits: Annotated[U32, "blocks that share the keys of a tile"]
    scale: F32
    softcap: F32


class SelectedMmaArguments(AttentionMmaArguments):
    """Arguments of tiled attention to selected positions. A tile has queries of one token."""

    selected: Annotated[Bytes, "ascending positions of each token, then -1"]
    selected_stride: U32
    n_selected: Annotated[U32, "columns of these rows"]


class AttentionMergeArguments(Struct):
    step: StepAddress
    sinks: Floats
    out: Bytes
    partial: Annotated[Float4s, "sums of each split"]
    out_stride: U32
    n_heads: U32
    splits: U32
    dim: U32


class RouteArguments(Struct):
    step: StepAddress
    logits: Bytes
    bias: Floats
    y: Annotated[Bytes, "rows of top_k expert ids, then top_k weights"]
    logits_stride: U32
    y_stride: U32
    dim: U32
    scale: F32


class RouteExpertsArguments(RouteArguments):
    """Arguments of the kernel that routes one token and sorts its slots by expert."""

    order: Annotated[Floats, "slots sorted by expert"]
    starts: Annotated[Floats, "first position in order of each expert"]


class NormRouteArguments(Struct):
    """Arguments of the kernel that normalises and routes one token."""

    x: Bytes
    norm: Annotated[Bytes, "weights of the norm of x"]
    blocks: Annotated[Bytes, "the normalised row as 8-bit blocks"]
    router: Annotated[Bytes, "[experts, cols] float32"]
    gates: Annotated[Bytes, "[n_gates, cols] float32"]
    router_bias: Floats
    gate_bias: Floats
    logits: Floats
    gate: Annotated[Floats, "products with the gates"]
    choice_bias: Floats
    routes: Annotated[Floats, "top_k expert ids, then top_k weights"]
    order: Annotated[Floats, "slots sorted by expert"]
    starts: Annotated[Floats, "first position in order of each expert"]
    arrived: Annotated[Uints, "workgroups that have finished; 0 between steps"]
    n_gates: U32
    eps: F32
    scale: F32


class GroupExpertsArguments(Struct):
    step: StepAddress
    routes: Bytes
    order: Annotated[Bytes, "slots sorted by expert"]
    starts: Annotated[Floats, "first position in order of each expert"]
    routes_stride: U32
    order_stride: U32
    dim: U32
    top_k: U32
    n_experts: U32


class IndexScoresArguments(Struct):
    """Arguments of the scores by which a token selects positions."""

    step: StepAddress
    q: Annotated[Bytes, "index queries"]
    weights: Annotated[Bytes, "of the index heads"]
    keys: Annotated[Bytes, "index keys"]
    scores: Annotated[Floats, "of all positions, a row for each token starting at `first`"]
    q_stride: U32
    weights_stride: U32
    key_block: Annotated[U32, "bytes of a block of keys"]
    scores_stride: Annotated[U32, "numbers"]
    n_heads: U32
    first: Annotated[U32, "token"]
    top_k: Annotated[U32, "a token that sees no more positions needs no scores"]
    block_shift: Annotated[U8, "log2 of the tokens of a block"]
    block_table: Annotated[U8, "index of the layer's block table"]
    is_one_token: Flag


class SelectKeysArguments(Struct):
    """Arguments of the selection of the positions with the largest scores."""

    step: StepAddress
    scores: Annotated[Floats, "of all positions, a row for each token starting at `first`"]
    out: Bytes
    scores_stride: Annotated[U32, "numbers"]
    out_stride: U32
    first: Annotated[U32, "token"]
    top_k: U32
    is_one_token: Flag


class PenalizeArguments(Struct):
    step: StepAddress
    logits: Bytes
    stride: U32


class SampleArguments(Struct):
    step: StepAddress
    source: Annotated[Bytes, "rows of logits, or candidates of the dispatch before"]
    target: Annotated[Bytes, "candidates, or in the last dispatch the token and largest logit"]
    source_stride: U32
    target_stride: U32
    n: Annotated[U32, "logits or candidates of a row"]


class LimitsArguments(Struct):
    """Arguments of the kernels that measure a device."""

    step: Annotated[int, pointer("StepHeader"), "unused"]
    data: Uint4s
    out: Uints
    n: U32
    threads: U32


class PackArguments(Struct):
    """Arguments of the kernel that packs blocks of weights into streams."""

    step: Annotated[int, pointer("StepHeader"), "unused"]
    blocks: Annotated[Bytes, "as they lie in the file"]
    q: Uints
    h: Uints
    s: Bytes
    n_blocks: U32


class CopyArguments(Struct):
    """Arguments of the kernel that copies between memory of the device and of the host."""

    step: Annotated[int, pointer("StepHeader"), "unused"]
    source: Uints
    target: Uints
    n_words: U32


class PeerTable(Struct):
    """Addresses through which a GPU reaches its peers and itself."""

    mailboxes: Annotated[tuple[int, ...], array(pointer("uint8_t"), MAX_PEERS)]
    flags: Annotated[tuple[int, ...], array(pointer("uint", "uint32_t"), MAX_PEERS)]
    rounds: Annotated[Uints, "exchanges that each block has completed with each GPU"]
    n_gpus: U32
    gpu: Annotated[U32, "index of this GPU"]


class ExchangeArguments(Struct):
    """Arguments of the kernel that exchanges rows between GPUs.

    participants, senders, receivers: a bit for each GPU.
    """

    step: StepAddress
    peers: Annotated[int, pointer("PeerTable")]
    sent: Bytes
    received: Bytes
    sent_stride: U32
    received_stride: U32
    cols: U32
    dim: U32
    participants: U32
    senders: U32
    receivers: U32
    mail_at: Annotated[U64, "first byte in each mailbox"]
    mail_bytes: Annotated[U64, "of one sender"]
