"""Random operands of a launch.

Rows of weights repeat after a prime number of rows, so the reference multiplies few of them. A
kernel that reads or stores a wrong row is still seen, because tiles are powers of two. If a product
of a launch reads the results of another, all rows are distinct.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from zinc.backends.plans import Launch, Ref
from zinc.core.dataclass import dataclass
from zinc.core.rounding import round_up
from zinc.gpu.rows import BLOCK
from zinc.ops.operands import Kind, Operand
from zinc.ops.random_blocks import random_blocks
from zinc.ops.registry import OPS
from zinc.ops.values import FloatArray, RowFormat, Weight
from zinc.quant.decode import decode
from zinc.quant.encode import ENCODERS, encode

DISTINCT_ROWS, DISTINCT_EXPERT_ROWS = 251, 31


@dataclass(frozen=True, slots=True)
class Matrix:
    """A random matrix: blocks of its distinct rows of each plane, and their values."""

    weight: Weight
    blocks: npt.NDArray[np.uint8]
    values: FloatArray
    rows_from: npt.NDArray[np.int64]


def random_matrix(rng: np.random.Generator, weight: Weight, distinct: int) -> Matrix:
    """Return a matrix of the shape of `weight` with `distinct` distinct rows in each plane."""
    shape = (weight.planes, distinct, weight.cols)
    scale = weight.cols**-0.5
    if weight.type in ENCODERS:
        values = scale * rng.standard_normal(shape).astype(np.float32)
        blocks = encode(values, weight.type).reshape(-1)
    else:
        blocks = random_blocks(rng, weight.type, shape, scale)
    values = decode(blocks, weight.type, shape).reshape(shape)
    planes = distinct * np.arange(weight.planes, dtype=np.int64)
    rows_from = np.add.outer(planes, np.arange(weight.rows) % distinct).reshape(-1)
    return Matrix(weight, blocks, values if len(weight.shape) == 3 else values[0], rows_from)


def chains_products(launch: Launch) -> bool:
    """Return whether a product of `launch` reads the results of its first product."""
    declared = OPS[launch.kernel].signature.declared(launch.inputs)
    return any(operand.name == "first" for operand, _ in declared)


def distinct_rows(launch: Launch, weight: Weight) -> int:
    """Return the distinct rows of a matrix of `launch`."""
    if "n_heads" in launch.attributes:  # each head has its own rows and columns
        return weight.rows
    if chains_products(launch):
        return weight.rows
    # Matrices whose products are added (moe_down_linear) need the same number of distinct rows.
    has_experts = any(isinstance(x, Weight) and x.planes > 1 for x in launch.inputs)
    return min(weight.rows, DISTINCT_EXPERT_ROWS if has_experts else DISTINCT_ROWS)


def repeated(values: FloatArray, rows: int, distinct: int) -> FloatArray:
    """Return columns of `distinct` weight rows, [n, k * distinct], as those of `rows` rows."""
    if rows == distinct:
        return values
    groups = values.reshape(*values.shape[:-1], -1, distinct)
    return groups[..., np.arange(rows) % distinct].reshape(*values.shape[:-1], -1)


def random_routes(
    rng: np.random.Generator, n_tokens: int, top_k: int, n_experts: int
) -> FloatArray:
    """Return the experts of each token and their weights, as the op route does."""
    experts = np.argsort(rng.random((n_tokens, n_experts)), axis=1)[:, :top_k]
    weights = rng.random((n_tokens, top_k)) + 0.5
    routes = np.concatenate([experts, weights / weights.sum(axis=1, keepdims=True)], axis=1)
    return routes.astype(np.float32)


def sorted_slots(routes: FloatArray, n_experts: int) -> tuple[FloatArray, FloatArray]:
    """Return `order` and `starts` of routes, as the op group_experts does."""
    top_k = routes.shape[1] // 2
    experts = routes[:, :top_k].astype(np.int32).reshape(-1)
    order = np.argsort(experts, kind="stable").astype(np.float32).reshape(-1, top_k)
    starts = np.searchsorted(np.sort(experts), np.arange(n_experts + 1)).astype(np.float32)
    return order, starts[None]


def rounded(x: FloatArray, run: int) -> tuple[npt.NDArray[np.int8], FloatArray]:
    """Return the runs of rows as 8-bit numbers [runs, blocks, 32] and scales [runs, blocks, 1]."""
    padded = np.zeros((x.size // run, round_up(run, BLOCK)), np.float32)
    padded[:, :run] = x.reshape(-1, run)
    blocks = padded.reshape(len(padded), -1, BLOCK)
    scales = np.abs(blocks).max(axis=2, keepdims=True) / 127
    return np.rint(blocks / np.maximum(scales, 1e-30)).astype(np.int8), scales


def random_rows(rng: np.random.Generator, n: int, cols: int, run: int) -> FloatArray:
    """Return random rows that blocks of 8-bit numbers hold exactly, also if kernels scale them."""
    numbers, scales = rounded(rng.standard_normal((n, cols)).astype(np.float32), run)
    values = (numbers * scales).reshape(len(numbers), -1)[:, :run]
    return values.reshape(n, cols).astype(np.float32)


def encoded(x: FloatArray, ref: Ref) -> npt.NDArray[np.uint8]:
    """Return the bytes of rows in the format of `ref`, [rows, stride]."""
    if ref.format is RowFormat.F32:
        return np.ascontiguousarray(x).view(np.uint8)
    run = ref.cols // ref.runs
    numbers, scales = rounded(x, run)
    rows = np.zeros((len(numbers), ref.stride // ref.runs), np.uint8)
    rows[:, :run] = numbers.reshape(len(numbers), -1)[:, :run].view(np.uint8)
    pairs = np.concatenate([scales, scales * numbers.sum(axis=2, keepdims=True)], axis=2)
    pairs = np.ascontiguousarray(pairs.reshape(len(numbers), -1), np.float32).view(np.uint8)
    rows[:, round_up(run, 16) : round_up(run, 16) + pairs.shape[1]] = pairs
    return rows.reshape(len(x), -1)


def follows_rows(operand: Operand) -> bool:
    """Return whether an operand has a value for each weight row: a bias or a residual."""
    return operand.residual or (operand.kind is Kind.VECTOR and operand.name.endswith("bias"))
