"""The CUDA host on a driver that runs kernels on the CPU: graphs, copies, memory and profiles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_emulator.emulated import COMPILER
from cuda_emulator.fake_driver import FakeDriver, install
from ops.running import run

from zinc import LLM, SamplingParams
from zinc.backends import api
from zinc.backends.cuda import CudaBackend, CudaKernels, compiler, copies, driver, host, staging
from zinc.backends.cuda.host import CudaHost
from zinc.core.errors import DeviceError, MemoryLimitError
from zinc.engine.load.self_test import BLOCK_TOKENS, bind_case
from zinc.gpu import ahead
from zinc.gpu.dispatch import KernelVariant
from zinc.gpu.graph import DispatchGraph
from zinc.gpu.host import Download, Upload
from zinc.gpu.memory import MemoryKind
from zinc.plan.planner import make_plan
from zinc.testing.parity import case_tolerance, every_case

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> CudaHost:
    return install(monkeypatch, FakeDriver())


def test_a_recorded_step_agrees_with_the_reference(cuda: CudaHost) -> None:
    op, case = next(x for x in every_case() if x[0].name == "head_linear")
    got, want = run(CudaBackend(cuda), case), run(api.create("ref"), case)
    assert np.linalg.norm(got - want) / np.linalg.norm(want) <= case_tolerance(
        op, case, CudaKernels()
    )


@pytest.mark.parametrize(("capability", "early"), [((9, 0), True), ((8, 9), False)])
def test_kernels_start_early_if_the_card_can(
    cuda: CudaHost, capability: tuple[int, int], early: bool
) -> None:
    cuda.candidate = replace(cuda.candidate, capability=capability)
    _, case = next(x for x in every_case() if x[0].name == "linear_glu" and x[1].name == "mixed-1")
    run(CudaBackend(cuda), case)
    edges = cuda._cuda.edges
    assert len(edges) >= 4
    upload = 0  # the first node of the graph: kernels wait until its copy has ended
    assert all(starts_early is (early and before != upload) for before, _, starts_early in edges)
    last = max(later for _, later, _ in edges)
    assert {later for _, later, _ in edges} == set(range(1, last + 1)), "each waits for the upload"


def test_a_wait_ends_soon_after_a_step_that_is_shorter_than_expected(
    cuda: CudaHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeps: list[float] = []
    monkeypatch.setattr(host.time, "sleep", sleeps.append)
    cuda.wait(cuda.launch_graph([]), expected_s=1.0)  # as after a first step that was slow
    assert 0 < sum(sleeps) <= host.SLICE_S


def test_a_wait_may_poll_from_the_start(cuda: CudaHost, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeps: list[float] = []
    monkeypatch.setattr(host.time, "sleep", sleeps.append)
    cuda.wait(cuda.launch_graph([]), expected_s=1.0, sleeps=False)
    assert sleeps == []


def test_seconds_of_a_graph_are_those_of_the_device(cuda: CudaHost) -> None:
    assert cuda.seconds(DispatchGraph(()), repeats=3) == pytest.approx(1e-3)
    assert cuda._events == {}, "each submission was waited for"


def test_a_profile_has_the_seconds_of_each_launch(cuda: CudaHost) -> None:
    _, case = next(x for x in every_case() if x[0].name == "head_linear")
    backend = CudaBackend(cuda)
    plan = make_plan(case.graph, backend, max_tokens=case.max_tokens, max_outputs=case.max_tokens)
    step = case.step(BLOCK_TOKENS)
    seconds = bind_case(backend, case, plan, step).profile(step)
    assert len(seconds) == len(plan.launches)
    assert sum(seconds) == pytest.approx(1e-3 * len(seconds))


def test_large_writes_pass_through_staging_buffers(
    cuda: CudaHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "STAGING_BYTES", 1000)
    data = np.random.default_rng(1).integers(0, 256, 4321, np.uint8)
    first, second = cuda.buffer(8192), cuda.buffer(8192)
    cuda.clear(second)
    cuda.write(first, 100, data)
    cuda.copy(first, 100, second, 7, len(data))
    np.testing.assert_array_equal(cuda.read(second, 7, len(data)), data)
    assert not cuda.read(second, 0, 7).any()


def test_reads_pass_through_staging_buffers(
    cuda: CudaHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device never copies to pageable memory, also if a read is larger than a buffer."""
    monkeypatch.setattr(staging, "STAGING_BYTES", 1 << 16)
    data = np.random.default_rng(4).integers(0, 256, 200_001).astype(np.uint8)
    buffer = cuda.buffer(len(data))
    cuda.write(buffer, 0, data)
    copy, targets = cuda._cuda.cuMemcpyDtoHAsync, []

    def counted(target: int, *rest: Any) -> Any:
        targets.append(target)
        return copy(target, *rest)

    monkeypatch.setattr(cuda._cuda, "cuMemcpyDtoHAsync", counted)
    assert np.array_equal(cuda.read(buffer, 0, len(data)), data)
    assert np.array_equal(cuda.read(buffer, 7, 65_536), data[7:65_543])
    assert len(targets) == 5
    assert set(targets) <= set(cuda._cuda.host_memory)


def test_kernels_see_step_data_after_it_was_flushed(cuda: CudaHost) -> None:
    buffer = cuda.buffer(256, MemoryKind.STEP)
    assert buffer.bytes is not None
    buffer.bytes[:] = 5
    cuda.flush(buffer, 16, 32)
    np.testing.assert_array_equal(cuda.read(buffer, 16, 32), np.full(32, 5))


def test_a_recording_uploads_what_the_host_wrote_since_it_was_made(cuda: CudaHost) -> None:
    buffer = cuda.buffer(256, MemoryKind.STEP)
    cuda.clear(buffer)
    cuda.compile([])
    recording = cuda.record(DispatchGraph(()), upload=Upload(buffer, 48))
    assert buffer.bytes is not None
    for value in (5, 7):
        buffer.bytes[:] = value
        cuda.wait(recording.submit())
        np.testing.assert_array_equal(cuda.read(buffer, 0, 49), [value] * 48 + [0])


def test_short_results_are_copied_by_a_kernel_and_long_ones_by_the_copy_engine(
    cuda: CudaHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, sizes = cuda._cuda.cuGraphAddMemcpyNode, []

    def counted(*args: Any) -> Any:
        sizes.append(args[3].WidthInBytes)
        return add(*args)

    monkeypatch.setattr(cuda._cuda, "cuGraphAddMemcpyNode", counted)
    cuda.compile([])
    data = np.random.default_rng(2).integers(0, 256, copies.MAX_BYTES + 1024, np.uint8)
    source = cuda.buffer(len(data))
    cuda.write(source, 0, data)
    lengths = (8, copies.MAX_BYTES, copies.MAX_BYTES + 4)
    targets = [cuda.buffer(n, MemoryKind.DOWNLOAD) for n in lengths]
    pairs = zip(targets, lengths, strict=True)
    downloads = [Download(source, 256, target, n) for target, n in pairs]
    cuda.wait(cuda.record(DispatchGraph(()), downloads).submit())
    for target, n in zip(targets, lengths, strict=True):
        assert target.bytes is not None
        np.testing.assert_array_equal(target.bytes[:n], data[256 : 256 + n])
    assert sizes == [copies.MAX_BYTES + 4]


def test_memory_is_freed_with_the_last_reference_and_its_lack_is_an_error(cuda: CudaHost) -> None:
    before = cuda.available_bytes()
    buffer = cuda.buffer(1 << 20)
    assert cuda.available_bytes() < before
    del buffer
    assert cuda.available_bytes() == before
    with pytest.raises(
        MemoryLimitError,
        match=r"2\.15 GB in one piece were needed, and 1\.07 GB of 1\.07 GB are free",
    ):
        cuda.buffer(2 << 30)


def test_a_device_is_chosen_by_number_or_name(cuda: CudaHost) -> None:
    assert driver.choose("cuda:0").name == driver.choose("fake").name == "Fake card"
    assert cuda.describe() == "cuda:0 Fake card, CUDA 13.0"
    with pytest.raises(DeviceError, match="no CUDA device 'cuda:1'"):
        driver.choose("cuda:1")


def test_identities_differ_between_releases_of_the_driver(
    cuda: CudaHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "version"
    monkeypatch.setattr(driver, "MODULE_VERSION", file)
    identities = {CudaBackend(cuda).identity()}
    for release in ("580.95.05", "580.159.04"):
        file.write_text(f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {release}\nGCC 13\n")
        identities.add(CudaBackend(cuda).identity())
    assert len(identities) == 3


def test_no_step_compiles_a_kernel_after_a_model_was_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, FakeDriver(idle=True))
    compiled: list[KernelVariant] = []
    one = compiler.cubin
    monkeypatch.setattr(compiler, "cubin", lambda k, arch: compiled.append(k) or one(k, arch))
    few = SamplingParams(max_tokens=2, ignore_eos=True)
    model = Path(__file__).parents[1] / "data" / "fixtures" / "qwen3.gguf"
    with LLM(model, backend="cuda", context=1024) as llm:
        loaded = len(compiled)
        assert loaded
        for n in (1, 3, 40, 700):
            llm.generate([5 + i % 9 for i in range(n)], few)
        llm.generate([[5, 6], [7, 8, 9], [10]], few)
    assert compiled[loaded:] == []


def test_each_token_is_one_launch_of_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeDriver(idle=True)
    install(monkeypatch, fake)
    launched: list[Any] = []
    launch = fake.cuGraphLaunch
    monkeypatch.setattr(fake, "cuGraphLaunch", lambda *args: launched.append(args) or launch(*args))
    model = Path(__file__).parents[1] / "data" / "fixtures" / "qwen3.gguf"
    with LLM(model, backend="cuda", context=256, speculate="off") as llm:
        for n_tokens in (1, 33):
            launched.clear()
            llm.generate([5, 6, 7], SamplingParams(max_tokens=n_tokens, ignore_eos=True))
            assert len(launched) == n_tokens, "the first comes from the step of the prompt"


def test_a_plan_whose_kernels_are_in_the_cache_is_not_lowered_ahead(
    cuda: CudaHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[int] = []

    def kernels(*args: Any) -> list[KernelVariant]:
        listed.append(1)
        return ahead_kernels(*args)

    ahead_kernels = ahead.kernels
    monkeypatch.setattr(ahead, "kernels", kernels)
    _, case = next(x for x in every_case() if x[0].name == "head_linear")
    outputs = [run(CudaBackend(cuda), case) for _ in range(2)]
    assert np.array_equal(*outputs)
    assert len(listed) == 1
    cuda.candidate = replace(cuda.candidate, driver="CUDA 99.0")
    run(CudaBackend(cuda), case)
    assert len(listed) == 2
    tuned = CudaBackend(cuda)
    monkeypatch.setattr(CudaBackend, "n_tuned", 1)
    run(tuned, case)
    assert len(listed) == 3, "the mark does not know the tiles"
