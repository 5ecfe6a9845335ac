"""Tiles of products, without a device: they cover every row and stay within Vulkan's limits."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import pytest
from ops.running import run
from present import computing

from zinc.backends import api
from zinc.backends.plans import Ref
from zinc.backends.vulkan.physical import MAX_PUSH_BYTES
from zinc.gpu import tiles
from zinc.gpu.addresses import DeviceWeight
from zinc.gpu.arguments.constants import ProductKind
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch
from zinc.gpu.features import MAX_THREADS, Features, MatrixShape
from zinc.gpu.lower.linear import Product
from zinc.gpu.lower.weights import distance
from zinc.gpu.memory import CounterAllocator, ScratchAllocator
from zinc.gpu.rows import row_bytes
from zinc.ops.cases import Case
from zinc.ops.values import Dim, RowFormat
from zinc.quant.blocks import GGMLType
from zinc.testing.parity import plan_case

DEVICES = {
    "lavapipe": Features(8, shared_bytes=32768),
    "nvidia": Features(
        32, cooperative_matrix=True, narrow_matrix=True, shared_bytes=49152, compute_units=132
    ),
    "matrices": Features(32, cooperative_matrix=True, shared_bytes=49152, compute_units=96),
    "xe2": Features(
        16,
        cooperative_matrix=True,
        matrix=MatrixShape(8, 16, 16),
        registers=128,
        shared_bytes=49152,
        compute_units=20,
    ),
    "xe-hpg": Features(
        16,
        cooperative_matrix=True,
        matrix=MatrixShape(8, 8, 16),
        registers=64,
        shared_bytes=49152,
        compute_units=32,
    ),
    "amd": Features(64, shared_bytes=65536, compute_units=64),
}
SHAPES = [(4096, 4096), (12288, 4096), (1024, 12288), (17, 64), (256, 2048)]
SHAPES += [(151936, 4096), (262144, 5376), (600000, 64)]  # vocabularies


class FixedAddresses:
    """A stand-in for `Addresses` in a lowering whose dispatches are not run."""

    step = 4096

    def __init__(self, features: Features) -> None:
        self.features = features
        self.scratch = ScratchAllocator(lambda n_bytes: 1 << 40)
        self.counters = CounterAllocator(lambda n_bytes: 1 << 41)

    def ref(self, ref: Ref) -> int:
        return 1 << 20 | ref.offset


def lowered(device: str, rows: int, cols: int, n_x: int, **product: object) -> Dispatch:
    x = Ref(0, Dim.TOKENS, cols, RowFormat.Q8_32, 0, row_bytes(RowFormat.Q8_32, cols))
    w = DeviceWeight(1 << 32, GGMLType.Q4_K, 1, rows, cols)
    made = Product(x, w, (1 << 30, 4 * rows), **product)
    return made.dispatch(FixedAddresses(DEVICES[device]), Bucket(n_x, n_x, 1, 256))


def every() -> Iterator[tuple[str, int, int, int]]:
    for device in DEVICES:
        for rows, cols in SHAPES:
            for n_x in (1, 2, 5, 8, 9, 32, 40, 64, 512):
                yield device, rows, cols, n_x


@pytest.mark.parametrize("store", [RowFormat.F32, RowFormat.Q8_32])
def test_tiles_cover_every_row_within_the_limits(store: RowFormat) -> None:
    for device, rows, cols, n_x in every():
        if store is RowFormat.Q8_32 and rows % 32:
            continue
        few = tiles.uses_gemv(DEVICES[device], True, n_x)
        joins = few or tiles.takes_few_rows(DEVICES[device], True, n_x)
        kind = ProductKind.GLU if joins else ProductKind.LINEAR
        dispatch = lowered(device, rows, cols, n_x, kind=kind, y_format=store)
        macros = dict(dispatch.kernel.defines)
        subgroup = DEVICES[device].subgroup
        if few:
            tile = macros["ROWS"] * macros["WAVES"] // macros["KSPLIT"]
            assert macros["WAVES"] % macros["KSPLIT"] == 0
            threads = macros["WAVES"] * subgroup
        else:
            tile = macros["ROWS"] // (2 if kind is ProductKind.GLU else 1)
            shared = 144 * (macros["ROWS"] + macros["BATCH"])
            if macros["MATRICES"]:
                threads = macros["DOWN"] * macros["ACROSS"] * macros["KSPLIT"] * subgroup
                m, n, _ = DEVICES[device].matrix
                width = min(macros["BATCH"] // macros["ACROSS"], n)
                assert width == n or (width == 8 and DEVICES[device].narrow_matrix)
                assert macros["ROWS"] % (m * macros["DOWN"]) == 0
                assert macros["BATCH"] % (width * macros["ACROSS"]) == 0
                # At the end each subgroup stages a column of sum matrices in the same memory.
                assert macros["ACROSS"] * macros["ROWS"] * width * 4 <= shared
                shared *= macros["KSPLIT"]
            else:
                threads = macros["ROWS"] // 4 * (macros["BATCH"] // macros["SUMS"])
            assert shared <= DEVICES[device].shared_bytes
        assert tile * dispatch.groups[0] >= rows > tile * (dispatch.groups[0] - 1)
        splits = macros.get("SPLITS", 1)
        assert macros["BATCH"] * dispatch.groups[1] // splits >= n_x
        assert 64 * splits * macros.get("KSPLIT", 1) <= max(cols, 512)
        assert threads <= MAX_THREADS
        assert max(dispatch.groups) <= Features(32).max_groups
        assert dispatch.arguments.layout().end <= MAX_PUSH_BYTES
        if store is RowFormat.Q8_32:
            assert tile % 32 == 0


def test_the_distance_to_a_weight_at_a_lower_address_wraps_at_two_to_the_64() -> None:
    first = DeviceWeight(1 << 40, GGMLType.Q4_K, 1, 32, 256)
    second = DeviceWeight((1 << 40) - 4096, GGMLType.Q4_K, 1, 32, 256)
    (far,) = struct.unpack("<Q", struct.pack("<Q", distance(first, second)))
    assert (first.address + far) % (1 << 64) == second.address


@pytest.mark.skipif("vulkan" not in computing(), reason="no Vulkan device here")
@pytest.mark.parametrize("n_tokens", [1, 2])
def test_more_rows_than_workgroups_in_one_direction_are_covered(n_tokens: int) -> None:
    case = Case("vocabulary", n_tokens)
    case.returns(case.graph.linear(case.rows(32), case.matrix(4 * Features(32).max_groups + 5, 32)))
    want = run(api.create("ref"), case)
    np.testing.assert_allclose(run(api.create("vulkan"), case), want, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif("vulkan" not in computing(), reason="no Vulkan device here")
@pytest.mark.parametrize("n_tokens", [1, 2])
def test_a_norm_between_products_may_have_its_own_dispatch(n_tokens, monkeypatch):
    """NVIDIA GPUs and CPUs put it into the products, other GPUs do not."""
    monkeypatch.setattr(tiles, "stores_unscaled", lambda _: False)
    case = Case("norm", n_tokens)
    graph = case.graph
    residual, x = case.rows(128), case.rows(256)
    made = graph.linear(x, case.matrix(128, 256, GGMLType.Q4_K, 256**-0.5))
    made = graph.add(made, residual)
    x = graph.rms_norm(made, case.vector(128), eps=1e-5)
    y = graph.linear(x, case.matrix(64, 128, GGMLType.Q8_0, 128**-0.5))
    case.returns(graph.concat_heads(y, made, n_heads=1))
    backend = api.create("vulkan")
    fused = {x.kernel for x in plan_case(case, backend).launches}
    assert "linear_norm_linear" in fused
    want = run(api.create("ref"), case)
    got = run(backend, case)
    assert np.linalg.norm(got - want) < 0.02 * np.linalg.norm(want)
