"""The device that backend="auto" chooses, on fake machines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from present import computing

from zinc import LLM, DeviceMap
from zinc.backends import api
from zinc.backends.api import Backend
from zinc.backends.capabilities import DeviceInfo, DeviceKind
from zinc.backends.ref import RefBackend, RefProgram
from zinc.core import marks
from zinc.core.errors import DeviceError, RequestError, UnsupportedError, ZincError
from zinc.engine.cache_layout import context_bytes, state_bytes_per_sequence
from zinc.engine.load import auto, self_test
from zinc.engine.load.auto import Machine, select
from zinc.engine.load.memory import RESERVE_SHARE, MemoryBudget
from zinc.engine.load.options import LoadOptions
from zinc.engine.load.planning import plan_model
from zinc.ops import OPS

QWEN = Path(__file__).parent.parent / "data" / "fixtures" / "qwen3.gguf"


def gpu(index: int, name: str, kind: DeviceKind, *missing: str) -> DeviceInfo:
    return DeviceInfo(f"vulkan:{index}", name, kind, "a driver", missing)


SOFTWARE = gpu(0, "llvmpipe", DeviceKind.SOFTWARE)
SMALL = gpu(1, "Small Card", DeviceKind.DISCRETE)
LARGE = gpu(2, "Large Card", DeviceKind.DISCRETE)
SHARED = gpu(3, "Shared Graphics", DeviceKind.INTEGRATED)
OLD = gpu(4, "Old Card", DeviceKind.DISCRETE, "shaderInt64")
WRONG = gpu(5, "Wrong Card", DeviceKind.DISCRETE)
BROKEN = gpu(6, "Broken Card", DeviceKind.DISCRETE)


class FakeDevice(RefBackend):
    """The reference, opened as a GPU."""

    def __init__(self, info: DeviceInfo | None) -> None:
        super().__init__()
        self.info = info


def choose(*gpus: DeviceInfo, wanted: str = "") -> tuple[DeviceInfo | None, str]:
    """Return the chosen GPU, None for the CPU, and the reason."""

    def open_gpu(name: str, info: DeviceInfo) -> Backend:
        assert name == "vulkan"
        assert info not in (SOFTWARE, OLD), "it must not be opened"
        if info is BROKEN:
            raise DeviceError("the device is lost", "its driver crashed")
        return FakeDevice(info)

    def failure(name: str, info: DeviceInfo) -> str:
        return "linear is off by 3e-01" if info is WRONG else ""

    machine = Machine(
        [("vulkan", info) for info in gpus], open_gpu, lambda: FakeDevice(None), failure
    )

    def fits(device: Backend) -> bool:
        assert isinstance(device, FakeDevice)
        return device.info is not SMALL

    found = select(machine, fits, wanted)
    assert isinstance(found.backend, FakeDevice)
    return found.backend.info, found.reason


def test_without_a_gpu_the_model_runs_on_the_cpu() -> None:
    assert choose() == (None, "the model runs on the CPU (no GPU was found)")


def test_a_discrete_gpu_that_holds_the_model_comes_first() -> None:
    chosen, reason = choose(SOFTWARE, SHARED, LARGE)
    assert chosen is LARGE
    assert reason == "the model runs on vulkan:2, Large Card (a discrete GPU that holds it)"


def test_of_discrete_gpus_the_one_with_matrix_units_comes_first() -> None:
    with_units = replace(LARGE, matrix_units=True)
    assert choose(LARGE, with_units)[0] is with_units
    assert choose(replace(SHARED, matrix_units=True), LARGE)[0] is LARGE


def test_the_best_gpu_is_opened_before_other_backends_list_theirs() -> None:
    best = replace(LARGE, matrix_units=True)

    def gpus() -> Iterator[tuple[str, DeviceInfo]]:
        yield "vulkan", SHARED
        yield "vulkan", best
        raise AssertionError("more are listed")

    machine = Machine(gpus(), lambda name, info: FakeDevice(info), RefBackend, lambda *_: "")
    found = select(machine)
    assert isinstance(found.backend, FakeDevice)
    assert found.backend.info is best


def test_cuda_comes_before_vulkan_on_the_same_card() -> None:
    names = api.discover()
    assert names.index("cuda") < names.index("vulkan")
    on_cuda, on_vulkan = (replace(LARGE, matrix_units=True, driver=x) for x in ("cuda", "vulkan"))
    assert choose(on_cuda, on_vulkan)[0] is on_cuda


def test_a_discrete_gpu_that_is_too_small_is_passed_over_and_named() -> None:
    chosen, reason = choose(SMALL)
    assert chosen is None
    assert reason == (
        "the model runs on the CPU (vulkan:1, Small Card, is too small for the model)"
    )
    assert choose(SMALL, LARGE)[0] is LARGE
    chosen, reason = choose(SMALL, SHARED)
    assert chosen is SHARED
    assert "(an integrated GPU that holds it; vulkan:1, Small Card, is too small" in reason


def test_a_software_gpu_is_never_chosen() -> None:
    chosen, reason = choose(SOFTWARE)
    assert chosen is None
    assert "vulkan:0, llvmpipe, computes on the CPU" in reason


def test_a_gpu_that_lacks_a_feature_is_not_opened() -> None:
    chosen, reason = choose(OLD, SHARED)
    assert chosen is SHARED
    assert "Old Card, lacks shaderInt64" in reason


@pytest.mark.parametrize(
    ("faulty", "says"),
    [
        (WRONG, "failed its self-test: linear is off by 3e-01"),
        (BROKEN, "cannot be used: the device is lost"),
    ],
)
def test_a_faulty_gpu_is_passed_over_and_reported(
    faulty: DeviceInfo, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "zinc.loading"):
        chosen, reason = choose(faulty, LARGE)
    assert chosen is LARGE
    assert says in reason
    assert (says in caplog.text) is (faulty is WRONG)


@pytest.mark.parametrize("wanted", ["vulkan:3", "3", "shared"])
def test_the_device_option_limits_the_choice(wanted: str) -> None:
    assert choose(LARGE, SHARED, wanted=wanted)[0] is SHARED


def test_the_device_option_may_name_the_cpu() -> None:
    assert choose(LARGE, wanted="cpu") == (None, "the model runs on the CPU")


def test_the_cpu_is_one_device() -> None:
    with pytest.raises(DeviceError, match="there is no device 'cpu:5': the cpu backend is one"):
        api.create("cpu", options={"device": "cpu:5"})


def test_a_device_option_that_names_nothing_is_an_error() -> None:
    with pytest.raises(DeviceError, match="Large Card"):
        choose(LARGE, wanted="radeon")
    with pytest.raises(DeviceError, match="no GPU was found"):
        choose(wanted="radeon")


# -- loading --------------------------------------------------------------------------------------


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Have this machine find one discrete GPU, the reference with a memory of its own."""

    def found(n_bytes: int) -> None:
        def this(threads: int | None, options: object) -> Machine:
            device = FakeDevice(LARGE)
            monkeypatch.setattr(device, "available_bytes", lambda: n_bytes, raising=False)
            return Machine(
                [("ref", LARGE)], lambda *_: device, lambda: api.create("cpu"), lambda *_: ""
            )

        monkeypatch.setattr(auto, "this_machine", this)

    return found


def test_auto_loads_the_model_on_the_gpu_that_holds_it(one_gpu: Callable[[int], None]) -> None:
    one_gpu(1 << 30)
    with LLM(QWEN, context=64) as llm:
        assert llm.backend.name == "ref"
        assert "Large Card (a discrete GPU that holds it)" in llm.choice.reason
        assert llm.choice.messages == [llm.choice.reason]


def test_auto_takes_the_cpu_if_the_gpu_is_too_small(one_gpu: Callable[[int], None]) -> None:
    one_gpu(1000)
    with plan_model(LoadOptions(QWEN, context=64)) as planned:
        assert planned.backend.name == "cpu"
        assert "Large Card, is too small for the model" in planned.choice.reason


@pytest.mark.parametrize(
    ("name", "drafts"),
    [
        ("qwen35", {"speculate": "suffix"}),
        ("glm4moe", {"speculate": "mtp"}),
        ("qwen3", {"speculate": "draft", "draft": QWEN}),
    ],
)
def test_auto_takes_a_gpu_with_memory_for_the_drafts_that_are_asked_for(
    name: str, drafts: dict[str, Any], one_gpu: Callable[[int], None]
) -> None:
    """Larger recurrent states, a NextN block or a draft model."""

    def chosen(n_bytes: int, **changes: Any) -> str:
        one_gpu(n_bytes)
        with plan_model(LoadOptions(QWEN.with_stem(name), context=64, **changes)) as planned:
            return planned.backend.name

    def least(low: int = 0, **changes: Any) -> int:
        high = 64 << 20
        while high - low > 1024:
            middle = (low + high) // 2
            low, high = (low, middle) if chosen(middle, **changes) == "ref" else (middle, high)
        return high

    plain = least(speculate="off")
    drafting = least(plain - 1024, **drafts)
    assert chosen(plain, speculate="auto") == "ref", "it can do without drafts"
    assert chosen(plain - 1024, speculate="auto") != "ref"
    with plan_model(LoadOptions(QWEN.with_stem(name), backend="ref", context=64)) as planned:
        (alone,) = planned.budgets()
    options = LoadOptions(QWEN.with_stem(name), backend="ref", context=64, **drafts)
    with plan_model(options) as planned:
        (both,) = planned.budgets()

    def n_bytes(budget: MemoryBudget) -> int:
        keys = context_bytes(budget.states, 64, "f16", options.step_tokens)
        states = state_bytes_per_sequence(budget.states)
        return budget.taken + keys + states + budget.draft_bytes(64)

    more = (n_bytes(both) - n_bytes(alone)) / (1 - RESERVE_SHARE)
    assert more > 2048
    assert drafting - plain == pytest.approx(more, abs=2048)


def test_a_device_map_is_followed_on_the_gpu_that_auto_finds(
    one_gpu: Callable[[int], None],
) -> None:
    one_gpu(1000)
    options = LoadOptions(QWEN, context=64, device_map=DeviceMap(gpu_layers=2))
    with plan_model(options) as planned:
        assert planned.backend.name == "ref+cpu"
        assert planned.choice.reason.endswith("Large Card (a discrete GPU)")
        assert len(planned.choice.messages) == 2


def test_a_named_backend_overrides_auto(one_gpu: Callable[[int], None]) -> None:
    one_gpu(1 << 30)
    with LLM(QWEN, backend="cpu", context=64) as llm:
        assert llm.backend.name == "cpu"
        assert llm.choice.messages == []


def test_without_a_gpu_a_device_map_is_noted_and_with_the_cpu_named_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auto, "find_gpus", list)
    with LLM(QWEN, device_map=DeviceMap(gpu_layers=99), context=64) as llm:
        assert llm.backend.name == "cpu"
        assert "layers cannot be put on a device" in llm.choice.reason
    with pytest.raises(RequestError, match="the model runs on the CPU"):
        LLM(QWEN, backend="cpu", device_map=DeviceMap(gpu_layers=1))


def test_a_machine_without_gpu_nodes_imports_no_gpu_backend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def discover() -> Sequence[str]:
        raise AssertionError("backends are imported")

    monkeypatch.setattr(auto, "_may_have_gpu", lambda: False)
    monkeypatch.setattr(api, "discover", discover)
    assert list(auto.find_gpus()) == []


def test_devices_that_cannot_be_listed_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def devices(name: str) -> list[DeviceInfo]:
        if name == "vulkan":
            raise DeviceError("the Vulkan loader is missing", "")
        return []

    monkeypatch.setattr(auto, "_may_have_gpu", lambda: True)
    monkeypatch.setattr(api, "devices", devices)
    assert list(auto.find_gpus()) == []


# -- opening early --------------------------------------------------------------------------------


class Opened:
    """The devices that a thread opens; `wait` returns after it has ended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *gpus: DeviceInfo) -> None:
        self.devices: list[tuple[str, str]] = []
        self.error: ZincError | None = None
        self._threads: list[ThreadPoolExecutor] = []

        def create(name: str, threads: int | None, options: Mapping[str, str]) -> Backend:
            self.devices.append((name, options.get("device", "")))
            if self.error is not None:
                raise self.error
            return FakeDevice(None)

        def pool(*args: Any) -> ThreadPoolExecutor:
            self._threads.append(ThreadPoolExecutor(*args))
            return self._threads[-1]

        monkeypatch.setattr(auto, "_may_have_gpu", lambda: True)
        monkeypatch.setattr(auto, "find_gpus", lambda: (("vulkan", info) for info in gpus))
        monkeypatch.setattr(api, "create", create)
        monkeypatch.setattr(auto, "ThreadPoolExecutor", pool)

    def wait(self) -> list[tuple[str, str]]:
        for thread in self._threads:
            thread.shutdown(wait=True)
        return self.devices


def test_auto_opens_the_gpu_that_it_will_try_first(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened(monkeypatch, SOFTWARE, SHARED, OLD, LARGE)
    early = auto.EarlyOpening()
    early.start("auto", {})
    early.start("auto", {})  # for a second model
    assert opened.wait() == [("vulkan", "vulkan:2")]


@pytest.mark.parametrize(
    ("backend", "device", "wanted"),
    [
        ("auto", "shared", [("vulkan", "vulkan:3")]),
        ("vulkan", "vulkan:3", [("vulkan", "vulkan:3")]),
        ("vulkan", "", [("vulkan", "")]),
        ("vulkan", "vulkan:2,vulkan:3", []),
        ("auto", "radeon", []),
        ("auto", "cpu", []),
        ("cpu", "", []),
        ("cpu", "cpu", []),
        ("typo", "", []),
    ],
)
def test_a_named_device_is_opened_if_it_is_one_gpu(
    monkeypatch: pytest.MonkeyPatch, backend: str, device: str, wanted: list[tuple[str, str]]
) -> None:
    opened = Opened(monkeypatch, LARGE, SHARED)
    auto.EarlyOpening().start(backend, {"device": device})
    assert opened.wait() == wanted


def test_an_error_is_left_to_the_caller_that_needs_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = Opened(monkeypatch, LARGE)
    opened.error = DeviceError("the device is lost", "its driver crashed")
    auto.EarlyOpening().start("auto", {})
    assert opened.wait() == [("vulkan", "vulkan:2")]


@pytest.mark.parametrize(("may_have_gpu", "device"), [(False, ""), (True, "cpu")])
def test_no_thread_is_started_without_a_gpu_or_for_the_cpu(
    monkeypatch: pytest.MonkeyPatch, may_have_gpu: bool, device: str
) -> None:
    opened = Opened(monkeypatch, LARGE)
    monkeypatch.setattr(auto, "_may_have_gpu", lambda: may_have_gpu)
    auto.EarlyOpening().start("auto", {"device": device})
    assert (opened.wait(), opened._threads) == ([], [])


# -- the self-test --------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", ["", "linear is off by 3e-01"])
def test_a_passed_self_test_is_not_run_again_with_the_same_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failure: str
) -> None:
    runs: list[int] = []
    code = ["first"]
    monkeypatch.setattr(marks, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(api, "create", lambda *_: FakeDevice(None))
    monkeypatch.setattr(FakeDevice, "identity", lambda self: code[0])
    monkeypatch.setattr(self_test, "failure", lambda create: runs.append(1) or failure)
    in_a_new_process = auto._tested_once.__wrapped__
    assert [in_a_new_process("vulkan", LARGE) for _ in range(2)] == [failure] * 2
    assert len(runs) == (2 if failure else 1)
    code[0] = "second"
    assert in_a_new_process("vulkan", LARGE) == failure
    assert len(runs) == (3 if failure else 2)


def test_a_device_that_cannot_be_opened_fails_its_self_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def create(*_: object) -> Backend:
        raise DeviceError("the device is lost", "its driver crashed")

    monkeypatch.setattr(api, "create", create)
    assert "the device is lost" in auto._tested_once.__wrapped__("vulkan", LARGE)


@pytest.mark.parametrize("name", ["ref", *computing()])
def test_working_backends_pass_the_self_test(name: str) -> None:
    assert self_test.failure(lambda: api.create(name)) == ""


class OffProgram(RefProgram):
    """A program with every result multiplied by `factor`."""

    factor = 1.0

    def step(self, step: object) -> np.ndarray:
        return super().step(step) * np.float32(self.factor)  # type: ignore[arg-type]


@pytest.mark.parametrize("factor", [1.1, float("nan")])
def test_wrong_results_fail_the_self_test(factor: float) -> None:
    class Off(RefBackend):
        def prepare(self, plan, cache):  # type: ignore[no-untyped-def]
            program = OffProgram(plan, self._weights, cache)
            program.factor = factor
            return program

    assert " is off by " in self_test.failure(Off)


def test_an_error_of_the_device_fails_the_self_test() -> None:
    def broken() -> Backend:
        raise UnsupportedError("a kernel cannot be compiled", "there is no compiler")

    assert "there is no compiler" in self_test.failure(broken)


def test_every_case_named_for_the_self_test_is_run() -> None:
    found = sorted((name, case.name) for name, case in self_test.cases())
    assert found == sorted((op.name, each) for op in OPS.values() for each in op.self_test)
    assert {name for name, _ in found} == {"attention", "linear", "rms_norm"}
