"""`zinc check` finds what is wrong with a machine, and says how to mend it. Faults are planted."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Sequence
from pathlib import Path

import pytest

from zinc.backends import api
from zinc.backends.api import Backend
from zinc.backends.capabilities import DeviceInfo, DeviceKind
from zinc.cli import check
from zinc.cli.checks import gpus, memory, model, processor, software, system
from zinc.cli.checks.finding import Finding, Section, Status
from zinc.cli.main import main
from zinc.core.errors import DeviceError
from zinc.engine.load import self_test
from zinc.engine.load.files import EMBEDDED_MODEL
from zinc.engine.load.options import LoadOptions

GPU = DeviceInfo("vulkan:0", "Card", DeviceKind.DISCRETE, "driver 1")


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
    section = processor.section(error, measure=False)
    assert found(section, Status.FAIL).fix == "install the package"


def test_more_threads_than_the_container_may_use_are_a_warning(tmp_path: Path) -> None:
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("150000 100000")
    section = processor.section(api.create("cpu", 4), measure=False, root=tmp_path)
    assert "--threads 1" in found(section, Status.WARN).fix


def test_a_slow_frequency_governor_is_a_warning(tmp_path: Path) -> None:
    folder = tmp_path / "sys/devices/system/cpu/cpu0/cpufreq"
    folder.mkdir(parents=True)
    (folder / "scaling_governor").write_text("powersave\n")
    (folder / "scaling_driver").write_text("acpi-cpufreq\n")
    section = processor.section(api.create("cpu", 1), measure=False, root=tmp_path)
    assert "cpupower" in found(section, Status.WARN).fix
    (folder / "scaling_driver").write_text("intel_pstate\n")
    section = processor.section(api.create("cpu", 1), measure=False, root=tmp_path)
    assert all(each.status is Status.OK for each in section.findings)


def test_wrong_results_of_a_device_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(self_test, "failure", lambda create: "linear is off by 5e-01")
    section = gpus.section(one_gpu(), False, tmp_path)
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
    section = gpus.section(gpus.Drivers([], refuse), False, root)
    assert "mesa-vulkan-drivers" in found(section, Status.FAIL).fix


def test_a_missing_loader_fails_where_there_is_a_gpu(tmp_path: Path) -> None:
    error = DeviceError("there is no Vulkan loader", "libvulkan.so.1 cannot be opened")
    drivers = gpus.Drivers([], refuse, {"vulkan": error})
    assert not [f for f in gpus.section(drivers, False, tmp_path).findings if f.fix]
    root = plant(tmp_path, dev__dri__renderD128="")
    assert "libvulkan1" in found(gpus.section(drivers, False, root), Status.FAIL).fix


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open every file")
def test_a_gpu_that_this_user_may_not_open_fails(tmp_path: Path) -> None:
    root = plant(tmp_path, dev__dri__renderD128="")
    (root / "dev/dri/renderD128").chmod(0)
    assert "usermod" in found(gpus.section(one_gpu(), False, root), Status.FAIL).fix


def test_a_feature_that_a_gpu_lacks_is_a_warning(tmp_path: Path) -> None:
    old = DeviceInfo("vulkan:0", "Old", DeviceKind.DISCRETE, "driver 1", ("Vulkan 1.3",))
    assert "Vulkan 1.3" in found(gpus.section(one_gpu(old), False, tmp_path), Status.WARN).text


def test_a_narrow_link_and_power_saving_are_warnings(tmp_path: Path) -> None:
    card = tmp_path / "sys/class/drm/card0/device"
    card.mkdir(parents=True)
    for name, text in (("current_link_width", "4"), ("max_link_width", "16"), ("vendor", gpus.AMD)):
        (card / name).write_text(text)
    policy = tmp_path / "sys/module/pcie_aspm/parameters"
    policy.mkdir(parents=True)
    (policy / "policy").write_text("default performance [powersave] powersupersave")
    warnings = [
        each.text
        for each in gpus.section(one_gpu(), False, tmp_path).findings
        if each.status is Status.WARN
    ]
    assert "x4 of x16" in warnings[0]
    assert "power saving" in warnings[1]


def test_a_cache_folder_that_cannot_be_written_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "XDG_CACHE_HOME" in found(software.section(tmp_path / "zinc"), Status.WARN).fix


def test_an_optional_part_that_is_missing_names_its_command(tmp_path: Path) -> None:
    section = software.section(tmp_path, lambda module: module != "uvicorn")
    assert "[server]" in found(section, Status.SKIP).fix


def test_a_damaged_model_fails(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(EMBEDDED_MODEL.read_bytes()[: 1 << 20])
    options = LoadOptions(path=broken, backend="cpu")
    assert "download" in found(model.section(options), Status.FAIL).fix


def test_a_model_that_does_not_fit_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from zinc.engine.load import memory as load_memory

    monkeypatch.setattr(load_memory, "available_memory_bytes", lambda backend=None: 10 << 20)
    options = LoadOptions(path=EMBEDDED_MODEL, backend="cpu")
    assert "smaller" in found(model.section(options), Status.FAIL).fix


def test_the_command_ends_with_a_verdict(capsys: pytest.CaptureFixture) -> None:
    assert main(["check", str(EMBEDDED_MODEL)]) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[-1] == "READY"
    assert [f"{i}. " in shown for i in range(1, 7)] == [True] * 6
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
