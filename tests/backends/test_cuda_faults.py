"""Faults of the CUDA driver, imitated without a card: each gives one clear error, and no hang."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from cuda_emulator.fake_driver import FakeDriver, install

from zinc import LLM, DeviceMap, SamplingParams
from zinc.backends import cuda
from zinc.backends.cuda import driver
from zinc.backends.cuda.errors import LOST
from zinc.backends.cuda.staging import N_BUFFERS
from zinc.core.errors import DeviceError, MemoryLimitError
from zinc.gpu.errors import DeviceLostError
from zinc.gpu.memory import MemoryKind

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
MODEL = Path(__file__).parents[1] / "data" / "fixtures" / "qwen3.gguf"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    card = FakeDriver(idle=True)
    install(monkeypatch, card)
    return card


def tokens(llm: LLM, ids: list[int]) -> list[int]:
    return llm.generate(ids, GREEDY).token_ids


# -- a driver that does not start -----------------------------------------------------------------


def bindings(monkeypatch: pytest.MonkeyPatch, init: Callable[[int], tuple[object]]) -> None:
    """Replace the package of driver bindings by one whose `cuInit` is `init`."""
    module = SimpleNamespace(driver=SimpleNamespace(cuInit=init))
    monkeypatch.setitem(sys.modules, "cuda.bindings", module)


def test_a_machine_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(flags: int) -> tuple[object]:
        raise RuntimeError("libcuda.so.1: cannot open shared object file")

    bindings(monkeypatch, init)
    with pytest.raises(DeviceError, match=r"no NVIDIA driver was found: libcuda\.so\.1.*Install"):
        driver.driver.__wrapped__()


@pytest.mark.parametrize(
    ("status", "text"),
    [
        ("NO_DEVICE", "no CUDA device was found: the driver lists none"),
        ("SYSTEM_DRIVER_MISMATCH", "does not start: the driver was updated.*Restart the system"),
        ("STUB_LIBRARY", "does not start: the driver is a stand-in.*Install or update NVIDIA's"),
        ("NOT_PERMITTED", "does not start: cuInit returned CUDA_ERROR_NOT_PERMITTED"),
    ],
)
def test_a_driver_that_does_not_start(
    monkeypatch: pytest.MonkeyPatch, status: str, text: str
) -> None:
    bindings(monkeypatch, lambda flags: (SimpleNamespace(name=f"CUDA_ERROR_{status}"),))
    with pytest.raises(DeviceError, match=text):
        driver.driver.__wrapped__()


def test_a_gpu_that_another_process_uses_exclusively(monkeypatch: pytest.MonkeyPatch) -> None:
    card = FakeDriver(idle=True)
    with (
        card.failing("DEVICE_UNAVAILABLE", "cuDevicePrimaryCtxRetain"),
        pytest.raises(DeviceError, match=r"another process uses the GPU exclusively.*=DEFAULT"),
    ):
        install(monkeypatch, card)


# -- memory ---------------------------------------------------------------------------------------


def test_a_context_that_does_not_fit_names_one_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    card = FakeDriver(6 << 20, idle=True)
    install(monkeypatch, card)
    with pytest.raises(MemoryLimitError) as failed:
        LLM(MODEL, backend="cuda", context=4096, device_map=DeviceMap(gpu_layers=99))
    text = failed.value.in_options()
    assert "a context of 4,096 tokens does not fit in memory" in text
    fits = int(text.split("--context ")[1].split()[0])
    assert "--kv-dtype q8_0" in text
    assert "--gpu-layers" in text
    with LLM(MODEL, backend="cuda", context=fits, device_map=DeviceMap(gpu_layers=99)) as llm:
        card.n_bytes += 64 << 20  # scratch memory is larger than this model
        assert len(tokens(llm, [5, 6, 7])) == GREEDY.max_tokens


def test_weights_that_do_not_fit_may_go_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeDriver(1 << 20, idle=True))
    with pytest.raises(MemoryLimitError, match=r"does not fit in memory.*gpu_layers"):
        LLM(MODEL, backend="cuda", device_map=DeviceMap(gpu_layers=99))


def test_memory_that_another_process_takes_while_a_model_loads(fake: FakeDriver) -> None:
    with (
        fake.failing("OUT_OF_MEMORY", "cuMemAlloc"),
        pytest.raises(MemoryLimitError, match=r"the device has no memory left: .* GB are free"),
    ):
        LLM(MODEL, backend="cuda", context=128)
    with LLM(MODEL, backend="cuda", context=128) as llm:
        assert len(tokens(llm, [5, 6, 7])) == GREEDY.max_tokens


@pytest.mark.parametrize("call", ["cuMemAlloc", "cuGraphInstantiate", "cuGraphLaunch"])
def test_a_step_that_runs_out_of_memory_fails_alone(fake: FakeDriver, call: str) -> None:
    ids = list(range(3, 303))
    with LLM(MODEL, backend="cuda", context=512) as llm:
        few = tokens(llm, ids[:5])
    with LLM(MODEL, backend="cuda", context=512) as llm:
        with fake.failing("OUT_OF_MEMORY", call), pytest.raises(MemoryLimitError):
            tokens(llm, ids)
        assert tokens(llm, ids[:5]) == few
        assert len(tokens(llm, ids)) == GREEDY.max_tokens


def test_closing_a_model_returns_its_memory(fake: FakeDriver) -> None:
    for _ in range(2):
        with LLM(MODEL, backend="cuda", context=128) as llm:
            tokens(llm, [5, 6, 7])
        del llm
        gc.collect()
        assert not fake.memory
        assert len(fake.host_memory) <= N_BUFFERS, "only the staging buffers stay"


# -- a lost device --------------------------------------------------------------------------------


@pytest.mark.parametrize("status", sorted(LOST))
def test_every_error_after_which_a_process_cannot_go_on_is_a_lost_device(status: str) -> None:
    code = SimpleNamespace(name=f"CUDA_ERROR_{status}")
    with pytest.raises(DeviceLostError, match=f"the CUDA device was lost: .*{code.name}") as lost:
        driver.checked((code,), "cuEventSynchronize")
    assert "start zinc again" in str(lost.value)


def test_a_lost_device_gives_every_later_request_the_same_error(fake: FakeDriver) -> None:
    calls = ("cuEventSynchronize", "cuGraphLaunch", "cuMemcpyHtoDAsync", "cuCtxSetCurrent")
    llm = LLM(MODEL, backend="cuda", context=128)
    with llm, fake.failing("ILLEGAL_ADDRESS", *calls, after=40):
        for _ in range(3):
            with pytest.raises(DeviceLostError, match="the CUDA device was lost: a kernel failed"):
                tokens(llm, [5, 6, 7])


def test_memory_of_a_lost_device_is_given_up_without_an_error(fake: FakeDriver) -> None:
    llm = LLM(MODEL, backend="cuda", context=128)
    calls = ("cuEventSynchronize", "cuGraphLaunch", "cuMemFree", "cuCtxSetCurrent")
    with fake.failing("ECC_UNCORRECTABLE", *calls):
        with pytest.raises(DeviceLostError, match="the GPU has a memory fault"):
            tokens(llm, [5, 6, 7])
        llm.close()
        del llm
        gc.collect()


@pytest.mark.parametrize("kind", [MemoryKind.DEVICE, MemoryKind.DOWNLOAD, MemoryKind.STEP])
def test_memory_that_is_freed_leaves_the_current_context_alone(
    fake: FakeDriver, kind: MemoryKind
) -> None:
    """A finalizer may run while a thread works on another card."""
    buffer = cuda.host_of(0).buffer(4096, kind)
    fake.context = "of another card"
    blocks = len(fake.memory) + len(fake.host_memory)
    del buffer
    gc.collect()
    assert len(fake.memory) + len(fake.host_memory) < blocks
    assert fake.context == "of another card"
