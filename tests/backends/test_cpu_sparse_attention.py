"""Attention of the CPU to selected positions: every SIMD level and every format of the cache.

Positions are given, so that rounding of index keys does not select others. The op cases and
`tests/models/test_sparse.py` compare the selection itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from backends.levels import OF_KERNELS
from backends.selected import row_errors, run_in_steps, selected_case

from zinc.backends import api
from zinc.ops.cases import Case
from zinc.ops.values import KVState

TOKENS, TOP_K, BLOCK_TOKENS, HEADS = 390, 300, 64, 6
TOLERANCE = {"f16": 1e-3, "q8_0": 1.5e-2, "q4_0": 0.2}
STATES = {
    "latent": KVState("kv", 1, 96, 64, v_from_k=True),
    "grouped": KVState("kv", 2, 64, 32),
}


@cache
def case_of(name: str) -> Case:
    """Return a case in which tokens see positions of 256 and more too."""
    return selected_case(STATES[name], HEADS, TOKENS, TOP_K)


def run(
    name: str, dtype: str, sizes: Sequence[int] = (), threads: int = 2, level: str | None = None
) -> np.ndarray:
    backend = api.create("cpu", threads, {"level": level} if level else {})
    return run_in_steps(backend, case_of(name), dtype, BLOCK_TOKENS, sizes)


@cache
def reference(name: str) -> np.ndarray:
    return run_in_steps(api.create("ref"), case_of(name), "f16", BLOCK_TOKENS)


@pytest.mark.parametrize("level", OF_KERNELS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", STATES)
def test_attention_to_selected_positions(name: str, dtype: str, level: str) -> None:
    errors = row_errors(run(name, dtype, level=level), reference(name))
    assert np.median(errors) <= TOLERANCE[dtype]
    # Tokens that see all positions use the kernels of other models.
    assert errors[TOP_K:].max() <= errors[:TOP_K].max() <= 2 * TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", STATES)
def test_steps_and_threads_change_no_bit(name: str, dtype: str) -> None:
    """Few tokens divide their selection over the threads."""
    whole = run(name, dtype, threads=1)
    tail = TOKENS - 310
    for sizes, threads in (((310, *[1] * tail), 3), ((*[30] * 13,), 2)):
        got = run(name, dtype, sizes, threads)
        np.testing.assert_array_equal(got, whole)
