"""Lowerings of the ops with a recurrent state for many tokens.

The delta rule and the scan of Mamba-2 process chunks on tensor cores: the first kernel computes
the matrices of all chunks in parallel, the second processes the chunks of each sequence in order
(kernels/delta_chunk.cuh). If each channel of the keys has its own decay, another first kernel runs
(kernels/delta_channels.cu). If states can be rolled back, the first and last rows are processed
token by token (kernels/delta_parts.cuh). The convolution processes blocks of rows; a first kernel
saves the rows before each block (kernels/conv_block.cuh).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from zinc.backends.cuda.lower.registry import lowers
from zinc.backends.plans import Launch
from zinc.core.dataclass import dataclass
from zinc.core.rounding import ceil_div
from zinc.gpu.addresses import Addresses
from zinc.gpu.arguments.structs import ConvBlockArguments, DeltaChunkArguments
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.features import Features
from zinc.gpu.lower import recurrent
from zinc.gpu.lower.operands import in_vectors, rows

CHUNK = 32  # equals CHUNK in kernels/delta_chunk.cuh
WARP_COLS = 16  # columns of the state per warp
CHUNK_WARPS = 4  # per block of kernels/delta_chunks.cu, equals WARPS there
HEADS_OF_WARP = 2  # value heads whose matrices one of these warps computes
SCAN_WARPS = 4  # per block of kernels/delta_scan.cu
SCAN_STAGES = 2  # chunks in its shared memory, 1 if there is not enough
CONV_ROWS = 64  # equals BLOCK_ROWS in kernels/conv_block.cuh
CONV_COLS = 128  # equals COLS in kernels/conv_rows.cu
EDGE_COLS = 512  # columns per block of kernels/conv_edges.cu
# Shorter steps are processed token by token, as are steps in which most sequences have one token.
MIN_TOKENS = 32
HEAD, TAIL = 1, 3  # equal those in kernels/delta_parts.cuh
MAX_K_DIM = 128  # longest columns that fit into the registers of a warp
MAX_SCAN_K_DIM = 256  # the same for a scan, which keeps fewer other numbers in registers

Defines: TypeAlias = tuple[tuple[str, int], ...]
Grid: TypeAlias = tuple[int, int, int]


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


@dataclass(frozen=True, slots=True)
class ChunkShape:
    """The heads of a delta rule or of a scan, and the bytes of the matrices of their chunks.

    channels: each column of the keys has a decay of its own.
    """

    k_dim: int
    v_dim: int
    n_k_heads: int
    n_v_heads: int
    is_scan: bool
    channels: bool

    @classmethod
    def of(cls, launch: Launch) -> ChunkShape:
        """Return the shape of a launch of `delta_rule` or `ssm_scan`."""
        attrs = launch.attributes
        return cls(
            k_dim=int(attrs["k_dim"]),
            v_dim=int(attrs["v_dim"]),
            n_k_heads=int(attrs["n_k_heads"]),
            n_v_heads=int(attrs["n_v_heads"]),
            is_scan=launch.kernel == "ssm_scan",
            channels="per_channel" in attrs,
        )

    @property
    def key_bytes(self) -> int:
        """Bytes of a chunk's matrices for a key head, or for a value head with `channels`."""
        keys = 2 * CHUNK * 16 * _pitch(self.k_dim // 8)
        return (3 if self.channels else 2) * keys

    @property
    def value_bytes(self) -> int:
        """Bytes of a chunk's matrices for a value head."""
        square = 2 * CHUNK * 16 * _pitch(CHUNK // 8)
        gates = 4 * (self.k_dim if self.channels else 2 * CHUNK)
        return (1 if self.is_scan else 2) * square + gates

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk's matrices for all heads."""
        n_keys = self.n_v_heads if self.channels else self.n_k_heads
        return n_keys * self.key_bytes + self.n_v_heads * self.value_bytes

    def stages(self, features: Features) -> int:
        """Return the chunks that fit into shared memory at once, at most SCAN_STAGES."""
        return min(SCAN_STAGES, features.most_shared_bytes // (self.key_bytes + self.value_bytes))

    def fits(self, features: Features) -> bool:
        """Return whether the kernels that process chunks can run heads of this shape."""
        max_k_dim = MAX_SCAN_K_DIM if self.is_scan else MAX_K_DIM
        are_tiles = self.k_dim % WARP_COLS == self.v_dim % WARP_COLS == 0
        return are_tiles and self.k_dim <= max_k_dim and self.stages(features) > 0


@lowers("ssm_scan")
@lowers("delta_rule")
def delta_rule(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    """Lower the op `delta_rule` or `ssm_scan`, in chunks if the kernels suit shape and step."""
    x, by_token = recurrent.RuleOperands.of(launch), recurrent.by_token(launch, at, bucket)
    attrs, shape = launch.attributes, ChunkShape.of(launch)
    if (
        not _has_many(bucket)
        or at.features.batch_invariant
        or ("floor" in attrs and not shape.channels)
        or not shape.fits(at.features)
    ):
        return by_token
    slots, rollback = bucket.tokens // CHUNK + bucket.sequences, "rollback" in attrs
    arguments = DeltaChunkArguments(
        **x.fields(launch, at), chunks=at.scratch.take(slots * shape.chunk_bytes)
    )
    defines: Defines = (
        ("GROUPED", int(attrs.get("grouped", 1))),
        ("K_DIM", shape.k_dim),
        ("ROLLBACK", int(rollback)),
        ("SSM", int(shape.is_scan)),
        ("VECTORS", in_vectors(at, x.qkv, x.alpha if shape.channels else None)),
        ("V_DIM", shape.v_dim),
        *((("CHANNELS", 1),) if shape.channels else ()),
    )
    floor = (("FLOOR", int("floor" in attrs)),) if shape.channels else ()
    matrices, grid = _matrices(shape, (*defines, *floor), slots)
    scan, scan_grid = _scan(shape, defines, at.features, bucket)
    dispatches = [
        Dispatch(matrices, arguments, grid),
        Dispatch(scan, arguments, scan_grid, waits=True),
    ]
    if not rollback:
        return dispatches
    (rule,) = by_token
    return [_part(rule, HEAD), *dispatches, replace(_part(rule, TAIL), waits=True)]


def _matrices(shape: ChunkShape, defines: Defines, slots: int) -> tuple[KernelVariant, Grid]:
    """Return the kernel that makes the matrices of all chunks, and its grid."""
    if shape.channels:
        n_bytes = max(shape.key_bytes, 3 * CHUNK * shape.k_dim * 4)
        return KernelVariant("delta_channels", defines, n_bytes), (slots, shape.n_v_heads, 1)
    n_bytes = max(shape.key_bytes, CHUNK_WARPS * CHUNK * CHUNK * 4)
    repeats = shape.n_v_heads // shape.n_k_heads
    grid = (slots, shape.n_k_heads, ceil_div(repeats, CHUNK_WARPS * HEADS_OF_WARP))
    return KernelVariant("delta_chunks", defines, n_bytes), grid


def _scan(
    shape: ChunkShape, defines: Defines, features: Features, bucket: Bucket
) -> tuple[KernelVariant, Grid]:
    """Return the kernel that processes the chunks of each sequence in order, and its grid."""
    stages, warps = shape.stages(features), min(SCAN_WARPS, shape.v_dim // WARP_COLS)
    defines = (*defines, ("STAGES", stages), ("WARPS", warps))
    if shape.channels:
        # Two stages leave no shared memory for more blocks, which would limit registers.
        defines += (("MIN_BLOCKS", 1),)
    kernel = KernelVariant("delta_scan", defines, stages * (shape.key_bytes + shape.value_bytes))
    grid = (shape.n_v_heads, ceil_div(shape.v_dim, WARP_COLS * warps), bucket.sequences)
    return kernel, grid


def _part(rule: Dispatch, part: int) -> Dispatch:
    """Return the dispatch of delta_rule for a part of the rows of each sequence."""
    kernel = KernelVariant(rule.kernel.name, (*rule.kernel.defines, ("PART", part)))
    return replace(rule, kernel=kernel)


def _has_many(bucket: Bucket) -> bool:
    """Return whether a step has enough tokens to divide its rows into blocks."""
    return bucket.tokens >= max(MIN_TOKENS, 2 * bucket.sequences)


def _pitch(chunks: int) -> int:
    """Return the 16-byte chunks from row to row, as in kernels/tile_rows.cuh."""
    return chunks if chunks % 8 == 0 else chunks | 1
