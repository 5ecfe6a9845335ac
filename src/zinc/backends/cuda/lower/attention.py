"""Lowering of attention for several tokens on tensor cores.

A block takes a tile of rows of one KV head and one sequence; a row is one query head of one token.
Its warps divide the rows, or, if there are few, the keys of a tile. If the tiles are too few to
fill the device, blocks also split the keys, and a second dispatch merges their sums.
"""

from __future__ import annotations

from dataclasses import replace

from zinc.backends.cuda.lower.registry import lowers
from zinc.backends.cuda.lower.wide_attention import WideTile, wide_tile
from zinc.backends.plans import Launch
from zinc.core.dataclass import dataclass
from zinc.core.rounding import ceil_div
from zinc.gpu.addresses import Addresses
from zinc.gpu.arguments.structs import AttentionMmaArguments, SelectedMmaArguments
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.lower.attention import (
    attend,
    merge,
    partial_bytes,
    selection,
    visible_keys,
    with_output_format,
)
from zinc.gpu.lower.attention_fields import attention_fields
from zinc.gpu.lower.operands import (
    alibi,
    chunked,
    in_vectors,
    is_capped,
    is_q8,
    operand,
    power_of_two,
    rows,
)
from zinc.ops.values import KVState

WARPS = 4  # per block
WARP_ROWS = 16
STAGES = 3  # tiles of keys or values in shared memory
TILE_KEYS = (64, 32, 16)  # positions of a tile, the first that fits into shared memory
MAX_DIM = 256  # widest head whose queries and sums fit into the registers of a warp
# Wider heads leave few registers for scores, so two warps share the keys of a tile.
SHARED_DIM = 128
BLOCKS_PER_UNIT = 2  # blocks that fill a compute unit
MIN_SPLIT_KEYS = 128  # fewer keys are not worth a merge
MAX_SPLITS = 64
# A merge has several blocks for each head and token if the heads do not fill the device.
MERGE_COLUMNS, MERGE_THREADS = 64, 512  # per block: least columns, most threads


@lowers("attention")
def attention(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    """Lower the op `attention`."""
    return with_output_format(launch, at, bucket, _attend)


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """A tile of `row_warps` times WARP_ROWS rows, whose keys are staged `keys` at a time.

    key_warps: warps that share the keys of a stage. splits: blocks that share all keys of a tile.
    """

    row_warps: int
    key_warps: int
    keys: int
    splits: int

    @property
    def kernel(self) -> str:
        return "attention_mma"

    @property
    def rows(self) -> int:
        return WARP_ROWS * self.row_warps

    @property
    def defines(self) -> tuple[tuple[str, int], ...]:
        return (
            ("BK", self.keys),
            ("KEY_WARPS", self.key_warps),
            ("ROW_WARPS", self.row_warps),
        )

    def staged_bytes(self, state: KVState, dtype: str) -> int:
        """Return the dynamic shared memory of a block: none, since its tiles are static."""
        return 0


def _attend(launch: Launch, at: Addresses, bucket: Bucket, y_at: int) -> list[Dispatch]:
    """Return the dispatches of attention that writes its output to address `y_at`."""
    state, n_heads = operand(launch, "cache", KVState), int(launch.attributes["n_heads"])
    selected, seen = selection(launch, at, bucket), bucket
    if selected is not None:  # a tile has rows of one token only
        seen = replace(bucket, sequences=bucket.tokens, keys=min(bucket.keys, selected.cols))
    tile = _tile(launch, at, bucket, seen, is_selected=selected is not None)
    if tile is None or at.features.batch_invariant:
        return attend(launch, at, bucket, y_at)
    splits = tile.splits
    row_bytes = partial_bytes(state, n_heads)
    partial = at.scratch.take(bucket.tokens * splits * row_bytes) if splits > 1 else 0
    arguments = AttentionMmaArguments(
        **attention_fields(launch, at, y_at),
        partial=partial,
        splits=splits,
        softcap=float(launch.attributes["softcap"]),
    )
    if selected is not None:
        arguments = SelectedMmaArguments.extending(
            arguments,
            selected=at.ref(selected),
            selected_stride=selected.stride,
            n_selected=selected.cols,
        )
    kernel = _kernel(launch, at, tile, is_selected=selected is not None)
    grid = (state.n_heads, seen.tiles(tile.rows, n_heads // state.n_heads), splits)
    dispatches = [Dispatch(kernel, arguments, grid)]
    if splits > 1:
        plain = merge(launch, at, bucket, splits, partial, y_at)
        dispatches.append(spread_merge(plain, state.head_dim_v, at))
    return dispatches


def _tile(
    launch: Launch, at: Addresses, bucket: Bucket, seen: Bucket, *, is_selected: bool
) -> AttentionTile | WideTile | None:
    """Return the tile of an attention op, None if no kernel with tensor cores suits it.

    seen: `bucket`; if keys are selected, the same step with one sequence per token. is_selected:
    each token attends to its own selection of keys.
    """
    state, n_heads = operand(launch, "cache", KVState), int(launch.attributes["n_heads"])
    tile = None
    if bucket.tokens > 1 and not is_selected:
        tile = choose_tile(state, n_heads, at, bucket)
    is_wide = max(state.head_dim, state.head_dim_v) > MAX_DIM
    if is_selected:
        # Scales of selected positions are copied as 32-bit words.
        has_words = at.kv(state).dtype == "f16" or state.head_dim % 64 == 0
        is_wide = is_wide and state.v_from_k and has_words
    if tile is None and is_wide:
        stores_blocks = bool(is_q8(launch.outputs[0]))
        return wide_tile(state, n_heads, at, seen, stores_blocks=stores_blocks)
    return tile


def _kernel(
    launch: Launch, at: Addresses, tile: AttentionTile | WideTile, *, is_selected: bool
) -> KernelVariant:
    """Return the kernel that processes attention in tiles like `tile`."""
    state, q, (y,) = operand(launch, "cache", KVState), rows(launch, "q"), launch.outputs
    dtype = at.kv(state).dtype
    return KernelVariant(
        tile.kernel,
        (
            *tile.defines,
            *alibi(launch),
            *chunked(launch),
            ("HEAD_DIM", state.head_dim),
            ("HEAD_DIM_V", state.head_dim_v),
            ("KV_Q8", int(dtype == "q8_0")),
            ("Q8", is_q8(y)),
            *((("SELECTED", 1),) if is_selected else ()),
            ("SOFTCAP", is_capped(launch)),
            ("SPLIT", int(tile.splits > 1)),
            ("VECTORS", in_vectors(at, q, y)),
            ("V_FROM_K", int(state.v_from_k)),
        ),
        tile.staged_bytes(state, dtype),
    )


def spread_merge(plain: Dispatch, columns: int, at: Addresses) -> Dispatch:
    """Return the merge `plain` of heads of `columns` columns, spread over blocks and threads.

    The kernel does not depend on the number of splits, so that one is compiled for all steps.
    """
    heads, tokens, _ = plain.groups
    blocks = 1
    while (
        columns % (2 * MERGE_COLUMNS) == 0 and heads * tokens * blocks < at.features.compute_units
    ):
        columns, blocks = columns // 2, 2 * blocks
    defines = dict(plain.kernel.defines) | {"COLUMNS": columns}
    if blocks > 1:
        defines["PARTS"] = MERGE_THREADS // (columns // 4)
    kernel = replace(plain.kernel, defines=tuple(defines.items()))
    return replace(plain, kernel=kernel, groups=(heads, tokens, blocks))


def choose_tile(
    state: KVState, n_heads: int, at: Addresses, bucket: Bucket
) -> AttentionTile | None:
    """Return the tile for a step of `bucket`, None if heads of `state` do not suit the kernel."""
    wide = max(state.head_dim, state.head_dim_v)
    if state.head_dim % 16 or state.head_dim_v % 16 or wide > MAX_DIM:
        return None
    limit = min(at.kv(state).block_tokens, at.features.shared_bytes // (STAGES * _row_bytes(wide)))
    keys = next((n for n in TILE_KEYS if n <= limit), 0)
    if not keys:
        return None
    repeats = n_heads // state.n_heads
    row_tiles = ceil_div(bucket.tokens * repeats, WARP_ROWS * bucket.sequences)
    row_warps = min(WARPS, power_of_two(row_tiles)) if wide <= SHARED_DIM else WARPS
    key_warps = min(WARPS // row_warps if wide <= SHARED_DIM else 2, keys // WARP_ROWS)
    blocks = state.n_heads * bucket.tiles(WARP_ROWS * row_warps, repeats)
    wanted = BLOCKS_PER_UNIT * at.features.compute_units // blocks
    splits = max(1, min(wanted, visible_keys(state, bucket) // MIN_SPLIT_KEYS, MAX_SPLITS))
    return AttentionTile(row_warps, key_warps, keys, splits)


def _row_bytes(head_dim: int) -> int:
    """Return the bytes of a staged position, padded unless they are a multiple of 128."""
    return 2 * head_dim + (0 if head_dim % 64 == 0 else 16)
