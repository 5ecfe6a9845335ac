"""Weights that the CUDA backend packs on the device have the bytes that numpy packs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cuda_emulator.emulated import COMPILER
from cuda_emulator.fake_driver import FakeDriver, install

from zinc.backends.api import TensorData
from zinc.backends.cuda import CudaBackend, staging
from zinc.backends.cuda.host import CudaHost
from zinc.backends.cuda.upload import PACKED
from zinc.gpu import packing
from zinc.ops.values import Weight
from zinc.quant.blocks import BLOCKS, GGMLType

PLANES, ROWS, COLS = 2, 7, 512
QUICK = (GGMLType.Q4_K, GGMLType.Q6_K)


def uploaded(host: CudaHost, weight: Weight, raw: np.ndarray) -> np.ndarray:
    """Return the bytes on the device after `raw` was uploaded as `weight`."""
    backend = CudaBackend(host)
    backend.expect([weight])
    backend.upload(weight, TensorData(weight.type, weight.shape, raw))
    _, place = backend.weights[weight.name]
    return backend.host.read(place.buffer, place.offset, place.size)


@pytest.mark.skipif(COMPILER is None, reason="there is no g++")
@pytest.mark.parametrize(
    "type",
    [pytest.param(x, marks=[] if x in QUICK else pytest.mark.every) for x in PACKED],
    ids=lambda type: type.name,
)
def test_the_device_packs_blocks_as_numpy_does(
    monkeypatch: pytest.MonkeyPatch, type: GGMLType
) -> None:
    host = install(monkeypatch, FakeDriver())
    layout = BLOCKS[type]
    monkeypatch.setattr(staging, "STAGING_BYTES", 10 * layout.block_bytes + 3)
    n_bytes = PLANES * ROWS * COLS // layout.block_size * layout.block_bytes
    raw = np.random.default_rng(int(type)).integers(0, 256, n_bytes, np.uint8)
    got = uploaded(host, Weight("w", type, (PLANES, ROWS, COLS)), raw)
    np.testing.assert_array_equal(got, packing.pack(type, raw, PLANES, ROWS, COLS))


@pytest.mark.parametrize("cols", [96, 100])
def test_rows_of_floats_are_copied_in_the_order_that_a_weight_names(
    monkeypatch: pytest.MonkeyPatch, cols: int
) -> None:
    host = install(monkeypatch, FakeDriver(idle=True))
    monkeypatch.setattr(staging, "STAGING_BYTES", 1000)
    raw = np.random.default_rng(1).integers(0, 256, ROWS * cols * 2, np.uint8)
    order = (4, 0, 6, 1)
    got = uploaded(host, Weight("w", GGMLType.F16, (ROWS, cols), rows_from=order), raw)
    want = packing.pack(GGMLType.F16, raw, 1, len(order), cols, np.array(order))
    np.testing.assert_array_equal(got, want)


def test_threads_share_few_staging_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeDriver(idle=True)
    host = install(monkeypatch, fake)
    monkeypatch.setattr(staging, "STAGING_BYTES", 1000)
    data = [np.full(5000 + i, i, np.uint8) for i in range(40)]
    targets = [host.buffer(len(x)) for x in data]
    with ThreadPoolExecutor(12) as threads:
        list(threads.map(lambda x: host.write(x[0], 0, x[1]), zip(targets, data, strict=True)))
    for target, x in zip(targets, data, strict=True):
        np.testing.assert_array_equal(host.read(target, 0, len(x)), x)
    assert len(fake.host_memory) <= staging.N_BUFFERS
