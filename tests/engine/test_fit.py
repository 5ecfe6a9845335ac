"""The speed that memory allows: bytes of a token, and bandwidth that is measured once."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod
from pathlib import Path

import pytest

from zinc import DeviceMap
from zinc.backends import api
from zinc.backends.api import Backend
from zinc.backends.capabilities import Roofline
from zinc.cli.summary import active_parameters
from zinc.core.errors import DeviceError
from zinc.engine.load import bandwidth
from zinc.engine.load.bandwidth import Bandwidth, bandwidth_of
from zinc.engine.load.fit import FitReport, fit_report
from zinc.engine.load.options import LoadOptions
from zinc.engine.load.planning import plan_model
from zinc.ops.values import Weight
from zinc.quant.blocks import row_bytes

FIXTURES = Path(__file__).parent.parent / "data" / "fixtures"
DATE = "2026-01-31"


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file of the measurements, in a folder that does not exist yet."""
    found = tmp_path / "cache" / "bandwidth.json"
    monkeypatch.setattr(bandwidth, "file_path", lambda: found)
    return found


def report(family: str, rates: dict[str, float], device_map: DeviceMap | None = None) -> FitReport:
    """Return the report of a fixture on the backend `ref`; rates: bytes a second by backend."""

    def rate(backend: Backend) -> Bandwidth | None:
        found = rates.get(backend.name)
        return None if found is None else Bandwidth(found, DATE)

    options = LoadOptions(
        path=FIXTURES / f"{family}.gguf", backend="ref", device_map=device_map, kv_dtype="f16"
    )
    with plan_model(options) as planned:
        return fit_report(planned, 128, rate)


def matrix_bytes(family: str) -> tuple[int, int]:
    """Return the bytes of all matrices but the embedding, without experts and of experts."""
    with plan_model(LoadOptions(path=FIXTURES / f"{family}.gguf", backend="ref")) as planned:
        plan = planned.plans[0]
    reads = {
        x.name: x
        for launch in plan.launches
        if launch.kernel != "embed"
        for x in launch.inputs
        if isinstance(x, Weight)
    }
    sizes = {x.planes: 0 for x in reads.values()}
    for x in reads.values():
        rows = 1 if x.is_vector else x.planes * x.rows
        sizes[x.planes] += rows * row_bytes(x.type, x.cols)
    return sizes.pop(1), sum(sizes.values())


def test_decode_reads_every_matrix_once() -> None:
    (reads,) = report("qwen3", {}).reads
    dense, experts = matrix_bytes("qwen3")
    assert experts == 0
    assert dense < reads.token_bytes < 1.2 * dense  # the rest are activations


def test_decode_reads_the_experts_that_run() -> None:
    (reads,) = report("qwen3moe", {}).reads
    dense, experts = matrix_bytes("qwen3moe")
    with plan_model(LoadOptions(path=FIXTURES / "qwen3moe.gguf", backend="ref")) as planned:
        spec, file = planned.spec, planned.file
        assert spec.experts is not None
        share = spec.experts.top_k / spec.experts.count
        stacks = [t for name, t in file.tensors.items() if "_exps" in name]
        n_all = sum(t.n_elements for t in file.tensors.values())
        idle = (1 - share) * sum(prod(t.shape) for t in stacks)
        assert active_parameters(file, spec) == pytest.approx(n_all - idle)
    assert share < 1
    least = dense + share * experts
    assert least < reads.token_bytes < 1.2 * least


def test_speed_is_bandwidth_over_bytes() -> None:
    found = report("qwen3", {"ref": 1e9})
    assert found.decode_tokens_per_s == pytest.approx(1e9 / found.reads[0].token_bytes)
    assert report("qwen3", {}).decode_tokens_per_s is None


def test_devices_of_a_split_model_take_turns() -> None:
    found = report("qwen3", {"ref": 4e9, "cpu": 1e9}, DeviceMap(gpu_layers=2))
    device, host = found.reads
    assert (device.backend, host.backend) == ("ref", "cpu")
    seconds = device.token_bytes / 4e9 + host.token_bytes / 1e9
    assert found.decode_tokens_per_s == pytest.approx(1 / seconds)
    assert report("qwen3", {"ref": 4e9}, DeviceMap(gpu_layers=2)).decode_tokens_per_s is None


def counting(rate: float) -> tuple[Callable[[Backend], Roofline | None], list[str]]:
    """Return a measurement with a fixed result, and the list of the devices that it measured."""
    measured: list[str] = []

    def measure(backend: Backend) -> Roofline:
        measured.append(backend.describe())
        return Roofline(rate, 1e12)

    return measure, measured


def test_a_device_is_measured_once(path: Path) -> None:
    ref, null = api.create("ref"), api.create("null")
    measure, measured = counting(5e9)
    first = bandwidth_of(ref, measure)
    assert first is not None
    assert bandwidth_of(ref, measure) == first
    assert measured == [ref.describe()]
    bandwidth_of(null, measure)
    assert measured == [ref.describe(), null.describe()]
    bandwidth.store(ref, Roofline(7e9, 1e12))
    found = bandwidth_of(ref, measure)
    assert found is not None
    assert found.bytes_per_s == 7e9
    (key,) = [key for key in json.loads(path.read_text()) if key.endswith(ref.describe())]
    assert json.loads(path.read_text())[key]["measured"] == found.measured
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "text", ["", "[]", "null", '{"x": 1}', '{"x": {"bytes_per_s": -1, "measured": "x"}}', "\x00"]
)
def test_a_damaged_file_is_written_anew(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text(text)
    measure, measured = counting(5e9)
    for _ in range(2):
        assert bandwidth_of(api.create("ref"), measure) is not None
    assert len(measured) == 1


def test_a_folder_that_cannot_be_written_is_no_error(path: Path) -> None:
    path.parent.write_text("a file in place of the folder")
    found = bandwidth_of(api.create("ref"), counting(5e9)[0])
    assert found is not None
    assert found.bytes_per_s == 5e9


def test_a_device_that_cannot_be_measured_has_no_bandwidth() -> None:
    def broken(backend: Backend) -> Roofline | None:
        raise DeviceError("the device is lost")

    ref = api.create("ref")
    assert bandwidth_of(ref, broken) is None
    assert bandwidth_of(ref) is None  # the reference has no limits
