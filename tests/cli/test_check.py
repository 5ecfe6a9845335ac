"""`zinc check` finds what is wrong with a machine, and says how to mend it. Faults are planted."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from zinc.backends import api
from zinc.backends.api import Backend
from zinc.backends.capabilities import DeviceInfo, DeviceKind
from zinc.cli import check
from zinc.cli.checks import files, gpus, memory, model, processor, software, system
from zinc.cli.checks import self_test as checks
from zinc.cli.checks.finding import Finding, Section, Status
from zinc.cli.main import main
from zinc.core.errors import DeviceError
from zinc.engine.load import bandwidth, self_test
from zinc.engine.load.files import EMBEDDED_MODEL
from zinc.engine.load.options import LoadOptions
from zinc.hub.folders import Folders, folders
from zinc.ops import OPS
from zinc.ops.cases import Case
from zinc.ops.registry import Op
from zinc.testing import parity
from zinc.testing.parity import Check, every_case

GPU = DeviceInfo("vulkan:0", "Card", DeviceKind.DISCRETE, "driver 1")


@pytest.fixture(autouse=True)
def _quick_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run one case of the long self-test, instead of those of ten seconds."""
    monkeypatch.setattr(checks, "SECONDS", 0.0)


def plant(root: Path, **files: str) -> Path:
    """Write files under `root`; "__" in a name is a path separator."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def found(section: Section, status: Status) -> Finding:
    """Return the only finding with `status`. Fails if there are more, or if it has no remedy."""
    (finding,) = [each for each in section.findings if each.status is status]
    assert finding.fix
    return finding


def refuse(name: str, gpu: DeviceInfo) -> Backend:
    raise DeviceError("it cannot be opened")


def one_gpu(gpu: DeviceInfo = GPU, errors: dict[str, DeviceError] | None = None) -> gpus.Drivers:
    return gpus.Drivers([("vulkan", gpu)], lambda name, gpu: api.create("ref"), errors or {})


def test_a_container_with_little_memory_fails(tmp_path: Path) -> None:
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text(str(512 << 20))
    assert "536.9 MB" in found(system.section(tmp_path), Status.FAIL).text


def test_few_open_files_are_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda what: (256, 4096))
    assert found(system.section(tmp_path), Status.WARN).fix == "ulimit -n 4096"


def test_a_folder_for_temporary_files_that_cannot_be_written_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    assert "TMPDIR" in found(system.section(tmp_path), Status.FAIL).fix


def test_a_native_extension_that_is_missing_fails() -> None:
    error = DeviceError("the CPU backend is not built", "no module", "install the package")
    section = processor.section(error)
    assert found(section, Status.FAIL).fix == "install the package"


def test_more_threads_than_the_container_may_use_are_a_warning(tmp_path: Path) -> None:
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("150000 100000")
    section = processor.section(api.create("cpu", 4), root=tmp_path)
    assert "--threads 1" in found(section, Status.WARN).fix


def test_a_slow_frequency_governor_is_a_warning(tmp_path: Path) -> None:
    folder = tmp_path / "sys/devices/system/cpu/cpu0/cpufreq"
    folder.mkdir(parents=True)
    (folder / "scaling_governor").write_text("powersave\n")
    (folder / "scaling_driver").write_text("acpi-cpufreq\n")
    section = processor.section(api.create("cpu", 1), root=tmp_path)
    assert "cpupower" in found(section, Status.WARN).fix
    (folder / "scaling_driver").write_text("intel_pstate\n")
    section = processor.section(api.create("cpu", 1), root=tmp_path)
    assert all(each.status is Status.OK for each in section.findings)


def test_wrong_results_of_a_device_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(self_test, "failure", lambda create: "linear is off by 5e-01")
    section = gpus.section(one_gpu(), tmp_path)
    assert "linear is off" in found(section, Status.FAIL).text
    assert check.is_ready([section])  # models run on the CPU


@pytest.mark.parametrize(("available", "status"), [(100 << 20, "FAIL"), (1 << 30, "WARN")])
def test_little_available_memory_is_told(available: int, status: str, tmp_path: Path) -> None:
    assert found(memory.section(tmp_path, available), Status[status])


def test_huge_pages_that_are_off_are_a_warning(tmp_path: Path) -> None:
    folder = tmp_path / "sys/kernel/mm/transparent_hugepage"
    folder.mkdir(parents=True)
    (folder / "enabled").write_text("always madvise [never]\n")
    assert "madvise" in found(memory.section(tmp_path, 8 << 30), Status.WARN).fix


def test_a_gpu_without_a_driver_fails(tmp_path: Path) -> None:
    root = plant(tmp_path, dev__dri__renderD128="")
    section = gpus.section(gpus.Drivers([], refuse), root)
    assert "mesa-vulkan-drivers" in found(section, Status.FAIL).fix


def test_a_missing_loader_fails_where_there_is_a_gpu(tmp_path: Path) -> None:
    error = DeviceError("there is no Vulkan loader", "libvulkan.so.1 cannot be opened")
    drivers = gpus.Drivers([], refuse, {"vulkan": error})
    assert not [f for f in gpus.section(drivers, tmp_path).findings if f.fix]
    root = plant(tmp_path, dev__dri__renderD128="")
    assert "libvulkan1" in found(gpus.section(drivers, root), Status.FAIL).fix


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open every file")
def test_a_gpu_that_this_user_may_not_open_fails(tmp_path: Path) -> None:
    root = plant(tmp_path, dev__dri__renderD128="")
    (root / "dev/dri/renderD128").chmod(0)
    assert "usermod" in found(gpus.section(one_gpu(), root), Status.FAIL).fix


def test_a_feature_that_a_gpu_lacks_is_a_warning(tmp_path: Path) -> None:
    old = DeviceInfo("vulkan:0", "Old", DeviceKind.DISCRETE, "driver 1", ("Vulkan 1.3",))
    assert "Vulkan 1.3" in found(gpus.section(one_gpu(old), tmp_path), Status.WARN).text


def test_a_narrow_link_and_power_saving_are_warnings(tmp_path: Path) -> None:
    plant_card(tmp_path, "4", "default performance [powersave] powersupersave")
    section = gpus.section(one_gpu(), tmp_path)
    narrow, saving = [each for each in section.findings if each.status is Status.WARN]
    assert "0000:03:00.0 has PCIe x4 of x16" in narrow.text
    assert "PCIe power saving (powersave)" in saving.text
    assert "pcie_aspm" in saving.fix


def test_a_full_link_is_told(tmp_path: Path) -> None:
    plant_card(tmp_path, "16", "[default] performance powersave powersupersave")
    section = gpus.section(one_gpu(), tmp_path)
    assert {each.status for each in section.findings} == {Status.OK}
    assert "x16 of x16" in section.findings[-2].text
    assert section.findings[-1].text == "PCIe power saving is set to default"


def plant_card(root: Path, width: str, policy: str) -> None:
    """Plant an AMD card behind a PCIe link of 16 lanes, and a device that is no GPU."""
    for address, kind in (("0000:03:00.0", "0x030000"), ("0000:04:00.0", "0x020000")):
        folder = root / "sys/bus/pci/devices" / address
        folder.mkdir(parents=True)
        for name, text in (
            ("class", kind),
            ("vendor", gpus.AMD),
            ("current_link_width", width),
            ("max_link_width", "16"),
        ):
            (folder / name).write_text(f"{text}\n")
    plant(root, sys__module__pcie_aspm__parameters__policy=policy)


@pytest.mark.parametrize(
    ("driver", "fix"),
    [
        ("AMD open-source driver 2025.Q2.1 (LLPC)", "RADV"),
        ("Intel Corporation Intel driver 101.8826", "32.0.101.8860"),
        ("Intel Corporation Intel driver 101.8860", ""),
        ("radv Mesa 26.1.6", ""),
        ("NVIDIA 580.159.04", ""),
    ],
)
def test_drivers_with_known_faults_are_warnings(driver: str, fix: str, tmp_path: Path) -> None:
    section = gpus.section(one_gpu(replace(GPU, driver=driver)), tmp_path)
    if fix:
        assert fix in found(section, Status.WARN).fix
    else:
        assert {each.status for each in section.findings} == {Status.OK}


def test_a_backend_without_its_driver_is_a_warning_beside_one_that_works(tmp_path: Path) -> None:
    plant(tmp_path, dev__nvidia0="")
    error = DeviceError("there is no Vulkan loader", "libvulkan.so.1 cannot be opened")
    drivers = one_gpu(errors={"vulkan": error})
    section = gpus.section(drivers, tmp_path, lambda module: True)
    assert "libvulkan1" in found(section, Status.WARN).fix


def test_a_mac_without_a_driver_is_told_what_to_install(tmp_path: Path) -> None:
    error = DeviceError("the Vulkan loader is missing", "libvulkan.1.dylib was not found")
    drivers = gpus.Drivers([], refuse, {"vulkan": error})
    section = gpus.section(drivers, tmp_path, platform="darwin")
    assert found(section, Status.WARN).fix == "brew install vulkan-loader molten-vk"
    assert "libvulkan.1.dylib" in found(section, Status.WARN).text
    assert check.is_ready([section])  # models run on the CPU


def test_a_driver_of_a_mac_that_lacks_a_feature_is_named(tmp_path: Path) -> None:
    gpu = replace(GPU, name="Apple M1", driver="MoltenVK 1.2.9", missing=("bufferDeviceAddress",))
    section = gpus.section(one_gpu(gpu), tmp_path, platform="darwin")
    assert "bufferDeviceAddress" in found(section, Status.WARN).text
    assert "macOS 13" in found(section, Status.WARN).fix


def test_a_mac_with_a_driver_is_tested_and_told_that_none_was(tmp_path: Path) -> None:
    section = gpus.section(one_gpu(), tmp_path, platform="darwin")
    texts = [each.text for each in section.findings]
    assert any("not been run on a Mac" in text for text in texts)
    assert any("passes its self-test" in text for text in texts)


def test_a_card_of_nvidia_without_the_packages_of_cuda_names_their_command(tmp_path: Path) -> None:
    plant(tmp_path, dev__nvidia0="")
    section = gpus.section(one_gpu(), tmp_path, lambda module: False)
    assert found(section, Status.SKIP).fix == "pip install 'zinc-llm[cuda]'"


def test_every_device_of_every_backend_is_listed(tmp_path: Path) -> None:
    card = DeviceInfo("cuda:0", "Card", DeviceKind.DISCRETE, "CUDA 13.0")
    drivers = gpus.Drivers([("vulkan", GPU), ("cuda", card)], lambda name, gpu: api.create("ref"))
    section = gpus.section(drivers, tmp_path)
    assert [row["device"] for row in section.facts["devices"]] == ["vulkan:0", "cuda:0"]
    assert sum("passes its self-test" in each.text for each in section.findings) == 2


def test_the_self_test_begins_with_a_case_of_every_op() -> None:
    names = [op.name for op, _ in checks.interleaved()]
    with_cases = [op.name for op in OPS.values() if next(op.cases(), None) is not None]
    assert names[: len(with_cases)] == with_cases
    assert len(names) == len(every_case())


def test_a_kernel_that_is_wrong_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def off(op: Op, case: Case, backend: Backend) -> list[Check]:
        return [Check(f"case {case.name}", 0, op.name, "", 0, 0.5, 0.01)]

    monkeypatch.setattr(parity, "compare_case", off)
    section = gpus.section(one_gpu(), tmp_path)
    assert "is off by 5e-01" in found(section, Status.FAIL).text


def test_a_kernel_that_cannot_be_made_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(op: Op, case: Case, backend: Backend) -> list[Check]:
        raise DeviceError("there are no compiled kernels", "no compiler", "install slangtorch")

    monkeypatch.setattr(parity, "compare_case", broken)
    assert "slangtorch" in found(gpus.section(one_gpu(), tmp_path), Status.WARN).fix


def test_the_bandwidth_is_measured_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, float] = {}
    monkeypatch.setattr(
        bandwidth, "store", lambda backend, limits: kept.update({backend.name: limits.bytes_per_s})
    )
    section = processor.section(api.create("cpu", 1))
    assert f"reads {kept['cpu'] / 1e9:.1f} GB/s" in section.findings[-1].text


def test_a_cache_folder_that_cannot_be_written_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    fixes = [each.fix for each in files.section(tmp_path / "zinc", home(tmp_path)).findings]
    assert any("XDG_CACHE_HOME" in fix for fix in fixes)
    assert any("HF_HOME" in fix for fix in fixes)


def home(root: Path) -> Folders:
    """Return the folders of an empty home."""
    return folders({"HOME": str(root), "OLLAMA_MODELS": str(root / "ollama")})


def test_models_and_caches_are_told_with_their_sizes(tmp_path: Path) -> None:
    plant(tmp_path, zinc__spirv__kernel="x" * 2000)
    path = tmp_path / ".lmstudio/models/org/demo-GGUF/demo-Q4_K_M.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"GGUF" * 1000)
    texts = [each.text for each in files.section(tmp_path / "zinc", home(tmp_path)).findings]
    assert "holds 2.0 kB" in texts[0]
    assert "LM Studio: 1 model, 4.0 kB" in texts


def test_a_disk_that_is_nearly_full_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usage = SimpleNamespace(free=1 << 30)
    monkeypatch.setattr(files, "shutil", SimpleNamespace(disk_usage=lambda path: usage))
    section = files.section(tmp_path / "zinc", home(tmp_path))
    assert "zinc rm" in found(section, Status.WARN).fix


def test_an_optional_part_that_is_missing_names_its_command() -> None:
    section = software.section(lambda module: module != "uvicorn")
    assert "[server]" in found(section, Status.SKIP).fix


def test_a_damaged_model_fails(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(EMBEDDED_MODEL.read_bytes()[: 1 << 20])
    options = LoadOptions(path=broken, backend="cpu")
    assert "download" in found(model.section("demo", lambda: options), Status.FAIL).fix


def test_a_modelfile_with_a_bad_line_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "Modelfile").write_text(f"FROM {EMBEDDED_MODEL}\nPARAMETER top_k many\n")
    assert main(["check", str(tmp_path / "Modelfile")]) == 1
    shown = capsys.readouterr().out
    assert "FAIL  Modelfile, line 2: top_k is 'many': it must be a whole number" in shown


def test_a_model_that_does_not_fit_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from zinc.engine.load import memory as load_memory

    monkeypatch.setattr(load_memory, "available_memory_bytes", lambda backend=None: 10 << 20)
    options = LoadOptions(path=EMBEDDED_MODEL, backend="cpu")
    assert "smaller" in found(model.section("demo", lambda: options), Status.FAIL).fix
    options = replace(options, context=4000)
    assert "--context" in found(model.section("demo", lambda: options), Status.FAIL).fix


def test_the_command_ends_with_a_verdict(capsys: pytest.CaptureFixture) -> None:
    assert main(["check", str(EMBEDDED_MODEL)]) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[-1] == "READY"
    assert [f"{i}. " in shown for i in range(1, 8)] == [True] * 7
    assert main(["check", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ready"] is True
    assert [each["title"] for each in report["sections"]][:2] == ["System", "CPU"]


def test_the_command_fails_when_something_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def broken(*_: object) -> Sequence[object]:
        raise DeviceError("the CPU backend is not built", "no module", "reinstall zinc")

    monkeypatch.setattr(api, "create", broken)
    assert main(["check"]) == 1
    shown = capsys.readouterr().out
    assert "FAIL  the CPU backend is not built: no module" in shown
    assert "-> reinstall zinc" in shown
    assert shown.splitlines()[-1].startswith("NOT READY")
