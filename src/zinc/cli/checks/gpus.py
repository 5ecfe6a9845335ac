"""GPUs: nodes in /dev, drivers, features, the PCIe link, and a self-test of each."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from importlib.util import find_spec
from pathlib import Path

from zinc.backends.api import Backend
from zinc.backends.capabilities import DeviceInfo, DeviceKind
from zinc.cli.checks.drivers import known_fault
from zinc.cli.checks.finding import Finding, Section, fail, ok, read, reason, remedy, skip, warn
from zinc.cli.checks.self_test import device
from zinc.core.dataclass import dataclass
from zinc.core.errors import ZincError
from zinc.core.extras import CUDA, install_command

AMD = "0x1002"
_DISPLAY_CLASS = "0x03"  # PCI base class of GPUs
_LOADER = "sudo apt install libvulkan1 (Debian, Ubuntu), or your system's Vulkan loader"
_DRIVER = "sudo apt install mesa-vulkan-drivers for AMD and Intel, or NVIDIA's driver"
_MACOS_DRIVER = "brew install vulkan-loader molten-vk"
_MACOS_UPDATE = "use macOS 13 or later, and brew upgrade molten-vk"


@dataclass(frozen=True, slots=True)
class Drivers:
    """The GPUs that backends list. open: opens one by backend and device.

    errors: by backend, why its devices cannot be listed.
    """

    gpus: Sequence[tuple[str, DeviceInfo]]
    open: Callable[[str, DeviceInfo], Backend]
    errors: dict[str, ZincError] = field(default_factory=dict)


def this_machine(threads: int | None) -> Drivers:
    """Return the GPUs of this machine."""
    from zinc.backends import api

    gpus: list[tuple[str, DeviceInfo]] = []
    errors: dict[str, ZincError] = {}
    for name in api.discover():
        try:
            gpus += [(name, gpu) for gpu in api.devices(name)]
        except ZincError as error:
            errors[name] = error

    def open_gpu(name: str, gpu: DeviceInfo) -> Backend:
        return api.create(name, threads, {"device": gpu.selector})

    return Drivers(gpus, open_gpu, errors)


def section(
    drivers: Drivers,
    root: Path = Path("/"),
    has_module: Callable[[str], bool] = lambda m: find_spec(m) is not None,
    platform: str = sys.platform,
) -> Section:
    """Check the GPUs. has_module: returns whether a top-level module is installed."""
    is_macos = platform == "darwin"
    nodes = sorted((root / "dev/dri").glob("renderD*")) if (root / "dev/dri").is_dir() else []
    nodes += sorted((root / "dev").glob("nvidia[0-9]*")) if (root / "dev").is_dir() else []
    real = [gpu for _, gpu in drivers.gpus if gpu.kind is not DeviceKind.SOFTWARE]
    findings: list[Finding] = []
    if is_macos:
        findings += _macos(drivers, real)
    elif not nodes and not real:
        findings.append(skip("no GPU was found; models run on the CPU"))
    findings += _nodes(nodes)
    if nodes and not real:
        findings += _no_driver(drivers)
    elif nodes:
        findings += _other_errors(drivers)
    if any(node.name.startswith("nvidia") for node in nodes) and not has_module("cuda"):
        why = "the backend cuda needs cuda-bindings, which is not installed"
        findings.append(skip(why, install_command(CUDA)))
    for name, gpu in drivers.gpus:
        findings += _gpu(name, gpu, drivers, _MACOS_UPDATE if is_macos else "update its driver")
    findings += _links(root)
    rows = [
        {
            "backend": name,
            "device": gpu.selector,
            "name": gpu.name,
            "kind": str(gpu.kind),
            "driver": gpu.driver,
            "matrix_units": gpu.matrix_units,
            "missing": list(gpu.missing),
        }
        for name, gpu in drivers.gpus
    ]
    return Section("GPUs", tuple(findings), {"devices": rows})


def _macos(drivers: Drivers, gpus: Sequence[DeviceInfo]) -> Iterator[Finding]:
    """Report what macOS, which has no Vulkan of its own, lacks for its `gpus`."""
    if gpus:
        if not all(gpu.missing for gpu in gpus):
            yield skip("zinc has not been run on a Mac; the self-test below compares its kernels")
        return
    error = drivers.errors.get("vulkan")
    why = f": {reason(error)}" if error else ""
    yield warn(f"models run on the CPU, because no Vulkan driver was found{why}", _MACOS_DRIVER)


def _nodes(nodes: Sequence[Path]) -> Iterator[Finding]:
    for node in nodes:
        if not os.access(node, os.R_OK | os.W_OK):
            yield fail(
                f"{node} cannot be opened by this user",
                "sudo usermod -aG render,video $USER, then log in again",
            )


def _no_driver(drivers: Drivers) -> Iterator[Finding]:
    for name, error in drivers.errors.items():
        yield fail(f"{name}: {reason(error)}", remedy(error, _LOADER))
    if not drivers.errors:
        yield fail("there is a GPU but no Vulkan driver for it", _DRIVER)


def _other_errors(drivers: Drivers) -> Iterator[Finding]:
    """Report backends without devices, if another backend has some."""
    for name, error in drivers.errors.items():
        yield warn(f"{name}: {reason(error)}", remedy(error, _LOADER))


def _gpu(name: str, gpu: DeviceInfo, drivers: Drivers, update: str) -> Iterator[Finding]:
    matrices = ", matrix units" if gpu.matrix_units else ""
    title = f"{gpu.selector}, {gpu.name} ({gpu.kind}, {gpu.driver}{matrices})"
    if gpu.kind is DeviceKind.SOFTWARE:
        yield skip(f"{title}: emulates a GPU on the CPU; `--backend auto` never chooses it")
        return
    if gpu.missing:
        lacks = ", ".join(gpu.missing)
        yield warn(f"{title} cannot be used: it lacks {lacks}", update)
        return
    yield ok(title)
    if known := known_fault(gpu.driver):
        yield warn(f"{gpu.selector} has a driver with a known fault: {known.fault}", known.fix)
    yield from device(lambda: drivers.open(name, gpu), gpu.selector)


def _links(root: Path) -> Iterator[Finding]:
    """Compare the PCIe links of GPUs with what they can do, and look at power saving."""
    aspm = read(root / "sys/module/pcie_aspm/parameters/policy")
    policy = next((word[1:-1] for word in aspm.split() if word.startswith("[")), "")
    for folder in sorted((root / "sys/bus/pci/devices").glob("*")):
        if not read(folder / "class").startswith(_DISPLAY_CLASS):
            continue
        width, most = read(folder / "current_link_width"), read(folder / "max_link_width")
        if not (width.isdecimal() and most.isdecimal() and int(width)):
            continue  # no card behind a link: an integrated or a virtual GPU
        link = f"the GPU at {folder.name} has PCIe x{width} of x{most}"
        if int(width) < int(most):
            yield warn(
                f"{link}, so models load more slowly",
                "put the card into another slot, or set the slot's width in the firmware",
            )
        else:
            yield ok(link)
        if read(folder / "vendor") == AMD and policy.startswith("powers"):
            yield warn(
                f"PCIe power saving ({policy}) slows decode on {folder.name}; 10.8% was measured "
                "on one card",
                "echo performance | sudo tee /sys/module/pcie_aspm/parameters/policy",
            )
        elif policy:
            yield ok(f"PCIe power saving is set to {policy}")
