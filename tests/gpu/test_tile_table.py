"""Tables of tuned tiles: which tiles lowerings use, and which tables and tiles are ignored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from logging_host import LoggingHost

from zinc.backends.cuda import CUDA_KERNELS, CudaKernels
from zinc.backends.cuda.tiles import (
    gemm_experts,
    gemm_few,
    gemm_floats,
    gemm_mma,
    gemm_slots,
    gemm_split,
    gemv_slots,
)
from zinc.backends.cuda.tiles import gemv as cuda_gemv
from zinc.backends.cuda.tiles.gemm_few import FewTile
from zinc.backends.cuda.tiles.gemm_slots import FewSlotTile
from zinc.backends.cuda.tiles.gemm_split import SplitTile
from zinc.backends.cuda.tiles.gemv import CudaGemvTile
from zinc.backends.cuda.tiles.gemv_slots import VectorSlotTile
from zinc.backends.cuda.tiles.mma_tile import MmaTile
from zinc.backends.cuda.tilings import CUDA_TILINGS
from zinc.backends.vulkan import SLANG_KERNELS, VulkanKernels
from zinc.gpu import tile_table, tiles
from zinc.gpu.addresses import NominalAddresses
from zinc.gpu.backend import GpuBackend, GpuKernels
from zinc.gpu.bucket import Bucket
from zinc.gpu.features import Features
from zinc.gpu.packing import FLOATS
from zinc.gpu.tile_table import Row, TileTable
from zinc.gpu.tiles import GemmTile, GemvTile
from zinc.gpu.tiling import TILINGS
from zinc.gpu.tune.products import products
from zinc.gpu.tuned import RecordedTiles, Tile, TileKey, TunedTiles
from zinc.ops.cases import Case
from zinc.plan.planner import make_plan
from zinc.quant.blocks import GGMLType

H100 = Features(
    32, warp_groups=True, shared_bytes=49152, most_shared_bytes=232448, compute_units=132
)
DEVICES = (
    H100,
    replace(H100, warp_groups=False, most_shared_bytes=101376, compute_units=4),
    Features(8),
    Features(
        32, cooperative_matrix=True, narrow_matrix=True, shared_bytes=49152, compute_units=132
    ),
    Features(64, cooperative_matrix=True, shared_bytes=65536, compute_units=64),
)
SHAPES = [(4096, 4096), (12288, 4096), (1024, 12288), (256, 64), (151936, 4096)]
KEY = TileKey("gemv", GGMLType.Q4_K, 96, 512)
EXPERTS = replace(KEY, kernel="gemm_experts", n_x=16, experts=8)
SPLIT = replace(KEY, kernel="gemm_split", n_x=40)
SLOTS = replace(EXPERTS, kernel="gemm_slots", n_x=2)
VECTORS = replace(EXPERTS, kernel="gemv_slots", n_x=1)
FLOATS_KEY = replace(KEY, kernel="gemm_floats", type=GGMLType.F32, n_x=64)
TILE = CudaGemvTile(waves=4, split=2, rows=2, batch=1)


def model(kernels: GpuKernels, tokens: int):
    """Return a plan with a product of 96 rows, another of 64 rows and a gated one."""
    case = Case("products", n_tokens=tokens)
    graph, x = case.graph, case.rows(512)
    first = graph.linear(x, case.matrix(96, 512, GGMLType.Q4_K))
    second = graph.linear(x, case.matrix(64, 512, GGMLType.Q6_K))
    case.returns(graph.gate(first, graph.columns(second, 0, 1)))
    return make_plan(graph, kernels, max_tokens=tokens, max_outputs=tokens)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZINC_CACHE", str(tmp_path))
    tile_table._warn_once.cache_clear()
    return tmp_path


class CudaLogger(CudaKernels, GpuBackend):
    """The CUDA backend on a host that runs nothing."""


def backend() -> CudaLogger:
    return CudaLogger(LoggingHost())


def write_table(rows: dict[TileKey, Row], **origin: str) -> Path:
    """Write the table of the device of `backend`, with other facts about its origin."""
    own = backend().origin
    TileTable(replace(own, **origin), rows).write(own.path)
    return own.path


def defines(features: Features, tokens: int, kernels=CUDA_KERNELS, plan_for=None):
    """Return the macros of the kernel that multiplies 96 weight rows by `tokens` rows."""
    plan = model(plan_for or CudaKernels(), tokens)
    at = NominalAddresses(features, "f16")
    dispatches = kernels.lower_all(plan.launches, at, Bucket(tokens, tokens, 1, 256))
    found = [dict(dispatch.kernel.defines) for dispatch in dispatches]
    return next(x for x in found if x.keys() & {"KSPLIT", "ROW_TILES", "X_TILES"})


def test_the_tiles_of_formulas_obey_the_rules_of_kernels() -> None:
    tried: set[str] = set()
    for features in DEVICES:
        for type in (GGMLType.Q4_K, GGMLType.IQ2_S, GGMLType.BF16, GGMLType.F32):
            for rows, cols in SHAPES:
                key = TileKey("", type, rows, cols)
                found = [*shared_tiles(features, key)]
                if features.subgroup == 32 and not features.cooperative_matrix:
                    found += cuda_tiles_of(features, key)
                for each, tile in found:
                    refusal = CUDA_TILINGS[each.kernel].refusal
                    assert not refusal(features, each, tile), (each, tile, features)
                    tried.add(each.kernel)
    assert tried == CUDA_TILINGS.keys()


def shared_tiles(features: Features, key: TileKey) -> Iterator[tuple[TileKey, Tile]]:
    """Yield keys like `key` with the tiles of kernels that all backends have."""
    half = key.type is not GGMLType.F32
    for n_x in (1, 2, 8, 16, 32, 64, 512):
        each = replace(key, n_x=n_x)
        for name in ("matvec", "experts"):
            for gated in (False, True):
                gemv = replace(each, kernel=name, weights=1 + gated, stores_blocks=gated)
                yield gemv, tiles.gemv(features, gemv)
        moe_down = replace(each, kernel="moe_down")
        yield moe_down, tiles.gemv(features, moe_down)
        gemm = replace(each, kernel="gemm")
        gated = replace(gemm, weights=2, stores_blocks=True)
        joins = [gated] if tiles.takes_few_rows(features, half, n_x) else []
        for x in (gemm, replace(gemm, experts=128), replace(gemm, heads=8), *joins):
            yield x, tiles.gemm(features, x, half)


def cuda_tiles_of(features: Features, key: TileKey) -> Iterator[tuple[TileKey, Tile]]:
    """Yield keys like `key` with the tiles of CUDA's own kernels."""
    for n_x, gated in product((1, 2, 3, 4, 8, 16, 32, 64, 512), (False, True)):
        each = replace(key, n_x=n_x, weights=1 + gated, stores_blocks=gated)
        gemv, gemm = replace(each, kernel="gemv"), replace(each, kernel="gemm_mma")
        experts = replace(each, kernel="gemm_experts", experts=128)
        if n_x <= 4:
            yield gemv, cuda_gemv.choose_tile(features, gemv)
        if 4 < n_x <= 16 and key.type not in FLOATS:
            few = replace(each, kernel="gemm_few")
            yield few, gemm_few.choose_tile(features, few)
        if 16 < n_x <= 64 and features.warp_groups and key.type not in FLOATS:
            split = replace(each, kernel="gemm_split")
            for units in (features.compute_units // 6, features.compute_units):
                yield (
                    split,
                    gemm_split.choose_tile(
                        features, split, [split.rows], units, gemm_split.MOST_BLOCKS
                    ),
                )
        if n_x == 1:
            gemv = replace(gemv, normalises=True)
            yield gemv, cuda_gemv.choose_tile(features, gemv)
        yield gemm, gemm_mma.choose_tile(features, gemm)
        yield experts, gemm_experts.choose_tile(features, experts)
        if n_x <= gemm_slots.MOST_SLOTS and key.type not in FLOATS:
            slots = replace(experts, kernel="gemm_slots")
            yield slots, gemm_slots.choose_tile(features, slots)
        if n_x <= gemv_slots.MOST_VECTOR_SLOTS and key.type not in FLOATS:
            vectors = replace(experts, kernel="gemv_slots", cols=min(key.cols, 2048))
            for n_slots in (vectors.experts // 2, vectors.experts):
                yield vectors, gemv_slots.choose_tile(features, vectors, n_slots)
        if key.type in FLOATS and not gated:
            floats = replace(each, kernel="gemm_floats")
            yield floats, gemm_floats.choose_tile(features, floats)


@pytest.mark.parametrize(
    ("key", "tile", "why"),
    [
        # 384 units of a row, 128 of which the 4 warps of a row read at once: three for each lane.
        (
            TileKey("gemv", GGMLType.Q6_K, 4096, 12288),
            CudaGemvTile(waves=8, split=4, rows=2, batch=1, deep=4),
            "units in flight",
        ),
        (replace(KEY, stores_blocks=True), CudaGemvTile(8, 1, 2, 1), "blocks of 32 rows"),
        (replace(KEY, rows=151936), CudaGemvTile(1, 1, 1, 1), "too many blocks"),
        (KEY, CudaGemvTile(64, 1, 1, 1), "threads"),
        (KEY, CudaGemvTile(2, 4, 1, 1), "more splits"),
        (replace(KEY, n_x=3), CudaGemvTile(8, 1, 1, 2), "all rows of x"),
        (replace(KEY, kernel="gemm_few", n_x=16), FewTile(1, 8), "all rows of x"),
        (replace(KEY, kernel="gemm_few", n_x=8), FewTile(1, 17), "too many warps"),
        (
            replace(KEY, kernel="gemm_few", n_x=8),
            FewTile(1, 8, takes_bytes=True),
            "as 8-bit integers",
        ),
        (replace(KEY, kernel="gemm_mma", n_x=64), MmaTile(2, 8, 8, 1, stages=1), "two stages"),
        (replace(KEY, kernel="gemm_mma", n_x=64), MmaTile(2, 1, 8, 1, stages=2), "pairs"),
        (replace(KEY, kernel="gemm_mma", n_x=64), MmaTile(2, 16, 8, 8, stages=4), "shared memory"),
        (replace(KEY, kernel="gemm_mma", n_x=8), MmaTile(1, 1, 8, 1, splits=8), "splits"),
        (replace(KEY, kernel="gemm_mma", n_x=8), MmaTile(1, 1, 8, 1, passes=2), "passes"),
        (SPLIT, SplitTile(4, 1, 1, 2), "all rows of x"),
        (replace(SPLIT, n_x=32), SplitTile(8, 1, 1, 2), "all rows of x"),
        (replace(SPLIT, n_x=32), SplitTile(4, 9, 1, 2), "too many threads"),
        (replace(SPLIT, n_x=32), SplitTile(4, 1, 1, 1), "two stages"),
        (replace(SPLIT, n_x=32), SplitTile(4, 1, 3, 2), "without columns"),
        (replace(SPLIT, n_x=32), SplitTile(4, 4, 1, 16), "shared memory"),
        (SPLIT, SplitTile(8, 5, 1, 2), "registers"),
        (EXPERTS, MmaTile(1, 16, 8, 1, stages=4, by_groups=True), "neither warp groups"),
        (EXPERTS, MmaTile(1, 4, 4, 1, stages=3, passes=2), "a stage for each slab"),
        (EXPERTS, MmaTile(1, 6, 4, 1, stages=3), "multiple of 4"),
        (EXPERTS, MmaTile(1, 2, 4, 2, stages=3), "all columns"),
        (SLOTS, FewSlotTile(4, 2, 4, 2), "registers"),
        (SLOTS, FewSlotTile(1, 3, 2, 2), "groups of columns"),
        (SLOTS, FewSlotTile(1, 2, 5, 2), "too many warps"),
        (VECTORS, VectorSlotTile(8, 8, 8, 2), "registers"),
        (VECTORS, VectorSlotTile(4, 8, 8, 4), "too many warps"),
        (VECTORS, VectorSlotTile(3, 8, 8, 2), "not a power of two"),
        (FLOATS_KEY, MmaTile(1, 4, 4, 1, stages=3, deep=2), "no such parameter"),
        (FLOATS_KEY, MmaTile(1, 16, 4, 1, stages=3, blocks=3), "registers"),
    ],
)
def test_tiles_that_a_cuda_kernel_cannot_run_are_refused(key: TileKey, tile, why: str) -> None:
    assert why in CUDA_TILINGS[key.kernel].refusal(H100, key, tile)


@pytest.mark.parametrize(
    ("tile", "why"),
    [
        (GemmTile(128, 128, down=8, across=8), "threads"),
        (GemmTile(64, 64, sums=8, down=2), "either"),
        (GemmTile(256, 256, down=2, across=2), "shared memory"),
        (GemmTile(32, 64, down=4, across=2), "whole matrix"),
        (GemmTile(16, 16, sums=16), "subgroups"),
        (GemmTile(64, 64, sums=8, splits=2), "columns of a tile"),
        (GemmTile(64, 64, down=2, across=2, splits=16), "too many splits"),
        (GemmTile(64, 32, down=1, across=1, split=8), "shared memory"),
    ],
)
def test_tiles_that_the_gemm_cannot_run_are_refused(tile: GemmTile, why: str) -> None:
    key = TileKey("gemm", GGMLType.Q4_K, 4096, 4096, 512)
    assert why in TILINGS["gemm"].refusal(DEVICES[3], key, tile)


@pytest.mark.parametrize("subgroup", [8, 16, 32])
def test_a_gemv_has_a_thread_for_four_results_that_a_norm_reads(subgroup: int) -> None:
    """NORM_Y of matvec.slang stores results without a loop, those of two matrices have one."""
    refusal = TILINGS["matvec"].refusal
    features = Features(subgroup, shared_bytes=49152, narrow_matrix=True)
    key = TileKey("matvec", GGMLType.Q4_K, 4096, 4096, 8, stores_blocks=True)
    large = GemvTile(waves=8, split=1, rows=8, batch=8)
    assert ("four results" in refusal(features, key, large)) == (subgroup == 8)
    assert not refusal(features, key, replace(large, batch=4))
    for other in (replace(key, stores_blocks=False), replace(key, kernel="experts")):
        assert not refusal(features, other, large)
    assert not refusal(features, replace(key, weights=2), replace(large, rows=4))
    for n_x in (1, 2, 4, 8, 16):
        each = replace(key, n_x=n_x)
        assert not refusal(features, each, tiles.gemv(features, each))


def test_a_lowering_uses_the_tile_of_the_table(cache: Path) -> None:
    tile = FewTile(1, warps=1)
    write_table({KEY: Row(TILE, 1.0, 2.0), replace(KEY, kernel="gemm_few", n_x=8): Row(tile)})
    before, found = LoggingHost.features, backend()
    assert found.n_tuned == 2
    assert found.describe() == "logging host, tuned tiles"
    assert defines(found.features, 1).items() >= {"WAVES": 4, "KSPLIT": 2, "ROWS": 2}.items()
    assert defines(before, 1)["WAVES"] != 4
    # Five rows of x are in the class of up to eight.
    assert defines(before, 5)["WARPS"] == 2
    assert defines(found.features, 5)["WARPS"] == 1


def test_the_same_table_serves_vulkan() -> None:
    key = replace(KEY, kernel="matvec")
    tile = GemvTile(waves=4, split=2, rows=2, batch=1)
    features = replace(DEVICES[3], tuned=TunedTiles({key: tile}))
    found = defines(features, 1, SLANG_KERNELS, VulkanKernels())
    assert found.items() >= {"WAVES": 4, "KSPLIT": 2, "ROWS": 2}.items()


def test_batch_invariant_mode_has_no_tuned_tiles(cache: Path) -> None:
    write_table({KEY: Row(TILE)})
    assert not CudaLogger(LoggingHost(), batch_invariant=True).n_tuned


def test_tables_of_other_kernels_are_ignored_and_those_of_other_drivers_are_not(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_table({KEY: Row(TILE)}, driver="newer")
    assert backend().n_tuned == 1
    assert not caplog.records
    write_table({KEY: Row(TILE)}, sources="others")
    assert backend().n_tuned == backend().n_tuned == 0
    assert [r.getMessage().split(" is ")[1] for r in caplog.records] == [
        "from another zinc version and not used. Run `zinc tune` again."
    ]


def test_a_tile_that_the_kernel_cannot_run_is_ignored(cache: Path) -> None:
    write_table({KEY: Row(replace(TILE, deep=32)), replace(KEY, rows=64): Row(TILE)})
    assert backend().n_tuned == 1
    assert "WAVES" in defines(backend().features, 1)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("gemv", "gemx"),
        lambda text: text.replace('"waves": 4', '"waves": "4"'),
        lambda text: text.replace('"waves"', '"weaves"'),
        lambda text: text.replace('"version": 1', '"version": 2'),
        lambda text: text.replace("Q4_K", "Q4_X"),
        lambda text: "[]",
        lambda text: json.dumps({**json.loads(text), "products": 3}),
    ],
)
def test_a_damaged_table_is_one_warning_and_the_formulas(
    cache: Path, caplog: pytest.LogCaptureFixture, damage
) -> None:
    path = write_table({KEY: Row(TILE)})
    path.write_text(damage(path.read_text()))
    assert backend().n_tuned == backend().n_tuned == 0
    (record,) = caplog.records
    assert "is damaged and not used" in record.getMessage()


def test_a_table_keeps_what_was_refused_and_timed(cache: Path) -> None:
    rows = {KEY: Row(None, 1.5, 2.5, 7, [(replace(TILE, deep=2), "it was wrong")], {TILE: 1.25})}
    path = write_table(rows)
    assert TileTable.read(path, CUDA_TILINGS).rows == rows


def test_products_are_the_keys_that_steps_ask_for() -> None:
    found = products(CUDA_KERNELS, [model(CudaKernels(), 4)], H100)
    tiles = RecordedTiles()
    for tokens in (1, 2, 4):
        defines(replace(H100, tuned=tiles), tokens)
    assert {x.key for x in found} == set(tiles.recorded)
    assert all(x.default == tiles.recorded[x.key] for x in found)
    # Products of two formats are timed apart.
    assert all(len(x.launch.outputs) == 1 for x in found)
