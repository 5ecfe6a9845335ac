"""Lowerings of attention over the KV cache.

Decode has few queries: workgroups split the keys of a token, and a second dispatch merges their
partial sums. There is a kernel for vectors and one for cooperative matrices. Prefill has many
queries, which attention_tiles.py lowers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from zinc.backends.plans import Launch, Ref
from zinc.core.dataclass import dataclass
from zinc.core.rounding import ceil_div
from zinc.gpu.addresses import Addresses, DeviceKV
from zinc.gpu.arguments.constants import ElementwiseOp
from zinc.gpu.arguments.structs import (
    AttentionArguments,
    AttentionMergeArguments,
    RopeAttentionArguments,
    SelectedAttentionArguments,
)
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.features import FULL_REGISTERS, NARROW, SQUARE
from zinc.gpu.kernel_set import fuses, lowers
from zinc.gpu.lower.attention_fields import attention_fields, cache_fields
from zinc.gpu.lower.attention_tiles import many_queries
from zinc.gpu.lower.elementwise import elementwise
from zinc.gpu.lower.operands import (
    alibi,
    chunked,
    dim_code,
    in_vectors,
    is_bidirectional,
    is_capped,
    is_q8,
    operand,
    power_of_two,
    ref_or_null,
    rows,
    rows_or_none,
    vector_or_null,
)
from zinc.ops.node import Node
from zinc.ops.step import StepCondition
from zinc.ops.values import Dim, KVState, RowFormat

SHALLOW_KEYS = 256  # up to this many keys, one workgroup with more waves is faster than a merge
FEW_TOKENS = 16  # largest step that uses the kernels for few queries
# Limits (tokens of a step, keys) within which these kernels prepare the heads of several tokens of
# a sequence. A workgroup keeps the new keys and values of all these tokens in shared memory. Those
# of 16 tokens leave too little for the kernel with cooperative matrices, which steps with more keys
# use.
PREPARED_TOKENS = ((8, 1 << 20), (16, SHALLOW_KEYS))

# Few queries, vector arithmetic. For each of its heads, a thread keeps some chunks of eight
# dimensions of the query and of the sums in registers.
MAX_CHUNKS = 4
WAVES = 4
AT_ONCE = 2  # keys that a lane loads ahead
MAX_SUMS = 4096  # float32 partial sums of all waves in shared memory
SHALLOW_WAVES = 16
MIN_KEYS = 64  # keys of a split; fewer are not worth a merge
GROUPS_A_UNIT = 3  # workgroups for each compute unit
MAX_SPLITS = 128
MIN_UNITS = 16
# In batch-invariant mode the number of splits must not depend on the step. It is chosen so that the
# partial sums of a step of INVARIANT_TOKENS tokens fit into INVARIANT_BYTES.
INVARIANT_SPLITS = 16
INVARIANT_TOKENS, INVARIANT_BYTES = 512, 128 << 20
MAX_PREPARED_DIM = 256  # widest head that a subgroup can prepare without spilling registers

# Few queries, cooperative matrices. Each subgroup stages a tile of keys, then a tile of values.
MATRIX_HEADS = 2  # with at least this many heads a KV head, narrow matrices are faster than vectors
TILE_KEYS = 16
MATRIX_WAVES = 8
MATRIX_BYTES = 48 << 10  # shared memory to use
MATRIX_GROUPS_A_UNIT = 1
MAX_MATRIX_DIM = 256  # widest head whose sums of 8 columns fit into a lane's registers
MAX_WIDE_DIM = 128  # widest head whose sums of 16 columns fit into them


# Lowers attention that writes its output to the given address.
Attend: TypeAlias = Callable[[Launch, Addresses, Bucket, int], list[Dispatch]]


@lowers("attention")
def attention(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    return with_output_format(launch, at, bucket, attend)


def with_output_format(
    launch: Launch, at: Addresses, bucket: Bucket, attend: Attend
) -> list[Dispatch]:
    """Return the dispatches of `attend`, plus a conversion if it cannot store the format of y."""
    state, (y,) = operand(launch, "cache", KVState), launch.outputs
    _check(state, at.kv(state))
    if y.format is RowFormat.F32 or state.head_dim_v % 32 == 0:
        return attend(launch, at, bucket, at.ref(y))
    # Blocks of 32 columns would span heads, so rows are made in float32 and then converted.
    stride = 4 * y.cols
    plain = at.scratch.take(bucket.tokens * stride)
    floats = replace(y, format=RowFormat.F32, stride=stride)
    copy = elementwise(ElementwiseOp.COPY, floats, None, y, at, bucket, a_at=plain)
    return [
        *attend(replace(launch, outputs=(floats,)), at, bucket, plain),
        *(replace(dispatch, waits=True) for dispatch in copy),
    ]


@fuses("rope_attention")
def rope_attention_steps(node: Node) -> StepCondition | None:
    """Return the steps in which few tokens attend, None if the heads of `node` do not suit."""
    state, has_sinks = node.input("cache"), node.input("sinks") is not None
    assert isinstance(state, KVState)
    # Attention sinks are added when splits are merged, so they need enough keys to split.
    if not prepares_heads(node) or (has_sinks and 0 < state.window <= SHALLOW_KEYS):
        return None
    fewest = SHALLOW_KEYS + 1 if has_sinks else 0
    return StepCondition((1, FEW_TOKENS), fewest, is_decode=True, or_few=PREPARED_TOKENS)


def prepares_heads(node: Node) -> bool:
    """Return whether kernels for few queries can prepare the heads of the attention `node`."""
    state, (y,) = node.input("cache"), node.outputs
    assert isinstance(state, KVState)
    if max(state.head_dim, state.head_dim_v) > MAX_PREPARED_DIM:
        return False
    return y.format is RowFormat.F32 or state.head_dim_v % 32 == 0


@lowers("rope_attention")
def rope_attention(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    """Lower the op `rope_attention`."""
    state, n_heads = operand(launch, "cache", KVState), int(launch.attributes["n_heads"])
    most_own = _most_own(bucket)
    config = decode_config(state, n_heads, at, bucket, most_own=most_own)
    if launch.input("sinks") is not None:
        config = replace(config, splits=max(2, config.splits))  # the merge adds the sinks
    defines = {"MOST_OWN": most_own, "ONE_SPLIT": int(config.splits == 1)}
    config = replace(config, defines=(*config.defines, *defines.items()))
    split, merged = rope_attention_of(launch, at, bucket, config)
    return [split, merged] if config.splits > 1 else [split]


def _most_own(bucket: Bucket) -> int:
    """Return the most tokens of a sequence that the kernel for steps of `bucket` supports.

    This is 1 or a limit of PREPARED_TOKENS. There is no kernel for numbers in between, because it
    would only save shared memory.
    """
    if bucket.tokens == 1 or bucket.is_decode:
        return 1
    return next(most for most, _ in PREPARED_TOKENS if bucket.tokens <= most)


def rope_attention_of(
    launch: Launch, at: Addresses, bucket: Bucket, config: DecodeConfig
) -> tuple[Dispatch, Dispatch]:
    """Return attention whose workgroups normalise and rotate the heads they need, and its merge.

    Preparing heads overlaps with loading the first keys, which saves a level of dispatches. With
    one split the workgroups write the output, and the merge must not run.
    """
    q, k, v = (launch.input(name) for name in ("q", "k", "v"))
    state, (y,) = operand(launch, "cache", KVState), launch.outputs
    _check(state, at.kv(state))
    attrs = launch.attributes
    n_heads = int(attrs["n_heads"])
    floats = y if y.format is RowFormat.F32 else None
    kernel = _few_kernel(
        launch,
        at,
        config,
        in_vectors(at, *(x for x in (q, k, v) if isinstance(x, Ref)), floats),
        ("NEOX", int(attrs["neox"])),
        ("PREPARES", 1),
        ("ROPE_DIMS", int(attrs["rope_dims"])),
        ("WIDTH", max(state.head_dim, state.head_dim_v)),
    )
    partial = at.ref(y)
    if config.splits > 1:
        partial = at.scratch.take(bucket.tokens * config.splits * partial_bytes(state, n_heads))
    (q_at, q_stride), (k_at, k_stride), (v_at, v_stride) = (ref_or_null(at, x) for x in (q, k, v))
    table_at, table_stride = ref_or_null(at, launch.input("table"))
    arguments = RopeAttentionArguments(
        **cache_fields(state, at.kv(state)),
        step=at.step,
        q=q_at,
        k=k_at,
        v=v_at,
        table=table_at,
        q_stride=q_stride,
        k_stride=k_stride,
        v_stride=v_stride,
        table_stride=table_stride // 4,
        out_stride=y.stride,
        q_norm=vector_or_null(at, launch.input("q_norm")),
        k_norm=vector_or_null(at, launch.input("k_norm")),
        partial=partial,
        n_heads=n_heads,
        is_one_token=bucket.tokens == 1,
        window=state.window,
        splits=config.splits,
        scale=float(attrs["scale"]),
        softcap=float(attrs["softcap"]),
        eps=float(attrs["eps"]),
        normalises_v=bool(attrs["v_norm"]),
    )
    parts = ceil_div(n_heads // state.n_heads, config.heads)
    return (
        Dispatch(kernel, arguments, (config.splits, state.n_heads * parts, bucket.tokens)),
        merge(launch, at, bucket, config.splits, partial, at.ref(y)),
    )


def _check(state: KVState, cache: DeviceKV) -> None:
    if state.head_dim % 8 or state.head_dim_v % 8:
        dims = f"{state.head_dim} and {state.head_dim_v}"
        raise NotImplementedError(f"the widths {dims} of heads are not multiples of 8")
    tokens = cache.block_tokens
    assert tokens % AT_ONCE == 0, "lanes load AT_ONCE keys of one block"
    assert tokens == power_of_two(tokens), "block sizes are powers of two"


def attend(launch: Launch, at: Addresses, bucket: Bucket, y_at: int) -> list[Dispatch]:
    """Return the dispatches of attention that writes its output to address `y_at`."""
    selected = selection(launch, at, bucket)
    if selected or bucket.tokens <= FEW_TOKENS or at.features.batch_invariant:
        return _few(launch, at, bucket, y_at, selected)
    return many_queries(launch, at, bucket, y_at)


def selection(launch: Launch, at: Addresses, bucket: Bucket) -> Ref | None:
    """Return the positions that tokens see, None if they see all positions in steps of `bucket`.

    In batch-invariant mode the kernel must not depend on the step, so tokens always read their
    selected positions.
    """
    selected = rows_or_none(launch, "keys")
    if selected is None or (bucket.keys <= selected.cols and not at.features.batch_invariant):
        return None
    attrs = launch.attributes
    if attrs["window"] or is_bidirectional(launch) or launch.input("slopes") is not None:
        raise NotImplementedError(
            "attention to selected positions does not support windows, later positions or ALiBi"
        )
    return selected


def _few(
    launch: Launch, at: Addresses, bucket: Bucket, y_at: int, selected: Ref | None
) -> list[Dispatch]:
    state, n_heads = operand(launch, "cache", KVState), int(launch.attributes["n_heads"])
    if selected is None:
        config = decode_config(state, n_heads, at, bucket)
    else:
        seen = replace(bucket, keys=min(bucket.keys, selected.cols))
        config = _vectors(state, n_heads, at, seen)
    splits = config.splits
    kernel = _few_kernel(
        launch,
        at,
        config,
        in_vectors(at, rows(launch, "q")),
        ("PREPARES", 0),
        *alibi(launch),
        *((("SELECTED", 1),) if selected else ()),
    )
    row_bytes = partial_bytes(state, n_heads)
    partial = at.scratch.take(bucket.tokens * splits * row_bytes) if splits > 1 else 0
    arguments = AttentionArguments(
        **attention_fields(launch, at, y_at),
        partial=partial,
        is_one_token=bucket.tokens == 1,
        splits=splits,
        softcap=float(launch.attributes["softcap"]),
    )
    if selected is not None:
        arguments = SelectedAttentionArguments.extending(
            arguments,
            selected=at.ref(selected),
            selected_stride=selected.stride,
            n_selected=selected.cols,
        )
    parts = ceil_div(n_heads // state.n_heads, config.heads)
    dispatches = [Dispatch(kernel, arguments, (splits, state.n_heads * parts, bucket.tokens))]
    if splits > 1:
        dispatches.append(merge(launch, at, bucket, splits, partial, y_at))
    return dispatches


def _few_kernel(
    launch: Launch, at: Addresses, config: DecodeConfig, vectors: int, *defines: tuple[str, int]
) -> KernelVariant:
    state, (y,) = operand(launch, "cache", KVState), launch.outputs
    return KernelVariant(
        config.kernel,
        (
            *config.defines,
            *defines,
            *chunked(launch),
            ("EACH", config.heads),
            ("HEAD_DIM", state.head_dim),
            ("HEAD_DIM_V", state.head_dim_v),
            ("KV_Q8", int(at.kv(state).dtype == "q8_0")),
            ("Q8", is_q8(y)),
            ("SOFTCAP", is_capped(launch)),
            ("VECTORS", vectors),
            ("V_FROM_K", int(state.v_from_k)),
        ),
    )


def merge(
    launch: Launch, at: Addresses, bucket: Bucket, splits: int, partial: int, y_at: int
) -> Dispatch:
    """Return the dispatch that merges the partial sums of `splits` splits."""
    state, (y,) = operand(launch, "cache", KVState), launch.outputs
    n_heads = int(launch.attributes["n_heads"])
    parts = max(1, 256 // (state.head_dim_v // 4))
    kernel = KernelVariant(
        "attention_merge",
        (
            ("HEAD_DIM_V", state.head_dim_v),
            ("PARTS", parts),
            ("Q8", is_q8(y)),
            ("SOFTCAP", 0),
            ("VECTORS", 1),
        ),
    )
    arguments = AttentionMergeArguments(
        step=at.step,
        sinks=vector_or_null(at, launch.input("sinks")),
        out=y_at,
        partial=partial,
        out_stride=y.stride,
        n_heads=n_heads,
        splits=splits,
        dim=dim_code(Dim.TOKENS, bucket),
    )
    return Dispatch(kernel, arguments, (n_heads, bucket.tokens, 1), waits=True)


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """A kernel for attention of few tokens, and how its workgroups divide the work.

    heads: query heads of a workgroup. splits: workgroups that split the keys of a token (split-K).
    defines: further macros of the kernel.
    """

    kernel: str
    heads: int
    splits: int
    defines: tuple[tuple[str, int], ...]


def decode_config(
    state: KVState,
    n_heads: int,
    at: Addresses,
    bucket: Bucket,
    *,
    splits_few: bool = False,
    most_own: int = 0,
) -> DecodeConfig:
    """Return the configuration of attention of few tokens.

    splits_few: split the keys even if there are few. most_own: most tokens of a sequence in the
    step, if the kernel prepares their heads, else 0.
    """
    vectors = _vectors(state, n_heads, at, bucket, splits_few=splits_few, most_own=most_own)
    fewest = MATRIX_HEADS if at.features.narrow_matrix else vectors.heads + 1
    return _matrices(state, n_heads, at, bucket, fewest, most_own) or vectors


def _vectors(
    state: KVState,
    n_heads: int,
    at: Addresses,
    bucket: Bucket,
    *,
    splits_few: bool = False,
    most_own: int = 0,
) -> DecodeConfig:
    repeats, features = n_heads // state.n_heads, at.features
    lanes = min(features.subgroup, power_of_two(ceil_div(state.head_dim, 8)))
    chunks = ceil_div(state.head_dim, 8 * lanes)
    registers = min(features.registers, FULL_REGISTERS)
    max_chunks = MAX_CHUNKS * registers // FULL_REGISTERS
    parts = ceil_div(repeats, max(1, max_chunks // chunks))
    each = ceil_div(repeats, parts)
    sums, keys = each * state.head_dim_v, visible_keys(state, bucket)
    prepared = PreparedHeads(state, each, features.subgroup, most_own)
    taken = prepared.own_bytes + SHALLOW_WAVES * 8 * each
    if features.has_fewest_registers and chunks > 1:
        taken += 32 * each * chunks * lanes  # queries stay in shared memory
    most_waves = prepared.most_waves(sums, features.shared_bytes - taken)
    waves = max(1, min(WAVES, MAX_SUMS // sums, most_waves))
    if at.features.batch_invariant:
        fitting = INVARIANT_BYTES // (INVARIANT_TOKENS * partial_bytes(state, n_heads))
        wanted = wanted_splits(at, state.n_heads * parts, GROUPS_A_UNIT)
        splits = max(1, min(wanted, fitting, INVARIANT_SPLITS))
    else:
        wanted = wanted_splits(at, state.n_heads * parts * bucket.tokens, GROUPS_A_UNIT)
        splits = max(1, min(wanted, keys // MIN_KEYS, MAX_SPLITS))
        if keys <= SHALLOW_KEYS and splits > 1 and not splits_few:
            waves, splits = max(waves, min(SHALLOW_WAVES, most_waves)), 1
    wide = chunks > 1 or features.has_fewest_registers
    at_once = 1 if features.has_few_registers and wide else AT_ONCE
    defines = (("AT_ONCE", at_once), ("LANES", lanes), ("WAVES", waves))
    return DecodeConfig("attention", each, splits, defines)


@dataclass(frozen=True, slots=True)
class PreparedHeads:
    """Shared memory of a workgroup for the heads that it prepares (few_queries.slang).

    each: query heads. most_own: most tokens of a sequence in the step, whose keys and values it may
    prepare too; 0 if it prepares no heads.
    """

    state: KVState
    each: int
    subgroup: int
    most_own: int

    @property
    def own_bytes(self) -> int:
        """Bytes of keys and values as float16."""
        return 2 * self.most_own * (self.state.head_dim + self.state.head_dim_v)

    def slot_bytes(self, waves: int) -> int:
        """Return the bytes of the slots in which `waves` subgroups prepare heads, as float32."""
        if not self.most_own:
            return 0
        width = max(self.state.head_dim, self.state.head_dim_v)
        slots = 2 if self.most_own == 1 else min(2 * self.most_own, waves)
        return 16 * (self.each + slots) * self.subgroup * ceil_div(width, 4 * self.subgroup)

    def most_waves(self, sums: int, n_bytes: int) -> int:
        """Return how many subgroups fit in `n_bytes` with their slots and, later, their sums.

        sums: float32 sums of a subgroup, which reuse the memory of the slots.
        """
        most = n_bytes // (4 * sums)
        while most > 1 and self.slot_bytes(most) > n_bytes:
            most -= 1
        return most


def _matrices(
    state: KVState, n_heads: int, at: Addresses, bucket: Bucket, fewest: int, most_own: int
) -> DecodeConfig | None:
    """Return the configuration of the kernel with cooperative matrices.

    Returns None if a KV head has fewer than `fewest` query heads, or if the kernel does not support
    the device or the heads.
    """
    repeats, features, cache = n_heads // state.n_heads, at.features, at.kv(state)
    dims = state.head_dim, state.head_dim_v
    columns = (NARROW if features.narrow_matrix else SQUARE).n
    parts = ceil_div(repeats, columns)
    each = ceil_div(repeats, parts)
    tile = max(TILE_KEYS * (max(dims) // 8 + 1), columns * (state.head_dim_v // 4 + 1))
    scored = columns * (4 * (TILE_KEYS + 4) + 2 * (TILE_KEYS + 8) + 4) + 8 * each
    prepared = PreparedHeads(state, each, features.subgroup, max(1, most_own))
    own = prepared.own_bytes
    waves = min(MATRIX_WAVES, power_of_two((MATRIX_BYTES - own) // (16 * tile + scored) + 1) // 2)
    queries = 16 * columns * (state.head_dim // 8 + 1)
    tiles = max(16 * waves * tile, queries + prepared.slot_bytes(waves))
    if (
        not features.cooperative_matrix
        or features.matrix != SQUARE
        or features.batch_invariant
        or repeats < fewest
        or any(dim % 16 for dim in dims)
        or max(dims) > (MAX_MATRIX_DIM if features.narrow_matrix else MAX_WIDE_DIM)
        or cache.block_tokens < TILE_KEYS
        or tiles + waves * scored + own > features.shared_bytes
        or visible_keys(state, bucket) <= SHALLOW_KEYS
    ):
        return None
    wanted = wanted_splits(at, state.n_heads * parts * bucket.tokens, MATRIX_GROUPS_A_UNIT)
    splits = max(1, min(wanted, visible_keys(state, bucket) // (TILE_KEYS * waves), MAX_SPLITS))
    lanes = min(features.subgroup // power_of_two(each), TILE_KEYS // 2)
    defines = (("COLUMNS", columns), ("LANES", lanes), ("WAVES", waves))
    return DecodeConfig("attention_few_matrices", each, splits, defines)


def partial_bytes(state: KVState, n_heads: int) -> int:
    """Return the bytes of the partial sums of one token and split."""
    return n_heads * (4 * state.head_dim_v + 16)


def visible_keys(state: KVState, bucket: Bucket) -> int:
    return min(bucket.keys, state.window) if state.window else bucket.keys


def wanted_splits(at: Addresses, groups: int, each_unit: int) -> int:
    """Return the number of splits, of `groups` workgroups each, that fill the device once."""
    units = max(MIN_UNITS, at.features.compute_units)
    return max(1, each_unit * units // groups)
