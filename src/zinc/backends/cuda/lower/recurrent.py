"""Lowerings of the ops with a recurrent state for many tokens.

The delta rule and the scan of Mamba-2 process chunks on tensor cores: the first kernel makes the
matrices of all chunks in parallel, the second goes through the chunks of each sequence
(kernels/delta_chunk.cuh). A decay for each channel of the keys has a first kernel of its own. If
states can be rolled back, the first and last rows are processed token by token
(kernels/delta_parts.cuh). The convolution processes blocks of rows; a first kernel saves the rows
before each block (kernels/conv_block.cuh).
"""

from __future__ import annotations

from dataclasses import replace

from zinc.backends.cuda.lower.registry import lowers
from zinc.backends.plans import Launch
from zinc.gpu.addresses import Addresses
from zinc.gpu.arguments.structs import ConvBlockArguments, DeltaChunkArguments
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.lower import recurrent
from zinc.gpu.lower.operands import ceil_div, in_vectors, rows

CHUNK = 32  # equals CHUNK in kernels/delta_chunk.cuh
WARP_COLS = 16  # columns of the state of a warp
CHUNK_WARPS = 4  # of a block of kernels/delta_chunks.cu, equals WARPS there
HEADS_OF_WARP = 2  # value heads for which one of these warps makes matrices
SCAN_WARPS = 4  # of a block of kernels/delta_scan.cu
SCAN_STAGES = 2  # chunks in its shared memory, 1 if there is not enough
CONV_ROWS = 64  # equals BLOCK_ROWS in kernels/conv_block.cuh
CONV_COLS = 128  # equals COLS in kernels/conv_rows.cu
EDGE_COLS = 512  # of a block of kernels/conv_edges.cu
# Shorter steps go token by token, as do steps in which most sequences have one token.
MIN_TOKENS = 32
HEAD, TAIL = 1, 3  # equal those in kernels/delta_parts.cuh
MAX_K_DIM = 128  # longest columns that fit into the registers of a warp
MAX_SCAN_K_DIM = 256  # of a scan, which keeps fewer other numbers


@lowers("causal_conv")
def causal_conv(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    """Lower the op `causal_conv`."""
    taps = int(launch.attributes["taps"])
    if not _has_many(bucket) or taps > CONV_ROWS // 8:
        return recurrent.causal_conv(launch, at, bucket)
    x, (y,) = rows(launch, "x"), launch.outputs
    blocks = bucket.tokens // CONV_ROWS + bucket.sequences
    arguments = ConvBlockArguments(
        **recurrent.conv_fields(launch, at),
        edges=at.scratch.take(4 * blocks * (taps - 1) * x.cols),
    )
    defines = (*recurrent.conv_defines(launch), ("VECTORS", in_vectors(at, x, y)))
    edges, convolution = (KernelVariant(name, defines) for name in ("conv_edges", "conv_rows"))
    return [
        Dispatch(edges, arguments, (ceil_div(x.cols, EDGE_COLS), blocks, 1)),
        Dispatch(convolution, arguments, (ceil_div(x.cols, CONV_COLS), blocks, 1), waits=True),
    ]


@lowers("ssm_scan")
@lowers("delta_rule")
def delta_rule(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    """Lower the op `delta_rule` or `ssm_scan`, in chunks if the kernels suit shape and step."""
    x, by_token = recurrent.RuleOperands.of(launch), recurrent.by_token(launch, at, bucket)
    attrs = {name: int(value) for name, value in launch.attrs}
    k_dim, v_dim = attrs["k_dim"], attrs["v_dim"]
    n_k, n_v = attrs["n_k_heads"], attrs["n_v_heads"]
    is_scan, channels = x.skip is not None, "per_channel" in attrs
    key_bytes, value_bytes = _part_bytes(k_dim, is_scan, channels)
    key_parts = n_v if channels else n_k
    stages = min(SCAN_STAGES, at.features.most_shared_bytes // (key_bytes + value_bytes))
    if (
        not _has_many(bucket)
        or at.features.batch_invariant
        or ("floor" in attrs and not channels)
        or k_dim % WARP_COLS
        or k_dim > (MAX_SCAN_K_DIM if is_scan else MAX_K_DIM)
        or v_dim % WARP_COLS
        or stages == 0
    ):
        return by_token
    slots = bucket.tokens // CHUNK + bucket.sequences
    arguments = DeltaChunkArguments(
        **x.fields(launch, at),
        chunks=at.scratch.take(slots * (key_parts * key_bytes + n_v * value_bytes)),
    )
    rollback = "rollback" in attrs
    defines = (
        ("GROUPED", attrs.get("grouped", 1)),
        ("K_DIM", k_dim),
        ("ROLLBACK", int(rollback)),
        ("SSM", int(is_scan)),
        ("VECTORS", in_vectors(at, x.qkv, x.alpha if channels else None)),
        ("V_DIM", v_dim),
        *((("CHANNELS", 1),) if channels else ()),
    )
    if channels:
        floor = (("FLOOR", int("floor" in attrs)),)
        chunk_bytes = max(key_bytes, 3 * CHUNK * k_dim * 4)
        chunks = KernelVariant("delta_channels", (*defines, *floor), chunk_bytes)
        chunk_grid = (slots, n_v, 1)
    else:
        chunk_bytes = max(key_bytes, CHUNK_WARPS * CHUNK * CHUNK * 4)
        chunks = KernelVariant("delta_chunks", defines, chunk_bytes)
        chunk_grid = (slots, n_k, ceil_div(n_v // n_k, CHUNK_WARPS * HEADS_OF_WARP))
    warps = min(SCAN_WARPS, v_dim // WARP_COLS)
    scan_defines = (*defines, ("STAGES", stages), ("WARPS", warps))
    if channels:  # two stages leave no shared memory for more blocks, which would limit registers
        scan_defines += (("MIN_BLOCKS", 1),)
    scan = KernelVariant("delta_scan", scan_defines, stages * (key_bytes + value_bytes))
    grid = (n_v, ceil_div(v_dim, WARP_COLS * warps), bucket.sequences)
    dispatches = [
        Dispatch(chunks, arguments, chunk_grid),
        Dispatch(scan, arguments, grid, waits=True),
    ]
    if not rollback:
        return dispatches
    (rule,) = by_token
    return [_part(rule, HEAD), *dispatches, replace(_part(rule, TAIL), waits=True)]


def _part(rule: Dispatch, part: int) -> Dispatch:
    """Return the dispatch of delta_rule for a part of the rows of each sequence."""
    kernel = KernelVariant(rule.kernel.name, (*rule.kernel.defines, ("PART", part)))
    return replace(rule, kernel=kernel)


def _has_many(bucket: Bucket) -> bool:
    """Return whether a step has enough tokens to divide its rows into blocks."""
    return bucket.tokens >= max(MIN_TOKENS, 2 * bucket.sequences)


def _part_bytes(k_dim: int, is_scan: bool, channels: bool) -> tuple[int, int]:
    """Return the bytes of a chunk's matrices for a key head and for a value head."""
    keys, square = (2 * CHUNK * 16 * _pitch(cols // 8) for cols in (k_dim, CHUNK))
    gates = 4 * (k_dim if channels else 2 * CHUNK)
    return (3 if channels else 2) * keys, (1 if is_scan else 2) * square + gates


def _pitch(chunks: int) -> int:
    """Return the 16-byte chunks from row to row, as in kernels/tile_rows.cuh."""
    return chunks if chunks % 8 == 0 else chunks | 1
