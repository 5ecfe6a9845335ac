"""By default, Vulkan runs each kernel and each value of a macro that selects code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import pytest
from models.harness import FIXTURES, fixture_names
from ops.vulkan_cases import MODELS, REPEATED, is_repeated

from zinc.backends.plans import Plan
from zinc.backends.vulkan import SLANG_KERNELS, VulkanKernels
from zinc.engine.load.self_test import BLOCK_TOKENS
from zinc.formats.gguf import GGUFFile
from zinc.gpu.addresses import NominalAddresses
from zinc.gpu.bucket import Bucket
from zinc.gpu.features import Features
from zinc.models import load
from zinc.ops.cases import Case
from zinc.plan.planner import make_plan
from zinc.testing.parity import every_case, is_for

Options: TypeAlias = set[tuple[str, str, int]]

# Macros that change sizes only: of rows, heads and states, of workgroups and of their tiles.
SIZES = {
    *("COLS", "WIDTH", "HEADS", "HEAD_DIM", "HEAD_DIM_V", "ROPE_DIMS", "K_DIM", "V_DIM", "DIM"),
    *("RANK", "SIZE", "TAPS", "RUN", "RUNS", "TOP", "TOP_K", "GROUPS", "CHUNK", "KEYS", "PARTS"),
    *("THREADS", "WAVES", "LANES", "SHARE", "AT_ONCE", "DEEP", "KSPLIT", "ROWS", "BATCH", "BK"),
    *("BQ", "SEGMENTS", "ROLLBACK", "EXPERTS of route", "EXPERTS of group_experts"),
    *(f"{macro} of route" for macro in ("GROUP_TOP", "TOP_GROUPS")),
}
DEVICE = Features(8, compute_units=2)


def options(plan: Plan, bucket: Bucket) -> Options:
    """Return the kernels and macros, with their values, that a step of `bucket` runs."""
    at = NominalAddresses(DEVICE, "f16", BLOCK_TOKENS)
    found: Options = set()
    for dispatch in SLANG_KERNELS.lower_all(plan.launches, at, bucket):
        kernel = dispatch.kernel
        found.add((kernel.name, "", 0))
        for macro, value in kernel.defines:
            if macro in SIZES or f"{macro} of {kernel.name}" in SIZES:
                continue
            if macro != "FORMAT" or kernel.name == "embed":  # KINDS chooses formats of others
                found.add((kernel.name, macro, value))
    return found


def of_case(case: Case) -> Options:
    n = case.max_tokens
    plan = make_plan(case.graph, VulkanKernels(), max_tokens=n, max_outputs=n)
    return options(plan, Bucket.of_step(plan, case.step(BLOCK_TOKENS)))


def of_model(name: str) -> Options:
    """Return the options of a prompt, of decode, and of a few tokens of several sequences."""
    with GGUFFile.open(FIXTURES / f"{name}.gguf") as file:
        plan = make_plan(load(file)[1], VulkanKernels(), max_tokens=64, max_outputs=64)
    steps = (
        Bucket(tokens=1, outputs=1, sequences=1, keys=256, is_decode=True),
        Bucket(tokens=8, outputs=8, sequences=2, keys=256),
        Bucket(tokens=64, outputs=64, sequences=1, keys=256),
    )
    return set().union(*(options(plan, step) for step in steps))


def union(found: Iterable[Options]) -> Options:
    return set().union(*found)


def test_cases_and_models_that_are_named_exist() -> None:
    names = {(case.name, f"{op.name}-{case.name}") for op, case in every_case()}
    assert {name for both in names for name in both} >= REPEATED
    assert set(fixture_names()) >= set(MODELS)


@pytest.mark.every
def test_every_option_runs_by_default() -> None:
    kernels = VulkanKernels()
    cases = [(op, case) for op, case in every_case() if is_for(kernels, op, case)]
    by_default = union(of_case(case) for op, case in cases if not is_repeated(op, case))
    by_default |= union(map(of_model, MODELS))
    of_cases = {f"{op.name}-{case.name}": of_case(case) for op, case in cases}
    of_models = {name: of_model(name) for name in fixture_names()}
    missing = {name: found - by_default for name, found in (of_cases | of_models).items()}
    assert not {name: found for name, found in missing.items() if found}
