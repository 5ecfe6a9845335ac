"""Scans and delta rules of prompts of many lengths on every backend.

GPUs process prompts in chunks, from a number of rows on.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from cuda_emulator import emulated
from ops.running import run
from present import computing

from zinc.backends import api
from zinc.ops.cases import Case
from zinc.ops.recurrent import DeltaShape, delta_case
from zinc.ops.selective_scan import scan_case
from zinc.ops.ssm import ssm_case
from zinc.ops.wkv import wkv_case

TOLERANCE = 1e-4
EMULATED = "emulated CUDA"
BACKENDS = [*computing(), *[EMULATED] * bool(emulated.COMPILER)]
NAMES = ("ssm_scan", "delta_rule", "selective_scan", "wkv7")
LENGTHS = ((1, 15, 16, 17), (64, 65, 200), (1,), (15,), (16,), (17,), (65,))


def case_of(name: str, lengths: tuple[int, ...]) -> Case:
    """Return a case of the op with sequences of these lengths. Many heads share a key."""
    if name == "selective_scan":
        return scan_case("lengths", 48, 8 if len(lengths) > 1 else 6, lengths)
    if name == "wkv7":
        return wkv_case("lengths", 2, 32, lengths)
    make = ssm_case if name == "ssm_scan" else delta_case
    return make("lengths", DeltaShape(1, 20, 16, 16), lengths, decay_rate=0.1)


RUNS = [
    pytest.param(
        *(name, lengths, backend),
        marks=()
        if name == "ssm_scan" and (backend == "cpu" or lengths == LENGTHS[0])
        else pytest.mark.every,
    )
    for name, lengths, backend in product(NAMES, LENGTHS, BACKENDS)
]


@pytest.mark.parametrize(("name", "lengths", "backend"), RUNS)
def test_prompts_of_many_lengths_agree_with_the_reference(
    name: str, lengths: tuple[int, ...], backend: str
) -> None:
    case = case_of(name, lengths)
    got = run(emulated.backend() if backend == EMULATED else api.create(backend), case)
    want = run(api.create("ref"), case)
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= TOLERANCE * np.linalg.norm(want)
