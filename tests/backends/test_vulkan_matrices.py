"""Kernels with cooperative matrices on devices that have none.

The kernels are unchanged, but their matrices are emulated with shuffles (cooperative.slang).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from backends.overlay import copied_kernels
from models.harness import (
    FIXTURES,
    MAX_TOKENS,
    Runner,
    expected,
    fixture_names,
    relative_error,
)
from ops.running import run
from present import absent

from zinc.backends import api
from zinc.backends.vulkan import VulkanBackend, physical, shaders
from zinc.engine.load.self_test import BLOCK_TOKENS, bind_case
from zinc.formats.gguf import GGUFFile
from zinc.gpu import tiles
from zinc.gpu.arguments.constants import ProductKind
from zinc.gpu.dispatch import KernelVariant
from zinc.gpu.features import Features, MatrixShape
from zinc.gpu.fragment_tiles import FragmentTile
from zinc.gpu.lower import linear as lower_linear
from zinc.gpu.tiles import GemmTile
from zinc.models import load
from zinc.ops import OPS
from zinc.ops.attention import _attention_case
from zinc.ops.cases import Case
from zinc.ops.registry import Op
from zinc.ops.values import ActivationFn
from zinc.plan.planner import make_plan
from zinc.plan.weights import tensor_data
from zinc.quant.blocks import GGMLType
from zinc.testing.parity import case_tolerance, every_case, is_for

pytestmark = [
    pytest.mark.skipif("vulkan" in absent(), reason=absent().get("vulkan", "")),
    pytest.mark.skipif(shaders.compiler() is None, reason="needs a Slang compiler"),
]

MANY, FEW = "attention_matrices", "attention_few_matrices"
# For each case of the op the kernels with matrices that it must use.
KERNELS = {
    "8x1x16": {MANY},
    "6x2x48": {MANY},
    "window": {MANY},
    "sinks": {MANY},
    "later": {MANY},
    "near-many": {MANY},
    "alibi-many": {MANY},
    "deep-narrow": {MANY, FEW},  # its prompt has many queries
    "deep": {MANY, FEW},
    "deep-one": {MANY, FEW},
    "deep-group": {MANY, FEW},
    "turns": {MANY, FEW},
    "turns-of-one-run": {MANY, FEW},
    "turns-of-wide-heads": {MANY, FEW},
}
QUICK = ("deep-narrow",)  # has both
CASES = {case.name: case for op, case in every_case() if op is OPS["attention"]}
CASES["deep-narrow"] = _attention_case(
    Case("deep-narrow", 3, sequences=(1, 2), cached=300), 6, 2, 16, True
)
# Subgroups take several turns, some one more than others. 8 KV heads have two splits, 16 have one.
for _name, _heads, _kv, _dim in (
    ("turns", 16, 8, 16),
    ("turns-of-one-run", 32, 16, 16),
    ("turns-of-wide-heads", 16, 8, 144),
):
    CASES[_name] = _attention_case(Case(_name, 1, cached=300), _heads, _kv, _dim, True)


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VulkanBackend]:
    """Return a backend whose device claims to have matrices of 16 x 16 and 16 x 8."""
    folder = tmp_path_factory.mktemp("kernels")
    with emulating(folder, narrow_matrix=True, shared_bytes=65536) as found:
        yield found


@pytest.fixture(scope="module", params=["xe2", "xe-hpg"])
def intel(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VulkanBackend]:
    """Return a backend whose device claims to have the matrices and registers of Intel's GPUs."""
    shape, registers = {"xe2": ((8, 16, 16), 128), "xe-hpg": ((8, 8, 16), 64)}[request.param]
    folder = tmp_path_factory.mktemp("kernels")
    with emulating(
        folder,
        matrix=MatrixShape(*shape),
        narrow_matrix=False,
        registers=registers,
        shared_bytes=65536,
    ) as found:
        yield found


@contextmanager
def emulating(folder: Path, **features: object) -> Iterator[VulkanBackend]:
    """Return a backend with emulated matrices, whose device claims to have `features`."""
    with pytest.MonkeyPatch.context() as patch:
        copied_kernels(folder, patch)
        assert (folder / "cooperative.slang").is_file()
        shutil.copy(Path(__file__).parent / "cooperative.slang", folder)
        found = api.create("vulkan")
        if found.features.subgroup > 32:
            pytest.skip("the emulation has subgroups of at most 32")
        if physical.choose().kind != "CPU":  # lavapipe has more than it states
            features["shared_bytes"] = found.features.shared_bytes
        found.features = replace(found.features, cooperative_matrix=True, **features)
        patch.setattr(found.device, "features", found.features)
        yield found


@pytest.fixture
def used(backend: VulkanBackend, monkeypatch: pytest.MonkeyPatch) -> list[KernelVariant]:
    """Return a list that collects the kernels that the backend prepares."""
    prepare, found = backend.host.pipelines.prepare, list[KernelVariant]()

    def noting(shaders, progress=None):
        found.extend(shaders)
        prepare(found, progress)

    monkeypatch.setattr(backend.host.pipelines, "prepare", noting)
    return found


def check(backend: VulkanBackend, op: Op, case: Case) -> None:
    got, want = run(backend, case), run(api.create("ref"), case)
    assert np.linalg.norm(got - want) <= case_tolerance(op, case, backend) * np.linalg.norm(want)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.every) for n in KERNELS]
)
def test_attention_with_matrices_agrees_with_reference(
    backend: VulkanBackend, used: list[KernelVariant], name: str
) -> None:
    check(backend, OPS["attention"], CASES[name])
    assert {shader.name for shader in used if "matrices" in shader.name} == KERNELS[name]


def products(used: list[KernelVariant]) -> set[str]:
    """Return the names of the used kernels that multiply with matrices."""
    return {shader.name for shader in used if ("MATRICES", 1) in shader.defines}


@pytest.mark.every
@pytest.mark.parametrize("type", [GGMLType.Q8_0, GGMLType.Q5_1])
def test_products_with_matrices_agree_with_reference(
    backend: VulkanBackend,
    used: list[KernelVariant],
    monkeypatch: pytest.MonkeyPatch,
    type: GGMLType,
) -> None:
    # The last step of 64 columns is half empty, and there are fewer rows than in a tile.
    monkeypatch.setattr(backend, "features", replace(backend.features, narrow_matrix=False))
    case = Case("many", 40)
    weight = case.matrix(72, 288, type, 288**-0.5)
    check(backend, OPS["linear"], case.returns(case.graph.linear(case.rows(288), weight)))
    assert products(used) == {"gemm"}


def with_units(backend: VulkanBackend, compute_units: int) -> Features:
    """Return features of a device with narrow matrices and as much memory as lavapipe has."""
    return replace(backend.features, shared_bytes=32768, compute_units=compute_units)


# Rows of x, columns, and compute units; with many units workgroups split the columns.
FEW_ROWS = {
    "thirty-two": (20, 288, 1),
    "thirty-two-split": (24, 1184, 300),
    "sixty-four": (40, 160, 1),
}


@pytest.mark.every
@pytest.mark.parametrize("name", FEW_ROWS)
def test_products_of_few_rows_agree_with_reference(
    backend: VulkanBackend, used: list[KernelVariant], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    n_x, cols, units = FEW_ROWS[name]
    monkeypatch.setattr(backend, "features", with_units(backend, units))
    case = Case(name, n_x)
    weight = case.matrix(72, cols, GGMLType.Q5_1, cols**-0.5)
    check(backend, OPS["linear"], case.returns(case.graph.linear(case.rows(cols), weight)))
    assert products(used) == {"gemm"}
    splits = {dict(shader.defines)["SPLITS"] for shader in used if shader.name == "gemm"}
    assert (max(splits) > 1) == name.endswith("split")


def test_products_with_a_small_tile_agree_with_reference(
    backend: VulkanBackend, used: list[KernelVariant], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use a tile whose kernel compiles soon with Mesa's driver for CPUs."""
    tile = GemmTile(32, 16, down=2, across=1, split=2, splits=2)
    monkeypatch.setattr(tiles, "_gemm", lambda *_: tile)
    case = Case("small", 20)
    weight = case.matrix(72, 288, GGMLType.Q5_1, 288**-0.5)
    check(backend, OPS["linear"], case.returns(case.graph.linear(case.rows(288), weight)))
    assert products(used) == {"gemm"}


@pytest.mark.every
def test_gated_products_of_few_rows_agree_with_reference(
    backend: VulkanBackend, used: list[KernelVariant], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One kernel multiplies with both matrices, splits their columns and stores 8-bit blocks.

    A second step gives the same numbers, so the counters of splits are 0 again.
    """
    monkeypatch.setattr(backend, "features", with_units(backend, 300))
    case = Case("gated", 18)
    g, x = case.graph, case.rows(1184)
    gate, up = (case.matrix(96, 1184, GGMLType.Q8_0, 1184**-0.5) for _ in range(2))
    h = g.glu(g.linear(x, gate), g.linear(x, up), activation=ActivationFn.SILU)
    down = case.matrix(40, 96, GGMLType.Q8_0, 0.1)
    case.returns(g.linear(h, down))
    plan, step = make_plan(g, backend, max_tokens=18, max_outputs=18), case.step(BLOCK_TOKENS)
    program, want = bind_case(backend, case, plan, step), run(api.create("ref"), case)
    first, second = (np.array(program.step(step)) for _ in range(2))
    tolerance = case_tolerance(OPS["linear_glu"], case, backend)
    assert np.linalg.norm(first - want) <= tolerance * np.linalg.norm(want)
    assert np.array_equal(first, second)
    kinds = [dict(shader.defines)["PRODUCT"] for shader in used if shader.name == "gemm"]
    assert sorted(kinds) == [ProductKind.LINEAR, ProductKind.GLU]


# Rows of x, weight rows, columns, type of the weight, and the tile.
FRAGMENTS = {
    "eight": (5, 40, 64, GGMLType.Q4_0, FragmentTile(1, 8, 1, 2, tiles=1)),
    "several-tiles": (7, 72, 288, GGMLType.Q5_1, FragmentTile(2, 8, 1, 2, tiles=2)),
    "sixteen": (11, 40, 256, GGMLType.Q6_K, FragmentTile(1, 16, 1, 1, tiles=1)),
    "split": (9, 40, 544, GGMLType.Q8_0, FragmentTile(2, 16, 2, 1, tiles=1)),
    "twice": (18, 24, 64, GGMLType.Q4_1, FragmentTile(1, 16, 1, 1, tiles=1)),
}


@pytest.mark.every
@pytest.mark.parametrize("name", FRAGMENTS)
def test_products_of_fragments_agree_with_reference(
    backend: VulkanBackend, used: list[KernelVariant], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    n_x, rows, cols, type, tile = FRAGMENTS[name]
    monkeypatch.setattr(backend, "features", replace(backend.features, mma_fragments=True))
    monkeypatch.setattr(lower_linear, "fragment_tile", lambda *_: tile)
    case = Case(name, n_x)
    weight = case.matrix(rows, cols, type, cols**-0.5)
    check(backend, OPS["linear"], case.returns(case.graph.linear(case.rows(cols), weight)))
    assert {shader.name for shader in used if "gemm" in shader.name} == {"gemm_few"}


@pytest.mark.parametrize(
    ("cols", "tile"),
    [(4096, FragmentTile(16, 8, 1, 2, tiles=3)), (5120, FragmentTile(10, 16, 2, 1, tiles=3))],
)
@pytest.mark.parametrize("kind", [ProductKind.LINEAR, ProductKind.GLU])
def test_products_of_fragments_compile(cols: int, tile: FragmentTile, kind: ProductKind) -> None:
    """Slang compiles them for a device with such matrices, which tests above emulate."""
    defines = {
        "FORMAT": GGMLType.Q4_K, "ROWS_Q8": 1, "VECTORS": 0, "COLS": cols, "PRODUCT": kind,
        "OUT_Q8": int(kind is ProductKind.GLU), "SUBGROUP": 32, **dict(tile.defines),
    }  # fmt: skip
    assert shaders.spirv(KernelVariant("gemm_few", tuple(defines.items())))


@pytest.mark.every
@pytest.mark.parametrize(
    "tile", [FragmentTile(2, 8, 1, 2, tiles=2), FragmentTile(1, 8, 2, 1, tiles=1)]
)
def test_gated_products_of_fragments_agree_with_reference(
    backend: VulkanBackend,
    used: list[KernelVariant],
    monkeypatch: pytest.MonkeyPatch,
    tile: FragmentTile,
) -> None:
    """One kernel multiplies with both matrices and stores 8-bit blocks."""
    monkeypatch.setattr(backend, "features", replace(backend.features, mma_fragments=True))
    monkeypatch.setattr(lower_linear, "fragment_tile", lambda *_: tile)
    case = Case("gated", 6)
    g, x = case.graph, case.rows(512)
    gate, up = (case.matrix(96, 512, GGMLType.Q4_0, 512**-0.5) for _ in range(2))
    h = g.glu(g.linear(x, gate), g.linear(x, up), activation=ActivationFn.SILU)
    down = case.matrix(40, 96, GGMLType.Q8_0, 0.1)
    check(backend, OPS["linear_glu"], case.returns(g.linear(h, down)))
    kinds = {dict(shader.defines)["PRODUCT"] for shader in used if shader.name == "gemm_few"}
    assert kinds == {ProductKind.LINEAR, ProductKind.GLU}


@pytest.mark.every
def test_experts_with_matrices_agree_with_reference(
    backend: VulkanBackend, used: list[KernelVariant]
) -> None:
    case = Case("experts", 40)
    g, x = case.graph, case.rows(160)
    routes = g.route(case.rows(4), None, top_k=2, scoring=0, renormalise=True)
    order, starts = g.group_experts(routes, n_experts=4)
    gate, up = (case.experts(4, 64, 160, GGMLType.Q8_0, 160**-0.5) for _ in range(2))
    h = g.moe_glu(x, order, starts, gate, up, activation=ActivationFn.SILU)
    down = case.experts(4, 40, 64, GGMLType.Q8_0, 64**-0.5)
    check(backend, OPS["moe_down"], case.returns(g.moe_down(h, order, starts, routes, down)))
    assert products(used) == {"gemm"}


def noted(backend: VulkanBackend, monkeypatch: pytest.MonkeyPatch) -> list[KernelVariant]:
    """Return a list that collects the kernels that `backend` prepares."""
    prepare, found = backend.host.pipelines.prepare, list[KernelVariant]()

    def noting(shaders, progress=None):
        found.extend(shaders)
        prepare(found, progress)

    monkeypatch.setattr(backend.host.pipelines, "prepare", noting)
    return found


@pytest.mark.every
@pytest.mark.parametrize("name", ["8x1x16", "window", "sinks", "wide"])
def test_attention_with_intels_matrices_agrees_with_reference(
    intel: VulkanBackend, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    wide = _attention_case(Case("wide", 20), 4, 2, 144, True)
    case = wide if name == "wide" else CASES[name]
    used = noted(intel, monkeypatch)
    check(intel, OPS["attention"], case)
    m, n, _ = intel.features.matrix
    wanted = {MANY} if 4 * intel.features.subgroup <= m * n else set()
    assert {shader.name for shader in used if "matrices" in shader.name} == wanted


@pytest.mark.every
@pytest.mark.parametrize(
    ("n_x", "type"), [(9, GGMLType.Q5_1), (40, GGMLType.Q8_0), (100, GGMLType.Q8_0)]
)
def test_products_with_intels_matrices_agree_with_reference(
    intel: VulkanBackend, monkeypatch: pytest.MonkeyPatch, n_x: int, type: GGMLType
) -> None:
    case = Case("many", n_x)
    weight = case.matrix(72, 288, type, 288**-0.5)
    used = noted(intel, monkeypatch)
    check(intel, OPS["linear"], case.returns(case.graph.linear(case.rows(288), weight)))
    # Wider subgroups multiply 9 rows without matrices.
    if n_x > 9 or intel.features.subgroup == 8:
        assert products(used) == {"gemm"}


# Other ops use no matrices, and test_vulkan_subgroups.py tests them.
WITH_MATRICES = ("linear", "linear_glu", "head_linear", "moe_glu", "moe_down", "attention")
MATRIX_CASES = [
    (op, case)
    for op, case in every_case()
    if op.name in WITH_MATRICES and is_for(api.kernels("vulkan"), op, case)
]


@pytest.mark.every
@pytest.mark.parametrize("index", range(len(MATRIX_CASES)), ids=lambda i: MATRIX_CASES[i][1].name)
def test_every_case_agrees_with_reference_on_intels_matrices(
    intel: VulkanBackend, index: int
) -> None:
    check(intel, *MATRIX_CASES[index])


@pytest.mark.every
@pytest.mark.parametrize("name", fixture_names())
def test_models_with_intels_matrices_give_the_published_logits(
    intel: VulkanBackend, name: str
) -> None:
    path, (ids, want) = FIXTURES / f"{name}.gguf", expected(name)
    with GGUFFile.open(path) as file:
        plan = make_plan(load(file)[1], intel, max_tokens=MAX_TOKENS, max_outputs=MAX_TOKENS)
        for w in plan.weights:
            intel.upload(w, tensor_data(w, file.tensors[w.tensor]))
    runner = Runner(path, loaded=(intel, plan))
    got = [runner.feed_in_chunks(ids[:-3], MAX_TOKENS), runner.feed_in_chunks(ids[-3:], 1)]
    assert relative_error(np.concatenate(got), want) <= 5e-3
